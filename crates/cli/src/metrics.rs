//! `mount --metrics`: the figures as Prometheus reads them, over HTTP on a loopback address.
//!
//! # Model
//!
//! One thread answers one request after another, each within [`PATIENCE`]; it takes no part in serving the mount. There is no
//! authentication, so only loopback addresses are served.

use crate::figures::{Asked, Figure, Kind};
use crate::spawn;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest that a request may take to come, and that its answer may take to go.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest request, in bytes.
const MAX_REQUEST: usize = 8192;

/// Takes the address, so that a bad one is known before anything is mounted.
///
/// # Errors
/// The line to show.
pub(crate) fn listen(text: &str) -> Result<TcpListener, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("--metrics {text} is no address: give one such as 127.0.0.1:9101"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "--metrics {text}: the figures have no password, so the address must be of the loopback \
             interface, such as 127.0.0.1:{}",
            address.port()
        ));
    }
    TcpListener::bind(address).map_err(|error| format!("--metrics {text}: {error}"))
}

/// Answers from now on.
///
/// # Errors
/// The line to show.
pub(crate) fn start(listener: TcpListener, asked: &Arc<Asked>) -> Result<(), String> {
    let asked = Arc::clone(asked);
    let serve = move || loop {
        match listener.accept() {
            // A client that has gone needs no answer.
            Ok((stream, _)) => drop(serve(stream, &asked)),
            // Out of descriptors, most likely.
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    };
    let started = spawn::<()>("metrics", serve);
    started.map(drop).map_err(|why| format!("--metrics: {why}"))
}

fn serve(mut stream: TcpStream, asked: &Asked) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut stream)?;
    let (status, kind, body) = respond(&request, || {
        let now = asked.snapshot()?;
        Ok(now.figures().map(metric).collect())
    });
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads up to the empty line that ends the head of a request.
fn read_request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > MAX_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => request.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(request)
}

/// The status, the type and the body of an answer.
fn respond(
    request: &[u8],
    figures: impl FnOnce() -> Result<String, String>,
) -> (&'static str, &'static str, String) {
    const TEXT: &str = "text/plain; charset=utf-8";
    let line = request
        .split(|&byte| byte == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    match (method, path.split('?').next().unwrap_or_default()) {
        ("GET", "/metrics") => match figures() {
            Ok(body) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", body),
            Err(why) => ("500 Internal Server Error", TEXT, format!("{why}\n")),
        },
        ("GET", _) => (
            "404 Not Found",
            TEXT,
            "the figures are at /metrics\n".to_owned(),
        ),
        _ => (
            "405 Method Not Allowed",
            TEXT,
            "only GET is answered\n".to_owned(),
        ),
    }
}

/// A figure in the text format of Prometheus.
fn metric(figure: Figure) -> String {
    let Figure { help, value, .. } = figure;
    let (kind, end) = match figure.kind {
        Kind::Gauge => ("gauge", ""),
        Kind::Counter => ("counter", "_total"),
    };
    let name = format!("foliocache_{}{end}", figure.name);
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_listened_at() {
        for text in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            if let Err(line) = listen(text) {
                assert!(text.starts_with('['), "{line}");
            }
        }
        for (text, says) in [
            ("0.0.0.0:0", "loopback"),
            ("192.0.2.1:9101", "such as 127.0.0.1:9101"),
            ("[::]:0", "loopback"),
            ("9101", "is no address"),
            ("localhost:9101", "is no address"),
        ] {
            let line = listen(text).unwrap_err();
            assert!(line.contains(says), "{text}: {line}");
        }
    }

    #[test]
    fn requests_for_anything_else_are_refused() {
        let answer = |request: &str| respond(request.as_bytes(), || Ok("x 1\n".to_owned()));
        assert_eq!(answer("GET /metrics HTTP/1.1\r\n\r\n").2, "x 1\n");
        assert_eq!(answer("GET /metrics?a=b HTTP/1.1\r\n\r\n").0, "200 OK");
        assert!(answer("GET / HTTP/1.1\r\n\r\n").0.starts_with("404"));
        assert!(
            answer("POST /metrics HTTP/1.1\r\n\r\n")
                .0
                .starts_with("405")
        );
        assert!(answer("\r\n\r\n").0.starts_with("405"));
    }
}

//! Small files, one operation after another, to count the system calls of each: by the cache, and by the kernel's calls.
//!
//! ```text
//! strace -f -c small_calls OPERATION cache|kernel DIRECTORY FILES
//! ```
//!
//! DIRECTORY is empty. The difference between two runs with different numbers of files is what a file takes. Operations:
//!
//! | | |
//! |---|---|
//! | `create` | makes, writes and closes the files |
//! | `setup` | only what the next ones begin with: files of others, which were opened, read and asked about |
//! | `open` | opens, reads and closes them again, at once |
//! | `later` | the same after more than a second |
//! | `change` | only the changes by others that the next ones begin with |
//! | `open-changed` | opens, reads and closes them after changes by others |
//! | `metadata-changed` | asks about them after changes by others |

use foliocache::{Cache, Directory};
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

const BYTES: usize = 6 << 10;

type Done = Result<(), Box<dyn Error>>;

/// The side that is counted.
enum Side {
    Cache(Directory),
    Kernel(PathBuf),
}

impl Side {
    fn create(&self, name: &str, bytes: &[u8]) -> Done {
        match self {
            Self::Cache(directory) => directory.create(name)?.write_all_at(bytes, 0)?,
            Self::Kernel(path) => File::create(path.join(name))?.write_all(bytes)?,
        }
        Ok(())
    }

    fn read(&self, name: &str) -> Done {
        let mut bytes = [0; BYTES];
        match self {
            Self::Cache(directory) => directory.open(name)?.read_exact_at(&mut bytes, 0)?,
            Self::Kernel(path) => File::open(path.join(name))?.read_exact_at(&mut bytes, 0)?,
        }
        Ok(())
    }

    fn ask(&self, name: &str) -> Done {
        match self {
            Self::Cache(directory) => _ = directory.metadata(name)?,
            Self::Kernel(path) => _ = path.join(name).metadata()?,
        }
        Ok(())
    }
}

/// By others: past the cache.
fn write(path: &Path, names: &[String], byte: u8) -> Done {
    for name in names {
        std::fs::write(path.join(name), [byte; BYTES])?;
    }
    Ok(())
}

fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, side, path, files] = &arguments[..] else {
        return Err("OPERATION cache|kernel DIRECTORY FILES".into());
    };
    let path = Path::new(path);
    let cache = Cache::builder().memory("256M").build()?;
    let side = match side.as_str() {
        "cache" => Side::Cache(cache.directory(path)?),
        _ => Side::Kernel(path.to_owned()),
    };
    let names: Vec<String> = (0..files.parse()?).map(|n| format!("file{n}")).collect();
    let all = |act: &dyn Fn(&str) -> Done| names.iter().try_for_each(|name| act(name));
    if operation == "create" {
        return all(&|name| side.create(name, &[1; BYTES]));
    }
    write(path, &names, 1)?;
    all(&|name| side.read(name))?;
    all(&|name| side.ask(name))?;
    // News are read some milliseconds later.
    let wait = || sleep(Duration::from_millis(50));
    match operation.as_str() {
        "setup" => Ok(()),
        "open" => all(&|name| side.read(name)),
        "later" => {
            sleep(Duration::from_millis(1500));
            all(&|name| side.read(name))
        }
        changed => {
            write(path, &names, 2)?;
            wait();
            match changed {
                "change" => Ok(()),
                "open-changed" => all(&|name| side.read(name)),
                "metadata-changed" => all(&|name| side.ask(name)),
                _ => Err("no such operation".into()),
            }
        }
    }
}

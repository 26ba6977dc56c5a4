//! Work on several threads at once.

use std::io;
use std::thread;

/// Works on each item on a separate thread, or here if there is only one; returns the results in
/// order.
pub(crate) fn on_threads<S: Send, T: Send>(
    things: impl IntoIterator<Item = S>,
    work: impl Fn(usize, S) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    let (mut things, work) = (things.into_iter().collect::<Vec<_>>(), &work);
    if things.len() == 1 {
        return things.drain(..).map(|thing| work(0, thing)).collect();
    }
    thread::scope(|scope| {
        let each = things.into_iter().enumerate();
        let threads: Vec<_> = each
            .map(|(number, thing)| scope.spawn(move || work(number, thing)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|done| done.expect("a thread of a case does not panic"))
            .collect()
    })
}

//! Many futures at once on one thread, some of them dropped before they are ready.

use crate::library::block_on;
use crate::work::{Context, Done, REFUSED, Short, Worker, same};
use foliocache::{AsyncDirectory, AsyncFile};
use foliocache_sim::Fill;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// Futures at a time.
const AT_ONCE: usize = 16;

/// Bytes of a block. Each block has one fill.
const BLOCK: usize = 12_000;

/// Blocks of a file.
const BLOCKS: u64 = 80;

type Task<'a> = Pin<Box<dyn Future<Output = Done> + 'a>>;

/// Drives all tasks on this thread.
fn all(mut tasks: Vec<Task<'_>>) -> Done {
    block_on(poll_fn(|context| {
        let mut left = Vec::new();
        for mut task in tasks.drain(..) {
            match task.as_mut().poll(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                Poll::Pending => left.push(task),
            }
        }
        tasks = left;
        match tasks.is_empty() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }))
}

/// Polls a task once and drops it.
fn give_up(mut task: Task<'_>) -> Done {
    block_on(poll_fn(|context| match task.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => Poll::Ready(Ok(())),
    }))
}

async fn read(file: &AsyncFile, block: u64, fill: Option<Fill>) -> Done {
    let pos = block * BLOCK as u64;
    let mut bytes = vec![0; BLOCK];
    let read = file.read_exact_at(&mut bytes, pos).await;
    read.context(|| format!("async read of block {block}"))?;
    let expected = match fill {
        Some(fill) => fill.bytes(pos, BLOCK),
        None => vec![0; BLOCK],
    };
    same(&bytes, &expected, || format!("async block {block}"))
}

async fn write(file: &AsyncFile, block: u64, fill: Fill) -> Done {
    let pos = block * BLOCK as u64;
    let bytes = fill.bytes(pos, BLOCK);
    let written = file.write_all_at(&bytes, pos).await;
    written.context(|| format!("async write of block {block}"))
}

async fn sync(file: &AsyncFile) -> Done {
    file.sync_data().await.context(|| "async sync".to_owned())
}

/// Makes, moves and removes a private name.
async fn names(directory: &AsyncDirectory, folder: &str, number: usize) -> Done {
    let (a, b) = (format!("{folder}/a{number}"), format!("{folder}/b{number}"));
    let work = async {
        let create = {
            let a = a.clone();
            directory.run(move |directory| directory.create(a)?.into_async())
        };
        let file = create.await?;
        file.append_all(a.clone().into_bytes()).await?;
        file.close().await?;
        let rename = {
            let (a, b) = (a.clone(), b.clone());
            directory.run(move |directory| directory.rename(a, b))
        };
        rename.await?;
        let found = directory.metadata(&b).await?.len();
        let remove = {
            let b = b.clone();
            directory.run(move |directory| directory.remove_file(b))
        };
        remove.await?;
        Ok::<_, foliocache::Error>(found)
    };
    let found = match work.await {
        // Metadata waits for no I/O.
        Err(error) if error.is_short() => {
            REFUSED.fetch_add(1, Ordering::Relaxed);
            for name in [a, b] {
                // It may have been refused at any step.
                let remove = directory.run(move |directory| directory.remove_file(name));
                let _ = remove.await;
            }
            return Ok(());
        }
        found => found.context(|| format!("async names in {folder}"))?,
    };
    match found == a.len() as u64 {
        true => Ok(()),
        false => Err(format!("{b} has {found} bytes")),
    }
}

/// Works in the directory `folder`, which it makes and removes.
pub(crate) fn work(worker: &mut Worker<'_>, directory: &AsyncDirectory, folder: &str) -> Done {
    let about = || format!("async work in {folder}");
    let make = {
        let folder = folder.to_owned();
        directory.run(move |directory| {
            directory.create_dir(&folder)?;
            let file = directory.create(format!("{folder}/blocks"))?;
            file.set_len(BLOCKS * BLOCK as u64)?;
            file.into_async()
        })
    };
    let file = block_on(make);
    let file = file.context(about)?;
    let mut fills = vec![None; BLOCKS as usize];
    while worker.goes_on() {
        let mut tasks: Vec<Task<'_>> = Vec::new();
        // A block has one task at a time, as its neighbours share its pages but not its bytes.
        let mut busy = Vec::new();
        for number in 0..AT_ONCE {
            let block = worker.rng.below(BLOCKS);
            if busy.contains(&block) {
                continue;
            }
            busy.push(block);
            let fill = fills[block as usize];
            match worker.rng.below(8) {
                0..=2 => {
                    let fill = Fill(worker.rng.next_u64());
                    fills[block as usize] = Some(fill);
                    tasks.push(Box::pin(write(&file, block, fill)));
                    worker.did("future of a write", BLOCK);
                }
                3 => {
                    tasks.push(Box::pin(names(directory, folder, number)));
                    worker.did("future of names", 0);
                }
                4 => {
                    give_up(Box::pin(read(&file, block, fill)))?;
                    worker.did("dropped future", 0);
                }
                5 if number == 0 => {
                    tasks.push(Box::pin(sync(&file)));
                    worker.did("future of a sync", 0);
                }
                _ => {
                    tasks.push(Box::pin(read(&file, block, fill)));
                    worker.did("future of a read", BLOCK);
                }
            }
        }
        all(tasks)?;
    }
    let closed = block_on(async {
        file.close().await?;
        let folder = folder.to_owned();
        let remove = directory.run(move |directory| directory.remove_dir_all(folder));
        remove.await
    });
    closed.context(about)
}

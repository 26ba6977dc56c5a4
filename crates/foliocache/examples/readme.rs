//! The code of README.md, block by block, so that it compiles. The test `readme_compiles` compares the two.
//!
//! # Safety
//!
//! It is not run.
#![allow(unsafe_code)]

use foliocache::{Cache, MapAccess, Result};

/// The blocks follow one another in one function.
#[allow(dead_code, reason = "it is compiled, not run")]
async fn readme() -> Result<()> {
    let cache = Cache::builder().memory("512M").build()?;
    let data = cache.directory("/var/lib/app")?;
    let file = data
        .open_options()
        .read(true)
        .write(true)
        .create(true)
        .open("accounts.db")?;
    file.write_all_at(b"balance", 4096)?;
    let mut bytes = [0; 7];
    file.read_exact_at(&mut bytes, 4096)?; // no system call: it is in the cache
    file.sync_data()?; // on the medium now, or an error that says what is not
    println!("{:?}", file.stats()?);
    cache.close()?; // writes everything back, and names each file that could not be

    let file = data.open("accounts.db")?.into_async()?;
    file.read_exact_at(&mut bytes, 4096).await?; // may be dropped at any time
    file.sync_data().await?;

    let table = data.open("table")?.map(.., MapAccess::Read)?;
    // SAFETY: nobody changes the file meanwhile.
    let bytes: &[u8] = unsafe { table.as_slice() };
    let _ = bytes;
    Ok(())
}

fn main() {}

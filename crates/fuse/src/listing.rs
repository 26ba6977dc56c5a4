//! Reading directories for the kernel, with and without attributes.

use crate::answers::Asked;
use crate::conn::{FuseConn, Within};
use crate::convert;
use crate::entry::Entry;
use crate::handles::{DirHandle, NO_HANDLE};
use crate::linking::{NodeId, Tell, Telling};
use foliocache_sync::atomic::Ordering;
use foliocache_sys::Errno;
use foliocache_vfs::DirEntryBuf;
use fuser::{FileHandle as Fh, Generation, INodeNo};
use std::ffi::OsStr;
use std::time::Duration;

/// Bytes that an entry with attributes takes in a reply, without its name.
const DIRENTPLUS_BYTES: usize = 152;
/// Bytes of entries that are looked up together. The reply's size is not known here; this is the
/// smallest usual one.
const BATCH_BYTES: usize = 4096;

impl FuseConn {
    /// Whether the kernel reads directories without opening them, and caches their listings. It is told of each
    /// change of a listing, and without reports of changes after each reading: changes within one tick leave the
    /// times equal, and programs can set them.
    pub(crate) fn kernel_lists(&self) -> bool {
        // Relaxed: see the field.
        self.kernel_can_list.load(Ordering::Relaxed) && self.news.is_telling()
    }

    pub(crate) fn open_directory(&self, ino: INodeNo) -> Result<DirHandle, Errno> {
        Ok(DirHandle {
            _charge: self.charge_handle()?,
            dentry: self.directory(ino)?,
            directory: self.fs().opendir(&self.inode(ino)?)?,
        })
    }

    /// Runs `read` on a directory; `read` advances the offset.
    pub(crate) fn list(
        &self,
        (ino, fh): (INodeNo, Fh),
        offset: u64,
        read: impl FnOnce(&DirHandle, &mut u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut at = offset;
        if fh.0 != NO_HANDLE {
            let handle = self.directories.get(fh.0)?;
            return read(&handle, &mut at);
        }
        let reading = match self.listed.take(ino.0, offset) {
            Some(reading) => reading,
            None => {
                let told = self.news.tells_of(&self.names, &self.inode(ino)?);
                self.listed.open(ino.0, told, || self.open_directory(ino))?
            }
        };
        read(&reading.handle, &mut at)?;
        if at != offset {
            self.listed.put(reading, at);
            return Ok(());
        }
        // Once for each reading, at its end: the kernel does not use its listing before that.
        let dir = reading.handle.dentry.inode();
        if dir.is_some_and(|dir| !self.news.tells_of(&self.names, &dir)) {
            self.news.forget_listing(ino.0);
        }
        Ok(())
    }

    /// Names from `offset` on, as many as fit in [`BATCH_BYTES`] with their attributes, including
    /// `.` and `..`.
    fn names(&self, handle: &DirHandle, offset: u64) -> Result<Vec<DirEntryBuf>, Errno> {
        let mut names = Vec::new();
        let mut bytes = 0;
        let read = handle.directory.read(offset, &mut |entry| {
            bytes += DIRENTPLUS_BYTES + entry.name.len().next_multiple_of(8);
            if bytes > BATCH_BYTES {
                return false;
            }
            names.push(entry.into());
            true
        });
        match read {
            // The next reading starts with the error.
            Err(_) if !names.is_empty() => Ok(names),
            read => read.map(|()| names),
        }
    }

    /// Looks a name up that a listing found, and tells the kernel of it. `is_first`: the reply has no entry yet. Otherwise it returns none
    /// if the reply must be sent before the kernel is told of this name.
    fn entry_to_list(
        &self,
        within: &Within,
        name: &OsStr,
        telling: &Telling<'_>,
        is_first: bool,
    ) -> Result<Option<Entry>, Errno> {
        let place = telling.place(name);
        let before = telling.answers(place);
        let asked = Asked {
            is_first,
            ..self.nodes.asked(telling.thread())
        };
        let (mut entry, inode) = self.lookup_present(within, name)?;
        let told = telling.tell(place, NodeId::of(&inode), before);
        if let Tell::Instead(listed) = told
            && let Some(entry) = self.entry_of_listed(name, listed)
        {
            self.forget_untold(inode.ino());
            return Ok(Some(entry));
        }
        if told != Tell::Believed {
            (entry.name_ttl, entry.attr_ttl) = (Duration::ZERO, Duration::ZERO);
        }
        if is_first {
            self.believe(&entry.attr, &mut entry.attr_ttl, asked);
        } else if !self.believe_now(&entry.attr, &mut entry.attr_ttl, asked) {
            self.forget_untold(inode.ino());
            return Ok(None);
        }
        Ok(Some(entry))
    }

    /// The entry of a name that another listing leads to this file, which the kernel knows. The kernel asks again before it uses it.
    pub(crate) fn entry_of_listed(&self, name: &OsStr, listed: NodeId) -> Option<Entry> {
        let inode = self.nodes.remember_again(listed, name)?;
        let known = inode.attributes().get().of(inode.ino(), inode.kind());
        let mut attr = self.shown.attr(convert::attr(&known));
        attr.ino = INodeNo(inode.ino());
        Some(Entry {
            attr,
            generation: Generation(listed.generation),
            name_ttl: Duration::ZERO,
            attr_ttl: Duration::ZERO,
        })
    }

    /// Takes back that the kernel would be told of an inode.
    pub(crate) fn forget_untold(&self, ino: u64) {
        if let Some(gone) = self.forget(ino, 1) {
            gone.put(&self.names);
        }
    }

    /// Fills a reply with entries and their attributes. Names that have vanished before the
    /// look-up, or that this process may not look up, are left out. At any other error the reply
    /// ends, and the next one starts with the error.
    pub(crate) fn fill_plus(
        &self,
        handle: &DirHandle,
        offset: &mut u64,
        telling: &Telling<'_>,
        reply: &mut fuser::ReplyDirectoryPlus,
    ) -> Result<(), Errno> {
        let mut given = 0;
        let within = self.within(handle.dentry.clone())?;
        loop {
            // A directory's reader must not look names up.
            let names = match self.names(handle, *offset) {
                Ok(names) if names.is_empty() => return Ok(()),
                Ok(names) => names,
                // The entries so far must reach the kernel first.
                Err(_) if given > 0 => return Ok(()),
                Err(error) => return Err(error),
            };
            for name in names {
                let dots = name.name == "." || name.name == "..";
                let (entry, remembered) = if dots {
                    // For these the kernel uses only number and kind, and counts no look-up.
                    let mut entry = Entry::absent(Duration::ZERO);
                    entry.attr.ino = INodeNo(name.ino);
                    entry.attr.kind = fuser::FileType::Directory;
                    (entry, false)
                } else {
                    match self.entry_to_list(&within, &name.name, telling, given == 0) {
                        Ok(Some(entry)) => (entry, true),
                        Ok(None) => return Ok(()),
                        Err(
                            errno @ (Errno::ENOENT | Errno::ESTALE | Errno::EACCES | Errno::EPERM),
                        ) => {
                            tracing::debug!(?name.name, %errno, "left out of a listing");
                            *offset = name.next_offset;
                            continue;
                        }
                        Err(_) if given > 0 => return Ok(()),
                        Err(errno) => return Err(errno),
                    }
                };
                let Entry {
                    attr, generation, ..
                } = &entry;
                let ttl = entry.ttl();
                if reply.add(
                    attr.ino,
                    name.next_offset,
                    &name.name,
                    &ttl,
                    attr,
                    *generation,
                ) {
                    // It did not fit, so the kernel does not know of it.
                    if remembered {
                        self.forget_untold(attr.ino.0);
                    }
                    return Ok(());
                }
                *offset = name.next_offset;
                given += 1;
            }
        }
    }
}

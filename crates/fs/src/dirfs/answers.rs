//! An answer of the source, as an inode remembers it.

use super::Shared;
use super::node::DirNode;
use crate::coherence::Asked;
use foliocache_sys::fd::Stat;
use foliocache_vfs::{AttrCell, Attributes, FileKind, SlabArc};

impl Shared {
    /// The attributes that an inode remembers of `stat` where nothing of ours is newer: its ctime is that which was shown before.
    pub(super) fn found(&self, stat: &Stat) -> Attributes {
        let mut attributes = stat.attributes;
        if stat.kind == FileKind::Regular
            && let Some(shown) = self.ctimes.shown(stat)
        {
            attributes.ctime = shown;
        }
        attributes
    }

    /// The attributes of a node that was just found.
    pub(super) fn attributes(&self, stat: &Stat) -> SlabArc<AttrCell> {
        let attributes = self.found(stat);
        self.attributes.alloc(match stat.kind {
            FileKind::Directory => AttrCell::of_directory(attributes, self.permissions.clone()),
            _ => AttrCell::new(attributes),
        })
    }
}

impl DirNode {
    /// Takes over the answer of the source at `look`: size and times of a regular file only before it is
    /// first opened, and unless a change of our own came between.
    ///
    /// Context: the attributes locked.
    pub(super) fn refresh(&self, attributes: &mut Attributes, stat: &Stat, look: Option<Asked>) {
        let ours = (attributes.size, attributes.mtime, attributes.ctime);
        if let (Some(file), Some(look)) = (self.regular(), look)
            && (file.has_mapping() || !file.holds(look))
        {
            *attributes = stat.attributes;
            (attributes.size, attributes.mtime, attributes.ctime) = ours;
        } else {
            *attributes = self.shared.found(stat);
        }
    }
}

//! Usage and limits of the process's memory cgroup, under version 1 and version 2.
//!
//! # Model
//!
//! `/proc/self/cgroup` names the group of each hierarchy, relative to the root that the process
//! sees; `/proc/self/mountinfo` says where a hierarchy is mounted and which of its groups is at the
//! top of that mount. The two together give a directory. A limit holds for all groups below, so the
//! effective one is the smallest on the way up to the mount point.
//!
//! The kernel charges its own page cache to groups too, but reclaims it. Its clean unmapped part
//! counts as reclaimable here, as does the reclaimable part of the slab where the kernel reports it
//! (version 2).

use std::path::{Path, PathBuf};

/// Numbers from here on mean "no limit" in version 1.
const UNLIMITED: u64 = 1 << 62;

/// The version of the memory controller, and with it the names of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

impl Version {
    fn usage(self) -> &'static str {
        match self {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        }
    }

    /// The files whose smallest number is the limit. Past `memory.high` a process is not killed
    /// but slowed down until it stands still, which is no better.
    fn limits(self) -> &'static [&'static str] {
        match self {
            Version::V1 => &["memory.limit_in_bytes"],
            Version::V2 => &["memory.max", "memory.high"],
        }
    }

    /// Fields of `memory.stat`, for a group with its descendants: those that add to the reclaimable
    /// bytes, and those that subtract from them.
    fn reclaimable(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Version::V1 => (
                &["total_inactive_file", "total_active_file"],
                &["total_dirty", "total_writeback", "total_mapped_file"],
            ),
            Version::V2 => (
                &["inactive_file", "active_file", "slab_reclaimable"],
                &["file_dirty", "file_writeback", "file_mapped"],
            ),
        }
    }
}

/// The process's memory group: its directory, and where to stop when walking up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    mount: PathBuf,
    dir: PathBuf,
    version: Version,
}

pub(crate) fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number behind a name in lines of "name number".
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.trim().parse().ok())?
    })
}

impl Group {
    /// The group that the two texts, of `/proc/self/cgroup` and `/proc/self/mountinfo`, speak of.
    pub(crate) fn find(groups: &str, mounts: &str) -> Option<Group> {
        // hierarchy:controllers:path; version 2 is hierarchy 0 without controllers.
        let mut v1 = None;
        let mut v2 = None;
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':');
            let (hierarchy, controllers) = (fields.next()?, fields.next()?);
            let path = fields.next()?;
            if controllers.split(',').any(|name| name == "memory") {
                v1 = Some(path);
            } else if hierarchy == "0" && controllers.is_empty() {
                v2 = Some(path);
            }
        }
        let found = |path: Option<&str>, version| {
            let (mount, dir) = Group::directory(path?, mounts, version)?;
            Some(Group {
                mount,
                dir,
                version,
            })
        };
        // A machine may mount both; the memory controller is in one of them only.
        found(v1, Version::V1).or_else(|| found(v2, Version::V2))
    }

    fn directory(path: &str, mounts: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
        for line in mounts.lines() {
            // id parent major:minor root mount-point options … - type source super-options
            let (front, back) = line.split_once(" - ")?;
            let front: Vec<&str> = front.split(' ').collect();
            let back: Vec<&str> = back.split(' ').collect();
            let (&[_, _, _, root, mount, ..], &[kind, _, options, ..]) = (&front[..], &back[..])
            else {
                continue;
            };
            let fits = match version {
                Version::V1 => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
                Version::V2 => kind == "cgroup2",
            };
            if !fits {
                continue;
            }
            // A container may see only a part of the tree, with the process's own path from the top.
            let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            return Some((PathBuf::from(mount), Path::new(mount).join(below)));
        }
        None
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The directory of the process's own group.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directories of the group and those above it, up to the mount point.
    pub(crate) fn levels(&self) -> impl Iterator<Item = &Path> {
        self.dir
            .ancestors()
            .take_while(|dir| dir.starts_with(&self.mount))
    }

    /// Bytes charged to the group at `dir` and those below it.
    pub(crate) fn usage(&self, dir: &Path) -> Option<u64> {
        number(&dir.join(self.version.usage()))
    }

    /// The limit of the group at `dir` itself, if it has one.
    pub(crate) fn limit(&self, dir: &Path) -> Option<u64> {
        // "max" in version 2 is no number.
        let limits = self.version.limits().iter();
        limits
            .filter_map(|file| number(&dir.join(file)))
            .min()
            .filter(|&limit| limit < UNLIMITED)
    }

    /// Bytes charged to the group at `dir` that the kernel would reclaim before it kills a process,
    /// and the limit imposed by ancestors that cannot be read, where the kernel reports it (version
    /// 1).
    pub(crate) fn stat(&self, dir: &Path) -> (u64, Option<u64>) {
        let text = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let sum =
            |names: &[&str]| -> u64 { names.iter().filter_map(|name| field(&text, name)).sum() };
        let (adds, takes) = self.version.reclaimable();
        let hidden = field(&text, "hierarchical_memory_limit").filter(|&limit| limit < UNLIMITED);
        (sum(adds).saturating_sub(sum(takes)), hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_below_a_group() {
        let groups = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n";
        let mounts = "30 29 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                      31 29 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let group = Group::find(groups, mounts).unwrap();
        assert_eq!(group.dir, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(group.version, Version::V1);
        assert_eq!(group.levels().count(), 3);
    }

    #[test]
    fn version_2_inside_a_container() {
        let groups = "0::/docker/x\n";
        let mounts = "31 29 0:27 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate\n";
        let group = Group::find(groups, mounts).unwrap();
        assert_eq!(group.dir, Path::new("/sys/fs/cgroup"));
        assert_eq!(group.version, Version::V2);
    }

    #[test]
    fn no_cgroups_at_all() {
        assert!(Group::find("", "").is_none());
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "total_dirty 7\ndirty 3\n";
        assert_eq!(field(text, "dirty"), Some(3));
        assert_eq!(field(text, "writeback"), None);
    }
}

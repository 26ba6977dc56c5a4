//! What the process's memory cgroup uses and allows, under version 1 and version 2.
//!
//! # Model
//!
//! `/proc/self/cgroup` names the group of each hierarchy, relative to the root that the process
//! sees; `/proc/self/mountinfo` says where a hierarchy is mounted and which of its groups is at the
//! top of that mount. The two together give a directory. A limit holds for all groups below, so the
//! effective one is the smallest on the way up to the mount point.

use std::path::{Path, PathBuf};

/// The files of one version of the memory controller.
struct Files {
    usage: &'static str,
    limit: &'static str,
}

const V1: Files = Files {
    usage: "memory.usage_in_bytes",
    limit: "memory.limit_in_bytes",
};
const V2: Files = Files {
    usage: "memory.current",
    limit: "memory.max",
};

/// The process's memory group: its directory, and where to stop when walking up.
struct Group {
    mount: PathBuf,
    dir: PathBuf,
    files: Files,
}

/// Bytes charged to the process's memory cgroup (and the groups below it), or `None` without one.
pub fn cgroup_memory_usage() -> Option<u64> {
    let group = Group::of_process()?;
    number(&group.dir.join(group.files.usage))
}

/// The smallest memory limit of the process's cgroup and those above it that can be seen, in bytes;
/// `None` where nothing limits.
pub fn cgroup_memory_limit() -> Option<u64> {
    let group = Group::of_process()?;
    let mut smallest = None;
    for dir in group
        .dir
        .ancestors()
        .take_while(|dir| dir.starts_with(&group.mount))
    {
        // "max" in version 2 is no number; version 1 says "no limit" with a number near 2^63.
        let limit = number(&dir.join(group.files.limit)).filter(|&limit| limit < 1 << 62);
        smallest = match (smallest, limit) {
            (Some(a), Some(b)) => Some(u64::min(a, b)),
            (a, b) => a.or(b),
        };
    }
    smallest
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Group {
    fn of_process() -> Option<Group> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        Group::find(&groups, &mounts)
    }

    fn find(groups: &str, mounts: &str) -> Option<Group> {
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
        let found = |path: Option<&str>, v1: bool, files| {
            let (mount, dir) = Group::directory(path?, mounts, v1)?;
            Some(Group { mount, dir, files })
        };
        // A machine may mount both; the memory controller is in one of them only.
        found(v1, true, V1).or_else(|| found(v2, false, V2))
    }

    fn directory(path: &str, mounts: &str, v1: bool) -> Option<(PathBuf, PathBuf)> {
        for line in mounts.lines() {
            // id parent major:minor root mount-point options … - type source super-options
            let (front, back) = line.split_once(" - ")?;
            let front: Vec<&str> = front.split(' ').collect();
            let back: Vec<&str> = back.split(' ').collect();
            let (&[_, _, _, root, mount, ..], &[kind, _, options, ..]) = (&front[..], &back[..])
            else {
                continue;
            };
            let fits = if v1 {
                kind == "cgroup" && options.split(',').any(|name| name == "memory")
            } else {
                kind == "cgroup2"
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
        assert_eq!(group.files.usage, V1.usage);
    }

    #[test]
    fn version_2_inside_a_container() {
        let groups = "0::/docker/x\n";
        let mounts = "31 29 0:27 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate\n";
        let group = Group::find(groups, mounts).unwrap();
        assert_eq!(group.dir, Path::new("/sys/fs/cgroup"));
        assert_eq!(group.files.usage, V2.usage);
    }

    #[test]
    fn no_cgroups_at_all() {
        assert!(Group::find("", "").is_none());
    }
}

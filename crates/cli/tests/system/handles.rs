//! File handles, by which NFS servers and others name files: the mount has none, and says so.
//!
//! Needs FUSE, root and a C compiler.

use crate::common::{Folder, compile, no_root_or_fuse, run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A handle that the kernel made would be good only as long as it remembers the file.
#[test]
#[ignore = "system tier"]
fn handles_of_files_are_refused() {
    if no_root_or_fuse() {
        return;
    }
    let folder = Folder::new("handles");
    let program = folder.top().join("handles");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/handles.c");
    compile(&source, &program);
    fs::create_dir(folder.source().join("dir")).unwrap();
    fs::write(folder.source().join("dir/file"), "data").unwrap();
    let mounted = folder.mount(&[]);
    let asked = |top: &Path, name: &str| {
        let mut command = Command::new(&program);
        run(command.arg(top.join(name)).arg(top))
    };
    let works = "handle: yes\nat once: 4 'data'\nafter it was forgotten: 4 'data'\n";
    assert_eq!(asked(&folder.source(), "dir/file"), works);
    for name in ["dir/file", "dir", "."] {
        let refused = "handle: Operation not supported\n";
        assert_eq!(asked(&folder.mount_point(), name), refused, "{name}");
    }
    mounted.end_well();
}

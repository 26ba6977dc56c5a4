//! Programs that know nothing of the cache, on a mount: mappings, a build, fsx.
//!
//! Needs FUSE, root, a C compiler, make, and fsx 0.3.2.

use crate::common::{Folder, compile, no_root_or_fuse, run, shell};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

#[test]
#[ignore = "system tier"]
fn mappings_agree_with_reads_and_writes() {
    let folder = Folder::new("maps");
    let program = folder.top().join("maps");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/maps.c");
    compile(&source, &program);
    for memory in ["8M", "128M"] {
        let mounted = folder.mount(&["--memory", memory]);
        let file = folder.mount_point().join("mapped");
        run(Command::new(&program).arg(&file));
        let seen = fs::read(&file).unwrap();
        mounted.end_well();
        let written = fs::read(folder.source().join("mapped")).unwrap();
        assert!(seen == written, "with {memory}");
        assert!(
            written[50 * 4096..51 * 4096]
                .iter()
                .all(|&byte| byte == b's')
        );
        assert!(
            written[60 * 4096..61 * 4096]
                .iter()
                .all(|&byte| byte == b'u')
        );
    }
}

/// Programs run from the mount. Stores into mappings, unsynced ones included, are written back by
/// the signal.
#[test]
#[ignore = "system tier"]
fn unsynced_stores_are_written_back_at_the_end() {
    let folder = Folder::new("stores");
    shell(
        folder.top(),
        r#"
        cat > holder.c <<'C'
        #include <fcntl.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <unistd.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            static char *maps[64];
            for (int i = 0; i < 64; i++) {
                char name[4096];
                sprintf(name, "%s%d", argv[1], i);
                int fd = open(name, O_RDWR | O_CREAT, 0644);
                ftruncate(fd, 1 << 18);
                char *map = mmap(0, 1 << 18, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                memset(map, 'h', 1 << 18);
                maps[i] = map;
            }
            write(1, "ready\n", 6);
            char c;
            read(0, &c, 1);
            for (int i = 0; i < 64; i++)
                memset(maps[i], 'i', 1 << 18);
            write(1, "again\n", 6);
            return read(0, &c, 1) < 0;
        }
C
        cc -w -o holder holder.c
        "#,
    );
    // A loaded machine must have time for the second round of stores.
    let mounted = folder.mount(&["--stop-timeout", "15"]);
    fs::copy(
        folder.top().join("holder"),
        folder.mount_point().join("holder"),
    )
    .unwrap();
    let mut holder = Command::new(folder.mount_point().join("holder"))
        .arg(folder.mount_point().join("held"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut ready).unwrap();
    mounted.signal("TERM");
    mounted.wait_for_line("is in use by programs, with ");
    // Stores before the signal have been handed over by now; this one has not.
    holder.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut ready).unwrap();
    assert_eq!(&ready, b"again\n");
    let ended = mounted.wait();
    // Its program file is gone with the mount, so it may be killed by its next page fault.
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_eq!(ended.code, Some(3), "{:?}", ended.lines);
    // The kernel has more writes to hand over than it does at once.
    let lost = (0..64).filter(|number| {
        let held = fs::read(folder.source().join(format!("held{number}"))).unwrap();
        assert_eq!(held.len(), 1 << 18);
        held.iter().any(|&byte| byte != b'i')
    });
    let lost: Vec<i32> = lost.collect();
    assert!(lost.is_empty(), "not written back: {lost:?}");
}

/// Writes a project of 300 C files with a Makefile, packed as `project.tar`.
const MAKE_PROJECT: &str = r#"
    mkdir project; cd project; mkdir src include
    echo 'CFLAGS = -O1 -Iinclude' > Makefile
    echo 'OBJECTS = $(patsubst src/%.c,build/%.o,$(sort $(wildcard src/*.c)))' >> Makefile
    printf 'program: build/lib.a build-main.o\n\tcc -o $@ build-main.o build/lib.a\n' >> Makefile
    printf 'build-main.o: main.c\n\tcc $(CFLAGS) -c -o $@ $<\n' >> Makefile
    printf 'build/lib.a: $(OBJECTS)\n\trm -f $@\n\tar rcD $@ $(OBJECTS)\n' >> Makefile
    printf 'build/%%.o: src/%%.c include/all.h\n\t@mkdir -p build\n\tcc $(CFLAGS) -c -o $@ $<\n' >> Makefile
    i=0
    while [ $i -lt 300 ]; do
        j=0
        { echo '#include "all.h"'
          echo "static const int table[] = {"
          while [ $j -lt 200 ]; do echo "  $((i * j % 97)),"; j=$((j+1)); done
          echo "};"
          echo "int f$i(int n) { int s = $i; for (int k = 0; k < 200; k++) s += table[k] * n; return s; }"
        } > src/f$i.c
        echo "int f$i(int n);" >> include/all.h
        i=$((i+1))
    done
    { echo '#include <stdio.h>'; echo '#include "all.h"'
      echo 'int main(void) { long s = 0;'
      i=0; while [ $i -lt 300 ]; do echo "s += f$i($i);"; i=$((i+1)); done
      printf '%s\n' 'printf("%ld\n", s); return 0; }'; } > main.c
    cd ..; tar cf project.tar project; rm -r project
"#;

#[test]
#[ignore = "system tier"]
fn a_c_project_is_unpacked_and_built() {
    let folder = Folder::new("build");
    shell(folder.top(), MAKE_PROJECT);
    shell(
        folder.top(),
        "mkdir outside; cd outside; tar xf ../project.tar; make -s -j2 -C project",
    );
    let mounted = folder.mount(&["--memory", "64M"]);
    let inside = folder.mount_point();
    shell(&inside, "tar xf ../project.tar; make -s -j4 -C project");
    // Nothing is built twice: the times are right for make.
    let again = shell(&inside, "make -C project");
    assert!(again.contains("is up to date"), "{again}");
    shell(&inside, "touch project/src/f7.c");
    let one = shell(&inside, "make -C project | grep -c ' -c '");
    assert_eq!(one.trim(), "1");
    let outside = folder.top().join("outside/project/program");
    let result = run(&mut Command::new(inside.join("project/program")));
    assert_eq!(result, run(&mut Command::new(outside)));
    mounted.end_well();
    shell(folder.top(), "diff -r outside/project source/project");
}

/// fsx: `FOLIOCACHE_FSX`, or `fsx` of the path.
fn fsx() -> PathBuf {
    let named = std::env::var_os("FOLIOCACHE_FSX").map(PathBuf::from);
    let program = named.unwrap_or_else(|| "fsx".into());
    let works = Command::new(&program).arg("--version").output();
    assert!(
        works.is_ok_and(|output| output.status.success()),
        "{} does not run: `cargo install fsx --version 0.3.2` and set FOLIOCACHE_FSX to it",
        program.display()
    );
    program
}

/// A file larger than the smaller bound, large operations, and no msync after a store.
const LARGE: &str = "
    flen = 25165824
    nomsyncafterwrite = true
    [opsize]
    min = 1
    max = 262144
";

/// All that fsx can do without a mapping.
const WEIGHTS: &str = "
    [weights]
    close_open = 1.0
    truncate = 1.0
    read = 10.0
    write = 10.0
    fsync = 1.0
    fdatasync = 1.0
    posix_fallocate = 1.0
    punch_hole = 1.0
    sendfile = 1.0
    posix_fadvise = 1.0
    copy_file_range = 1.0
";

/// All that fsx can do with a shared mapping. Reads through mappings are few: fsx 0.3.2 never unmaps them, and with tens of
/// thousands of mappings of one file the kernel does little else than go through their list.
const MAPPINGS: &str = "
    invalidate = 1.0
    mapread = 0.1
    mapwrite = 10.0
";

/// For a mount that refuses shared mappings.
const NO_MAPPINGS: &str = "
    invalidate = 0.0
    mapread = 0.0
    mapwrite = 0.0
";

/// Seeds of the runs side by side; even ones have a large file.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// Operations of one run of fsx.
fn operations() -> u32 {
    let set = std::env::var("FOLIOCACHE_FSX_OPERATIONS").ok();
    set.map_or(40_000, |text| text.parse().unwrap())
}

/// Runs fsx on mounts with `memory`, one for each mode of the kernel's cache; those that are not the default have a quarter of
/// the operations.
fn fsx_runs(memory: &str) {
    if no_root_or_fuse() {
        return;
    }
    let fsx = fsx();
    let (all, few) = (operations(), operations() / 4);
    for (kernel_cache, operations) in [("none", few), ("mapped", all), ("all", few)] {
        fsx_runs_with(&fsx, memory, kernel_cache, operations);
    }
}

fn fsx_runs_with(fsx: &Path, memory: &str, kernel_cache: &str, operations: u32) {
    let folder = Folder::new(&format!("fsx-{memory}-{kernel_cache}"));
    let mappings = match kernel_cache {
        "none" => NO_MAPPINGS,
        _ => MAPPINGS,
    };
    let (small, large) = (
        folder.top().join("small.toml"),
        folder.top().join("large.toml"),
    );
    fs::write(&small, format!("{WEIGHTS}{mappings}")).unwrap();
    fs::write(&large, format!("{LARGE}{WEIGHTS}{mappings}")).unwrap();
    let mounted = folder.mount(&["--memory", memory, "--kernel-cache", kernel_cache]);
    // Side by side, so that one file's pages push out the other's.
    thread::scope(|scope| {
        for seed in SEEDS {
            let folder = &folder;
            let config = if seed % 2 == 0 { &large } else { &small };
            scope.spawn(move || {
                let mut command = Command::new(fsx);
                command.args(["-N", &operations.to_string(), "-S", &seed.to_string()]);
                command.arg("-P").arg(folder.top()).arg("-f").arg(config);
                let file = folder.mount_point().join(format!("file{seed}"));
                run(command.arg(&file));
            });
        }
    });
    let seen: Vec<_> = SEEDS
        .map(|seed| fs::read(folder.mount_point().join(format!("file{seed}"))).unwrap())
        .collect();
    mounted.end_well();
    for (seed, seen) in SEEDS.zip(seen) {
        let written = fs::read(folder.source().join(format!("file{seed}"))).unwrap();
        let kind = format!("{memory} and --kernel-cache {kernel_cache}");
        assert!(seen == written, "file of seed {seed} with {kind}");
    }
}

#[test]
#[ignore = "system tier"]
fn fsx_with_room() {
    fsx_runs("512M");
}

#[test]
#[ignore = "system tier"]
fn fsx_in_16_mib() {
    fsx_runs("16M");
}

#!/bin/bash
# Compares a mount with bindfs, libfuse's example passthrough_hp and the directory itself. Needs root.
#
#   crates/cli/examples/compare_mounts.sh DIRECTORY [-r ROUNDS] [-f FILES] [-n NAMES] [-k none|mapped|all] [-b BINARY] [CASE...]
#   crates/cli/examples/compare_mounts.sh DIRECTORY reads [arguments of compare_mounts]
#
# DIRECTORY is made and may be any on the file system to measure; what is made in it is removed again.
#
# Cases: ls_first ls_second rsync_in rsync_noop rsync_out tar_c tar_x rm clone make; all of them by default.
#   ls_*      ls -l of one directory of NAMES files (100,000), unknown to the mount and known
#   rsync_*   rsync -a of a tree of FILES files of 6 KB (5,000) into the place, again, and out of it
#   tar_*, rm tar of such a tree out of the place and into it; rm -rf of what tar made
#   clone     git clone of a local bare repository of FILES files
#   make      make -j2 of 200 C files
# All places have their default settings. Each is mounted anew for each round, and works on new trees; in each round the
# places take turns, every other round in reverse. A figure is the median of the rounds; the last column is the median of
# the rounds' ratios: how many times as fast as the better of the two others the mount is. passthrough_hp keeps a descriptor
# for each file that it has seen, so ls_* take a hard limit of open files above NAMES there, and else fail.
#
# `reads` runs the example compare_mounts instead: large reads and writes, all with direct I/O on the FUSE side.
#
# Debian: apt-get install bindfs rsync git make gcc libfuse3-dev. passthrough_hp has no package. PASSTHROUGH_HP names the
# program, made of example/passthrough_hp.cc of the same release of libfuse as libfuse3-dev:
#   g++ -O2 -DHAVE_UTIMENSAT -DHAVE_COPY_FILE_RANGE -DHAVE_POSIX_FALLOCATE -o passthrough_hp passthrough_hp.cc \
#       $(pkg-config --cflags --libs fuse3)
# For `reads` build it with `fi->direct_io = 1;` as the last assignment to `fi` in `sfs_open`.
set -euo pipefail

usage() {
    sed -n '2,29s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
[ $# -ge 1 ] || usage
case $1 in -*) usage ;; esac
top=$(mkdir -p "$1" && cd "$1" && pwd)
shift
rounds=4 files=5000 names=100000 kernel_cache=mapped binary= reads=
if [ "${1:-}" = reads ]; then
    reads=yes
    shift
else
    while getopts r:f:n:k:b: option; do
        case $option in
        r) rounds=$OPTARG ;;
        f) files=$OPTARG ;;
        n) names=$OPTARG ;;
        k) kernel_cache=$OPTARG ;;
        b) binary=$OPTARG ;;
        *) usage ;;
        esac
    done
    shift $((OPTIND - 1))
fi
release=${CARGO_TARGET_DIR:-target}/release
if [ -z "$binary" ]; then
    cargo build --quiet --release -p foliocache-cli --bin foliocache --example compare_mounts
    binary=$release/foliocache
fi

others=
if command -v bindfs >/dev/null; then others="$others bindfs"; else echo "skipped: bindfs is not installed"; fi
if [ -n "${PASSTHROUGH_HP:-}" ]; then others="$others hp"; else echo "skipped: PASSTHROUGH_HP names no program"; fi

# Where a place is seen. Behind all of them is one directory; only one is mounted at a time.
at() { if [ "$1" = directory ]; then echo "$top/source"; else echo "$top/$1"; fi; }

finish() {
    for place in mount $others; do
        umount "$top/$place" 2>/dev/null || true
    done
    wait
    for place in mount $others; do rmdir "$top/$place" 2>/dev/null || true; done
    rm -rf "$top/source" "$top/origin" "$top/samples" "$top/said"
}
trap finish EXIT
trap 'exit 1' INT TERM

# serve PLACE COMMAND...: starts COMMAND, which serves the place, and waits until it is mounted.
serve() {
    mkdir -p "$top/$1"
    "${@:2}" >/dev/null &
    server=$!
    for _ in $(seq 100); do
        mountpoint -q "$top/$1" && return
        sleep 0.1
    done
    echo "$1 is not mounted after ten seconds" >&2
    exit 1
}

if [ -n "$reads" ]; then
    # The names hold no blanks; a directory with blanks is not for this script.
    mkdir -p "$top/source"
    serve mount "$binary" mount "$top/source" "$top/mount" --memory 512M
    places="ours=$top/mount@$server"
    for place in $others; do
        case $place in
        bindfs) serve bindfs bindfs -f -o direct_io "$top/source" "$top/bindfs" ;;
        hp) serve hp "$PASSTHROUGH_HP" --foreground --nocache "$top/source" "$top/hp" ;;
        esac
        places="$places $place=$top/$place@$server"
    done
    "$release/examples/compare_mounts" $places "$@"
    exit
fi

cases=${*:-ls_first ls_second rsync_in rsync_noop rsync_out tar_c tar_x rm clone make}
wants() { case " $cases " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
for need in rsync:rsync_in,rsync_noop,rsync_out git:clone make:make gcc:make; do
    command -v "${need%%:*}" >/dev/null && continue
    for case in $(echo "${need#*:}" | tr , ' '); do
        wants "$case" && echo "skipped: $case, because ${need%%:*} is not installed"
        cases=" $cases "
        cases=${cases/ $case / }
    done
done

mount_place() {
    case $1 in
    directory) ;;
    mount) serve mount "$binary" mount "$top/source" "$top/mount" --kernel-cache "$kernel_cache" ;;
    bindfs) serve bindfs bindfs -f "$top/source" "$top/bindfs" ;;
    hp) serve hp "$PASSTHROUGH_HP" --foreground "$top/source" "$top/hp" ;;
    esac
}
unmount_place() {
    [ "$1" = directory ] && return
    umount "$top/$1"
    wait "$server" || true
}

# What all places work on: a tree, its archive, a repository of it, C files.
mkdir "$top/origin" "$top/source"
python3 - "$top/origin" "$files" <<'PYTHON'
import os, sys
top, files = sys.argv[1], int(sys.argv[2])
words = [f"word{n * 7919 % 10007}" for n in range(900)]
for n in range(files):
    place = f"{top}/tree/d{n // 1000}/e{n // 50 % 20}"
    os.makedirs(place, exist_ok=True)
    with open(f"{place}/f{n}", "w") as file:
        file.write(f"file {n}\n" + " ".join(words[n % 97:])[:6000] + "\n")
os.makedirs(f"{top}/c")
objects = " ".join(f"f{n}.o" for n in range(200))
with open(f"{top}/c/all.h", "w") as header:
    header.writelines(f"int f{n}(int);\n" for n in range(200))
for n in range(200):
    with open(f"{top}/c/f{n}.c", "w") as source:
        source.write(f'#include "all.h"\n#include <stdio.h>\nint f{n}(int a) {{ return a < {n} ? a * {n} : f{n * 7 % 200}(a - 1); }}\n')
with open(f"{top}/c/Makefile", "w") as rules:
    rules.write(f"lib.a: {objects}\n\tar rc $@ $^\n%.o: %.c all.h\n\tgcc -O -c $<\n")
PYTHON
tar -C "$top/origin" -cf "$top/origin/tree.tar" tree
if wants clone; then
    git init -q --bare "$top/origin/bare.git"
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
    git init -q "$top/origin/work"
    cp -r "$top/origin/tree" "$top/origin/work/"
    git -C "$top/origin/work" add .
    git -C "$top/origin/work" -c user.name=a -c user.email=a@b commit -qm tree
    git -C "$top/origin/work" push -q "$top/origin/bare.git" HEAD:refs/heads/main
    git --git-dir "$top/origin/bare.git" symbolic-ref HEAD refs/heads/main
    rm -rf "$top/origin/work"
fi
if wants ls_first || wants ls_second; then
    mkdir "$top/source/names"
    python3 - "$top/source/names" "$names" <<'PYTHON'
import os, sys
for n in range(int(sys.argv[2])):
    os.close(os.open(f"{sys.argv[1]}/file-{n:06}", os.O_CREAT | os.O_WRONLY, 0o644))
PYTHON
fi

: >"$top/samples"
# timed PLACE CASE COMMAND...: notes how long it took. What was written is not left to the next case.
timed() {
    local place=$1 what=$2 start end
    shift 2
    wants "$what" || return 0
    start=$EPOCHREALTIME
    if "$@" >/dev/null 2>"$top/said"; then
        end=$EPOCHREALTIME
        echo "$round $what $place $(echo "$end - $start" | tr , . | bc)" | tee -a "$top/samples" >&2
    else
        echo "$round $what $place failed: $(tail -n 1 "$top/said")" >&2
    fi
    sync -f "$top"
}
archive() { tar -C "$1" -cf - "$2" | cat; }

run() {
    local place=$1 here new
    new=round$round-$place
    mkdir "$top/source/$new"
    cp -r "$top/origin/tree" "$top/origin/c" "$top/source/$new/"
    # The source's kernel knows all of it, the mount nothing.
    ls -lR "$top/source/names" "$top/source/$new" >/dev/null || true
    sync -f "$top"
    here=$(at "$place")
    if wants ls_first || wants ls_second; then
        mount_place "$place"
        timed "$place" ls_first ls -l "$here/names"
        timed "$place" ls_second ls -l "$here/names"
        unmount_place "$place"
    fi
    mount_place "$place"
    here=$here/$new
    timed "$place" tar_c archive "$here" tree
    timed "$place" rsync_out rsync -a "$here/tree/" "$top/origin/out/"
    rm -rf "$top/origin/out"
    if wants rsync_in || wants rsync_noop; then
        wants rsync_in || rsync -a "$top/origin/tree/" "$here/in/"
        timed "$place" rsync_in rsync -a "$top/origin/tree/" "$here/in/"
        timed "$place" rsync_noop rsync -a "$top/origin/tree/" "$here/in/"
    fi
    if wants tar_x || wants rm; then
        mkdir "$here/unpacked"
        wants tar_x || tar -C "$here/unpacked" -xf "$top/origin/tree.tar"
        timed "$place" tar_x tar -C "$here/unpacked" -xf "$top/origin/tree.tar"
        timed "$place" rm rm -rf "$here/unpacked"
    fi
    timed "$place" clone git clone -q --no-hardlinks "$top/origin/bare.git" "$here/clone"
    timed "$place" make make -s -j2 -C "$here/c"
    unmount_place "$place"
}

echo "$(uname -sr), $(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg)"
for round in $(seq "$rounds"); do
    order="directory mount $others"
    [ $((round % 2)) -eq 0 ] && order=$(echo "$order" | tr ' ' '\n' | tac | tr '\n' ' ')
    for place in $order; do run "$place"; done
done
echo "load $(cut -d' ' -f1-3 /proc/loadavg)"

python3 - "$top/samples" <<'PYTHON'
import statistics, sys
samples, places = {}, []
for line in open(sys.argv[1]):
    round, case, place, seconds = line.split()
    samples.setdefault(case, {}).setdefault(place, {})[round] = float(seconds)
    if place not in places:
        places.append(place)
places.sort(key=["directory", "mount", "bindfs", "hp"].index)
print(f"{'seconds':12}" + "".join(f"{place:>24}" for place in places) + f"{'better / mount':>24}")
for case, times in samples.items():
    shown = []
    for place in places:
        of = list(times.get(place, {}).values())
        shown.append(f"{statistics.median(of):.3f} ({min(of):.3f} to {max(of):.3f})" if of else "failed")
    others = [times[place] for place in ("bindfs", "hp") if place in times]
    ratios = [min(other[round] for other in others if round in other) / own for round, own in times["mount"].items()] if others else []
    if ratios:
        shown.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"{case:12}" + "".join(f"{one:>24}" for one in shown))
PYTHON

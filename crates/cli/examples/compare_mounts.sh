#!/bin/sh
# Mounts one directory through foliocache and through what else is installed (bindfs, and libfuse's
# example passthrough_hp if PASSTHROUGH_HP names it), all with direct I/O on the FUSE side, and runs
# the example compare_mounts over them. Needs root.
#
#   crates/cli/examples/compare_mounts.sh DIRECTORY [arguments of compare_mounts]
#
# DIRECTORY is filled with one file and three mount points and may be any on the file system to
# measure. passthrough_hp has no option for direct I/O: build it with `fi->direct_io = 1;` as the
# last assignment to `fi` in `sfs_open`, and it takes part on the same terms.
set -eu

if [ $# -lt 1 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
top=$(mkdir -p "$1" && cd "$1" && pwd)
shift
cargo build --quiet --release -p foliocache-cli --bin foliocache --example compare_mounts
release=${CARGO_TARGET_DIR:-target}/release
mkdir -p "$top/source"
places=

cleanup() {
    for name in ours bindfs hp; do
        umount "$top/$name" 2>/dev/null || true
    done
}
trap cleanup EXIT INT TERM

# serve NAME COMMAND...: starts COMMAND, waits until it is mounted, and adds it to the places.
serve() {
    name=$1
    shift
    mkdir -p "$top/$name"
    "$@" &
    pid=$!
    tries=0
    until mountpoint -q "$top/$name"; do
        tries=$((tries + 1))
        if [ $tries -gt 100 ]; then
            echo "$name is not mounted after ten seconds" >&2
            exit 1
        fi
        sleep 0.1
    done
    places="$places $name=$top/$name@$pid"
}

serve ours "$release/foliocache" mount "$top/source" "$top/ours" --memory 512M
if command -v bindfs >/dev/null; then
    serve bindfs bindfs -f -o direct_io "$top/source" "$top/bindfs"
fi
if [ -n "${PASSTHROUGH_HP:-}" ]; then
    serve hp "$PASSTHROUGH_HP" --foreground --nocache "$top/source" "$top/hp"
fi
# The names hold no blanks; a directory with blanks is not for this script.
"$release/examples/compare_mounts" $places "$@"

#!/bin/bash
# Compares a mount with the directory itself, and with bindfs if it is installed: what people do with trees of small
# files, and PostgreSQL. Needs root, for the kernel's caches and the mounts.
#
#   crates/cli/examples/compare_directory.sh DIRECTORY [-f FILES] [-r ROUNDS] [-k none|mapped|all] [-b BINARY]
#       [-n DESCRIPTORS] [-u USER] [CASE...]
#
# DIRECTORY is made and may be any on the file system to measure; what is made in it is removed again. Each place
# gets a tree of its own of FILES files of 6 KB (5,000), made anew for each round, so that no place works in what another
# left. In each round the places take turns, each round in another order. A figure is the median of the rounds, a ratio
# the median of the rounds' ratios of speeds: 1 is as fast as the directory, 0.5 takes twice as long.
#
# -n sets the limit of open files, soft and hard. With -u a user of this number mounts, by fusermount3, and works in both
# places; bindfs and pgbench are left out.
#
# Cases: find ls git grep_cold grep cp tar clone pgbench; all of them by default. pgbench (4 clients) takes
# PostgreSQL, whose programs are looked for in PATH and in /usr/lib/postgresql.
set -euo pipefail

usage() {
    sed -n '2,18s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
[ $# -ge 1 ] || usage
top=$(mkdir -p "$1" && cd "$1" && pwd)
shift
files=5000 rounds=5 kernel_cache=mapped binary= seconds=10 descriptors= user=
while getopts f:r:k:b:s:n:u: option; do
    case $option in
    f) files=$OPTARG ;;
    r) rounds=$OPTARG ;;
    k) kernel_cache=$OPTARG ;;
    b) binary=$OPTARG ;;
    s) seconds=$OPTARG ;;
    n) descriptors=$OPTARG ;;
    u) user=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
cases=${*:-find ls git grep_cold grep cp tar clone pgbench}
if [ -z "$binary" ]; then
    cargo build --quiet --release -p foliocache-cli --bin foliocache
    binary=${CARGO_TARGET_DIR:-target}/release/foliocache
fi

places="directory mount"
command -v bindfs >/dev/null && places="$places bindfs" || echo "skipped: bindfs is not installed"
postgres=$(command -v initdb || ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null | tail -1) || true
postgres=${postgres%/initdb}
wants() { case " $cases " in *" $1 "*) return 0 ;; *) return 1 ;; esac }
leave_out() {
    wants "$1" || return 0
    cases=" $cases "
    cases=${cases/ $1 / }
    echo "skipped: $1, because $2"
}
command -v git >/dev/null || { leave_out git "git is not installed"; leave_out clone "git is not installed"; }
if [ -z "$postgres" ] || ! command -v pgbench >/dev/null; then
    leave_out pgbench "PostgreSQL and pgbench are not installed"
elif ! id postgres >/dev/null 2>&1; then
    leave_out pgbench "there is no user postgres to run it"
fi

[ -z "$descriptors" ] || ulimit -n "$descriptors"
as=() mount_options=(--allow-other)
if [ -n "$user" ]; then
    as=(env HOME=/ setpriv --reuid "$user" --regid "$user" --clear-groups --)
    mount_options=() places="directory mount"
    leave_out pgbench "it has a user of its own"
    for path in "$top" "$binary"; do
        "${as[@]}" test -x "$path" || { echo "user $user has no way to $path" >&2; exit 1; }
    done
fi

# Where a place is seen, and what is behind it.
at() { if [ "$1" = directory ]; then echo "$top/directory"; else echo "$top/$1"; fi }
behind() { if [ "$1" = directory ]; then echo "$top/directory"; else echo "$top/$1.source"; fi }

finish() {
    for place in $places; do
        if [ -d "$(at "$place")/pg" ] && [ -n "$postgres" ]; then
            su postgres -c "'$postgres/pg_ctl' -D '$(at "$place")/pg' -m immediate stop" >/dev/null 2>&1 || true
        fi
        umount "$top/$place" 2>/dev/null || true
    done
    wait
    rm -rf "$top/tree.tar" "$top/samples"
    for place in $places; do
        rm -rf "$(at "$place")" "$(behind "$place")"
    done
}
trap finish EXIT
trap 'exit 1' INT TERM

# serve PLACE COMMAND...: starts COMMAND, which serves the place, and waits until it is mounted.
declare -A server
serve() {
    mkdir -p "$top/$1" "$top/$1.source"
    chmod 755 "$top" "$top/$1" "$top/$1.source"
    [ -z "$user" ] || chown "$user" "$top/$1" "$top/$1.source"
    "${as[@]}" "${@:2}" >/dev/null &
    server[$1]=$!
    for _ in $(seq 100); do
        grep -qF " $top/$1 fuse" /proc/self/mounts && return
        sleep 0.1
    done
    echo "$1 is not mounted after ten seconds" >&2
    exit 1
}
mkdir -p "$top/directory"
chmod 755 "$top/directory"
[ -z "$user" ] || chown "$user" "$top/directory"
mount_place() {
    case $1 in
    directory) ;;
    mount) serve mount "$binary" mount "$top/mount.source" "$top/mount" --memory 512M --kernel-cache "$kernel_cache" "${mount_options[@]}" ;;
    bindfs) serve bindfs bindfs -f "$top/bindfs.source" "$top/bindfs" ;;
    esac
}
for place in $places; do mount_place "$place"; done

# A tree of $files files in directories of 50, in git, as an archive.
make_tree() {
    python3 - "$1" "$files" <<'PYTHON'
import os, sys
top, files = sys.argv[1], int(sys.argv[2])
words = [f"word{n * 7919 % 10007}" for n in range(900)]
for n in range(files):
    place = f"{top}/d{n // 1000}/e{n // 50 % 20}"
    os.makedirs(place, exist_ok=True)
    with open(f"{place}/f{n}", "w") as file:
        file.write(f"file {n}\n" + " ".join(words[n % 97:])[:6000] + "\n")
PYTHON
}
make_tree "$top/directory/tree"
tar -C "$top/directory" -cf "$top/tree.tar" tree
rm -rf "$top/directory/tree"

: >"$top/samples"
# timed PLACE CASE COMMAND...: notes how long it took.
timed() {
    local place=$1 what=$2 start end
    shift 2
    start=$EPOCHREALTIME
    "$@" >/dev/null
    end=$EPOCHREALTIME
    echo "$round $what $place $(echo "$end - $start" | tr , . | bc)" >>"$top/samples"
}
# finds_nothing COMMAND...: a search that ends with status 1, which is no error.
finds_nothing() {
    local status=0
    "$@" || status=$?
    [ "$status" -eq 1 ] && return
    echo "exit status $status instead of 1: $*" >&2
    exit 1
}
# forget PLACE: nothing of it is cached any more, in the kernel or in what serves it.
forget() {
    if [ "$1" != directory ]; then
        umount "$top/$1"
        wait "${server[$1]}" || true
    fi
    sync
    echo 3 >/proc/sys/vm/drop_caches
    mount_place "$1"
}

# Prepared behind the place, so that it is new there.
prepare() {
    local tree
    tree=$(behind "$1")
    rm -rf "${tree:?}"/*
    tar -C "$tree" -xf "$top/tree.tar"
    if wants git || wants clone; then
        git -C "$tree/tree" init -q
        git -C "$tree/tree" add .
        git -C "$tree/tree" -c user.name=a -c user.email=a@b commit -qm tree
    fi
    [ -z "$user" ] || chown -R "$user" "$tree"
    # The tree is left alone, and no news of it wait.
    sync
    sleep 1
}

run() {
    local place=$1 here tree
    here=$(at "$place")
    tree=$here/tree
    prepare "$place"
    git config --global --get-all safe.directory '^\*$' >/dev/null 2>&1 || export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
    if wants find; then
        "${as[@]}" find "$tree" >/dev/null
        timed "$place" find "${as[@]}" find "$tree" -size +0
    fi
    if wants ls; then
        "${as[@]}" ls -lR "$tree" >/dev/null
        timed "$place" ls "${as[@]}" ls -lR "$tree"
    fi
    if wants git; then
        # The first writes an index of what is seen here. The second has the kernel ask for the attributes of what the first
        # has read.
        "${as[@]}" git -C "$tree" status >/dev/null
        "${as[@]}" git -C "$tree" status >/dev/null
        timed "$place" git "${as[@]}" git -C "$tree" status
    fi
    if wants grep_cold || wants grep; then
        forget "$place"
        timed "$place" grep_cold finds_nothing "${as[@]}" grep -r "no such words" "$tree"
        # As with git: this asks for the attributes of what was read.
        finds_nothing "${as[@]}" grep -r "no such words" "$tree" >/dev/null
        timed "$place" grep finds_nothing "${as[@]}" grep -r "no such words" "$tree"
    fi
    if wants cp; then timed "$place" cp "${as[@]}" cp -r "$tree" "$here/copy"; fi
    if wants tar; then
        "${as[@]}" mkdir "$here/unpacked"
        timed "$place" tar "${as[@]}" tar -C "$here/unpacked" -xf "$top/tree.tar"
    fi
    if wants clone; then timed "$place" clone "${as[@]}" git clone -q --no-local "$tree" "$here/clone"; fi
    if wants pgbench; then benchmark "$place" "$here/pg"; fi
    sync
}

benchmark() {
    local place=$1 data=$2 port=54329 tps
    install -d -o postgres -m 700 "$data"
    su postgres -c "'$postgres/initdb' -D '$data' -A trust" >/dev/null
    su postgres -c "'$postgres/pg_ctl' -D '$data' -w -l '$data/log' -o '-p $port -k /tmp -c listen_addresses=' start" >/dev/null
    pgbench -h /tmp -p $port -U postgres -q -i -s 5 postgres >/dev/null 2>&1
    tps=$(pgbench -h /tmp -p $port -U postgres -c 4 -T "$seconds" postgres 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p')
    su postgres -c "'$postgres/pg_ctl' -D '$data' -w -m fast stop" >/dev/null
    rm -rf "$data"
    # As a time, a transaction's.
    echo "$round pgbench $place $(echo "scale=9; 1 / $tps" | bc)" >>"$top/samples"
}

for round in $(seq "$rounds"); do
    order=$places
    [ $((round % 2)) -eq 0 ] && order=$(echo "$places" | tr ' ' '\n' | tac | tr '\n' ' ')
    for place in $order; do run "$place"; done
done

python3 - "$top/samples" <<'PYTHON'
import statistics, sys
samples = {}
for line in open(sys.argv[1]):
    round, case, place, seconds = line.split()
    samples.setdefault(case, {}).setdefault(place, {})[round] = float(seconds)
print(f"{'case':10} {'place':10} {'median':>12} {'speed':>7}  least and most")
for case, places in samples.items():
    for place, times in places.items():
        median = statistics.median(times.values())
        shown = f"{1 / median:.0f} tps" if case == "pgbench" else f"{median:.3f} s"
        ratios = [places["directory"][round] / times[round] for round in times]
        ratio, least, most = statistics.median(ratios), min(ratios), max(ratios)
        print(f"{case:10} {place:10} {shown:>12} {ratio:7.2f}  {least:.2f} {most:.2f}")
PYTHON

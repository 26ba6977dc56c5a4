/* Operations on files, as a transcript: one line for each, with what came of it.
 *
 * `ops SECTION DIRECTORY` works in an empty directory. Two transcripts of one section, from two
 * directories, are the same if the directories behave alike; lines that begin with `~` tell of what
 * need not be alike. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* Prints a result: a number, or the error. */
static long say(const char *what, long result) {
    if (result < 0)
        printf("%s: %s\n", what, strerror(errno));
    else
        printf("%s: %ld\n", what, result);
    return result;
}

static void must(int ok, const char *what) {
    if (!ok) {
        printf("%s failed: %s\n", what, strerror(errno));
        fflush(stdout);
        exit(1);
    }
}

static int make(const char *name, const char *data) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    must(fd >= 0, name);
    must(write(fd, data, strlen(data)) == (long)strlen(data), "write");
    return fd;
}

static void put(const char *name, const char *data) { close(make(name, data)); }

static void show(const char *what, const char *name) {
    char text[256] = "";
    int fd = open(name, O_RDONLY);
    if (fd < 0) {
        say(what, -1);
        return;
    }
    long n = read(fd, text, sizeof text - 1);
    printf("%s: %ld '%s'\n", what, n, text);
    close(fd);
}

/* Everything of a name that does not depend on when and where. */
static void attributes(const char *what, const char *name) {
    struct stat st;
    if (lstat(name, &st) < 0) {
        say(what, -1);
        return;
    }
    printf("%s: mode %o links %ld owner %d:%d", what, st.st_mode, (long)st.st_nlink, st.st_uid, st.st_gid);
    if (!S_ISDIR(st.st_mode))
        printf(" size %ld", (long)st.st_size);
    if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode))
        printf(" device %u:%u", major(st.st_rdev), minor(st.st_rdev));
    puts("");
}

static struct stat look(const char *name) {
    struct stat st;
    must(lstat(name, &st) == 0, name);
    return st;
}

static int later(struct timespec a, struct timespec b) {
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

/* Longer than the clock of time stamps stands still. */
static void nap(void) { usleep(20000); }

/* Runs `body` in another process as user and group `id` alone. */
static void as(int id, void (*body)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        must(setgroups(0, NULL) == 0 && setgid(id) == 0 && setuid(id) == 0, "setuid");
        body();
        fflush(stdout);
        _exit(0);
    }
    int status;
    must(waitpid(pid, &status, 0) == pid && status == 0, "another process");
}

static void renames(void) {
    put("a", "a");
    put("b", "b");
    say("no replace over a name", renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_NOREPLACE));
    say("no replace", renameat2(AT_FDCWD, "a", AT_FDCWD, "c", RENAME_NOREPLACE));
    show("moved", "c");
    attributes("old name", "a");
    say("exchange with nothing", renameat2(AT_FDCWD, "b", AT_FDCWD, "none", RENAME_EXCHANGE));
    must(mkdir("d", 0755) == 0 && mkdir("d/e", 0755) == 0, "mkdir");
    put("d/f", "f");
    say("exchange file and directory", renameat2(AT_FDCWD, "b", AT_FDCWD, "d/e", RENAME_EXCHANGE));
    attributes("file's place", "b");
    show("directory's place", "d/e");
    attributes("directory", "d");
    attributes("root", ".");
    say("exchange with a child", renameat2(AT_FDCWD, "d", AT_FDCWD, "d/e", RENAME_EXCHANGE));
    say("both", renameat2(AT_FDCWD, "c", AT_FDCWD, "d/e", RENAME_EXCHANGE | RENAME_NOREPLACE));
    say("unknown flag", renameat2(AT_FDCWD, "c", AT_FDCWD, "x", 1 << 10));
    say("~whiteout", renameat2(AT_FDCWD, "d/f", AT_FDCWD, "d/g", RENAME_WHITEOUT));
    say("into itself", rename("d", "d/h"));
    must(mkdir("full", 0755) == 0, "mkdir");
    put("full/x", "x");
    say("over a full directory", rename("d", "full"));
    say("directory over file", rename("full", "c"));
    say("file over directory", rename("c", "full"));
    must(link("c", "c2") == 0, "link");
    say("to its other name", rename("c", "c2"));
    attributes("both are there", "c");
    int fd = open("c2", O_RDONLY);
    put("n", "new");
    say("over an open file with another name", rename("n", "c2"));
    attributes("the other name", "c");
    struct stat st;
    must(fstat(fd, &st) == 0, "fstat");
    printf("the open file: links %ld\n", (long)st.st_nlink);
    show("the new file", "c2");
    struct stat before = look("c2"), directory = look(".");
    nap();
    say("a rename", rename("c2", "c3"));
    struct stat after = look("c3"), directory2 = look(".");
    printf("ctime %d, mtime of the directory %d\n", later(after.st_ctim, before.st_ctim),
           later(directory2.st_mtim, directory.st_mtim));
}

static void links(void) {
    int fd = make("a", "data");
    struct stat before = look("a");
    nap();
    say("link", link("a", "b"));
    struct stat after = look("a");
    printf("ctime %d mtime %d same %d\n", later(after.st_ctim, before.st_ctim),
           later(after.st_mtim, before.st_mtim), look("b").st_ino == after.st_ino);
    attributes("one name", "a");
    must(chmod("b", 0640) == 0, "chmod");
    attributes("changed by the other", "a");
    must(truncate("b", 2) == 0, "truncate");
    show("cut by the other", "a");
    must(unlink("a") == 0, "unlink");
    attributes("the other is gone", "b");
    say("over a name", link("b", "b"));
    must(mkdir("d", 0755) == 0, "mkdir");
    say("of a directory", link("d", "e"));
    say("rmdir of a file", rmdir("b"));
    say("unlink of a directory", unlink("d"));
    say("symlink", symlink("nowhere/at all", "s"));
    attributes("symlink", "s");
    say("open of it", open("s", O_RDONLY));
    say("open without following", open("s", O_RDONLY | O_NOFOLLOW));
    say("link of it", linkat(AT_FDCWD, "s", AT_FDCWD, "s2", 0));
    attributes("linked symlink", "s2");
    char text[5000];
    long n = readlink("s2", text, sizeof text);
    printf("it holds %ld '%.*s'\n", n, (int)n, text);
    memset(text, 'x', sizeof text);
    text[4095] = 0;
    for (int i = 100; i < 4095; i += 100)
        text[i] = '/';
    say("long target", symlink(text, "long"));
    char back[5000];
    n = readlink("long", back, sizeof back);
    printf("it holds %ld same %d\n", n, n == 4095 && !memcmp(text, back, 4095));
    say("empty target", symlink("", "empty"));
    say("chown of a symlink", lchown("s", 5, 6));
    attributes("its owner", "s");
    say("fifo", mkfifo("fifo", 0600));
    say("device", mknod("null", S_IFCHR | 0666, makedev(1, 3)));
    say("large device", mknod("large", S_IFBLK | 0600, makedev(300, 70000)));
    say("socket", mknod("socket", S_IFSOCK | 0644, 0));
    say("file", mknod("file", S_IFREG | 04751, 0));
    attributes("fifo", "fifo");
    attributes("device", "null");
    attributes("large device", "large");
    attributes("socket", "socket");
    attributes("file", "file");
    fflush(stdout);
    if (fork() == 0) {
        int end = open("fifo", O_WRONLY);
        _exit(write(end, "through", 7) != 7);
    }
    int end = open("fifo", O_RDONLY);
    memset(text, 0, 20);
    n = read(end, text, 20);
    printf("fifo: %ld '%s'\n", n, text);
    wait(NULL);
    /* Names that are gone, of a file that is open. */
    must(unlink("b") == 0, "unlink");
    struct stat st;
    must(fstat(fd, &st) == 0, "fstat");
    printf("unlinked: links %ld size %ld\n", (long)st.st_nlink, (long)st.st_size);
    say("write to it", pwrite(fd, "more data", 9, 100));
    say("cut it", ftruncate(fd, 105));
    say("read of it", pread(fd, text, 200, 100));
    printf("'%.5s'\n", text);
    say("chmod of it", fchmod(fd, 0600));
    say("xattr of it", fsetxattr(fd, "user.x", "y", 1, 0));
    say("back to a name", linkat(fd, "", AT_FDCWD, "again", AT_EMPTY_PATH));
    char path[64];
    sprintf(path, "/proc/self/fd/%d", fd);
    int second = open(path, O_RDWR);
    say("a second handle", second < 0 ? -1 : pread(second, text, 200, 100));
    must(fstat(fd, &st) == 0, "fstat");
    printf("it has: mode %o links %ld size %ld\n", st.st_mode, (long)st.st_nlink, (long)st.st_size);
    /* A directory that is gone. */
    int dir = open("d", O_RDONLY | O_DIRECTORY);
    must(rmdir("d") == 0, "rmdir");
    must(fstat(dir, &st) == 0, "fstat");
    printf("removed directory: links %ld\n", (long)st.st_nlink);
    say("a name in it", openat(dir, "x", O_CREAT | O_RDWR, 0644));
    DIR *stream = fdopendir(dir);
    errno = 0;
    printf("its entries: %s\n", readdir(stream) ? "some" : "none");
}

static void xattrs(void) {
    put("f", "data");
    must(mkdir("d", 0755) == 0 && symlink("f", "s") == 0, "mkdir");
    char value[70000];
    memset(value, 'v', sizeof value);
    const char *names[] = {"user.one", "user.two", "security.three", "trusted.four"};
    for (int i = 0; i < 4; i++) {
        say(names[i], setxattr("f", names[i], value, 10 * (i + 1), 0));
        say("size", getxattr("f", names[i], NULL, 0));
        say("value", getxattr("f", names[i], value, sizeof value));
        say("too small", getxattr("f", names[i], value, 3));
        say("of a directory", setxattr("d", names[i], "x", 1, 0));
        say("of a symlink", lsetxattr("s", names[i], "x", 1, 0));
    }
    say("create over it", setxattr("f", "user.one", "x", 1, XATTR_CREATE));
    say("replace nothing", setxattr("f", "user.none", "x", 1, XATTR_REPLACE));
    say("replace", setxattr("f", "user.one", "new", 3, XATTR_REPLACE));
    say("empty value", setxattr("f", "user.empty", "", 0, XATTR_CREATE));
    say("its size", getxattr("f", "user.empty", value, sizeof value));
    say("get", getxattr("f", "user.one", value, sizeof value));
    printf("'%.3s'\n", value);
    say("none", getxattr("f", "user.none", value, sizeof value));
    say("no prefix", setxattr("f", "one", "x", 1, 0));
    say("unknown prefix", setxattr("f", "none.one", "x", 1, 0));
    say("large", setxattr("f", "user.large", value, 2000, 0));
    say("too large", setxattr("f", "user.huge", value, 65537, 0));
    char list[4096];
    long n = listxattr("f", list, sizeof list);
    say("list", n);
    say("list's size", listxattr("f", NULL, 0));
    say("list, too small", listxattr("f", list, 5));
    n = listxattr("f", list, sizeof list);
    int found = 0;
    for (char *name = list; name < list + n; name += strlen(name) + 1)
        found++;
    printf("names: %d\n", found);
    struct stat before = look("f");
    nap();
    say("remove", removexattr("f", "user.two"));
    printf("ctime %d\n", later(look("f").st_ctim, before.st_ctim));
    say("remove again", removexattr("f", "user.two"));
    say("link's list", llistxattr("s", list, sizeof list));
}

static void time_of(const char *what, const char *name, struct timespec a, struct timespec m) {
    struct timespec both[2] = {a, m};
    say(what, utimensat(AT_FDCWD, name, both, AT_SYMLINK_NOFOLLOW));
    struct stat st = look(name);
    printf("atime %ld.%09ld mtime %ld.%09ld\n", (long)st.st_atim.tv_sec, st.st_atim.tv_nsec,
           (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

static struct timespec at(long sec, long nsec) { return (struct timespec){sec, nsec}; }

static void times(void) {
    int fd = make("f", "data");
    must(mkdir("d", 0755) == 0 && symlink("f", "s") == 0, "mkdir");
    const char *names[] = {"f", "d", "s"};
    for (int i = 0; i < 3; i++) {
        time_of("nanoseconds", names[i], at(1000000001, 123456789), at(1100000002, 987654321));
        time_of("before 1970", names[i], at(-1, 999999999), at(-1000000, 1));
        time_of("the epoch", names[i], at(0, 0), at(0, 1));
        time_of("after 2038", names[i], at(2200000000, 5), at(4000000000, 6));
        time_of("far future", names[i], at(15032385535, 7), at(100000000000, 8));
        time_of("last", names[i], at(INT64_MAX, 1), at(INT64_MAX, 999999999));
        time_of("first", names[i], at(INT64_MIN, 1), at(INT64_MIN, 999999999));
        time_of("omit", names[i], at(7, UTIME_OMIT), at(8, 9));
        time_of("omit both", names[i], at(7, UTIME_OMIT), at(8, UTIME_OMIT));
        struct timespec one[2] = {at(50, 1), at(0, UTIME_NOW)};
        must(utimensat(AT_FDCWD, names[i], one, AT_SYMLINK_NOFOLLOW) == 0, "now");
        struct stat st = look(names[i]);
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        printf("now: %d atime %ld\n", labs(now.tv_sec - st.st_mtim.tv_sec) < 100, (long)st.st_atim.tv_sec);
    }
    /* Times are kept by data that is written back after they were set. */
    must(pwrite(fd, "later", 5, 0) == 5, "write");
    time_of("behind a write", "f", at(1, 2), at(3, 4));
    must(fsync(fd) == 0, "fsync");
    struct stat st = look("f");
    printf("after fsync: mtime %ld.%09ld\n", (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    struct timespec bad[2] = {at(0, 1000000000), at(0, 0)};
    say("bad nanoseconds", utimensat(AT_FDCWD, "f", bad, 0));
    /* What moves which time. */
    struct stat before = look("f");
    nap();
    must(pwrite(fd, "x", 1, 0) == 1, "write");
    st = look("f");
    printf("write: mtime %d ctime %d\n", later(st.st_mtim, before.st_mtim), later(st.st_ctim, before.st_ctim));
    before = st;
    nap();
    must(ftruncate(fd, 100) == 0, "truncate");
    st = look("f");
    printf("truncate: mtime %d ctime %d\n", later(st.st_mtim, before.st_mtim), later(st.st_ctim, before.st_ctim));
    before = st;
    nap();
    must(chmod("f", 0600) == 0, "chmod");
    st = look("f");
    printf("chmod: mtime %d ctime %d\n", later(st.st_mtim, before.st_mtim), later(st.st_ctim, before.st_ctim));
    before = look("d");
    nap();
    put("d/x", "x");
    st = look("d");
    printf("entry: mtime %d ctime %d\n", later(st.st_mtim, before.st_mtim), later(st.st_ctim, before.st_ctim));
}

/* Where data and holes are, and what the file holds. */
static void map(const char *what, int fd) {
    struct stat st;
    must(fstat(fd, &st) == 0, "fstat");
    printf("%s: size %ld:", what, (long)st.st_size);
    for (long at = 0; at < st.st_size;) {
        long data = lseek(fd, at, SEEK_DATA);
        if (data < 0)
            break;
        at = lseek(fd, data, SEEK_HOLE);
        printf(" %ld-%ld", data, at);
    }
    unsigned sum = 0;
    unsigned char page[4096];
    long n;
    for (long at = 0; (n = pread(fd, page, sizeof page, at)) > 0; at += n)
        for (int i = 0; i < n; i++)
            sum = sum * 31 + page[i];
    printf(", sum %08x\n", sum);
}

static long blocks(int fd) {
    struct stat st;
    must(fsync(fd) == 0 && fstat(fd, &st) == 0, "fstat");
    return st.st_blocks;
}

static void space(void) {
    const long M = 1 << 20;
    char *data = malloc(M);
    for (long i = 0; i < M; i++)
        data[i] = i * 7 + (i >> 12) + 1;
    int fd = make("f", "");
    must(pwrite(fd, data, M, 0) == M, "write");
    map("written", fd);
    say("punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 65536, 131072));
    map("punched", fd);
    say("punch in a page", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 300001, 77));
    map("punched in a page", fd);
    say("punch past the end", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, M - 100, 2 * M));
    map("punched past the end", fd);
    say("punch without keeping", fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 4096));
    say("zero", fallocate(fd, FALLOC_FL_ZERO_RANGE, 400000, 5000));
    say("zero and grow", fallocate(fd, FALLOC_FL_ZERO_RANGE, M - 5000, 10000));
    must(fsync(fd) == 0, "fsync");
    struct stat st;
    must(fstat(fd, &st) == 0, "fstat");
    printf("size %ld\n", (long)st.st_size);
    say("zero and keep", fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, M, 2 * M));
    must(fstat(fd, &st) == 0, "fstat");
    printf("size %ld, has space %d\n", (long)st.st_size, blocks(fd) * 512 > 2 * M);
    unsigned sum = 0;
    char *back = malloc(2 * M);
    long n = pread(fd, back, 2 * M, 0);
    for (long i = 0; i < n; i++)
        sum = sum * 31 + (unsigned char)back[i];
    printf("%ld bytes, sum %08x\n", n, sum);
    int g = make("g", "hello");
    say("allocate and keep", fallocate(g, FALLOC_FL_KEEP_SIZE, 0, M));
    must(fstat(g, &st) == 0, "fstat");
    printf("size %ld, has space %d\n", (long)st.st_size, blocks(g) * 512 >= M);
    say("allocate", fallocate(g, 0, 100, M));
    must(fstat(g, &st) == 0, "fstat");
    printf("size %ld, has space %d\n", (long)st.st_size, blocks(g) * 512 >= M);
    show("old data", "g");
    say("nothing", fallocate(g, 0, 0, 0));
    say("before the beginning", fallocate(g, 0, -1, 10));
    say("~collapse", fallocate(g, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    say("~insert", fallocate(g, FALLOC_FL_INSERT_RANGE, 0, 4096));
    int reader = open("g", O_RDONLY);
    say("of a reader", fallocate(reader, 0, 0, 10));
    /* A sparse file whose data is still in the cache, then written. */
    int s = make("s", "");
    must(ftruncate(s, 10 * M) == 0, "truncate");
    say("no data", lseek(s, 0, SEEK_DATA));
    say("a hole", lseek(s, 5 * M, SEEK_HOLE));
    must(pwrite(s, data, 4096, 4 * M) == 4096 && pwrite(s, data, 4096, 8 * M) == 4096, "write");
    say("dirty data", lseek(s, 0, SEEK_DATA));
    say("the next", lseek(s, 4 * M + 512 * 1024, SEEK_DATA));
    say("hole at data", lseek(s, 8 * M, SEEK_HOLE) > 8 * M);
    say("at the end", lseek(s, 10 * M, SEEK_DATA));
    say("hole at the end", lseek(s, 10 * M, SEEK_HOLE));
    say("the end", lseek(s, 0, SEEK_END));
    say("negative", lseek(s, -1, SEEK_DATA));
    /* Copies. */
    int c = make("c", "");
    loff_t from = 1000, to = 77;
    say("copy", copy_file_range(fd, &from, c, &to, 200000, 0));
    printf("from %ld to %ld\n", (long)from, (long)to);
    n = pread(c, back, 2 * M, 0);
    sum = 0;
    for (long i = 0; i < n; i++)
        sum = sum * 31 + (unsigned char)back[i];
    printf("%ld bytes, sum %08x\n", n, sum);
    from = 0, to = 300000;
    say("within a file", copy_file_range(c, &from, c, &to, 100000, 0));
    from = 0, to = 50000;
    say("overlapping", copy_file_range(c, &from, c, &to, 100000, 0));
    from = 10 * M, to = 0;
    say("past the end", copy_file_range(c, &from, fd, &to, 100, 0));
    from = 399999, to = 0;
    say("up to the end", copy_file_range(c, &from, fd, &to, 100000, 0));
    from = 0, to = 0;
    say("from what cannot be read", copy_file_range(open("g", O_WRONLY), &from, c, &to, 10, 0));
    say("to what cannot be written", copy_file_range(c, &from, reader, &to, 10, 0));
    say("to what appends", copy_file_range(c, &from, open("g", O_WRONLY | O_APPEND), &to, 10, 0));
    say("flags", copy_file_range(c, &from, g, &to, 10, 1));
    n = pread(c, back, 2 * M, 0);
    sum = 0;
    for (long i = 0; i < n; i++)
        sum = sum * 31 + (unsigned char)back[i];
    printf("%ld bytes, sum %08x\n", n, sum);
    /* The room there is. */
    struct statvfs room;
    must(statvfs(".", &room) == 0, "statvfs");
    printf("block %lu fragment %lu blocks %lu files %lu names %lu\n", room.f_bsize, room.f_frsize,
           (unsigned long)room.f_blocks, (unsigned long)room.f_files, room.f_namemax);
}

static void handles(void) {
    /* Two processes that append. */
    put("log", "");
    fflush(stdout);
    for (int child = 0; child < 2; child++)
        if (fork() == 0) {
            int fd = open("log", O_WRONLY | O_APPEND);
            char line[17];
            for (int i = 0; i < 2000; i++) {
                sprintf(line, "%d %012d\n", child, i);
                if (write(fd, line, 15) != 15)
                    _exit(1);
            }
            _exit(0);
        }
    int failed = 0, status;
    for (int child = 0; child < 2; child++)
        if (wait(&status) < 0 || status)
            failed++;
    FILE *log = fopen("log", "r");
    int next[2] = {0, 0}, who, number, bad = 0;
    while (fscanf(log, "%d %d\n", &who, &number) == 2)
        if (who < 0 || who > 1 || number != next[who]++)
            bad++;
    printf("appended %d and %d, %d failed, %d bad\n", next[0], next[1], failed, bad);
    int fd = open("log", O_RDWR | O_APPEND);
    say("pwrite appends", pwrite(fd, "x", 1, 0));
    say("position", lseek(fd, 0, SEEK_CUR));
    say("size", lseek(fd, 0, SEEK_END));
    fcntl(fd, F_SETFL, 0);
    say("appending no more", pwrite(fd, "y", 1, 0));
    say("size", lseek(fd, 0, SEEK_END));
    /* Direct I/O. */
    char *page = NULL;
    must(posix_memalign((void **)&page, 4096, 8192) == 0, "memory");
    memset(page, 'd', 8192);
    int direct = open("direct", O_RDWR | O_CREAT | O_DIRECT, 0644);
    say("direct", direct < 0 ? -1 : pwrite(direct, page, 8192, 0));
    memset(page, 0, 8192);
    say("read", pread(direct, page, 4096, 4096));
    printf("'%c%c'\n", page[0], page[4095]);
    int plain = open("direct", O_RDWR);
    must(pwrite(plain, "plain", 5, 4096) == 5, "write");
    say("read", pread(direct, page, 4096, 4096));
    printf("'%.7s'\n", page);
    /* A shared mapping and reads and writes. */
    char *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, plain, 0);
    must(shared != MAP_FAILED, "mmap");
    memcpy(shared + 100, "stored", 6);
    char text[64] = "";
    say("read of what was stored", pread(plain, text, 6, 100));
    printf("'%s'\n", text);
    must(pwrite(plain, "written", 7, 5000) == 7, "write");
    printf("stored '%.7s'\n", shared + 5000);
    fflush(stdout);
    if (fork() == 0) {
        shared[200] = 'c';
        _exit(0);
    }
    wait(NULL);
    say("read of what a child stored", pread(plain, text, 1, 200));
    printf("'%c'\n", text[0]);
    munmap(shared, 8192);
    /* Locks between two processes. */
    int mine = open("log", O_RDWR);
    must(flock(mine, LOCK_EX) == 0, "flock");
    struct flock range = {.l_type = F_WRLCK, .l_start = 100, .l_len = 100};
    must(fcntl(mine, F_SETLK, &range) == 0, "fcntl");
    fflush(stdout);
    if (fork() == 0) {
        int other = open("log", O_RDWR);
        say("flock of another", flock(other, LOCK_EX | LOCK_NB));
        struct flock ask = {.l_type = F_RDLCK, .l_start = 0, .l_len = 1000};
        must(fcntl(other, F_GETLK, &ask) == 0, "fcntl");
        printf("held: %d from %ld for %ld, by the parent %d\n", ask.l_type == F_WRLCK,
               (long)ask.l_start, (long)ask.l_len, ask.l_pid == getppid());
        ask = (struct flock){.l_type = F_RDLCK, .l_start = 150, .l_len = 10};
        say("range of another", fcntl(other, F_SETLK, &ask));
        ask = (struct flock){.l_type = F_WRLCK, .l_start = 200, .l_len = 10};
        say("range beside it", fcntl(other, F_SETLK, &ask));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    must(flock(mine, LOCK_UN) == 0, "flock");
    int third = open("log", O_RDWR);
    say("flock when it is free", flock(third, LOCK_EX | LOCK_NB));
    struct flock own = {.l_type = F_WRLCK, .l_start = 0, .l_len = 10};
    say("lock of an open file", fcntl(mine, F_OFD_SETLK, &own));
    own.l_pid = 0;
    say("against another open file", fcntl(third, F_OFD_SETLK, &own));
    /* A file without a name. */
    int unnamed = open(".", O_TMPFILE | O_RDWR, 0644);
    say("~unnamed file", unnamed < 0 ? -1 : 0);
    /* What a file cannot do. */
    int flags;
    say("~flags", ioctl(fd, FS_IOC_GETFLAGS, &flags));
    say("terminal", ioctl(fd, TCGETS, text));
    say("unknown ioctl", ioctl(fd, _IOR('z', 99, int), &flags));
    /* Programs. */
    fd = make("script", "#!/bin/sh\necho from a script\n");
    fchmod(fd, 0755);
    close(fd);
    fflush(stdout);
    printf("script: %d\n", system("./script"));
    fflush(stdout);
    printf("copied program: %d\n", system("cp /bin/true true && ./true"));
    /* A program that runs is not cut, not even by a reader's open. */
    must(system("cp /bin/sleep sleeper") == 0, "cp");
    struct stat before = look("sleeper");
    int started[2];
    must(pipe2(started, O_CLOEXEC) == 0, "pipe");
    fflush(stdout);
    pid_t sleeper = fork();
    if (sleeper == 0)
        _exit(execl("./sleeper", "sleeper", "100", NULL));
    close(started[1]);
    /* Closed by the program's start. */
    must(read(started[0], text, 1) == 0, "read");
    say("write to a running program", open("sleeper", O_WRONLY));
    say("cut a running program", open("sleeper", O_RDONLY | O_TRUNC));
    printf("kept %d\n", look("sleeper").st_size == before.st_size);
    must(kill(sleeper, SIGTERM) == 0 && wait(&status) == sleeper, "kill");
    printf("it ended by %d\n", WTERMSIG(status));
    must(chmod("script", 0644) == 0, "chmod");
    say("not executable", execl("./script", "script", NULL));
    /* What others are told of. */
    int watch = inotify_init1(IN_NONBLOCK);
    must(mkdir("watched", 0755) == 0, "mkdir");
    must(inotify_add_watch(watch, "watched", IN_ALL_EVENTS & ~(IN_ACCESS | IN_CLOSE_NOWRITE)) >= 0, "inotify");
    put("watched/a", "a");
    must(chmod("watched/a", 0600) == 0, "chmod");
    must(rename("watched/a", "watched/b") == 0, "rename");
    must(link("watched/b", "watched/c") == 0, "link");
    must(unlink("watched/b") == 0 && unlink("watched/c") == 0, "unlink");
    must(rmdir("watched") == 0, "rmdir");
    _Alignas(struct inotify_event) char events[4096];
    long n = read(watch, events, sizeof events);
    for (char *at = events; at < events + n;) {
        struct inotify_event *event = (struct inotify_event *)at;
        printf("event %x %s\n", event->mask, event->len ? event->name : "");
        at += sizeof *event + event->len;
    }
}

static int by_name(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }

static void list(const char *what, const char *name) {
    DIR *dir = opendir(name);
    must(dir != NULL, name);
    char *names[64];
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir)) && n < 64;) {
        struct stat st;
        must(fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0, entry->d_name);
        int type = entry->d_type == DT_UNKNOWN || entry->d_type == (st.st_mode & S_IFMT) >> 12;
        int number = entry->d_ino == st.st_ino || !strcmp(entry->d_name, "..");
        must(asprintf(&names[n++], "%s%s%s", entry->d_name, type ? "" : " (type)", number ? "" : " (number)") > 0, "asprintf");
    }
    closedir(dir);
    qsort(names, n, sizeof *names, by_name);
    printf("%s:", what);
    for (int i = 0; i < n; i++)
        printf(" %s", names[i]);
    puts("");
}

static void directories(void) {
    must(mkdir("d", 0755) == 0 && mkdir("d/e", 0755) == 0, "mkdir");
    put("d/f", "f");
    must(symlink("f", "d/s") == 0 && mkfifo("d/p", 0644) == 0, "symlink");
    char name[300];
    memset(name, 'n', 256);
    memcpy(name, "d/", 2);
    name[257] = 0;
    name[256] = 'n';
    put(name, "long");
    put("d/\xff\xfe not UTF-8\n", "x");
    list("entries", "d");
    name[257] = 'n', name[258] = 0;
    say("too long", open(name, O_RDONLY));
    say("too long, made", open(name, O_CREAT | O_RDWR, 0644));
    list("root", ".");
    /* 100,000 names. */
    const int many = 100000;
    must(mkdir("many", 0755) == 0, "mkdir");
    int dir = open("many", O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < many; i++) {
        sprintf(name, "name-%06d", i);
        must(mknodat(dir, name, S_IFREG | 0644, 0) == 0, "mknod");
    }
    char *seen = calloc(2 * many, 1);
    int twice = 0, found = 0, number;
    DIR *stream = fdopendir(dir);
    for (struct dirent *entry; (entry = readdir(stream));)
        if (sscanf(entry->d_name, "name-%d", &number) == 1) {
            twice += seen[number]++ != 0;
            found++;
        }
    printf("found %d, %d twice\n", found, twice);
    /* Places in it. */
    rewinddir(stream);
    long places[20];
    char *there[20];
    int n = 0;
    for (int i = 0; n < 20; i++) {
        long place = telldir(stream);
        struct dirent *entry = readdir(stream);
        if (i % 4999 == 0) {
            places[n] = place;
            there[n++] = strdup(entry->d_name);
        }
    }
    int wrong = 0;
    for (int i = 19; i >= 0; i -= 3) {
        seekdir(stream, places[i]);
        wrong += strcmp(readdir(stream)->d_name, there[i]) != 0;
    }
    printf("%d places wrong\n", wrong);
    /* Names that are there throughout are seen once, whatever becomes of others. */
    rewinddir(stream);
    memset(seen, 0, 2 * many);
    int i = 0;
    for (struct dirent *entry; (entry = readdir(stream));) {
        if (sscanf(entry->d_name, "name-%d", &number) == 1)
            seen[number]++;
        if (i < 3000) {
            sprintf(name, "name-%06d", 2 * i + 1);
            must(unlinkat(dir, name, 0) == 0, "unlink");
            sprintf(name, "name-%06d", many + i);
            must(mknodat(dir, name, S_IFREG | 0644, 0) == 0, "mknod");
            i++;
        }
    }
    int missed = 0;
    twice = 0;
    for (i = 0; i < 2 * many; i++) {
        if (i < many && (i > 6000 || i % 2 == 0))
            missed += seen[i] == 0;
        twice += seen[i] > 1;
    }
    printf("%d missed, %d twice\n", missed, twice);
    /* All of them go while the directory is read. */
    rewinddir(stream);
    found = 0;
    for (struct dirent *entry; (entry = readdir(stream));)
        if (entry->d_name[0] != '.') {
            must(unlinkat(dir, entry->d_name, 0) == 0, "unlink");
            found++;
        }
    printf("unlinked %d\n", found);
    say("empty", rmdir("many"));
}

static int user_file = -1;

static void owner(void) {
    umask(022);
    put("shared/own", "own");
    attributes("made", "shared/own");
    say("chmod", chmod("shared/own", 0600));
    say("own times", utimensat(AT_FDCWD, "shared/own", NULL, 0));
    say("give away", chown("shared/own", 102, -1));
    say("other group", chown("shared/own", -1, 102));
    say("device", mknod("shared/device", S_IFCHR | 0666, makedev(1, 3)));
    say("set-group-id of a foreign group", chmod("shared/own", 02755));
    attributes("after it", "shared/own");
    must(mkdir("shared/group/below", 0777) == 0, "mkdir");
    put("shared/group/file", "x");
    attributes("directory of the group", "shared/group/below");
    attributes("file of the group", "shared/group/file");
    say("security attribute", setxattr("shared/own", "security.x", "y", 1, 0));
    say("trusted attribute", setxattr("shared/own", "trusted.x", "y", 1, 0));
    say("user attribute", setxattr("shared/own", "user.x", "y", 1, 0));
    must(chmod("shared/own", 0600) == 0, "chmod");
}

static void stranger(void) {
    say("read", open("shared/own", O_RDONLY));
    say("write", open("shared/own", O_WRONLY));
    say("read what all may", open("public", O_RDONLY) >= 0);
    say("write what all may read", open("public", O_WRONLY));
    say("cut it", truncate("public", 0));
    say("chmod", chmod("public", 0777));
    say("chown", chown("public", 102, 102));
    say("times", utimensat(AT_FDCWD, "public", (struct timespec[2]){{1, 1}, {1, 1}}, 0));
    say("now", utimensat(AT_FDCWD, "public", NULL, 0));
    say("unlink in a sticky directory", unlink("shared/own"));
    say("rename in a sticky directory", rename("shared/own", "shared/mine"));
    say("a name where none may be made", open("new", O_CREAT | O_RDWR, 0644));
    say("look into a closed directory", open("closed", O_RDONLY | O_DIRECTORY));
    say("a name in it", access("closed/in", F_OK));
    say("search one that cannot be read", access("search/in", F_OK));
    say("read it", open("search", O_RDONLY | O_DIRECTORY));
    say("attribute", getxattr("shared/own", "user.x", NULL, 0));
    say("set attribute", setxattr("public", "user.x", "y", 1, 0));
    say("link of a foreign file", link("shared/own", "shared/linked"));
    say("execute", access("public", X_OK));
    /* Bits that a write by somebody else than root takes away. */
    say("write", write(user_file, "x", 1));
    attributes("set-id after a write", "setid");
    int fd = open("setid2", O_WRONLY | O_TRUNC);
    say("open and cut", fd < 0 ? -1 : 0);
    attributes("set-id after a cut", "setid2");
    fd = open("setid3", O_WRONLY);
    say("fallocate", fallocate(fd, 0, 0, 10000));
    attributes("set-id after fallocate", "setid3");
}

static void of_the_group(void) {
    say("group reads", open("grouped", O_RDONLY) >= 0);
    say("group writes", open("grouped", O_WRONLY));
}

static void listed(void) {
    say("listed user reads", open("acl", O_RDONLY) >= 0);
    say("listed user writes", open("acl", O_WRONLY));
}

static void unlisted(void) { say("unlisted user reads", open("acl", O_RDONLY) >= 0 ? 1 : -1); }

static void in_list_directory(void) {
    umask(077);
    put("inherit/f", "x");
    must(mkdir("inherit/d", 0777) == 0 && mknod("inherit/n", S_IFREG | 0666, 0) == 0, "mkdir");
    umask(022);
    attributes("file that inherits", "inherit/f");
    attributes("directory that inherits", "inherit/d");
    attributes("node that inherits", "inherit/n");
    say("its list", getxattr("inherit/f", "system.posix_acl_access", NULL, 0));
    say("handed on", getxattr("inherit/d", "system.posix_acl_default", NULL, 0));
}

/* An access control list as the kernel takes it. */
struct acl {
    uint32_t version;
    struct {
        uint16_t tag, perm;
        uint32_t id;
    } entries[5];
};

static struct acl acl(int user, int named, int id, int group, int mask, int other) {
    return (struct acl){2, {{1, user, -1}, {2, named, id}, {4, group, -1}, {16, mask, -1}, {32, other, -1}}};
}

static void users(void) {
    umask(0);
    must(chmod(".", 0755) == 0, "chmod");
    must(mkdir("shared", 01777) == 0 && mkdir("shared/group", 02777) == 0, "mkdir");
    must(chown("shared/group", 0, 55) == 0 && chmod("shared/group", 02777) == 0, "chown");
    must(mkdir("closed", 0700) == 0 && mkdir("search", 0711) == 0, "mkdir");
    put("closed/in", "x");
    put("search/in", "x");
    put("public", "public");
    const char *names[] = {"setid", "setid2", "setid3"};
    for (int i = 0; i < 3; i++) {
        put(names[i], "data");
        must(chmod(names[i], 06777) == 0, "chmod");
    }
    /* Opened by root and handed down: the writer counts. */
    user_file = open("setid", O_RDWR);
    say("root's write", write(user_file, "x", 1));
    attributes("set-id after root's write", "setid");
    as(101, owner);
    as(102, stranger);
    attributes("root sees", "shared/own");
    put("grouped", "x");
    must(chmod("grouped", 0640) == 0 && chown("grouped", 0, 103) == 0, "chown");
    as(103, of_the_group);
    must(chown("setid3", 1, 1) == 0, "chown");
    must(chmod("setid3", 06755) == 0, "chmod");
    must(chown("setid3", 2, 2) == 0, "chown");
    attributes("set-id after chown", "setid3");
    /* Access control lists. */
    put("acl", "x");
    struct acl access = acl(6, 4, 104, 0, 6, 0);
    if (say("set a list", setxattr("acl", "system.posix_acl_access", &access, sizeof access, 0)) < 0)
        return;
    attributes("with a list", "acl");
    say("size of it", getxattr("acl", "system.posix_acl_access", NULL, 0));
    as(104, listed);
    as(105, unlisted);
    must(chmod("acl", 0600) == 0, "chmod");
    as(104, listed);
    say("bad list", setxattr("acl", "system.posix_acl_access", &access, 7, 0));
    say("remove it", removexattr("acl", "system.posix_acl_access"));
    attributes("without a list", "acl");
    must(mkdir("inherit", 0777) == 0, "mkdir");
    access = acl(7, 7, 104, 5, 7, 0);
    say("default list", setxattr("inherit", "system.posix_acl_default", &access, sizeof access, 0));
    as(106, in_list_directory);
}

int main(int argc, char **argv) {
    struct {
        const char *name;
        void (*run)(void);
    } sections[] = {{"renames", renames}, {"links", links},     {"xattrs", xattrs},
                    {"times", times},     {"space", space},     {"handles", handles},
                    {"users", users},     {"directories", directories}};
    must(argc == 3 && chdir(argv[2]) == 0, "usage: ops SECTION DIRECTORY");
    umask(022);
    for (unsigned i = 0; i < sizeof sections / sizeof *sections; i++)
        if (!strcmp(argv[1], sections[i].name)) {
            sections[i].run();
            return 0;
        }
    puts("no such section");
    return 1;
}

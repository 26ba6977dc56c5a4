/* Extended attributes and times. */
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

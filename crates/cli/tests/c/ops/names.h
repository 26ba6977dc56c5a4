/* Renames, links, nodes, and what has no name. */

/* A name that leaves a whiteout behind. */
static void whiteouts(void) {
    must(mkdir("w", 0755) == 0 && mkdir("w/sub", 0755) == 0, "mkdir");
    int fd = make("w/a", "a");
    put("w/b", "b");
    say("whiteout", renameat2(AT_FDCWD, "w/a", AT_FDCWD, "w/b", RENAME_WHITEOUT));
    attributes("where it was", "w/a");
    show("where it is", "w/b");
    say("the open file", write(fd, "xyz", 3));
    show("written", "w/b");
    say("whiteout in another directory", renameat2(AT_FDCWD, "w/b", AT_FDCWD, "w/sub/c", RENAME_WHITEOUT));
    attributes("where it was", "w/b");
    show("where it is", "w/sub/c");
    say("whiteout of a directory", renameat2(AT_FDCWD, "w/sub", AT_FDCWD, "w/moved", RENAME_WHITEOUT));
    attributes("where it was", "w/sub");
    show("in it", "w/moved/c");
    say("over a whiteout", rename("w/moved/c", "w/a"));
    show("there", "w/a");
    say("of a missing name", renameat2(AT_FDCWD, "w/none", AT_FDCWD, "w/x", RENAME_WHITEOUT));
    say("and exchange", renameat2(AT_FDCWD, "w/a", AT_FDCWD, "w/b", RENAME_WHITEOUT | RENAME_EXCHANGE));
    say("~and no replace", renameat2(AT_FDCWD, "w/a", AT_FDCWD, "w/y", RENAME_WHITEOUT | RENAME_NOREPLACE));
    say("remove a whiteout", unlink("w/b"));
    say("it is gone", access("w/b", F_OK));
    close(fd);
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
    whiteouts();
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

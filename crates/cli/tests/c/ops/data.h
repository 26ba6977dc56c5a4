/* Space and copies; handles of every kind. */
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

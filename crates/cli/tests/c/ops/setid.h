/* Set-id bits after changes of a file's data: by whom, and how. */
static mode_t setid_mode;

static long setid_change(int how) {
    int fd = open("changed", how == 5 ? O_WRONLY | O_TRUNC : O_RDWR), from;
    long done = -1;
    must(fd >= 0, "open");
    switch (how) {
    case 0:
        done = write(fd, "new", 3);
        break;
    case 1:
        done = fallocate(fd, 0, 0, 10000);
        break;
    case 2:
        done = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 10000);
        break;
    case 3:
        done = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2);
        break;
    case 4:
        done = fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 10000);
        break;
    case 5:
        done = 0;
        break;
    case 6:
        done = ftruncate(fd, 1);
        break;
    case 7:
        from = open("from", O_RDONLY);
        done = copy_file_range(from, NULL, fd, NULL, 3, 0);
        close(from);
        break;
    }
    close(fd);
    return done;
}

static void setid_changes(void) {
    const char *changes[] = {"write", "allocate", "allocate and keep", "punch", "zero", "open to cut", "cut", "copy"};
    for (int how = 0; how < 8; how++) {
        /* By root again, who made it. */
        must(seteuid(0) == 0, "seteuid");
        put("changed", "data");
        must(chown("changed", 0, 103) == 0 && chmod("changed", setid_mode) == 0, "chmod");
        must(seteuid(getuid()) == 0, "seteuid");
        long done = setid_change(how);
        printf("%o, %s: %ld, ", setid_mode, changes[how], done);
        attributes("left", "changed");
    }
}

static void setid_all(void) {
    const mode_t modes[] = {06777, 06666, 02666, 02676, 04666, 01666};
    for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++) {
        setid_mode = modes[i];
        setid_changes();
    }
}

/* As a user who can become root again, of `group` and `further` (none if 0). */
static void setid_as(const char *who, uid_t user, gid_t group, gid_t further) {
    printf("by %s\n", who);
    fflush(stdout);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        must(setgroups(further != 0, &further) == 0 && setgid(group) == 0, "setgid");
        must(setresuid(user, user, 0) == 0, "setresuid");
        setid_all();
        fflush(stdout);
        _exit(0);
    }
    int status;
    must(waitpid(pid, &status, 0) == pid && status == 0, "another process");
}

static void setid(void) {
    umask(0);
    must(chmod(".", 0777) == 0, "chmod");
    put("from", "from");
    must(chmod("from", 0666) == 0, "chmod");
    setid_as("root", 0, 0, 0);
    setid_as("a stranger", 101, 101, 0);
    setid_as("one of the group", 102, 103, 0);
    setid_as("one of the group besides", 104, 104, 103);
    setid_as("one of another group besides", 105, 105, 106);
}

/* Who may do what. */
static int user_file = -1;

static void attribute_names(const char *what, const char *file) {
    char list[1000];
    long n = listxattr(file, list, sizeof list);
    for (char *name = list; name < list + n; name += strlen(name) + 1)
        printf("%s: %s\n", what, name);
}

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
    attribute_names("to a user", "public");
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
    must(setxattr("public", "trusted.x", "y", 1, 0) == 0, "setxattr");
    must(setxattr("public", "user.y", "y", 1, 0) == 0, "setxattr");
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
    attribute_names("to root", "public");
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

/* What the sections have in common. */
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

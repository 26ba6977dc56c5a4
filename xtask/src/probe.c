/* Asks the kernel for one io_uring, one userfaultfd and one fanotify queue, and says what it answered. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void report(const char *name, long answer) {
    printf("%s %s\n", name, answer >= 0 ? "ok" : strerror(errno));
}

int main(void) {
    char params[120];
    memset(params, 0, sizeof params);
    report("io_uring", syscall(SYS_io_uring_setup, 1, params));
    report("userfaultfd", syscall(SYS_userfaultfd, 1 /* faults of user mode only */));
    report("fanotify", syscall(SYS_fanotify_init, 0x200 /* FAN_REPORT_FID */, 0));
    return 0;
}

/* What the kernel says when a file is asked for its handle: `handles FILE DIRECTORY`.
 *
 * With a handle it opens the file by it, from DIRECTORY on the same mount: at once, and after the kernel was told to forget what
 * it does not use. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void by_handle(const char *when, int top, struct file_handle *handle) {
    int fd = open_by_handle_at(top, handle, O_RDONLY);
    char text[16] = "";
    if (fd < 0) {
        printf("%s: %s\n", when, strerror(errno));
        return;
    }
    long n = read(fd, text, sizeof text - 1);
    printf("%s: %ld '%s'\n", when, n, text);
    close(fd);
}

int main(int argc, char **argv) {
    struct file_handle *handle = calloc(1, sizeof *handle + MAX_HANDLE_SZ);
    int mount;
    if (argc != 3)
        return 1;
    handle->handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(AT_FDCWD, argv[1], handle, &mount, 0) < 0) {
        printf("handle: %s\n", strerror(errno));
        return 0;
    }
    puts("handle: yes");
    int top = open(argv[2], O_RDONLY | O_DIRECTORY);
    by_handle("at once", top, handle);
    int drop = open("/proc/sys/vm/drop_caches", O_WRONLY);
    if (drop < 0 || write(drop, "2", 1) != 1)
        return 1;
    by_handle("after it was forgotten", top, handle);
    return 0;
}

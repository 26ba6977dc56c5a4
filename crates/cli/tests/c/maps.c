/* Mappings beside reads and writes of one file: each must see what the others did. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
	do { if (!(what)) { fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

enum { SIZE = 1 << 20, PAGE = 4096 };

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
	unsigned char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	unsigned char buf[2 * PAGE];

	/* A store is seen by read, at once. */
	memset(map + 3 * PAGE - 100, 'm', 200);
	CHECK(pread(fd, buf, 200, 3 * PAGE - 100) == 200);
	for (int i = 0; i < 200; i++)
		CHECK(buf[i] == 'm');
	/* A write is seen through the mapping, at once, beside stores to the same page. */
	memset(buf, 'w', sizeof buf);
	CHECK(pwrite(fd, buf, 50, 3 * PAGE) == 50);
	CHECK(map[3 * PAGE - 1] == 'm' && map[3 * PAGE] == 'w' && map[3 * PAGE + 49] == 'w' && map[3 * PAGE + 50] == 'm');
	/* Past O_DIRECT too. */
	void *aligned;
	CHECK(posix_memalign(&aligned, PAGE, 2 * PAGE) == 0);
	int direct = open(argv[1], O_RDWR | O_DIRECT);
	if (direct >= 0) {
		memset(map + 8 * PAGE, 'd', PAGE);
		CHECK(pread(direct, aligned, 2 * PAGE, 8 * PAGE) == 2 * PAGE);
		CHECK(((char *)aligned)[0] == 'd' && ((char *)aligned)[PAGE] == 0);
		memset(aligned, 'D', 2 * PAGE);
		CHECK(pwrite(direct, aligned, 2 * PAGE, 8 * PAGE) == 2 * PAGE);
		CHECK(map[8 * PAGE] == 'D' && map[10 * PAGE - 1] == 'D' && map[10 * PAGE] == 0);
		close(direct);
	}
	/* Another process's mapping is the same memory. */
	pid_t child = fork();
	if (child == 0) {
		int other = open(argv[1], O_RDWR);
		unsigned char *theirs = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
		_exit(theirs == MAP_FAILED || theirs[3 * PAGE] != 'w' ? 1 : (theirs[20 * PAGE] = 'c', 0));
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0 && map[20 * PAGE] == 'c');
	/* A private mapping keeps its stores to itself. */
	unsigned char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(own != MAP_FAILED && own[20 * PAGE] == 'c');
	own[20 * PAGE] = 'p';
	CHECK(map[20 * PAGE] == 'c' && pread(fd, buf, 1, 20 * PAGE) == 1 && buf[0] == 'c');
	/* Cutting and growing again leaves zeros. */
	memset(map + 100 * PAGE, 'z', 2 * PAGE);
	CHECK(ftruncate(fd, 100 * PAGE + 10) == 0 && ftruncate(fd, SIZE) == 0);
	CHECK(map[100 * PAGE + 9] == 'z' && map[100 * PAGE + 10] == 0 && map[101 * PAGE] == 0);
	CHECK(pread(fd, buf, PAGE, 100 * PAGE) == PAGE && buf[9] == 'z' && buf[10] == 0);
	/* What msync and fsync say is in the file. */
	memset(map + 50 * PAGE, 's', PAGE);
	struct stat before, after;
	CHECK(fstat(fd, &before) == 0);
	usleep(20000);
	CHECK(msync(map, SIZE, MS_SYNC) == 0 && fsync(fd) == 0);
	CHECK(fstat(fd, &after) == 0);
	CHECK(after.st_mtim.tv_sec > before.st_mtim.tv_sec || after.st_mtim.tv_nsec != before.st_mtim.tv_nsec);
	/* And what was stored without either is there after the last unmap. */
	memset(map + 60 * PAGE, 'u', PAGE);
	CHECK(munmap(map, SIZE) == 0 && munmap(own, SIZE) == 0 && close(fd) == 0);
	fd = open(argv[1], O_RDONLY);
	CHECK(pread(fd, buf, PAGE, 60 * PAGE) == PAGE && buf[0] == 'u' && buf[PAGE - 1] == 'u');
	return 0;
}

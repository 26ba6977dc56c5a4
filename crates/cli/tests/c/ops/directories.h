/* Listings. */
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

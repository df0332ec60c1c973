/* Injects disk faults and clock changes into any program that preloads this library.

   PROOF_ROOT     the folder whose files are affected
   PROOF_CONTROL  a file with a `struct control` that every process maps: the faults that are active now (`index_full`:
                  SQLite's -shm files, which index its WAL, cannot grow)
   PROOF_TRACE    if set, every change is recorded in this file before it is made, and a sync is only recorded; disk.py
                  computes the state after a power cut from it
   PROOF_ROOMY    files with this text in their path can grow even if the disk is full */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t clock_ahead_s;
    int32_t sync_delay_ms, syncs_to_fail, full, index_full;
};
struct note {
    char begin[8];
    uint32_t kind, length;
    uint64_t file, position;
};
static const char note_end[8] = "\371end}\r\n\377";
static struct control none, *control = &none;
static const char *root, *roomy;
static size_t root_length;
static int trace = -1;

#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(&name) found;                                                                                \
        if (!found) found = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                                \
        found;                                                                                                         \
    })

static const char *copy_of(const char *text) { return text ? strdup(text) : NULL; }

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PROOF_CONTROL"), *notes = getenv("PROOF_TRACE");
    /* These are copies because PostgreSQL overwrites the environment with its process titles. */
    root = copy_of(getenv("PROOF_ROOT"));
    root_length = root ? strlen(root) : 0;
    roomy = copy_of(getenv("PROOF_ROOMY"));
    int fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *mapped = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (mapped != MAP_FAILED) control = mapped;
        syscall(SYS_close, fd);
    }
    if (notes) {
        fd = syscall(SYS_openat, AT_FDCWD, notes, O_WRONLY | O_APPEND | O_CLOEXEC);
        /* A high number, because some programs close or count the low file descriptors. */
        trace = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 500);
        if (fd >= 0) syscall(SYS_close, fd);
    }
}

static int is_index(const char *path) {
    size_t length = strlen(path);
    return length > 4 && !strcmp(path + length - 4, "-shm");
}

static int is_ours(const char *path) {
    return root && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]) && !is_index(path);
}

static int path_of(int fd, char *path) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_ours(path);
}

static int absolute(const char *given, char *path) {
    if (given[0] == '/')
        snprintf(path, PATH_MAX, "%s", given);
    else {
        if (!getcwd(path, PATH_MAX)) return 0;
        size_t length = strlen(path);
        snprintf(path + length, PATH_MAX - length, "/%s", given);
    }
    return is_ours(path);
}

static void note(char kind, uint64_t file, uint64_t position, const struct iovec *parts, int count, size_t length) {
    struct iovec all[66];
    struct note head = {"\371{note\r\377", kind, length, file, position};
    if (trace < 0 || count > 64) return;
    all[0] = (struct iovec){&head, sizeof head};
    int used = 1;
    for (int i = 0; i < count && length; i++) {
        size_t part = parts[i].iov_len < length ? parts[i].iov_len : length;
        all[used++] = (struct iovec){parts[i].iov_base, part};
        length -= part;
    }
    all[used++] = (struct iovec){(void *)note_end, sizeof note_end};
    int before = errno;
    syscall(SYS_writev, trace, all, used);
    errno = before;
}

static void note_name(char kind, uint64_t file, const char *name, const char *other) {
    struct iovec parts[2] = {{(void *)name, strlen(name) + 1}, {(void *)other, other ? strlen(other) + 1 : 0}};
    note(kind, file, 0, parts, 2, parts[0].iov_len + parts[1].iov_len);
}

/* Records a write and returns how many of its bytes fit on the disk; -1 with ENOSPC if none do. */
static ssize_t begin_write(int fd, off_t position, const struct iovec *parts, int count, size_t length) {
    char path[PATH_MAX] = "";
    struct stat about;
    if (!root || fd == trace || fstat(fd, &about) || !S_ISREG(about.st_mode)) return length;
    if (!path_of(fd, path)) {
        if (!control->index_full || !is_index(path) || position + (off_t)length <= about.st_size) return length;
        errno = ENOSPC;
        return -1;
    }
    if (position < 0) {
        int flags = fcntl(fd, F_GETFL);
        position = flags & O_APPEND ? about.st_size : lseek(fd, 0, SEEK_CUR);
    }
    if (control->full && !(roomy && strstr(path, roomy)) && position + (off_t)length > about.st_size) {
        if (position >= about.st_size) {
            errno = ENOSPC;
            return -1;
        }
        length = about.st_size - position;
    }
    note('w', about.st_ino, position, parts, count, length);
    return length;
}

static ssize_t write_one(int fd, const void *data, size_t length, off_t position) {
    struct iovec part = {(void *)data, length};
    ssize_t fits = begin_write(fd, position, &part, 1, length);
    if (fits < 0 || (!fits && length)) return fits;
    return position < 0 ? syscall(SYS_write, fd, data, fits) : syscall(SYS_pwrite64, fd, data, fits, position);
}
ssize_t write(int fd, const void *data, size_t length) { return write_one(fd, data, length, -1); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t position) { return write_one(fd, data, length, position); }
ssize_t pwrite64(int fd, const void *data, size_t length, off_t position) { return write_one(fd, data, length, position); }

static ssize_t write_many(int fd, const struct iovec *parts, int count, off_t position) {
    size_t length = 0;
    for (int i = 0; i < count; i++) length += parts[i].iov_len;
    ssize_t fits = begin_write(fd, position, parts, count, length);
    if (fits < 0) return fits;
    if ((size_t)fits < length) {
        errno = ENOSPC;
        return -1;
    }
    return position < 0 ? REAL(writev)(fd, parts, count) : REAL(pwritev)(fd, parts, count, position);
}
ssize_t writev(int fd, const struct iovec *parts, int count) { return write_many(fd, parts, count, -1); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t position) { return write_many(fd, parts, count, position); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t position) { return write_many(fd, parts, count, position); }

static int sync_file(int fd, int (*do_it)(int)) {
    char path[PATH_MAX];
    struct stat about;
    if (!root || fstat(fd, &about) || !path_of(fd, path)) return do_it(fd);
    if (control->sync_delay_ms) {
        struct timespec delay = {control->sync_delay_ms / 1000, control->sync_delay_ms % 1000 * 1000000L};
        nanosleep(&delay, NULL);
    }
    int folder = S_ISDIR(about.st_mode);
    if (!folder && control->syncs_to_fail > 0 && __sync_fetch_and_sub(&control->syncs_to_fail, 1) > 0) {
        note('f', about.st_ino, 0, NULL, 0, 0);
        errno = EIO;
        return -1;
    }
    if (trace < 0) return do_it(fd);
    if (folder) note_name('d', 0, path, NULL);
    else note('s', about.st_ino, 0, NULL, 0, 0);
    return 0;
}
int fsync(int fd) { return sync_file(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_file(fd, REAL(fdatasync)); }

static int set_size(int fd, off_t size) {
    char path[PATH_MAX];
    struct stat about;
    if (root && !fstat(fd, &about) && path_of(fd, path)) note('t', about.st_ino, size, NULL, 0, 0);
    return syscall(SYS_ftruncate, fd, size);
}
int ftruncate(int fd, off_t size) { return set_size(fd, size); }
int ftruncate64(int fd, off_t size) { return set_size(fd, size); }

static int reserve(int fd, off_t from, off_t length) {
    char path[PATH_MAX];
    struct stat about;
    if (root && !fstat(fd, &about) && path_of(fd, path) && from + length > about.st_size) {
        if (control->full && !(roomy && strstr(path, roomy))) return ENOSPC;
        note('t', about.st_ino, from + length, NULL, 0, 0);
    }
    return syscall(SYS_fallocate, fd, 0, from, length) ? errno : 0;
}
int posix_fallocate(int fd, off_t from, off_t length) { return reserve(fd, from, length); }
int posix_fallocate64(int fd, off_t from, off_t length) { return reserve(fd, from, length); }

static int open_file(int at, const char *given, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat about;
    int ours = root && at == AT_FDCWD && flags & (O_CREAT | O_TRUNC) && absolute(given, path);
    int is_new = ours && syscall(SYS_newfstatat, AT_FDCWD, path, &about, 0);
    if (is_new && control->full && !(roomy && strstr(path, roomy))) {
        errno = ENOSPC;
        return -1;
    }
    int fd = syscall(SYS_openat, at, given, flags, mode);
    if (fd >= 0 && ours && !fstat(fd, &about)) {
        if (is_new) note_name('c', about.st_ino, path, NULL);
        else if (flags & O_TRUNC) note('t', about.st_ino, 0, NULL, 0, 0);
    }
    return fd;
}
#define MODE                                                                                                           \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }
int open(const char *path, int flags, ...) { MODE return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return open_file(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE return open_file(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE return open_file(at, path, flags, mode); }

int rename(const char *from, const char *to) {
    char old[PATH_MAX], new[PATH_MAX];
    struct stat about;
    if (root && absolute(from, old) && absolute(to, new) && !syscall(SYS_newfstatat, AT_FDCWD, old, &about, 0))
        note_name(S_ISDIR(about.st_mode) ? 'R' : 'r', 0, old, new);
    return syscall(SYS_rename, from, to);
}
int link(const char *from, const char *to) {
    char path[PATH_MAX];
    struct stat about;
    int made = syscall(SYS_link, from, to);
    if (!made && root && absolute(to, path) && !syscall(SYS_newfstatat, AT_FDCWD, path, &about, 0))
        note_name('l', about.st_ino, path, NULL);
    return made;
}
int unlink(const char *given) {
    char path[PATH_MAX];
    if (root && absolute(given, path)) note_name('u', 0, path, NULL);
    return syscall(SYS_unlink, given);
}
int mknod(const char *given, mode_t mode, dev_t device) {
    char path[PATH_MAX];
    struct stat about;
    int made = syscall(SYS_mknod, given, mode, device);
    if (!made && root && absolute(given, path) && !syscall(SYS_newfstatat, AT_FDCWD, path, &about, 0))
        note_name('c', about.st_ino, path, NULL);
    return made;
}
int mkdir(const char *given, mode_t mode) {
    char path[PATH_MAX];
    int made = syscall(SYS_mkdir, given, mode);
    if (!made && root && absolute(given, path)) note_name('m', 0, path, NULL);
    return made;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = REAL(clock_gettime)(which, now);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += control->clock_ahead_s;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
    return 0;
}
time_t time(time_t *out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out) *out = precise.tv_sec;
    return precise.tv_sec;
}

/* A library to preload: it lets the N-th call of a kind fail, among those on files under a folder.
 *
 * FAULT_FOLDER: the folder. FAULT_KIND: write, fsync, rename or mkdir; or malloc, of blocks of 1 MiB or more, wherever they are used.
 * FAULT_AT: the number of the call that fails, from 1; 0 for none. FAULT_ERRNO: with which error.
 * FAULT_COUNTS: a file to which the number of calls of the kind is written when the process ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LARGE (1 << 20)

static atomic_long calls;

static int is_kind(const char *kind) {
  const char *wanted = getenv("FAULT_KIND");
  return wanted && strcmp(wanted, kind) == 0;
}

static int is_inside(const char *path) {
  const char *folder = getenv("FAULT_FOLDER");
  return folder && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_inside_fd(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return is_inside(path);
}

/* Whether this call fails, once it is known to be one of those that count. */
static int fails(void) {
  const char *at = getenv("FAULT_AT"), *number = getenv("FAULT_ERRNO");
  long call = atomic_fetch_add(&calls, 1) + 1;
  if (!at || call != atol(at)) return 0;
  errno = number ? atoi(number) : EIO;
  return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *bytes, size_t size) {
  REAL(write);
  return is_kind("write") && is_inside_fd(fd) && fails() ? -1 : real(fd, bytes, size);
}

int fsync(int fd) {
  REAL(fsync);
  return is_kind("fsync") && is_inside_fd(fd) && fails() ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
  REAL(rename);
  return is_kind("rename") && is_inside(to) && fails() ? -1 : real(from, to);
}

int mkdir(const char *path, mode_t mode) {
  REAL(mkdir);
  return is_kind("mkdir") && is_inside(path) && fails() ? -1 : real(path, mode);
}

void *malloc(size_t size) {
  static void *(*real)(size_t);
  if (!real) real = dlsym(RTLD_NEXT, "malloc");
  if (size >= LARGE && is_kind("malloc") && fails()) {
    errno = ENOMEM;
    return NULL;
  }
  return real(size);
}

__attribute__((destructor)) static void tell(void) {
  const char *path = getenv("FAULT_COUNTS");
  if (!path) return;
  FILE *file = fopen(path, "a");
  if (!file) return;
  fprintf(file, "%ld\n", (long)calls);
  fclose(file);
}

/* A fake of Yama with kernel.yama.ptrace_scope=1, for LD_PRELOAD: process_vm_readv() of another process is refused
   unless that process has permitted it by prctl(PR_SET_PTRACER). What a process has permitted is in the file of its
   process id in $FAKE_YAMA. Descendants, whose memory Yama lets a process read, too, are no matter of the tests. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static FILE* permits_of(pid_t pid, const char* mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%d", getenv("FAKE_YAMA"), (int)pid);
  return fopen(path, mode);
}

static pid_t parent_of(pid_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE* file = fopen(path, "r");
  int parent = 0;
  if (file == NULL) return 0;
  if (fscanf(file, "%*d (%*[^)]) %*c %d", &parent) != 1) parent = 0;
  fclose(file);
  return parent;
}

static int permitted(pid_t pid) {
  FILE* file = permits_of(pid, "r");
  long whom = 0;
  if (file == NULL) return 0;
  if (fscanf(file, "%ld", &whom) != 1) whom = 0;
  fclose(file);
  if (whom == -1) return 1;
  for (pid_t one = getpid(); one > 1 && whom > 0; one = parent_of(one)) {
    if (one == whom) return 1;
  }
  return 0;
}

int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long words[4];
  for (int i = 0; i < 4; ++i) words[i] = va_arg(list, unsigned long);
  va_end(list);
  if (option != PR_SET_PTRACER) return (int)syscall(SYS_prctl, option, words[0], words[1], words[2], words[3]);
  FILE* file = permits_of(getpid(), "w");
  if (file == NULL) return -1;
  fprintf(file, "%ld", (long)words[0]);
  fclose(file);
  return 0;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec* here, unsigned long here_count, const struct iovec* there,
                         unsigned long there_count, unsigned long flags) {
  if (pid != getpid() && !permitted(pid)) {
    errno = EPERM;
    return -1;
  }
  return syscall(SYS_process_vm_readv, pid, here, here_count, there, there_count, flags);
}

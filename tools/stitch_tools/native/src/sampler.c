/* Where a process spends its time: program counter and stack of every running thread, many times a second.
 *
 * A thread of our own wakes at each period, looks which threads run, and sends them SIGPROF. The handler
 * stores the interrupted program counter and a copy of the stack above it; whose code that is, is found out
 * afterwards. Nothing here depends on perf_event (often forbidden) or on the kernel's tick, and threads that
 * a parallel runtime makes later are seen as well. Threads that sleep are left in peace.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define WIPED_BYTES (256 << 10)
#define EXPORT __attribute__((visibility("default")))

typedef struct {
  uint64_t program_counter;
  uint64_t thread;
  uint64_t stack_bytes;
} Sample; /* the stack follows, from the stack pointer upwards */

static int memory_fd = -1;
static uint64_t slot_bytes, slot_count;
static uint32_t period_us;
static atomic_uint_fast64_t next_slot;
static atomic_int running;
static pthread_t sampler;

/* Copies through the kernel: a stack that ends before the slot is full gives a short write, not a fault. */
static void take_sample(int signal_number, siginfo_t* info, void* context) {
  (void)signal_number, (void)info;
  if (!atomic_load(&running)) return;
  const uint64_t slot = atomic_fetch_add(&next_slot, 1);
  if (slot >= slot_count) return;
  const int saved = errno;
  const greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const off_t place = (off_t)(slot * slot_bytes);
  const ssize_t copied = pwrite(memory_fd, (const void*)registers[REG_RSP], slot_bytes - sizeof(Sample),
                                place + (off_t)sizeof(Sample));
  const Sample sample = {(uint64_t)registers[REG_RIP], (uint64_t)syscall(SYS_gettid),
                         copied > 0 ? (uint64_t)copied : 0};
  (void)!pwrite(memory_fd, &sample, sizeof sample, place);
  errno = saved;
}

/* Whether a thread has a processor or waits for one, by the letter after its name in its stat file. */
static int is_running(int folder, const char* thread) {
  char path[64], text[512];
  if (strlen(thread) > 20) return 0;
  strcpy(path, thread);
  strcat(path, "/stat");
  const int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t count = read(fd, text, sizeof text - 1);
  close(fd);
  if (count <= 0) return 0;
  text[count] = 0;
  const char* after = strrchr(text, ')');
  return after != NULL && after[1] == ' ' && after[2] == 'R';
}

static void* sample_threads(void* unused) {
  (void)unused;
  const pid_t process = getpid();
  const long self = syscall(SYS_gettid);
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == NULL) return NULL;
  const struct timespec pause = {period_us / 1000000, (long)(period_us % 1000000) * 1000};
  while (atomic_load(&running)) {
    rewinddir(tasks);
    for (struct dirent* entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
      const long thread = atol(entry->d_name);
      if (thread > 0 && thread != self && is_running(dirfd(tasks), entry->d_name))
        syscall(SYS_tgkill, process, thread, SIGPROF);
    }
    nanosleep(&pause, NULL);
  }
  closedir(tasks);
  return NULL;
}

/* Return addresses of calls that ended long ago would look like callers. */
static __attribute__((noinline)) void wipe_stack(void) {
  volatile char below[WIPED_BYTES];
  memset((void*)below, 0, sizeof below);
  __asm__ volatile("" : : "r"(below) : "memory");
}

/* Begins to sample into slots of `fd`; slots that are taken already stay. 0, or an errno value. */
EXPORT int32_t stitch_sampler_start(int32_t fd, uint64_t bytes_per_slot, uint64_t slots, uint32_t microseconds) {
  if (atomic_load(&running)) return EBUSY;
  wipe_stack();
  memory_fd = fd, slot_bytes = bytes_per_slot, slot_count = slots, period_us = microseconds;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = take_sample;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  if (sigaction(SIGPROF, &action, NULL) != 0) return errno;
  atomic_store(&running, 1);
  const int status = pthread_create(&sampler, NULL, sample_threads, NULL);
  if (status != 0) atomic_store(&running, 0);
  return status;
}

/* Ends it. Returns the number of slots that hold a sample. */
EXPORT uint64_t stitch_sampler_stop(void) {
  if (atomic_load(&running)) {
    atomic_store(&running, 0);
    pthread_join(sampler, NULL);
  }
  const uint64_t taken = atomic_load(&next_slot);
  return taken < slot_count ? taken : slot_count;
}

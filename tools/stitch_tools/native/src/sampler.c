/* Where a process spends its time: program counter and stack of every running thread, many times a second.
 *
 * A thread of our own wakes at each period, looks which threads run, and sends them SIGPROF. The handler
 * stores the interrupted program counter and a copy of the stack above it; whose code that is, is found out
 * afterwards. Nothing here depends on perf_event (often forbidden) or on the kernel's tick. Threads that
 * sleep are left in peace; those that are made later are counted and not sampled.
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
#define CALLER_BYTES (2 << 10) /* of the frames above the start, enough to show that an interpreter calls */
#define MOST_THREADS 256
#define HANDLER_STACK_BYTES (64 << 10)
#define MOST_WAITS 16
#define STACK_BYTES (8 << 20)  /* a thread's frames lie no farther below where it was met first, */
#define ABOVE_BYTES (16 << 10) /* and no farther above: there may be anything */
#define REGISTERING_MS 200     /* on a busy machine a thread answers late */
#define EXPORT __attribute__((visibility("default")))

typedef struct {
  uint64_t program_counter;
  uint64_t on_stack; /* whether the stack pointer points into the thread's stack */
  uint64_t stack_bytes;
} Sample; /* what lies there follows, from the stack pointer upwards */

static int memory_fd = -1;
static uint64_t slot_bytes, slot_count;
static uint32_t period_us;
static atomic_uint_fast64_t next_slot, unfollowed, waiting;
static atomic_int running;
static pthread_t sampler;

/* Frames that were there before the start hold what ran before them: addresses of operators, too. */
static long starting_thread;
static uint64_t starting_stack_end;

/* Generated code may keep its data where others keep their stack (oneDNN's sgemm does), and a signal would
 * overwrite it. So each thread gets a stack for the handler before the work begins, while it waits. */
static char handler_stacks[MOST_THREADS][HANDLER_STACK_BYTES] __attribute__((aligned(64)));
static long followed[MOST_THREADS];
static uint64_t first_met[MOST_THREADS]; /* the stack pointer when the thread was met first */
static int followed_count;
static atomic_int registering; /* 1 + the place in `followed` that the next signal fills; 0: none */
static atomic_long registering_thread;

static void follow_thread(ucontext_t* context, int place) {
  /* The return from the handler installs this: sigaltstack itself would be undone by it. */
  context->uc_stack.ss_sp = handler_stacks[place];
  context->uc_stack.ss_size = HANDLER_STACK_BYTES;
  context->uc_stack.ss_flags = 0;
  first_met[place] = (uint64_t)context->uc_mcontext.gregs[REG_RSP];
  atomic_store(&registering, 0);
}

/* Code in which threads wait for each other, as pairs of addresses. It would fill all slots on a busy
 * machine. */
static uint64_t waits[2 * MOST_WAITS];
static int wait_count;

static int is_waiting(uint64_t address) {
  for (int i = 0; i < wait_count; ++i)
    if (waits[2 * i] <= address && address < waits[2 * i + 1]) return 1;
  return 0;
}

/* How much of a stack, from its pointer upwards, may belong to the work. */
static size_t stack_bytes(long thread, uint64_t pointer) {
  const size_t most = slot_bytes - sizeof(Sample);
  if (thread != starting_thread || pointer >= starting_stack_end) return most;
  return starting_stack_end - pointer < most ? starting_stack_end - pointer : most;
}

/* A library's generated code may walk through its data with the stack pointer: no callers lie there. */
static int is_on_stack(long thread, uint64_t pointer) {
  for (int i = 0; i < followed_count; ++i)
    if (followed[i] == thread)
      return first_met[i] - STACK_BYTES <= pointer && pointer < first_met[i] + ABOVE_BYTES;
  return 0;
}

/* Copies through the kernel: a stack that ends before the slot is full gives a short write, not a fault. */
static void take_sample(int signal_number, siginfo_t* info, void* context) {
  (void)signal_number, (void)info;
  const int place = atomic_load(&registering);
  if (place) {
    /* A thread that answers late must not take another's place. */
    if (syscall(SYS_gettid) != atomic_load(&registering_thread)) return;
    follow_thread((ucontext_t*)context, place - 1);
    return;
  }
  if (!atomic_load(&running)) return;
  const greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  if (is_waiting((uint64_t)registers[REG_RIP])) {
    atomic_fetch_add(&waiting, 1);
    return;
  }
  const uint64_t slot = atomic_fetch_add(&next_slot, 1);
  if (slot >= slot_count) return;
  const int saved = errno;
  const long thread = syscall(SYS_gettid);
  const uint64_t pointer = (uint64_t)registers[REG_RSP];
  const off_t start = (off_t)(slot * slot_bytes);
  const ssize_t copied =
      pwrite(memory_fd, (const void*)pointer, stack_bytes(thread, pointer), start + (off_t)sizeof(Sample));
  const Sample sample = {(uint64_t)registers[REG_RIP], (uint64_t)is_on_stack(thread, pointer),
                         copied > 0 ? (uint64_t)copied : 0};
  (void)!pwrite(memory_fd, &sample, sizeof sample, start);
  errno = saved;
}

static int is_followed(long thread) {
  for (int i = 0; i < followed_count; ++i)
    if (followed[i] == thread) return 1;
  return 0;
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

/* The next thread of this process, 0 after the last. */
static long next_thread(DIR* tasks, const char** name) {
  for (struct dirent* entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
    const long thread = atol(entry->d_name);
    *name = entry->d_name;
    if (thread > 0) return thread;
  }
  return 0;
}

/* Gives every thread that there is now its stack for the handler. */
static void follow_threads(void) {
  const char* name;
  const struct timespec moment = {0, 100000};
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == NULL) return;
  for (long thread = next_thread(tasks, &name); thread != 0; thread = next_thread(tasks, &name)) {
    if (is_followed(thread) || followed_count == MOST_THREADS) continue;
    atomic_store(&registering_thread, thread);
    atomic_store(&registering, followed_count + 1);
    syscall(SYS_tgkill, getpid(), thread, SIGPROF);
    for (int waits = 0; atomic_load(&registering) && waits < REGISTERING_MS * 10; ++waits)
      nanosleep(&moment, NULL);
    if (!atomic_load(&registering)) followed[followed_count] = thread;
    ++followed_count; /* also where no answer came: it could still come */
    atomic_store(&registering, 0);
  }
  closedir(tasks);
}

static void* sample_threads(void* unused) {
  (void)unused;
  const char* name;
  const pid_t process = getpid();
  const long self = syscall(SYS_gettid);
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == NULL) return NULL;
  const struct timespec pause = {period_us / 1000000, (long)(period_us % 1000000) * 1000};
  while (atomic_load(&running)) {
    rewinddir(tasks);
    for (long thread = next_thread(tasks, &name); thread != 0; thread = next_thread(tasks, &name)) {
      if (thread == self || !is_running(dirfd(tasks), name)) continue;
      if (is_followed(thread))
        syscall(SYS_tgkill, process, thread, SIGPROF);
      else
        atomic_fetch_add(&unfollowed, 1);
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

/* Begins to sample into slots of `fd`; slots that are taken already stay. 0, or an errno value.
 * Call it while the program's threads wait: those that exist now are followed. */
EXPORT int32_t stitch_sampler_start(int32_t fd, uint64_t bytes_per_slot, uint64_t slots,
                                    uint32_t microseconds) {
  if (atomic_load(&running)) return EBUSY;
  memory_fd = fd, slot_bytes = bytes_per_slot, slot_count = slots, period_us = microseconds;
  starting_thread = syscall(SYS_gettid);
  starting_stack_end = ((uint64_t)__builtin_frame_address(0) & ~7ull) + CALLER_BYTES;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = take_sample;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  if (sigaction(SIGPROF, &action, NULL) != 0) return errno;
  follow_threads();
  wipe_stack();
  atomic_store(&running, 1);
  const int status = pthread_create(&sampler, NULL, sample_threads, NULL);
  if (status != 0) atomic_store(&running, 0);
  return status;
}

/* Ends it. */
EXPORT void stitch_sampler_stop(void) {
  if (!atomic_load(&running)) return;
  atomic_store(&running, 0);
  pthread_join(sampler, NULL);
}

/* Slots that hold a sample by now. */
EXPORT uint64_t stitch_sampler_count(void) {
  const uint64_t taken = atomic_load(&next_slot);
  return taken < slot_count ? taken : slot_count;
}

/* Samples from [start, end) are counted and not kept. */
EXPORT void stitch_sampler_waits(uint64_t start, uint64_t end) {
  if (wait_count == MOST_WAITS) return;
  waits[2 * wait_count] = start, waits[2 * wait_count + 1] = end;
  ++wait_count;
}

EXPORT uint64_t stitch_sampler_waiting(void) { return atomic_load(&waiting); }

/* How often a thread ran that was made after the start, and was therefore not sampled. */
EXPORT uint64_t stitch_sampler_unfollowed(void) { return atomic_load(&unfollowed); }

/* Calls `forward` until it fails or was called so often, with nothing of ours in between; its last status. */
EXPORT int32_t stitch_sampler_repeat(int32_t (*forward)(void*, const void*), void* handle,
                                     const void* arguments, uint64_t calls) {
  int32_t status = 0;
  for (uint64_t i = 0; i < calls && status == 0; ++i) status = forward(handle, arguments);
  return status;
}

/* Times the steps of a native program and samples where the calling thread is, without help of the system's
 * profilers. Loaded by the host of the tools before the program, which calls stitch_step and stitch_border
 * here.
 *
 * The host calls stitch_profile_begin and stitch_profile_end around each forward; at the end of the process
 * `report.phases` is written:
 *
 *   calls COUNT NANOSECONDS
 *   step NUMBER COUNT NANOSECONDS NAME          time from one mark to the next
 *   sample COUNT STEP OFFSET MODULE             MODULE "-": code that was made at run time
 *   symbol OFFSET MODULE NAME                   where the module itself names that place
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_STEPS 512
#define MAX_SAMPLES (1 << 16)
#define MAX_NAME 160

typedef struct {
  char name[MAX_NAME];
  uint64_t calls, ns;
} Step;

typedef struct {
  uintptr_t at;
  int32_t step;
} Sample;

static Step steps[MAX_STEPS];
static int32_t num_steps;
static volatile int32_t current = -1; /* the step that runs; -1: none was named yet */
static volatile sig_atomic_t inside;  /* whether a forward runs */
static Sample samples[MAX_SAMPLES];
static volatile int32_t num_samples;
static uint64_t calls, total_ns, begin_ns, last_mark_ns;
static long caller; /* the thread that calls; 0: sampling has not begun */

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void on_tick(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)info;
  if (!inside || num_samples >= MAX_SAMPLES || syscall(SYS_gettid) != caller) return;
  const ucontext_t* state = context;
  samples[num_samples].at = (uintptr_t)state->uc_mcontext.gregs[REG_RIP];
  samples[num_samples].step = current;
  num_samples = num_samples + 1;
}

static int32_t find(const char* name) {
  for (int32_t at = 0; at < num_steps; ++at) {
    if (strncmp(steps[at].name, name, MAX_NAME - 1) == 0) return at;
  }
  if (num_steps == MAX_STEPS) return -1;
  strncpy(steps[num_steps].name, name, MAX_NAME - 1);
  return num_steps++;
}

/* Adds the time since the last mark to a step. */
static void credit(int32_t step, uint64_t now) {
  if (step >= 0) {
    steps[step].ns += now - last_mark_ns;
    steps[step].calls += 1;
  }
  last_mark_ns = now;
}

static void write_report(void);

static void start(void) {
  caller = syscall(SYS_gettid);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_tick;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGALRM, &action, NULL);
  /* The wall clock: what the calling thread waits for costs latency, too. The kernel hands the signal to the
   * process' first thread, which is the one that calls. No multiple of a millisecond: a program with a period
   * of its own must not run in step with it. */
  const struct itimerval period = {{0, 997}, {0, 997}};
  setitimer(ITIMER_REAL, &period, NULL);
  atexit(write_report);
}

EXPORT void stitch_profile_begin(void) {
  if (caller == 0) start();
  current = -1;
  begin_ns = last_mark_ns = now_ns();
  inside = 1;
}

EXPORT void stitch_profile_end(void) {
  const uint64_t now = now_ns();
  inside = 0;
  credit(current, now);
  current = -1;
  total_ns += now - begin_ns;
  calls += 1;
}

/* A step begins. */
EXPORT void stitch_step(const char* name) {
  if (!inside) return;
  credit(current, now_ns());
  current = find(name);
}

/* A step has ended: what a border shows was computed since the mark before. */
EXPORT void stitch_border(const char* name, const void* data, uint64_t bytes) {
  (void)data;
  (void)bytes;
  if (!inside) return;
  const int32_t step = find(name);
  credit(step, now_ns());
  /* The step's name comes only now, after its samples. */
  for (int32_t at = num_samples; at-- > 0 && samples[at].step == -1;) samples[at].step = step;
}

static int compare(const void* left, const void* right) {
  const Sample *a = left, *b = right;
  if (a->at != b->at) return a->at < b->at ? -1 : 1;
  return (a->step > b->step) - (a->step < b->step);
}

static void write_report(void) {
  inside = 0;
  FILE* file = fopen("report.phases", "w");
  if (file == NULL) return;
  fprintf(file, "calls %llu %llu\n", (unsigned long long)calls, (unsigned long long)total_ns);
  for (int32_t at = 0; at < num_steps; ++at) {
    fprintf(file, "step %d %llu %llu %s\n", at, (unsigned long long)steps[at].calls,
            (unsigned long long)steps[at].ns, steps[at].name);
  }
  qsort(samples, (size_t)num_samples, sizeof(Sample), compare);
  for (int32_t first = 0, at = 0; first < num_samples; first = at) {
    while (at < num_samples && compare(&samples[at], &samples[first]) == 0) ++at;
    Dl_info info;
    const int known = dladdr((void*)samples[first].at, &info) != 0 && info.dli_fname != NULL;
    const char* module = known ? info.dli_fname : "-";
    const uintptr_t base = known ? (uintptr_t)info.dli_fbase : 0;
    const unsigned long long offset = samples[first].at - base;
    fprintf(file, "sample %d %d %llx %s\n", at - first, samples[first].step, offset, module);
    if (known && info.dli_sname != NULL) fprintf(file, "symbol %llx %s %s\n", offset, module, info.dli_sname);
  }
  fclose(file);
}

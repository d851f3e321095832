/* Times the steps of a native program and samples where the calling thread is, without help of the system's
 * profilers. Loaded by the host of the tools before the program, which calls stitch_step and stitch_border
 * here.
 *
 * The host calls stitch_profile_begin and stitch_profile_end around each forward; at the end of the process
 * `report.phases` is written:
 *
 *   calls COUNT NANOSECONDS MEDIAN CPU              of whole forwards
 *   step NUMBER COUNT NANOSECONDS MEDIAN CPU NAME   time from one mark to the next
 *                                                   CPU: nanoseconds that the calling thread ran
 *   sample COUNT STEP OFFSET MODULE             MODULE "-": code made at run time
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
#define MAX_TIMES 1024 /* of each step, the latest ones */

typedef struct {
  uint64_t calls, ns, cpu_ns;
  uint64_t latest[MAX_TIMES];
} Times;

typedef struct {
  char name[MAX_NAME];
  Times times;
} Step;

typedef struct {
  uint64_t wall_ns, cpu_ns;
} Moment;

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
static Times forwards;
static Moment begin, last_mark;
static long caller; /* the thread that calls; 0: sampling has not begun */

static uint64_t read_clock(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static Moment now(void) {
  const Moment moment = {read_clock(CLOCK_MONOTONIC), read_clock(CLOCK_THREAD_CPUTIME_ID)};
  return moment;
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

static void add(Times* times, Moment from, Moment to) {
  times->latest[times->calls % MAX_TIMES] = to.wall_ns - from.wall_ns;
  times->calls += 1;
  times->ns += to.wall_ns - from.wall_ns;
  times->cpu_ns += to.cpu_ns - from.cpu_ns;
}

/* Adds the time since the last mark to a step. */
static void credit(int32_t step, Moment moment) {
  if (step >= 0) add(&steps[step].times, last_mark, moment);
  last_mark = moment;
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
  begin = last_mark = now();
  inside = 1;
}

EXPORT void stitch_profile_end(void) {
  const Moment end = now();
  inside = 0;
  credit(current, end);
  current = -1;
  add(&forwards, begin, end);
}

/* A step begins. */
EXPORT void stitch_step(const char* name) {
  if (!inside) return;
  credit(current, now());
  current = find(name);
}

/* A step has ended: what a border shows was computed since the mark before. */
EXPORT void stitch_border(const char* name, const void* data, uint64_t bytes) {
  (void)data;
  (void)bytes;
  if (!inside) return;
  const int32_t step = find(name);
  credit(step, now());
  /* The step's name comes only now, after its samples. */
  for (int32_t at = num_samples; at-- > 0 && samples[at].step == -1;) samples[at].step = step;
}

static int compare_times(const void* left, const void* right) {
  const uint64_t a = *(const uint64_t*)left, b = *(const uint64_t*)right;
  return (a > b) - (a < b);
}

/* What a busy machine does to a few calls does not show in it. */
static unsigned long long median(Times* times) {
  const size_t count = times->calls < MAX_TIMES ? times->calls : MAX_TIMES;
  if (count == 0) return 0;
  qsort(times->latest, count, sizeof(uint64_t), compare_times);
  return times->latest[count / 2];
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
  fprintf(file, "calls %llu %llu %llu %llu\n", (unsigned long long)forwards.calls,
          (unsigned long long)forwards.ns, median(&forwards), (unsigned long long)forwards.cpu_ns);
  for (int32_t at = 0; at < num_steps; ++at) {
    Times* times = &steps[at].times;
    fprintf(file, "step %d %llu %llu %llu %llu %s\n", at, (unsigned long long)times->calls,
            (unsigned long long)times->ns, median(times), (unsigned long long)times->cpu_ns, steps[at].name);
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

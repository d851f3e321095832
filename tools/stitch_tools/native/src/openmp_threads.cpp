// OpenMP on plain threads, for the race check: the part of GNU's runtime that compiled programs call.
//
// ThreadSanitizer learns the order of events from calls that it knows. GNU's libgomp orders its threads by
// futexes, of which it knows nothing, so every parallel loop would look like a race. Here a parallel region
// is pthread_create and pthread_join, a barrier is pthread_barrier_wait, and critical sections are mutexes:
// all of them known. Slow and simple on purpose: threads live as long as their region.
//
// Not here: tasks, `ordered`, cancellation, teams, `target`. A program that calls one of those is not
// checked.
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Body = void (*)(void*);
using Word = unsigned long;
using Ull = unsigned long long;

constexpr size_t kMostConstructs = 1u << 14;

// The shared state of one worksharing loop, `single` or `sections`. The n-th construct that a thread meets in
// a region is the n-th of every other thread, so a counter finds it. All operations are relaxed, and all of a
// region's shares exist before it starts: handing out work must not order the threads, or races would hide.
struct Share {
  std::atomic<long> taken{0};
  std::atomic<bool> claimed{false};
};

struct Team {
  explicit Team(int count) : size(count), shares(kMostConstructs) {
    pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(count));
  }
  ~Team() { pthread_barrier_destroy(&barrier); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  const int size;
  pthread_barrier_t barrier;
  std::vector<Share> shares;
};

struct Loop {
  long start = 0, end = 0, step = 1, chunk = 1;
  bool is_static = false;
  long next = 0;  // static: the next chunk of this thread
};

// What one thread is doing now.
struct Member {
  Team* team = nullptr;
  int number = 0;
  size_t constructs = 0;
  Share* share = nullptr;
  Loop loop;
};

thread_local Member self;
thread_local int wanted_threads = 0;
pthread_mutex_t critical = PTHREAD_MUTEX_INITIALIZER, atomic_region = PTHREAD_MUTEX_INITIALIZER;

int processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int most_threads() {
  if (wanted_threads > 0) return wanted_threads;
  const char* set = std::getenv("OMP_NUM_THREADS");
  const int count = set ? std::atoi(set) : 0;
  return count > 0 ? count : processors();
}

struct Start {
  Body body;
  void* data;
  Member member;
};

void* run(void* argument) {
  const Start* start = static_cast<Start*>(argument);
  self = start->member;
  start->body(start->data);
  return nullptr;
}

// Regions inside a region run on one thread, as they do by default in libgomp.
int team_size(unsigned asked) {
  if (self.team != nullptr) return 1;
  return asked > 0 ? static_cast<int>(asked) : most_threads();
}

void parallel(Body body, void* data, unsigned asked, const Loop& loop) {
  const Member outer = self;
  Team team(team_size(asked));
  std::vector<Start> starts(static_cast<size_t>(team.size));
  std::vector<pthread_t> threads(static_cast<size_t>(team.size));
  for (int i = 0; i < team.size; ++i) {
    Member member;
    member.team = &team;
    member.number = i;
    member.loop = loop;
    starts[static_cast<size_t>(i)] = {body, data, member};
  }
  for (size_t i = 1; i < starts.size(); ++i) pthread_create(&threads[i], nullptr, run, &starts[i]);
  run(&starts[0]);
  for (size_t i = 1; i < starts.size(); ++i) pthread_join(threads[i], nullptr);
  self = outer;
}

Share* next_construct() {
  static thread_local Share alone;  // for a construct outside of any region
  if (self.team == nullptr) {
    alone.taken = 0;
    alone.claimed = false;
    return self.share = &alone;
  }
  if (self.constructs >= kMostConstructs) {
    std::printf("failed openmp 0 more than %zu worksharing constructs in one region\n", kMostConstructs);
    std::fflush(stdout);
    std::_Exit(3);
  }
  return self.share = &self.team->shares[self.constructs++];
}

void barrier() {
  if (self.team != nullptr) pthread_barrier_wait(&self.team->barrier);
}

bool take_static(long* from, long* to) {
  Loop& loop = self.loop;
  const long size = self.team ? self.team->size : 1, number = self.number;
  const long total = loop.step > 0 ? (loop.end - loop.start + loop.step - 1) / loop.step
                                   : (loop.start - loop.end - loop.step - 1) / -loop.step;
  long first, count;
  if (loop.chunk <= 0) {  // one piece a thread
    if (loop.next++ > 0 || total <= 0) return false;
    const long share = total / size, rest = total % size;
    count = share + (number < rest);
    first = number * share + (number < rest ? number : rest);
  } else {
    first = (loop.next++ * size + number) * loop.chunk;
    count = first + loop.chunk > total ? total - first : loop.chunk;
  }
  if (count <= 0) return false;
  *from = loop.start + first * loop.step;
  *to = *from + count * loop.step;
  return true;
}

bool take(long* from, long* to) {
  Loop& loop = self.loop;
  if (loop.is_static) return take_static(from, to);
  const long chunk = (loop.chunk > 0 ? loop.chunk : 1) * loop.step;
  const long first = loop.start + self.share->taken.fetch_add(chunk, std::memory_order_relaxed);
  const bool up = loop.step > 0;
  if (up ? first >= loop.end : first <= loop.end) return false;
  const long last = first + chunk;
  *from = first;
  *to = (up ? last > loop.end : last < loop.end) ? loop.end : last;
  return true;
}

bool start_loop(const Loop& loop, long* from, long* to) {
  self.loop = loop;
  next_construct();
  return take(from, to);
}

// Loops of unsigned long long count in the same way; their bounds fit a long in any loop that ends.
bool start_loop(const Loop& loop, Ull* from, Ull* to) {
  long first = 0, last = 0;
  const bool any = start_loop(loop, &first, &last);
  *from = static_cast<Ull>(first);
  *to = static_cast<Ull>(last);
  return any;
}

bool take(Ull* from, Ull* to) {
  long first = 0, last = 0;
  const bool any = take(&first, &last);
  *from = static_cast<Ull>(first);
  *to = static_cast<Ull>(last);
  return any;
}

Loop loop_of(long start, long end, long step, long chunk, bool is_static) {
  return {start, end, step, chunk, is_static, 0};
}

Loop loop_of(bool, Ull start, Ull end, Ull step, Ull chunk, bool is_static) {
  return loop_of(static_cast<long>(start), static_cast<long>(end), static_cast<long>(step),
                 static_cast<long>(chunk), is_static);
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API void GOMP_parallel(Body body, void* data, unsigned threads, unsigned) {
  parallel(body, data, threads, Loop());
}
API void GOMP_barrier() { barrier(); }
API bool GOMP_single_start() { return !next_construct()->claimed.exchange(true, std::memory_order_relaxed); }
API void GOMP_critical_start() { pthread_mutex_lock(&critical); }
API void GOMP_critical_end() { pthread_mutex_unlock(&critical); }
// Named critical sections share one lock: less runs at once, and no order is invented between different names
// and unguarded code.
API void GOMP_critical_name_start(void**) { pthread_mutex_lock(&critical); }
API void GOMP_critical_name_end(void**) { pthread_mutex_unlock(&critical); }
API void GOMP_atomic_start() { pthread_mutex_lock(&atomic_region); }
API void GOMP_atomic_end() { pthread_mutex_unlock(&atomic_region); }
API void GOMP_loop_end() { barrier(); }
API void GOMP_loop_end_nowait() {}
API void GOMP_sections_end() { barrier(); }
API void GOMP_sections_end_nowait() {}

// `guided` and `runtime` are handed out like `dynamic`: another order, the same rules.
#define LOOPS(kind, is_static)                                                                           \
  API bool GOMP_loop_##kind##_start(long start, long end, long step, long chunk, long* from, long* to) { \
    return start_loop(loop_of(start, end, step, chunk, is_static), from, to);                            \
  }                                                                                                      \
  API bool GOMP_loop_##kind##_next(long* from, long* to) { return take(from, to); }                      \
  API bool GOMP_loop_ull_##kind##_start(bool up, Ull start, Ull end, Ull step, Ull chunk, Ull* from,     \
                                        Ull* to) {                                                       \
    return start_loop(loop_of(up, start, end, step, chunk, is_static), from, to);                        \
  }                                                                                                      \
  API bool GOMP_loop_ull_##kind##_next(Ull* from, Ull* to) { return take(from, to); }

#define PARALLEL_LOOP(kind)                                                                         \
  API void GOMP_parallel_loop_##kind(Body body, void* data, unsigned threads, long start, long end, \
                                     long step, long chunk, unsigned) {                             \
    parallel_loop(body, data, threads, loop_of(start, end, step, chunk, false));                    \
  }

#define RUNTIME_LOOP(kind)                                                                          \
  API bool GOMP_loop_##kind##_start(long start, long end, long step, long* from, long* to) {        \
    return start_loop(loop_of(start, end, step, 1, false), from, to);                               \
  }                                                                                                 \
  API bool GOMP_loop_##kind##_next(long* from, long* to) { return take(from, to); }                 \
  API void GOMP_parallel_loop_##kind(Body body, void* data, unsigned threads, long start, long end, \
                                     long step, unsigned) {                                         \
    parallel_loop(body, data, threads, loop_of(start, end, step, 1, false));                        \
  }

namespace {

struct LoopBody {
  Body body;
  void* data;
  Loop loop;
};

// The loop is the region's first construct, and it is begun already when the body asks for its first piece.
void begin_and_run(void* argument) {
  const LoopBody* start = static_cast<LoopBody*>(argument);
  next_construct();
  self.loop = start->loop;
  start->body(start->data);
}

void parallel_loop(Body body, void* data, unsigned threads, const Loop& loop) {
  LoopBody start{body, data, loop};
  parallel(begin_and_run, &start, threads, loop);
}

}  // namespace

LOOPS(static, true)
LOOPS(dynamic, false)
LOOPS(guided, false)
LOOPS(nonmonotonic_dynamic, false)
LOOPS(nonmonotonic_guided, false)
PARALLEL_LOOP(dynamic)
PARALLEL_LOOP(guided)
PARALLEL_LOOP(nonmonotonic_dynamic)
PARALLEL_LOOP(nonmonotonic_guided)
RUNTIME_LOOP(runtime)
RUNTIME_LOOP(maybe_nonmonotonic_runtime)
RUNTIME_LOOP(nonmonotonic_runtime)

namespace {

// Sections are numbered from 1; 0 says that none is left.
unsigned take_section() {
  long from = 0, to = 0;
  return take(&from, &to) ? static_cast<unsigned>(from) : 0;
}

}  // namespace

API unsigned GOMP_sections_start(unsigned count) {
  self.loop = loop_of(1, static_cast<long>(count) + 1, 1, 1, false);
  next_construct();
  return take_section();
}
API unsigned GOMP_sections_next() { return take_section(); }
API void GOMP_parallel_sections(Body body, void* data, unsigned threads, unsigned count, unsigned) {
  parallel_loop(body, data, threads, loop_of(1, static_cast<long>(count) + 1, 1, 1, false));
}

// What older compilers emit: start the team, run the body oneself, end the team.
namespace {
struct OldRegion {
  Member outer;
  Team* team;
  std::vector<Start> starts;
  std::vector<pthread_t> threads;
};
thread_local std::vector<OldRegion*> old_regions;
}  // namespace

API void GOMP_parallel_start(Body body, void* data, unsigned threads) {
  OldRegion* region = new OldRegion{self, new Team(team_size(threads)), {}, {}};
  region->starts.resize(static_cast<size_t>(region->team->size));
  region->threads.resize(region->starts.size());
  for (size_t i = 0; i < region->starts.size(); ++i) {
    Member member;
    member.team = region->team;
    member.number = static_cast<int>(i);
    region->starts[i] = {body, data, member};
  }
  for (size_t i = 1; i < region->starts.size(); ++i)
    pthread_create(&region->threads[i], nullptr, run, &region->starts[i]);
  old_regions.push_back(region);
  self = region->starts[0].member;
}

API void GOMP_parallel_end() {
  OldRegion* region = old_regions.back();
  old_regions.pop_back();
  for (size_t i = 1; i < region->threads.size(); ++i) pthread_join(region->threads[i], nullptr);
  self = region->outer;
  delete region->team;
  delete region;
}

API int omp_get_thread_num() { return self.number; }
API int omp_get_num_threads() { return self.team ? self.team->size : 1; }
API int omp_get_max_threads() { return most_threads(); }
API int omp_get_num_procs() { return processors(); }
API int omp_in_parallel() { return self.team != nullptr && self.team->size > 1; }
API int omp_get_level() { return self.team != nullptr; }
API int omp_get_active_level() { return omp_in_parallel(); }
API int omp_get_max_active_levels() { return 1; }
API int omp_get_thread_limit() { return 1 << 20; }
API int omp_get_dynamic() { return 0; }
API int omp_get_nested() { return 0; }
API void omp_set_dynamic(int) {}
API void omp_set_nested(int) {}
API void omp_set_max_active_levels(int) {}
API void omp_set_num_threads(int count) { wanted_threads = count; }
API double omp_get_wtime() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// libgomp's simple lock is one word of four bytes.
API void omp_init_lock(int* lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }
API void omp_destroy_lock(int*) {}
API int omp_test_lock(int* lock) { return __atomic_exchange_n(lock, 1, __ATOMIC_ACQ_REL) == 0; }
API void omp_set_lock(int* lock) {
  while (!omp_test_lock(lock)) sched_yield();
}
API void omp_unset_lock(int* lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

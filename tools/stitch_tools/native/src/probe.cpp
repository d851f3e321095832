// Measures the ceilings of this CPU and prints them as one JSON object.
//
//   copy        bytes read + written per second, source and target together four last-level caches
//   cache copy  the same for arrays that stay in the last-level cache
//   write       bytes per second of filling as much memory, by ordinary or by streaming stores
//   read        bytes per second of adding up as much memory
//   fma         floating-point operations per second of independent multiply-add chains in registers
//   launch      seconds of one empty parallel region
//
// Every figure is the best of many short repetitions: a ceiling is what the machine can do, and interference
// only ever makes it slower. Usage: probe LAST_LEVEL_CACHE_BYTES MEMORY_LIMIT_BYTES
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, Free>;

// Pages are touched by the thread that will use them, so that each lies on that thread's memory node.
Buffer allocate(size_t bytes) {
  Buffer buffer(static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
  if (!buffer) return buffer;
#pragma omp parallel
  {
    const size_t begin = bytes * omp_get_thread_num() / omp_get_num_threads();
    const size_t end = bytes * (omp_get_thread_num() + 1) / omp_get_num_threads();
    std::memset(buffer.get() + begin, 1, end - begin);
  }
  return buffer;
}

// Best bytes per second of copying `bytes` from one array to another, over about `budget_s` seconds.
// `inner` copies make one timed piece, so that a piece is long against the parallel region's own start.
double copy_rate(size_t bytes, int inner, double budget_s) {
  Buffer source = allocate(bytes), target = allocate(bytes);
  if (!source || !target) return 0.0;
  double best_s = 1e30;
  const auto start = Clock::now();
  do {
    const auto piece = Clock::now();
#pragma omp parallel
    {
      const size_t begin = bytes * omp_get_thread_num() / omp_get_num_threads();
      const size_t end = bytes * (omp_get_thread_num() + 1) / omp_get_num_threads();
      for (int i = 0; i < inner; ++i) {
        std::memcpy(target.get() + begin, source.get() + begin, end - begin);
        asm volatile("" : : "r"(target.get()) : "memory");  // keep every copy
      }
    }
    best_s = std::min(best_s, seconds_since(piece) / inner);
  } while (seconds_since(start) < budget_s);
  return 2.0 * static_cast<double>(bytes) / best_s;
}

// A fill that goes past the caches, where the processor has such stores; else an ordinary one.
void stream(char* target, size_t bytes) {
#if defined(__SSE2__)
  const __m128i value = _mm_set1_epi8(1);
  for (size_t i = 0; i + 64 <= bytes; i += 64) {
    for (size_t part = 0; part < 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + i + part), value);
  }
  _mm_sfence();
#else
  std::memset(target, 1, bytes);
#endif
}

long long total(const char* source, size_t bytes) {
  const long long* words = reinterpret_cast<const long long*>(source);
  long long sum = 0;
  for (size_t i = 0; i < bytes / sizeof(long long); ++i) sum += words[i];
  return sum;
}

enum class Pass { kFill, kStream, kRead };

// Best bytes per second of passes in one direction over `bytes`, over about `budget_s` seconds.
double pass_rate(size_t bytes, Pass pass, double budget_s) {
  Buffer buffer = allocate(bytes);
  if (!buffer) return 0.0;
  double best_s = 1e30;
  volatile long long sink = 0;
  const auto start = Clock::now();
  do {
    const auto piece = Clock::now();
    long long sum = 0;
#pragma omp parallel reduction(+ : sum)
    {
      const size_t share = bytes / omp_get_num_threads() / 64 * 64;  // what is left over is not counted
      char* begin = buffer.get() + share * omp_get_thread_num();
      if (pass == Pass::kRead)
        sum += total(begin, share);
      else if (pass == Pass::kStream)
        stream(begin, share);
      else
        std::memset(begin, 1, share);
      asm volatile("" : : "r"(begin) : "memory");  // keep every pass
    }
    best_s = std::min(best_s, seconds_since(piece));
    sink = sum;
  } while (seconds_since(start) < budget_s);
  (void)sink;
  return static_cast<double>(bytes / omp_get_max_threads() / 64 * 64 * omp_get_max_threads()) / best_s;
}

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

// 12 chains hide the latency of the multiply-add unit (4 cycles at 2 a cycle need 8) and fit into 16
// registers.
constexpr int kChains = 12;

float multiply_add(int steps) {
  Vector chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = Vector{} + 1.0f + 0.001f * c;
  Vector factor = Vector{} + 0.999f, term = Vector{} + 0.001f;
  asm volatile("" : "+x"(factor), "+x"(term));
  for (int i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) chain[c] = chain[c] * factor + term;
  }
  float sum = 0.0f;
  for (int c = 0; c < kChains; ++c) sum += chain[c][0];
  return sum;
}

double fma_rate(double budget_s) {
  constexpr int kSteps = 200000;
  double best_s = 1e30;
  volatile float sink = 0.0f;
  const auto start = Clock::now();
  do {
    const auto piece = Clock::now();
    float sum = 0.0f;
#pragma omp parallel reduction(+ : sum)
    sum += multiply_add(kSteps);
    best_s = std::min(best_s, seconds_since(piece));
    sink = sum;
  } while (seconds_since(start) < budget_s);
  (void)sink;
  return 2.0 * kLanes * kChains * static_cast<double>(kSteps) * omp_get_max_threads() / best_s;
}

double launch_seconds(double budget_s) {
  constexpr int kRegions = 20;  // a piece of about 10 us: short enough to fall between two disturbances
  double best_s = 1e30;
  const auto start = Clock::now();
  do {
    const auto piece = Clock::now();
    for (int i = 0; i < kRegions; ++i) {
#pragma omp parallel
      asm volatile("" : : : "memory");
    }
    best_s = std::min(best_s, seconds_since(piece) / kRegions);
  } while (seconds_since(start) < budget_s);
  return best_s;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: probe LAST_LEVEL_CACHE_BYTES MEMORY_LIMIT_BYTES\n");
    return 2;
  }
  const size_t cache = std::strtoull(argv[1], nullptr, 10), limit = std::strtoull(argv[2], nullptr, 10);
  const size_t large = std::min<size_t>(std::max<size_t>(2 * cache, 32u << 20), limit / 2);
  const double copy = copy_rate(large, 1, 0.6);
  // Both arrays together take a quarter of the cache: other tenants use some of it too.
  const double cache_copy = copy_rate(std::max<size_t>(cache / 8, 64u << 10), 4, 0.4);
  const double fill = pass_rate(2 * large, Pass::kFill, 0.3), past = pass_rate(2 * large, Pass::kStream, 0.3);
  const double read = pass_rate(2 * large, Pass::kRead, 0.3);
  std::printf(
      "{\"threads\": %d, \"copy_bytes_per_s\": %.6g, \"cache_bytes_per_s\": %.6g, "
      "\"write_bytes_per_s\": %.6g, \"read_bytes_per_s\": %.6g, "
      "\"fma_flops_per_s\": %.6g, \"launch_s\": %.6g}\n",
      omp_get_max_threads(), copy, cache_copy, std::max(fill, past), read, fma_rate(0.3),
      launch_seconds(0.4));
  return 0;
}

// How work is spread over threads.
#ifndef STITCH_CPU_PARALLEL_H_
#define STITCH_CPU_PARALLEL_H_

#include <omp.h>
#include <stdint.h>

#include <algorithm>

namespace stitch::cpu {

// Waking a team costs 2 to 5 us; a thread that gets less than this much work costs more than it brings.
inline constexpr int64_t kPicosecondsForThread = 6'000'000;

// Calls body(thread, begin, end) on disjoint ranges that cover [0, total). Ranges begin at multiples of
// `align`. Uses at most `threads` threads, and fewer when the whole work, at `picoseconds` for each item, is
// small; one thread runs in the caller without a parallel region.
template <class Body>
void parallel_ranges(int threads, int64_t total, int64_t align, int64_t picoseconds, Body&& body) {
  const int64_t worth = total * picoseconds / kPicosecondsForThread;
  const int64_t blocks = (total + align - 1) / align;
  const int team = static_cast<int>(std::min<int64_t>({threads, worth, blocks}));
  if (team <= 1) {
    if (total > 0) body(0, int64_t{0}, total);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const int me = omp_get_thread_num(), members = omp_get_num_threads();
    const int64_t begin = std::min(total, blocks * me / members * align);
    const int64_t end = std::min(total, blocks * (me + 1) / members * align);
    if (begin < end) body(me, begin, end);
  }
}

}  // namespace stitch::cpu
#endif  // STITCH_CPU_PARALLEL_H_

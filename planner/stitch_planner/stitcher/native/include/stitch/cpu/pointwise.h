// Runs a pointwise kernel (see common/space.h) over its space.
#ifndef STITCH_CPU_POINTWISE_H_
#define STITCH_CPU_POINTWISE_H_

#include "stitch/cpu/at.h"
#include "stitch/cpu/parallel.h"

namespace stitch::cpu {

template <class K>
class Pointwise {
  using Space = typename K::Space;
  static constexpr int kRank = Space::kRank;
  static constexpr int kLast = kRank - 1;
  static constexpr int64_t kWidth = Space::size(kLast);

 public:
  static void run(int threads, const Pointers<K>& base) {
    if constexpr (Space::kTotal > 0) {
      if constexpr (K::kTileDim >= 0) {
        run_tiled(threads, base);
      } else {
        parallel_ranges(threads, Space::kTotal, kAlign, K::kPicoseconds,
                        [&](int, int64_t begin, int64_t end) { run_range(base, begin, end); });
      }
    }
  }

 private:
  // Threads split rows where there are enough of them, else anywhere at a vector's width.
  static constexpr int64_t kAlign = Space::kTotal / kWidth >= 64 ? kWidth : 64;
  static constexpr int64_t kTile = 32;

  static void run_range(const Pointers<K>& base, int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / kWidth, first = begin - row * kWidth;
      const int64_t last = std::min(kWidth, first + (end - begin));
      int64_t index[kRank];
      Pointers<K> at_row = base;
      int64_t rest = row;
      for (int dim = kLast - 1; dim >= 0; --dim) {
        index[dim] = rest % Space::size(dim);
        rest /= Space::size(dim);
        advance<K>(at_row, dim, index[dim]);
      }
      run_row(at_row, first, last, index);
      begin += last - first;
    }
  }

  STITCH_FN static void run_row(const Pointers<K>& row, int64_t first, int64_t last, const int64_t* index) {
    const Pointers<K> local = row;
    if (first == 0 && last == kWidth) {
#pragma omp simd
      for (int64_t j = 0; j < kWidth; ++j) K::apply(At<K, kLast>{local, j, index});
    } else {
#pragma omp simd
      for (int64_t j = first; j < last; ++j) K::apply(At<K, kLast>{local, j, index});
    }
  }

  // Some operand is contiguous along kTileDim, not along the last dim: square tiles of the two keep the cache
  // lines of both kinds of operand in use until they are done with.
  static void run_tiled(int threads, const Pointers<K>& base) {
    constexpr int64_t kHeight = Space::size(K::kTileDim);
    constexpr int64_t kDown = (kHeight + kTile - 1) / kTile, kAcross = (kWidth + kTile - 1) / kTile;
    constexpr int64_t kOthers = Space::kTotal / (kHeight * kWidth);
    parallel_ranges(threads, kOthers * kDown * kAcross, 1, K::kPicoseconds * kTile * kTile,
                    [&](int, int64_t begin, int64_t end) {
                      for (int64_t tile = begin; tile < end; ++tile) {
                        run_tile(base, tile / (kDown * kAcross), tile / kAcross % kDown, tile % kAcross);
                      }
                    });
  }

  static void run_tile(const Pointers<K>& base, int64_t other, int64_t down, int64_t across) {
    int64_t index[kRank];
    Pointers<K> corner = base;
    for (int dim = kLast - 1; dim >= 0; --dim) {
      if (dim == K::kTileDim) continue;
      index[dim] = other % Space::size(dim);
      other /= Space::size(dim);
      advance<K>(corner, dim, index[dim]);
    }
    const int64_t bottom = std::min(Space::size(K::kTileDim), (down + 1) * kTile);
    const int64_t right = std::min(kWidth, (across + 1) * kTile);
    for (int64_t i = down * kTile; i < bottom; ++i) {
      Pointers<K> row = corner;
      index[K::kTileDim] = i;
      advance<K>(row, K::kTileDim, i);
      const Pointers<K> local = row;
#pragma omp simd
      for (int64_t j = across * kTile; j < right; ++j) K::apply(At<K, kLast>{local, j, index});
    }
  }
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_POINTWISE_H_

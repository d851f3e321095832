// A register tile of a matrix product, for products too small or too short-lived for a library call.
#ifndef STITCH_CPU_TILE_H_
#define STITCH_CPU_TILE_H_

#include "stitch/cpu/vec.h"

namespace stitch::cpu {

// Height and width (in vectors) of the largest tile: 24 sums, 4 columns and a broadcast value leave
// three of the 32 registers spare.
inline constexpr int kTileRows = 6;
inline constexpr int kTileVecs = 4;

// C[kRows][kVecs * kLanes] = A[kRows][depth] * B[depth][kVecs * kLanes]. Rows of A, B and C lie lda, ldb and
// ldc floats apart, elements of a row side by side. The last vector of C is stored up to `last` lanes; B is
// read whole.
template <int kRows, int kVecs>
STITCH_INLINE void tile_product(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb,
                                float* c, int64_t ldc, int64_t last) {
  Vec sums[kRows][kVecs] = {};
  for (int64_t k = 0; k < depth; ++k, b += ldb) {
    Vec column[kVecs];
    for (int v = 0; v < kVecs; ++v) column[v] = load(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec value = splat(a[r * lda + k]);
      for (int v = 0; v < kVecs; ++v) sums[r][v] = fma(value, column[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v + 1 < kVecs; ++v) store(c + r * ldc + v * kLanes, sums[r][v]);
    store_some(c + r * ldc + (kVecs - 1) * kLanes, sums[r][kVecs - 1], last);
  }
}

// The same for `columns` columns: tiles side by side. B's rows must be readable up to a multiple of kLanes.
template <int kRows>
inline void strip_product(int64_t depth, int64_t columns, const float* a, int64_t lda, const float* b,
                          int64_t ldb, float* c, int64_t ldc) {
  constexpr int64_t kWide = kTileVecs * kLanes;
  int64_t at = 0;
  for (; columns - at >= kWide; at += kWide) {
    tile_product<kRows, kTileVecs>(depth, a, lda, b + at, ldb, c + at, ldc, kLanes);
  }
  const int64_t rest = columns - at;
  const int64_t last = (rest + kLanes - 1) % kLanes + 1;
  if (rest > 3 * kLanes) {
    tile_product<kRows, 4>(depth, a, lda, b + at, ldb, c + at, ldc, last);
  } else if (rest > 2 * kLanes) {
    tile_product<kRows, 3>(depth, a, lda, b + at, ldb, c + at, ldc, last);
  } else if (rest > kLanes) {
    tile_product<kRows, 2>(depth, a, lda, b + at, ldb, c + at, ldc, last);
  } else if (rest > 0) {
    tile_product<kRows, 1>(depth, a, lda, b + at, ldb, c + at, ldc, last);
  }
}

// The same for 1 to kTileRows rows.
template <int kRows = kTileRows>
inline void rows_product(int64_t rows, int64_t depth, int64_t columns, const float* a, int64_t lda,
                         const float* b, int64_t ldb, float* c, int64_t ldc) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return rows_product<kRows - 1>(rows, depth, columns, a, lda, b, ldb, c, ldc);
  }
  strip_product<kRows>(depth, columns, a, lda, b, ldb, c, ldc);
}

}  // namespace stitch::cpu
#endif  // STITCH_CPU_TILE_H_

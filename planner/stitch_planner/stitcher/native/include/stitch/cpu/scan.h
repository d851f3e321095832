// Running sums and products, and the places of largest and smallest elements, along one dim.
//
// A dense tensor is [outer, length, inner]. Blocks of up to kBlock neighbours of `inner` are worked on at
// once, so that memory is read in lines where the dim is not the innermost one.
#ifndef STITCH_CPU_SCAN_H_
#define STITCH_CPU_SCAN_H_

#include <algorithm>
#include <type_traits>

#include "stitch/common/status.h"
#include "stitch/cpu/parallel.h"

namespace stitch::cpu {

struct DimOptions {
  int64_t outer, length, inner;
};

namespace detail {

inline constexpr int64_t kBlock = 64;
inline constexpr int64_t kScanPicoseconds = 1000;  // additions of one column wait for each other

// Calls body(first element, lanes) for each block of columns.
template <class Body>
void for_each_block(int threads, const DimOptions& dims, Body&& body) {
  const int64_t blocks = (dims.inner + kBlock - 1) / kBlock;
  const int64_t lanes = std::min(kBlock, dims.inner);
  parallel_ranges(threads, dims.outer * blocks, 1, dims.length * lanes * kScanPicoseconds,
                  [&](int, int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t column = i % blocks * kBlock;
                      body(i / blocks, column, std::min(kBlock, dims.inner - column));
                    }
                  });
}

}  // namespace detail

// out[i] = in[0] + ... + in[i], or the product.
template <class T, bool kProduct>
class Scan {
  using Total = std::conditional_t<std::is_floating_point_v<T>, double, T>;  // as torch keeps it

 public:
  int32_t init(const DimOptions& options) {
    dims_ = options;
    return STITCH_OK;
  }

  int32_t run(const T* in, T* out, int threads) const {
    detail::for_each_block(threads, dims_, [&](int64_t outer, int64_t column, int64_t lanes) {
      Total totals[detail::kBlock];
      std::fill(totals, totals + lanes, static_cast<Total>(kProduct));
      int64_t at = outer * dims_.length * dims_.inner + column;
      for (int64_t i = 0; i < dims_.length; ++i, at += dims_.inner) {
        for (int64_t l = 0; l < lanes; ++l) {
          const Total value = static_cast<Total>(in[at + l]);
          totals[l] = kProduct ? totals[l] * value : totals[l] + value;
          out[at + l] = static_cast<T>(totals[l]);
        }
      }
    });
    return STITCH_OK;
  }

 private:
  DimOptions dims_{};
};

// The first place of the largest (or smallest) element; a NaN is beyond all others.
template <class T, bool kLargest>
class Extreme {
 public:
  int32_t init(const DimOptions& options) {
    dims_ = options;
    return STITCH_OK;
  }

  // `values` may be null.
  int32_t run(const T* in, T* values, int64_t* places, int threads) const {
    detail::for_each_block(threads, dims_, [&](int64_t outer, int64_t column, int64_t lanes) {
      T best[detail::kBlock];
      int64_t place[detail::kBlock] = {};
      int64_t at = outer * dims_.length * dims_.inner + column;
      std::copy(in + at, in + at + lanes, best);
      for (int64_t i = 1; i < dims_.length; ++i) {
        at += dims_.inner;
        for (int64_t l = 0; l < lanes; ++l) {
          const bool wins = beats(in[at + l], best[l]);
          place[l] = wins ? i : place[l];
          best[l] = wins ? in[at + l] : best[l];
        }
      }
      const int64_t target = outer * dims_.inner + column;
      std::copy(place, place + lanes, places + target);
      if (values) std::copy(best, best + lanes, values + target);
    });
    return STITCH_OK;
  }

 private:
  static bool beats(T a, T b) {
    const bool beyond = kLargest ? a > b : a < b;
    return (beyond || a != a) && b == b;  // a NaN differs from itself, and stays
  }

  DimOptions dims_{};
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_SCAN_H_

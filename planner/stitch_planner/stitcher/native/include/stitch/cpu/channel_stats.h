// Sums over channels-last rows, and what normalisations make of them.
#ifndef STITCH_CPU_CHANNEL_STATS_H_
#define STITCH_CPU_CHANNEL_STATS_H_

#include <algorithm>
#include <cmath>

#include "stitch/cpu/activation.h"
#include "stitch/cpu/vec.h"

namespace stitch::cpu {

namespace detail {

// Adds sums of (x - shift) and (x - shift)^2 over `rows` rows of kVecs * kLanes channels. kUnroll rows at a
// time keep enough additions in flight when a row is short. At most 128 rows go into a float sum, which then
// joins a double: the error stays that of a short sum.
template <int kVecs, int kUnroll>
inline void sum_columns(const float* x, int64_t rows, int64_t row_step, const float* shift, int64_t lanes,
                        double* sums, double* squares) {
  Vec base[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    base[v] = v + 1 < kVecs ? load(shift + v * kLanes) : load_some(shift + v * kLanes, lanes);
  }
  for (int64_t begin = 0; begin < rows; begin += 128) {
    const int64_t end = std::min<int64_t>(rows, begin + 128);
    Vec s[kUnroll][kVecs] = {}, q[kUnroll][kVecs] = {};
    int64_t row = begin;
    const auto add = [&](int u, int64_t at) {
      for (int v = 0; v < kVecs; ++v) {
        const float* p = x + at * row_step + v * kLanes;
        const Vec d = (v + 1 < kVecs ? load(p) : load_some(p, lanes)) - base[v];
        s[u][v] += d;
        q[u][v] = fma(d, d, q[u][v]);
      }
    };
    for (; row + kUnroll <= end; row += kUnroll) {
      for (int u = 0; u < kUnroll; ++u) add(u, row + u);
    }
    for (; row < end; ++row) add(0, row);
    for (int v = 0; v < kVecs; ++v) {
      for (int u = 1; u < kUnroll; ++u) {
        s[0][v] += s[u][v];
        q[0][v] += q[u][v];
      }
      const int64_t count = v + 1 < kVecs ? kLanes : lanes;
      for (int64_t i = 0; i < count; ++i) {
        sums[v * kLanes + i] += s[0][v][i];
        squares[v * kLanes + i] += q[0][v][i];
      }
    }
  }
}

}  // namespace detail

// Adds, for each channel, sums of (x - shift) and (x - shift)^2 over `rows` channels-last rows. Subtracting a
// value of the channel itself (its first will do) is what makes one pass as accurate as two.
inline void channel_sums(const float* x, int64_t rows, int64_t channels, const float* shift, double* sums,
                         double* squares) {
  int64_t c = 0;
  for (; channels - c >= 4 * kLanes; c += 4 * kLanes) {
    detail::sum_columns<4, 1>(x + c, rows, channels, shift + c, kLanes, sums + c, squares + c);
  }
  for (; channels - c > kLanes; c += 2 * kLanes) {
    const int64_t lanes = std::min<int64_t>(kLanes, channels - c - kLanes);
    detail::sum_columns<2, 2>(x + c, rows, channels, shift + c, lanes, sums + c, squares + c);
  }
  if (c < channels) {
    detail::sum_columns<1, 4>(x + c, rows, channels, shift + c, channels - c, sums + c, squares + c);
  }
}

// The same over one contiguous plane, for one channel.
inline void plane_sums(const float* x, int64_t count, float shift, double* total, double* square) {
  // 256 steps of four vectors go into float sums: a chain of additions as long at any width.
  constexpr int64_t kRun = 1024 * kLanes;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t end = std::min<int64_t>(count, begin + kRun);
    Vec s[4] = {}, q[4] = {};
    int64_t i = begin;
    const Vec base = splat(shift);
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      for (int u = 0; u < 4; ++u) {
        const Vec d = load(x + i + u * kLanes) - base;
        s[u] += d;
        q[u] = fma(d, d, q[u]);
      }
    }
    for (; i < end; i += kLanes) {
      const Vec d = load_some(x + i, std::min<int64_t>(kLanes, end - i), shift) - base;
      s[0] += d;
      q[0] = fma(d, d, q[0]);
    }
    *total += sum((s[0] + s[1]) + (s[2] + s[3]));
    *square += sum((q[0] + q[1]) + (q[2] + q[3]));
  }
}

// y = act(x * scale[c] + offset[c] (+ residual)) over channels-last rows; y may be x.
template <Epilogue kAct, bool kResidual>
inline void apply_rows(const float* x, int64_t rows, int64_t channels, const float* scale,
                       const float* offset, const float* residual, float slope, float* y) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      float value = x[at + c] * scale[c] + offset[c];
      if constexpr (kResidual) value += residual[at + c];
      y[at + c] = activate<kAct>(value, slope);
    }
  }
}

// The same over one contiguous plane.
template <Epilogue kAct, bool kResidual>
inline void apply_plane(const float* x, int64_t count, float scale, float offset, const float* residual,
                        float slope, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float value = x[i] * scale + offset;
    if constexpr (kResidual) value += residual[i];
    y[i] = activate<kAct>(value, slope);
  }
}

}  // namespace stitch::cpu
#endif  // STITCH_CPU_CHANNEL_STATS_H_

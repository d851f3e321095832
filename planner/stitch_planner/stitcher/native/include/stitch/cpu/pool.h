// Max and average pooling, adaptive and global ones among them, in both orders of memory.
#ifndef STITCH_CPU_POOL_H_
#define STITCH_CPU_POOL_H_

#include <omp.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "stitch/common/status.h"
#include "stitch/common/math.h"
#include "stitch/cpu/vec.h"

namespace stitch::cpu {

enum class Pooling { kMax, kAverage };

struct PoolOptions {
  int64_t images = 0;     // N
  int64_t channels = 0;   // C
  int64_t input[2] = {};  // height, width, as all pairs here
  int64_t output[2] = {};
  int64_t kernel[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};  // max only
  bool adaptive = false;         // windows follow from input and output alone
  bool count_padding = true;     // average: padded places count (torch's count_include_pad)
  int64_t divisor = 0;           // average: divide by this instead (0: by the window's size)
};

// kChannelsLast: x and y are [N][H][W][C]; else [N][C][H][W].
template <Pooling kPooling, bool kChannelsLast>
class Pool {
 public:
  int32_t init(const PoolOptions& options) {
    options_ = options;
    return STITCH_OK;
  }

  int32_t run(const float* x, float* y, int threads) const {
    const PoolOptions& o = options_;
    if (o.images * o.channels * o.output[0] * o.output[1] == 0) return STITCH_OK;
    if constexpr (kChannelsLast) {
      // A task is one place of the output and up to 64 channels, whose sums stay in registers.
      const int64_t places = o.images * o.output[0] * o.output[1],
                    chunks = (o.channels + kChunk - 1) / kChunk;
#pragma omp parallel for schedule(static) num_threads(threads)
      for (int64_t i = 0; i < places * chunks; ++i) {
        const int64_t place = i / chunks, c = i % chunks * kChunk;
        const int64_t column = place % o.output[1], row = place / o.output[1] % o.output[0];
        const int64_t image = place / o.output[1] / o.output[0];
        channels(x + image * o.input[0] * o.input[1] * o.channels + c, window(0, row), window(1, column),
                 std::min(kChunk, o.channels - c), y + place * o.channels + c);
      }
    } else {
#pragma omp parallel for schedule(static) num_threads(threads)
      for (int64_t p = 0; p < o.images * o.channels; ++p) {
        plane(x + p * o.input[0] * o.input[1], y + p * o.output[0] * o.output[1]);
      }
    }
    return STITCH_OK;
  }

 private:
  static constexpr int64_t kChunk = 4 * kLanes;
  // Additions in one chain of floats; longer sums are cut into such runs, so that they do not drift.
  static constexpr int64_t kRun = 128;

  // Input places begin, begin + step, ... < end along one axis, and how many count for an average.
  struct Window {
    int64_t begin, end, step, counted;
  };

  Window window(int axis, int64_t place) const {
    const PoolOptions& o = options_;
    if (o.adaptive) {
      const int64_t begin = place * o.input[axis] / o.output[axis];
      const int64_t end = ((place + 1) * o.input[axis] + o.output[axis] - 1) / o.output[axis];
      return {begin, end, 1, end - begin};
    }
    const int64_t step = o.dilation[axis];
    int64_t begin = place * o.stride[axis] - o.padding[axis];
    int64_t end = begin + step * (o.kernel[axis] - 1) + 1;
    // A window that ceil_mode adds may reach behind the padding, which then does not count.
    const int64_t padded = std::min(end, o.input[axis] + o.padding[axis]) - begin;
    if (begin < 0) begin += (-begin + step - 1) / step * step;
    end = std::min(end, o.input[axis]);
    return {begin, end, step, o.count_padding ? padded : std::max<int64_t>(0, end - begin)};
  }

  float factor(const Window& h, const Window& w) const {
    const int64_t count = options_.divisor ? options_.divisor : h.counted * w.counted;
    return 1.0f / static_cast<float>(count);
  }

  static STITCH_INLINE Vec join(Vec sum, Vec value) {
    if constexpr (kPooling == Pooling::kAverage) return sum + value;
    return value > sum || value != value ? value : sum;  // a NaN stays
  }

  using Wide = std::conditional_t<kPooling == Pooling::kAverage, double, float>;  // of totals of runs

  static constexpr float kStart = kPooling == Pooling::kMax ? -std::numeric_limits<float>::infinity() : 0.0f;

  void channels(const float* x, const Window& h, const Window& w, int64_t count, float* y) const {
    const int64_t vecs = (count + kLanes - 1) / kLanes;
    if (vecs == 4) return chunk<4>(x, h, w, count, y);
    if (vecs == 3) return chunk<3>(x, h, w, count, y);
    if (vecs == 2) return chunk<2>(x, h, w, count, y);
    chunk<1>(x, h, w, count, y);
  }

  template <int kVecs>
  void chunk(const float* x, const Window& h, const Window& w, int64_t count, float* y) const {
    const PoolOptions& o = options_;
    const int64_t last = count - (kVecs - 1) * kLanes;
    Vec sums[kVecs];
    for (Vec& sum : sums) sum = splat(kStart);
    for (int64_t i = h.begin; i < h.end; i += h.step) {
      for (int64_t j = w.begin; j < w.end;) {
        Vec run[kVecs];  // a sum of its own for each row, or part of a long one
        for (Vec& sum : run) sum = splat(kStart);
        for (const int64_t end = std::min(w.end, j + kRun * w.step); j < end; j += w.step) {
          const float* p = x + (i * o.input[1] + j) * o.channels;
          for (int v = 0; v + 1 < kVecs; ++v) run[v] = join(run[v], load(p + v * kLanes));
          run[kVecs - 1] = join(run[kVecs - 1], load_some(p + (kVecs - 1) * kLanes, last));
        }
        for (int v = 0; v < kVecs; ++v) sums[v] = join(sums[v], run[v]);
      }
    }
    if constexpr (kPooling == Pooling::kAverage) {
      const Vec scale = splat(factor(h, w));
      for (Vec& sum : sums) sum *= scale;
    }
    for (int v = 0; v + 1 < kVecs; ++v) store(y + v * kLanes, sums[v]);
    store_some(y + (kVecs - 1) * kLanes, sums[kVecs - 1], last);
  }

  void plane(const float* x, float* y) const {
    const PoolOptions& o = options_;
    if (o.adaptive && o.output[0] == 1 && o.output[1] == 1) {  // global: the plane is one long row
      const Window h = window(0, 0), w = window(1, 0);
      *y = line(x, {0, o.input[0] * o.input[1], 1, 0});
      if constexpr (kPooling == Pooling::kAverage) *y *= factor(h, w);
      return;
    }
    for (int64_t row = 0; row < o.output[0]; ++row, y += o.output[1]) {
      const Window h = window(0, row);
      if (o.adaptive) {
        for (int64_t column = 0; column < o.output[1]; ++column) {
          const Window w = window(1, column);
          Wide total = kStart;
          for (int64_t i = h.begin; i < h.end; i += h.step)
            total = one<Wide>(total, line(x + i * o.input[1], w));
          y[column] = static_cast<float>(total);
        }
      } else if (kPooling == Pooling::kAverage && o.kernel[0] * o.kernel[1] > 8 * kRun) {
        large(x, h, y);
      } else {
        std::fill_n(y, o.output[1], kStart);
        for (int64_t i = h.begin; i < h.end; i += h.step) {
          for (int64_t k = 0; k < o.kernel[1]; ++k)
            shifted(x + i * o.input[1], k * o.dilation[1] - o.padding[1], 0, o.output[1], y);
        }
      }
      if constexpr (kPooling == Pooling::kAverage) {
        for (int64_t column = 0; column < o.output[1]; ++column) y[column] *= factor(h, window(1, column));
      }
    }
  }

  // A row of sums over large windows: runs of floats, which join doubles.
  void large(const float* x, const Window& h, float* y) const {
    const PoolOptions& o = options_;
    constexpr int64_t kColumns = 128;
    for (int64_t first = 0; first < o.output[1]; first += kColumns) {
      const int64_t last = std::min(o.output[1], first + kColumns);
      double totals[kColumns] = {};
      for (int64_t i = h.begin; i < h.end; i += h.step) {
        for (int64_t begin = 0; begin < o.kernel[1]; begin += kRun) {
          float run[kColumns] = {};
          for (int64_t k = begin; k < std::min(o.kernel[1], begin + kRun); ++k)
            shifted(x + i * o.input[1], k * o.dilation[1] - o.padding[1], first, last, run);
          for (int64_t c = 0; c < last - first; ++c) totals[c] += run[c];
        }
      }
      for (int64_t c = first; c < last; ++c) y[c] = static_cast<float>(totals[c - first]);
    }
  }

  // Joins one column of the windows first to last of a row: y[c - first] with x[c * stride + shift], where
  // that lies inside.
  STITCH_INLINE void shifted(const float* x, int64_t shift, int64_t first, int64_t last, float* y) const {
    const int64_t stride = options_.stride[1], width = options_.input[1];
    const int64_t begin = std::max(first, shift < 0 ? (-shift + stride - 1) / stride : 0);
    const int64_t end = std::min(last, shift < width ? (width - shift - 1) / stride + 1 : 0);
    const float* from = x + shift;
    if (stride == 1) {
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) y[c - first] = one(y[c - first], from[c]);
    } else if (stride == 2) {
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) y[c - first] = one(y[c - first], from[2 * c]);
    } else {
      for (int64_t c = begin; c < end; ++c) y[c - first] = one(y[c - first], from[c * stride]);
    }
  }

  static float line(const float* x, const Window& w) {
    constexpr int64_t kLongest = 4 * kLanes * kRun;
    if (kPooling == Pooling::kMax || w.end - w.begin <= kLongest) return piece(x, w);
    Wide total = 0;
    for (int64_t j = w.begin; j < w.end; j += kLongest)
      total += piece(x, {j, std::min(w.end, j + kLongest), w.step, 0});
    return static_cast<float>(total);
  }

  // One row of a window, or part of a long one. Wide ones (global pooling) go kLanes places at a time.
  static float piece(const float* x, const Window& w) {
    float total = kStart;
    int64_t j = w.begin;
    if (w.step == 1 && w.end - j >= 4 * kLanes) {
      Vec sums[4];
      for (Vec& sum : sums) sum = splat(kStart);
      for (; j + 4 * kLanes <= w.end; j += 4 * kLanes) {
        for (int u = 0; u < 4; ++u) sums[u] = join(sums[u], load(x + j + u * kLanes));
      }
      const Vec all = join(join(sums[0], sums[1]), join(sums[2], sums[3]));
      for (int i = 0; i < kLanes; ++i) total = one(total, all[i]);
    }
    for (; j < w.end; j += w.step) total = one(total, x[j]);
    return total;
  }

  template <class T = float>
  static STITCH_INLINE T one(T sum, T value) {
    if constexpr (kPooling == Pooling::kAverage) return sum + value;
    return value > sum || value != value ? value : sum;
  }

  PoolOptions options_;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_POOL_H_

// ReLU and clips behind a product that keep NaN, as torch's do.
//
// oneDNN's relu and clip are a maximum and a minimum that give a number for NaN, on every instruction set.
// NaN comes from NaN, infinity or overflow only. So the operands are looked through first: while their
// largest magnitudes leave no room for it, the library does everything in its epilogue, and that look costs
// one read of what is about to be read anyway. Otherwise, and where the operands are much larger than the
// result, the library stops before the first such activation, and a pass over the result does the rest.
#ifndef STITCH_CPU_NAN_GUARD_H_
#define STITCH_CPU_NAN_GUARD_H_

#include <omp.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "stitch/common/math.h"
#include "stitch/common/scalar.h"
#include "stitch/cpu/parallel.h"
#include "stitch/cpu/post_ops.h"

namespace stitch::cpu {

// Rows of contiguous floats, `ld` elements apart.
struct Grid {
  int64_t rows = 0, width = 0, ld = 0;
  int64_t size() const { return rows * width; }
  Grid flat() const { return ld == width || rows == 1 ? Grid{1, size(), size()} : *this; }
};

// Whether oneDNN makes a number of NaN here.
inline bool loses_nan(const PostOp& op) {
  if (op.kind != PostOp::kAct) return false;
  return op.act == Act::kClip || op.act == Act::kHardsigmoid || (op.act == Act::kRelu && op.alpha == 0.0f);
}

// The largest |x|; infinity or NaN if any is.
inline float magnitude(const float* x, const Grid& shape) {
  constexpr int64_t kPicoseconds = 100, kAlign = 1024;
  const Grid grid = shape.flat();
  // Magnitudes compare as their bits do, and NaN lies above infinity.
  uint32_t top = 0;
  const auto look = [&](int64_t row, int64_t begin, int64_t end) {
    const float* line = x + row * grid.ld;
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = begin; i < end; ++i) most = std::max(most, bits_of(line[i]) & 0x7fffffffu);
#pragma omp critical(stitch_magnitude)
    top = std::max(top, most);
  };
  const int threads = omp_get_max_threads();
  if (grid.rows == 1) {
    parallel_ranges(threads, grid.width, kAlign, kPicoseconds,
                    [&](int, int64_t begin, int64_t end) { look(0, begin, end); });
  } else {
    parallel_ranges(threads, grid.rows, 1, kPicoseconds * grid.width, [&](int, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) look(row, 0, grid.width);
    });
  }
  return float_of(top);
}

class NanGuard {
 public:
  // Each result is a sum of `depth` products with weights up to `weight`, and a bias up to `bias`.
  void init(const PostOps& post, int64_t depth, float weight, float bias) {
    post_ = post;
    const auto first = std::find_if(post.begin(), post.end(), loses_nan);
    head_.assign(post.begin(), first);
    tail_.assign(first, post.end());
    gain_ = static_cast<double>(depth) * weight;
    bias_ = bias;
  }

  const PostOps& post() const { return post_; }
  bool has_rest() const { return !tail_.empty(); }

  // What the library does: everything, or what comes before the first activation that loses NaN.
  const PostOps& library(bool fused) const { return fused ? post_ : head_; }

  // Whether the library may ever do everything: for inputs and results of so many elements a look at the
  // operands must cost no more than a read and a write of the result.
  bool may_fuse(int64_t input, int64_t output) const {
    const auto full = std::count_if(post_.begin(), post_.end(), [](const PostOp& op) {
      return op.has_operand() && op.spread == Spread::kFull;
    });
    return tail_.empty() || input + full * output <= 2 * output;
  }

  // Whether the library may do everything in this call.
  bool fuses(const float* a, const Grid& input, const Grid& output, int64_t operand_ld,
             const float* const* operands) const {
    if (tail_.empty()) return true;
    if (!may_fuse(input.size(), output.size())) return false;
    double bound = gain_ * magnitude(a, input) + bias_;
    for (const PostOp& op : post_) {
      if (!(bound < kRoom)) return false;
      if (!op.has_operand()) {
        bound = activated(op, bound);
        continue;
      }
      const Grid full{output.rows, output.width, operand_ld}, channel{1, output.width, output.width};
      const double other = magnitude(*operands++, op.spread == Spread::kFull ? full : channel);
      bound = op.kind == PostOp::kMul ? bound * other : bound + other;
    }
    return bound < kRoom;
  }

  // Does to `c` what the library left out. An operand of that part must not be `c`.
  void finish(float* c, const Grid& shape, int64_t operand_ld, const float* const* operands) const {
    if (tail_.empty()) return;
    const bool alike = std::all_of(tail_.begin(), tail_.end(), [&](const PostOp& op) {
      return !op.has_operand() || (op.spread == Spread::kFull && operand_ld == shape.ld);
    });
    const Grid output = alike ? shape.flat() : shape;
    operands += std::count_if(head_.begin(), head_.end(), [](const PostOp& op) { return op.has_operand(); });
    // Short pieces: each stays in the nearest cache from one operation to the next.
    constexpr int64_t kPiece = 2048, kPicoseconds = 300;
    const int64_t pieces = (output.width + kPiece - 1) / kPiece;
    parallel_ranges(omp_get_max_threads(), output.rows * pieces, 1, kPicoseconds * output.width / pieces,
                    [&](int, int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t row = i / pieces, at = i % pieces * kPiece;
                        finish_piece(c + row * output.ld, at, std::min(kPiece, output.width - at),
                                     row * operand_ld, operands);
                      }
                    });
  }

 private:
  // The largest magnitude that the library's activation gives for magnitudes up to `bound`.
  static double activated(const PostOp& op, double bound) {
    if (op.act == Act::kClip) {  // an infinite limit on its own side lets every number through
      const double low = op.alpha == -INFINITY ? 0.0 : std::fabs(op.alpha);
      const double high = op.beta == INFINITY ? 0.0 : std::fabs(op.beta);
      return bound + low + high;
    }
    // None grows faster.
    return bound * std::max(1.0f, std::fabs(op.alpha)) + std::fabs(op.alpha) + std::fabs(op.beta) + 1.0;
  }

  // A quarter of the largest float: what rounding adds to a sum stays far below the rest.
  static constexpr double kRoom = FLT_MAX / 4;

  void finish_piece(float* line, int64_t begin, int64_t count, int64_t operand_row,
                    const float* const* operands) const {
    float* y = line + begin;
    for (const PostOp& op : tail_) {
      if (!op.has_operand()) {
        activate(op, y, count);
        continue;
      }
      const float* other = *operands++ + begin + (op.spread == Spread::kFull ? operand_row : 0);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        y[i] = op.kind == PostOp::kAdd   ? y[i] + other[i]
               : op.kind == PostOp::kSub ? y[i] - other[i]
                                         : y[i] * other[i];
      }
    }
  }

  template <class F>
  static void each(float* y, int64_t count, const F& f) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = f(y[i]);
  }

  static void activate(const PostOp& op, float* y, int64_t count) {
    const float alpha = op.alpha, beta = op.beta;
    switch (op.act) {
      case Act::kRelu:
        return alpha == 0.0f ? each(y, count, [](float x) { return math::relu(x); })
                             : each(y, count, [=](float x) { return math::leaky_relu(x, alpha); });
      case Act::kGeluErf:
        return each(y, count, [](float x) { return math::gelu_erf(x); });
      case Act::kGeluTanh:
        return each(y, count, [](float x) { return math::gelu_tanh(x); });
      case Act::kSilu:
        return each(y, count, [](float x) { return math::silu(x); });
      case Act::kSigmoid:
        return each(y, count, [](float x) { return math::sigmoid(x); });
      case Act::kTanh:
        return each(y, count, [](float x) { return math::tanh(x); });
      case Act::kClip:
        return each(y, count, [=](float x) { return math::clamp(x, alpha, beta); });
      case Act::kElu:
        return each(y, count, [=](float x) { return math::elu(x, alpha, 1.0f, 1.0f); });
      case Act::kHardswish:
        return each(y, count, [](float x) { return math::hardswish(x); });
      case Act::kHardsigmoid:
        return each(y, count, [](float x) { return math::hardsigmoid(x); });
      case Act::kMish:
        return each(y, count, [](float x) { return math::mish(x); });
      case Act::kLinear:
        return each(y, count, [=](float x) { return alpha * x + beta; });
    }
  }

  PostOps post_, head_, tail_;
  double gain_ = 0.0, bias_ = 0.0;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_NAN_GUARD_H_

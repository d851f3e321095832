// softmax(scale * Q K^T + mask) V for every head, without storing the score matrix.
//
// Six query rows at a time see all keys: their scores (6 x keys floats) stay in the first or second cache
// between the two products, so no running maximum has to be corrected. K is transposed once per head into
// [width][keys], which makes both products the same register tile. Causal tiles stop at the diagonal.
#ifndef STITCH_CPU_ATTENTION_H_
#define STITCH_CPU_ATTENTION_H_

#include <omp.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "stitch/common/status.h"
#include "stitch/common/math.h"
#include "stitch/cpu/buffer.h"
#include "stitch/cpu/tile.h"

namespace stitch::cpu {

// What is added to, or hidden from, the scores. Strides count elements over [batch, head, query, key]; 0
// repeats.
enum class MaskKind {
  kNone,
  kAdd,   // float, added
  kKeep,  // bool, false hides the key
  kHide,  // bool, true hides the key
};

struct AttentionShape {
  int64_t batch = 1, heads = 1, queries = 0, keys = 0;
  int64_t width = 0;        // of a query and a key
  int64_t value_width = 0;  // of a value
  float scale = 1.0f;
  bool causal = false;  // query i sees keys 0 to i
  // A query that sees no key gives zeros (scaled_dot_product_attention) or NaN (softmax written out).
  bool empty_is_zero = true;
  int64_t q[3] = {}, k[3] = {}, v[3] = {}, out[3] = {};  // strides over [batch, head, position]; width has 1
  int64_t mask[4] = {};
};

template <MaskKind kMask = MaskKind::kNone>
class Attention {
 public:
  using MaskType = std::conditional_t<kMask == MaskKind::kAdd, float, uint8_t>;

  // STITCH_OK always: nothing is prepared.
  int32_t init(const AttentionShape& shape) {
    shape_ = shape;
    return STITCH_OK;
  }

  int32_t run(const float* q, const float* k, const float* v, const MaskType* mask, float* out, int threads) {
    const AttentionShape& s = shape_;
    const int64_t heads = s.batch * s.heads, tiles = (s.queries + kTileRows - 1) / kTileRows;
    const int64_t total = heads * tiles;
    const Sizes size = sizes();
    if (!memory_.reserve(sizeof(float) * size.all * threads)) return STITCH_OUT_OF_MEMORY;
#pragma omp parallel num_threads(threads)
    {
      const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
      float* keys = memory_.floats() + thread * size.all;
      int64_t packed = -1;  // head whose keys and values lie packed in this thread's memory
      for (int64_t i = total * thread / team; i < total * (thread + 1) / team; ++i) {
        const int64_t head = i / tiles, b = head / s.heads, h = head % s.heads;
        if (head != packed) {
          pack_keys(k + b * s.k[0] + h * s.k[1], keys, size);
          if (size.values) pack_values(v + b * s.v[0] + h * s.v[1], keys + size.keys);
          packed = head;
        }
        const float* values = size.values ? keys + size.keys : v + b * s.v[0] + h * s.v[1];
        const int64_t row = i % tiles * kTileRows;
        attend(row, std::min<int64_t>(kTileRows, s.queries - row), q + b * s.q[0] + h * s.q[1], keys, values,
               mask ? mask + b * s.mask[0] + h * s.mask[1] : nullptr, out + b * s.out[0] + h * s.out[1],
               keys + size.keys + size.values);
      }
    }
    return STITCH_OK;
  }

 private:
  // Keys whose weights are added in one chain: a sum of the sums of such runs rounds less than one long
  // chain.
  static constexpr int64_t kRun = 64 * kLanes;

  // Floats of one thread's memory: transposed keys, padded values (0: read in place), scores.
  struct Sizes {
    int64_t keys, values, all;
  };

  static int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
  int64_t key_row() const { return padded(shape_.keys); }

  Sizes sizes() const {
    const AttentionShape& s = shape_;
    // A tile reads whole vectors of V, so a width that is no multiple of kLanes needs padding.
    const int64_t keys = s.width * key_row();
    const int64_t values = s.value_width % kLanes ? s.keys * padded(s.value_width) : 0;
    return {keys, values, keys + values + kTileRows * key_row()};
  }

  void pack_keys(const float* k, float* to, const Sizes&) const {
    const int64_t row = key_row(), width = shape_.width;
    for (int64_t j0 = 0; j0 < row; j0 += kLanes) {  // so many keys at a time: their cache lines stay near
      for (int64_t d = 0; d < width; ++d) {
        float* line = to + d * row + j0;
        for (int64_t j = 0; j < kLanes; ++j) {
          line[j] = j0 + j < shape_.keys ? k[(j0 + j) * shape_.k[2] + d] : 0.0f;
        }
      }
    }
  }

  void pack_values(const float* v, float* to) const {
    const int64_t row = padded(shape_.value_width);
    for (int64_t j = 0; j < shape_.keys; ++j) {
      std::copy_n(v + j * shape_.v[2], shape_.value_width, to + j * row);
      std::fill(to + j * row + shape_.value_width, to + (j + 1) * row, 0.0f);
    }
  }

  // Rows `row` to `row + rows` of one head.
  void attend(int64_t row, int64_t rows, const float* q, const float* keys, const float* values,
              const MaskType* mask, float* out, float* scores) const {
    const AttentionShape& s = shape_;
    const int64_t seen = s.causal ? std::min(s.keys, row + rows) : s.keys;
    rows_product(rows, s.width, padded(seen), q + row * s.q[2], s.q[2], keys, key_row(), scores, key_row());
    float inverse[kTileRows];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t visible = s.causal ? std::min(s.keys, row + r + 1) : s.keys;
      inverse[r] =
          softmax(scores + r * key_row(), visible, seen, mask ? mask + (row + r) * s.mask[2] : nullptr);
    }
    const bool in_place = s.value_width % kLanes == 0;
    rows_product(rows, seen, s.value_width, scores, key_row(), values,
                 in_place ? s.v[2] : padded(s.value_width), out + row * s.out[2], s.out[2]);
    for (int64_t r = 0; r < rows; ++r) {
      float* line = out + (row + r) * s.out[2];
      for (int64_t d = 0; d < s.value_width; ++d) line[d] *= inverse[r];
    }
  }

  // Turns scores into exp(score - max), 0 from `visible` to `seen`; gives 1 / their sum.
  float softmax(float* line, int64_t visible, int64_t seen, const MaskType* mask) const {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    const float scale = shape_.scale;
    if constexpr (kMask != MaskKind::kNone) {
      const int64_t step = shape_.mask[3];
      for (int64_t j = 0; j < visible; ++j) {
        const MaskType m = mask[j * step];
        if constexpr (kMask == MaskKind::kAdd) {
          line[j] = line[j] * scale + m;
        } else {
          // torch's function adds -inf, which leaves NaN where a hidden score is NaN or infinite.
          const float score = line[j] * scale, hidden = shape_.empty_is_zero ? score + kLowest : kLowest;
          line[j] = (m != 0) == (kMask == MaskKind::kKeep) ? score : hidden;
        }
      }
    } else {
      for (int64_t j = 0; j < visible; ++j) line[j] *= scale;
    }
    Vec top = splat(kLowest);
    const int64_t whole = visible / kLanes * kLanes;
    for (int64_t j = 0; j < whole; j += kLanes) top = max(top, load(line + j));
    if (whole < visible) top = max(top, load_some(line + whole, visible - whole, kLowest));
    const float highest = largest(top);
    // The maximum may have left NaN out; elsewhere the exponentials bring it back.
    const auto is_nan = [](float score) { return math::is_nan(score); };
    if (highest == kLowest && shape_.empty_is_zero && std::none_of(line, line + visible, is_nan)) {
      std::fill(line, line + seen, 0.0f);
      return 0.0f;
    }
    Vec total = splat(0.0f);
    const Vec base = splat(highest);
    for (int64_t begin = 0; begin < whole; begin += kRun) {
      Vec run = splat(0.0f);
      for (int64_t j = begin; j < std::min(begin + kRun, whole); j += kLanes) {
        const Vec e = exp(load(line + j) - base);
        store(line + j, e);
        run += e;
      }
      total += run;
    }
    if (whole < visible) {
      const Vec e = exp(load_some(line + whole, visible - whole, kLowest) - base);
      store_some(line + whole, e, visible - whole);
      total += e;  // hidden lanes are exp(-inf) = 0
    }
    std::fill(line + visible, line + seen, 0.0f);
    return 1.0f / sum(total);
  }

  AttentionShape shape_;
  Buffer memory_;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_ATTENTION_H_

// Rows of a table chosen by index, alone or pooled.
#ifndef STITCH_CPU_EMBEDDING_H_
#define STITCH_CPU_EMBEDDING_H_

#include <omp.h>
#include <stdint.h>

#include <cstring>

#include "stitch/common/status.h"

namespace stitch::cpu {

// Index is int64_t or int32_t.
template <class Index>
class Embedding {
 public:
  int32_t init(int64_t table_rows, int64_t width) {
    rows_ = table_rows;
    width_ = width;
    return STITCH_OK;
  }

  // out[i] = table[index[i]]. STITCH_UNSUPPORTED when an index lies outside the table.
  int32_t run(int64_t count, const Index* index, const float* table, float* out, int threads) const {
    bool bad = false;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(|| : bad)
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = index[i];
      if (row < 0 || row >= rows_) {
        bad = true;
        continue;
      }
      memcpy(out + i * width_, table + row * width_, sizeof(float) * width_);
    }
    return bad ? STITCH_UNSUPPORTED : STITCH_OK;
  }

 private:
  int64_t rows_ = 0;
  int64_t width_ = 0;
};

// Sum or mean of the rows of each bag; a bag without rows gives zeros.
template <class Index, bool kMean>
class EmbeddingBag {
 public:
  // `padding`: an index that does not count (-1: none).
  int32_t init(int64_t table_rows, int64_t width, int64_t padding) {
    rows_ = table_rows;
    width_ = width;
    padding_ = padding;
    return STITCH_OK;
  }

  // Bag b holds index[offset[b]] up to index[offset[b + 1]] (the last one up to `count`); without offsets
  // every bag has count / bags of them. STITCH_UNSUPPORTED when an index lies outside the table.
  int32_t run(int64_t bags, int64_t count, const Index* index, const Index* offset, const float* table,
              float* out, int threads) const {
    bool bad = false;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(|| : bad)
    for (int64_t b = 0; b < bags; ++b) {
      const int64_t begin = offset ? offset[b] : b * (count / bags);
      const int64_t end = offset ? (b + 1 < bags ? offset[b + 1] : count) : begin + count / bags;
      if (begin < 0 || end > count) {
        bad = true;
        continue;
      }
      bad = !pool(index, begin, end, table, out + b * width_) || bad;
    }
    return bad ? STITCH_UNSUPPORTED : STITCH_OK;
  }

 private:
  bool pool(const Index* index, int64_t begin, int64_t end, const float* table, float* to) const {
    memset(to, 0, sizeof(float) * width_);
    int64_t counted = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = index[i];
      if (row < 0 || row >= rows_) return false;
      if (row == padding_) continue;
      ++counted;
      const float* from = table + row * width_;
#pragma omp simd
      for (int64_t d = 0; d < width_; ++d) to[d] += from[d];
    }
    if (kMean && counted > 1) {
      const float inverse = 1.0f / static_cast<float>(counted);
#pragma omp simd
      for (int64_t d = 0; d < width_; ++d) to[d] *= inverse;
    }
    return true;
  }

  int64_t rows_ = 0;
  int64_t width_ = 0;
  int64_t padding_ = -1;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_EMBEDDING_H_

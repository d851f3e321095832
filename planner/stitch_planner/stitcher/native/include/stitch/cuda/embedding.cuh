// Rows of a table chosen by index, alone or pooled. A row outside the table gives NaN: a kernel cannot
// refuse.
#ifndef STITCH_CUDA_EMBEDDING_CUH_
#define STITCH_CUDA_EMBEDDING_CUH_

#include "stitch/cuda/constants.cuh"
#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

template <class Index, int V>
struct GatherRows {
  const Index* index;
  const float* table;
  float* out;
  int64_t rows, width;  // of the table
  bool wraps;           // whether -1 is the last row
  Divisor groups;       // of a row

  __device__ __forceinline__ void operator()(int64_t i) const {
    uint32_t within;
    const int64_t place = groups.split(static_cast<uint32_t>(i), within);
    int64_t row = index[place];
    if (wraps && row < 0) row += rows;
    Group<float, V> group;
    if (row >= 0 && row < rows) {
      group = load<V>(table + row * width + int64_t{within} * V);
    } else {
#pragma unroll
      for (int e = 0; e < V; ++e) group[e] = kNaN<float>;
    }
    store(out + i * V, group);
  }
};

// Index: int64_t or int32_t. V: neighbours that a thread moves; divides the width.
template <class Index, int V>
class Embedding {
 public:
  int32_t init(int64_t rows, int64_t width, bool wraps) {
    rows_ = rows, width_ = width, wraps_ = wraps;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  // out[i] = table[index[i]], i < count.
  int32_t run(const Call& call, int64_t count, const Index* index, const float* table, float* out) const {
    const GatherRows<Index, V> gather{index, table, out, rows_, width_, wraps_, Divisor(width_ / V)};
    return each("embedding", count * width_ / V, gather, call);
  }

 private:
  int64_t rows_ = 0, width_ = 0;
  bool wraps_ = false;
};

template <class Index, bool kMean, int V>
struct PoolRows {
  const Index* index;
  const Index* offset;  // null: all bags are equally long
  const float* table;
  float* out;
  int64_t rows, width, padding, bags, count;
  Divisor groups;  // of a row

  __device__ __forceinline__ void operator()(int64_t i) const {
    uint32_t within;
    const int64_t bag = groups.split(static_cast<uint32_t>(i), within);
    const int64_t equal = count / bags;
    const int64_t begin = offset != nullptr ? static_cast<int64_t>(offset[bag]) : bag * equal;
    int64_t end = begin + equal;
    if (offset != nullptr) end = bag + 1 < bags ? static_cast<int64_t>(offset[bag + 1]) : count;
    Group<float, V> total{};
    int64_t counted = 0;
    bool bad = begin < 0 || end > count;
    for (int64_t at = begin; at < end && !bad; ++at) {
      const int64_t row = index[at];
      if (row == padding) continue;
      bad = row < 0 || row >= rows;
      if (bad) break;
      ++counted;
      const Group<float, V> one = load<V>(table + row * width + int64_t{within} * V);
#pragma unroll
      for (int e = 0; e < V; ++e) total[e] += one[e];
    }
#pragma unroll
    for (int e = 0; e < V; ++e) {
      if (kMean && counted > 1) total[e] /= static_cast<float>(counted);
      if (bad) total[e] = kNaN<float>;
    }
    store(out + i * V, total);
  }
};

// Sum or mean of the rows of each bag; a bag without rows gives zeros. Index and V: as of Embedding.
template <class Index, bool kMean, int V>
class EmbeddingBag {
 public:
  // `padding`: an index that does not count (-1: none).
  int32_t init(int64_t rows, int64_t width, int64_t padding) {
    rows_ = rows, width_ = width, padding_ = padding;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  // Bag b holds index[offset[b]] up to index[offset[b + 1]] (the last one up to `count`).
  int32_t run(const Call& call, int64_t bags, int64_t count, const Index* index, const Index* offset,
              const float* table, float* out) const {
    const PoolRows<Index, kMean, V> pool{index,  offset,   table, out,   rows_,
                                         width_, padding_, bags,  count, Divisor(width_ / V)};
    return each("embedding bags", bags * width_ / V, pool, call);
  }

 private:
  int64_t rows_ = 0, width_ = 0, padding_ = -1;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_EMBEDDING_CUH_

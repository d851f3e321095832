// Joins tensors along a dim: every operand is a matrix of `outer` dense rows, and the result's rows are
// theirs side by side. One launch for up to 64 operands: a densely connected network joins dozens of them.
#ifndef STITCH_CUDA_CONCAT_CUH_
#define STITCH_CUDA_CONCAT_CUH_

#include <initializer_list>

#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

inline constexpr int kMostOperands = 64;  // addresses and sizes fit the 4 KiB of a launch's arguments

template <class T, int V>
struct JoinRows {
  static constexpr int kThreads = 256, kPhases = 1, kItems = 4;
  static constexpr int64_t kShare = kThreads * kItems;  // groups that a block moves
  struct Shared {};
  struct Thread {};

  const T* from[kMostOperands];
  T* to;
  int64_t total;                           // elements of one row of the result
  int64_t begin[kMostOperands];            // where an operand begins in a row
  int64_t groups[kMostOperands];           // of an operand
  int64_t first_block[kMostOperands + 1];  // of each operand's share of the blocks
  Divisor row[kMostOperands];              // groups of an operand's row
  int count;

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared&, Thread&) const {
    int which = 0;  // the same for all threads
    while (which + 1 < count && block >= first_block[which + 1]) ++which;
    const int64_t begun = (block - first_block[which]) * kShare + thread;
    Group<T, V> items[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t group = begun + i * kThreads;
      if (group < groups[which]) items[i] = load<V>(from[which] + group * V);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t group = begun + i * kThreads;
      if (group >= groups[which]) continue;
      uint32_t within;
      const int64_t line = row[which].split(static_cast<uint32_t>(group), within);
      store(to + line * total + begin[which] + int64_t{within} * V, items[i]);
    }
  }
};

struct ConcatOptions {
  int64_t outer = 0;
  int32_t count = 0;
  int64_t width[kMostOperands] = {};  // elements of an operand's row; V divides each
};

// T: an integer type of the elements' size. V: neighbours that a thread moves.
template <class T, int V>
class Concat {
 public:
  // `begin` and `total`: where the operands begin in a row of the result, and its length; more than 64
  // operands are several calls.
  int32_t init(const ConcatOptions& options, int64_t begin, int64_t total) {
    options_ = options, begin_ = begin, total_ = total;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call& call, std::initializer_list<const void*> operands, void* out) const {
    JoinRows<T, V> join{};
    join.to = static_cast<T*>(out);
    join.total = total_;
    join.count = options_.count;
    int64_t begin = begin_, blocks_so_far = 0;
    int which = 0;
    for (const void* operand : operands) {
      const int64_t width = options_.width[which];
      join.from[which] = static_cast<const T*>(operand);
      join.begin[which] = begin;
      join.groups[which] = options_.outer * width / V;
      join.first_block[which] = blocks_so_far;
      join.row[which] = Divisor(width > 0 ? width / V : 1);
      begin += width;
      blocks_so_far += ceil_div(join.groups[which], JoinRows<T, V>::kShare);
      ++which;
    }
    return blocks("join", blocks_so_far, join, call);
  }

 private:
  ConcatOptions options_;
  int64_t begin_ = 0, total_ = 0;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CONCAT_CUH_

// Matrix products of float32 matrices on tensor cores:  D = A B + bias + addend  or its ReLU, with errors of
// float32.
//
// Each operand is a sum of two halves (split.cuh), a product three products of halves, added up in float32.
// It is float32 by its error, not by its arithmetic: against float64 it is off by as much as a sum of float32
// products. Infinities, NaN and subnormal numbers come out as in float32; a sum that would overflow on its
// way and come back does not overflow.
//
// A constant B is split once, in init; A, and any other B, by a kernel of each run.
#ifndef STITCH_CUDA_SPLIT_PRODUCT_CUH_
#define STITCH_CUDA_SPLIT_PRODUCT_CUH_

#include <algorithm>

#include "stitch/cuda/device_memory.cuh"
#include "stitch/cuda/gemm.cuh"
#include "stitch/cuda/split_mma.cuh"
#include "stitch/cuda/split_wgmma.cuh"

namespace stitch::cuda {

// The operand's rows, or with `turned` its columns as rows.
inline SplitSource split_source(const float* data, const MatrixLayout& layout, int64_t batch, int64_t rows,
                                int64_t columns, bool turned) {
  const int64_t ld = layout.ld != 0 ? layout.ld : (layout.transposed ? rows : columns);
  const int64_t down = layout.transposed ? 1 : ld, across = layout.transposed ? ld : 1;
  if (turned) return {data, batch, columns, rows, layout.batch_stride, across, down};
  return {data, batch, rows, columns, layout.batch_stride, down, across};
}

// By which kernel, and into how many parts of the depth a tile's work is cut.
struct SplitWay {
  enum Kind { kMma, kWgmma };
  Kind kind = kMma;
  int splits = 1;
};

// Parts for a tile, so that few multiprocessors idle in the last round. A part is one multiprocessor's work;
// what it costs besides its chunks is about as much as six of them.
inline int choose_splits(int64_t tiles, int64_t chunks, int multiprocessors) {
  constexpr int64_t kOverhead = 6, kFewestChunks = 8;
  constexpr int kMost = 16;
  int best = 1;
  int64_t least = 0;
  for (int splits = 1; splits <= kMost; ++splits) {
    if (splits > 1 && chunks / splits < kFewestChunks) break;
    const int64_t rounds = ceil_div(tiles * splits, multiprocessors);
    const int64_t cost = rounds * (ceil_div(chunks, splits) + kOverhead);
    if (splits > 1 && cost >= least) continue;
    best = splits;
    least = cost;
  }
  return best;
}

#if !defined(STITCH_ON_HOST)

class SplitProduct {
 public:
  SplitProduct() = default;
  SplitProduct(const SplitProduct&) = delete;
  SplitProduct& operator=(const SplitProduct&) = delete;

  // The fastest kernel that this GPU has.
  static int32_t best_kind(const Call& call, SplitWay::Kind* best) {
    DeviceMemory memory;
    int32_t answer = 0;
    *best = SplitWay::kMma;
    if (!memory.reserve(sizeof answer)) return STITCH_OK;
    has_wgmma<<<1, 1, 0, call.stream>>>(static_cast<int32_t*>(memory.get()));
    STITCH_TRY(call.launched("ask for wgmma"));
    STITCH_TRY(call.errors->check(
        cudaMemcpyAsync(&answer, memory.get(), sizeof answer, cudaMemcpyDeviceToHost, call.stream),
        "ask for wgmma"));
    STITCH_TRY(call.errors->check(cudaStreamSynchronize(call.stream), "ask for wgmma"));
    if (answer != 0) *best = SplitWay::kWgmma;
    return STITCH_OK;
  }

  // `b` is nullptr if it is not constant. STITCH_OUT_OF_MEMORY without room for the parts.
  int32_t init(const Call& call, const GemmOptions& options, const float* b, const float* bias, bool relu) {
    options_ = options;
    bias_ = bias;
    relu_ = relu;
    has_constant_ = b != nullptr;
    b_shape_ = {options.b.batch_stride == 0 ? 1 : options.batch, options.n, options.k};
    a_shape_ = {options.batch, options.m, options.k};
    if (!has_constant_) return STITCH_OK;
    if (!constant_.reserve(b_shape_.bytes())) {
      return call.errors->fail(STITCH_OUT_OF_MEMORY, "no room for the parts of a weight");
    }
    return split_operand(b_source(b), b_shape_.target(constant_.get()), call);
  }

  // Before a run; again for another kernel.
  int32_t use(const Call& call, SplitWay::Kind kind) {
    way_.kind = kind;
    way_.splits = choose_splits(tiles(), a_shape_.chunks(), call.multiprocessors);
    return kind == SplitWay::kMma ? allow_shared(call, split_product_mma, kMmaSharedBytes)
                                  : allow_shared(call, split_product_wgmma, kWgmmaSharedBytes);
  }

  // Gives back the memory of a constant's parts.
  void release() { constant_.release(); }

  size_t workspace_bytes() const {
    return aligned(a_shape_.bytes()) + (has_constant_ ? 0 : aligned(b_shape_.bytes())) + partial_bytes() +
           counter_bytes();
  }

  int32_t run(const Call& call, const float* a, const float* b, float* d, const float* addend) const {
    if (call.scratch_bytes < workspace_bytes()) {
      return call.errors->fail(STITCH_ERROR, "the workspace is too small for a matrix product");
    }
    char* next = static_cast<char*>(call.scratch);
    SplitProductArgs args;
    args.plain_a = split_source(a, options_.a, options_.batch, options_.m, options_.k, false);
    args.plain_b = b_source(b);
    args.a = a_shape_.target(next);
    next += aligned(a_shape_.bytes());
    args.arrived =
        reinterpret_cast<int32_t*>(static_cast<char*>(call.scratch) + workspace_bytes() - counter_bytes());
    STITCH_TRY(split_operand(args.plain_a, args.a, call, {args.arrived, way_.splits > 1 ? tiles() : 0}));
    args.b = b_shape_.target(has_constant_ ? constant_.get() : next);
    if (!has_constant_) {
      next += aligned(b_shape_.bytes());
      STITCH_TRY(split_operand(args.plain_b, args.b, call));
    }
    args.bias = options_.has_bias ? bias_ : nullptr;
    args.addend = options_.has_addend ? addend : nullptr;
    args.relu = relu_;
    args.d = d;
    args.d_batch_stride = options_.d.batch_stride;
    args.d_ld = options_.d.ld != 0 ? options_.d.ld : options_.n;
    const auto in_pairs = [](const float* data) { return reinterpret_cast<uintptr_t>(data) % 8 == 0; };
    args.has_pairs =
        args.d_ld % 2 == 0 && args.d_batch_stride % 2 == 0 && in_pairs(d) && in_pairs(args.addend);
    args.shared_b = b_shape_.batch == 1;
    args.tiles = tiles();
    args.splits = way_.splits;
    args.partial = reinterpret_cast<float*>(next);
    return launch(call, args);
  }

 private:
  static constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

  SplitSource b_source(const float* b) const {
    return split_source(b, options_.b, b_shape_.batch, options_.k, options_.n, true);
  }

  int64_t tiles() const { return a_shape_.batch * a_shape_.row_tiles() * b_shape_.row_tiles(); }

  size_t partial_bytes() const {
    return way_.splits == 1 ? 0 : sizeof(float) * tiles() * way_.splits * kTileRows * kTileRows;
  }

  size_t counter_bytes() const { return way_.splits == 1 ? 0 : aligned(tiles() * sizeof(int32_t)); }

  template <class Kernel>
  static int32_t allow_shared(const Call& call, Kernel kernel, int bytes) {
    return call.errors->check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "take shared memory for a product");
  }

  int32_t launch(const Call& call, const SplitProductArgs& args) const {
    const int64_t items = args.tiles * args.splits;
    if (items > kMostBlocks) return call.errors->fail(STITCH_UNSUPPORTED, "a product is too large");
    const unsigned all = static_cast<unsigned>(items);
    if (way_.kind == SplitWay::kMma) {
      split_product_mma<<<all, kMmaThreads, kMmaSharedBytes, call.stream>>>(args);
    } else {
      const unsigned resident = std::min(all, static_cast<unsigned>(call.multiprocessors));
      split_product_wgmma<<<resident, kWgmmaThreads, kWgmmaSharedBytes, call.stream>>>(args);
    }
    return call.launched("run a split product");
  }

  GemmOptions options_;
  const float* bias_ = nullptr;
  bool relu_ = false;
  bool has_constant_ = false;
  SplitShape a_shape_, b_shape_;
  DeviceMemory constant_;
  SplitWay way_;
};

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_SPLIT_PRODUCT_CUH_

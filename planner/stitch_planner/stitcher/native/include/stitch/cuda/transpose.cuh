// Copies a batch of matrices transposed, through tiles in shared memory, so that reads and writes both run
// through memory in lines: images between the orders [C][pixels] and [pixels][C].
#ifndef STITCH_CUDA_TRANSPOSE_CUH_
#define STITCH_CUDA_TRANSPOSE_CUH_

#include <stdint.h>

#include "stitch/cuda/launch.cuh"

namespace stitch::cuda {

// Element (b, r, c) lies at b * source_batch + r * source_row + c of the source, and is written to
// b * target_batch + c * target_column + r.
struct TransposeOptions {
  int64_t batch = 1, rows = 0, columns = 0;
  int64_t source_batch = 0, source_row = 0;
  int64_t target_batch = 0, target_column = 0;
};

inline constexpr int kTransposeTile = 32;  // a warp's width: one line of 128 bytes
inline constexpr int kTransposeLines = 8;  // of threads in a block; each takes 32 / 8 elements

#if !defined(STITCH_ON_HOST)

__global__ void __launch_bounds__(kTransposeTile* kTransposeLines)
    transpose_kernel(const float* __restrict__ source, float* __restrict__ target, const TransposeOptions o,
                     int64_t tiles_down, int64_t tiles_across) {
  // One column more than a tile has: the columns of a tile then lie in different banks.
  __shared__ float tile[kTransposeTile][kTransposeTile + 1];
  const int64_t block = blockIdx.x;
  const int64_t column = block % tiles_across * kTransposeTile;
  const int64_t row = block / tiles_across % tiles_down * kTransposeTile;
  const int64_t batch = block / tiles_across / tiles_down;
  const float* from = source + batch * o.source_batch;
  for (int line = threadIdx.y; line < kTransposeTile; line += kTransposeLines) {
    const int64_t r = row + line, c = column + threadIdx.x;
    if (r < o.rows && c < o.columns) tile[line][threadIdx.x] = from[r * o.source_row + c];
  }
  __syncthreads();
  float* to = target + batch * o.target_batch;
  for (int line = threadIdx.y; line < kTransposeTile; line += kTransposeLines) {
    const int64_t c = column + line, r = row + threadIdx.x;
    if (r < o.rows && c < o.columns) to[c * o.target_column + r] = tile[threadIdx.x][line];
  }
}

#endif

class Transpose {
 public:
  int32_t init(const TransposeOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call& call, const float* source, float* target) const {
    const TransposeOptions& o = options_;
#if defined(STITCH_ON_HOST)
    (void)call;
    for (int64_t b = 0; b < o.batch; ++b) {
      for (int64_t r = 0; r < o.rows; ++r) {
        for (int64_t c = 0; c < o.columns; ++c) {
          target[b * o.target_batch + c * o.target_column + r] =
              source[b * o.source_batch + r * o.source_row + c];
        }
      }
    }
    return STITCH_OK;
#else
    const int64_t down = ceil_div(o.rows, kTransposeTile), across = ceil_div(o.columns, kTransposeTile);
    const int64_t blocks = down * across * o.batch;
    if (blocks == 0) return STITCH_OK;
    if (blocks > kMostBlocks) {
      return call.errors->fail(STITCH_UNSUPPORTED, "the matrices are too large to be transposed");
    }
    const dim3 threads(kTransposeTile, kTransposeLines);
    transpose_kernel<<<static_cast<unsigned>(blocks), threads, 0, call.stream>>>(source, target, o, down,
                                                                                 across);
    return call.launched("transpose");
#endif
  }

 private:
  TransposeOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_TRANSPOSE_CUH_

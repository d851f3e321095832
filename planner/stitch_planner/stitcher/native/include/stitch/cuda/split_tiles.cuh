// What the kernels of a split product (split_product.cuh) share: their arguments, which tile a block
// computes, how blocks that share a tile's depth add up, and what is done with a finished sum.
#ifndef STITCH_CUDA_SPLIT_TILES_CUH_
#define STITCH_CUDA_SPLIT_TILES_CUH_

#include "stitch/cuda/split_operand.cuh"

namespace stitch::cuda {

// D = A B + bias + addend, for each matrix of a batch. Operands in both forms: split, and as they were.
struct SplitProductArgs {
  SplitTarget a, b;  // b: the columns of B as rows
  SplitSource plain_a, plain_b;
  const float* bias = nullptr;    // [columns]
  const float* addend = nullptr;  // with d's layout
  float* d = nullptr;
  int64_t d_batch_stride = 0, d_ld = 0;
  bool shared_b = false;       // one B for the whole batch
  int64_t tiles = 0;           // of the batch's results
  int splits = 1;              // blocks that share a tile's depth
  float* partial = nullptr;    // their sums: [tile, split, tile's elements]
  int32_t* arrived = nullptr;  // [tile], zeros before
};

// Which tile of the result, and which part of its depth, a block computes. Blocks that run together shall
// read the same operands: eight row tiles go down before the column moves on.
struct SplitPlace {
  int64_t row_tile, column_tile, image;
  int64_t first_chunk, end_chunk;

  // Items are the first parts of all tiles, then all second parts; tiles have `columns` columns.
  __host__ __device__ __forceinline__ static SplitPlace of(const SplitProductArgs& args, int64_t item,
                                                           int columns) {
    const int64_t tile = item % args.tiles, split = item / args.tiles;
    constexpr int64_t kGroup = 8;
    const int64_t rows = (args.plain_a.rows + kTileRows - 1) / kTileRows;
    const int64_t across = (args.plain_b.rows + columns - 1) / columns;
    const int64_t in_image = tile % (rows * across);
    const int64_t group = in_image / (kGroup * across), first = group * kGroup;
    const int64_t height = rows - first < kGroup ? rows - first : kGroup;
    const int64_t in_group = in_image - group * kGroup * across;
    const int64_t chunks = (args.plain_a.depth + kTileDepth - 1) / kTileDepth;
    return {first + in_group % height, in_group / height, tile / (rows * across),
            chunks * split / args.splits, chunks * (split + 1) / args.splits};
  }
};

#if !defined(STITCH_ON_HOST)

// A result of a row or column that has an infinity or a NaN, as float32 has it.
__device__ __forceinline__ float plain_product(const SplitSource& a, const SplitSource& b, int64_t image,
                                               int64_t row, int64_t column) {
  const float *left = a.row(image, row), *right = b.row(image, column);
  float sum = 0.0f;
  for (int64_t i = 0; i < a.depth; ++i) {
    sum = fmaf(left[i * a.depth_stride], right[i * b.depth_stride], sum);
  }
  return sum;
}

__device__ __forceinline__ float times_power(float value, int exponent) {
  if (exponent >= -126 && exponent <= 127) return value * __int_as_float((exponent + 127) << 23);
  return scalbnf(value, exponent);
}

__device__ __forceinline__ void put(const SplitProductArgs& args, int64_t line, int64_t column, float value) {
  if (args.bias != nullptr) value += args.bias[column];
  if (args.addend != nullptr) value += args.addend[line + column];
  args.d[line + column] = value;
}

// Where a lane's elements of neighbouring sums of 16 x 8 lie, in mma's layout (split.cuh), and the exponents
// of their rows and columns.
struct LaneElements {
  int64_t first_row, first_column;
  const int32_t *row_exponents, *column_exponents;

  __device__ __forceinline__ static LaneElements of(const SplitProductArgs& args, int64_t image,
                                                    int64_t first_row, int64_t first_column) {
    const SplitShape a{1, args.plain_a.rows, 1}, b{1, args.plain_b.rows, 1};
    const int lane = threadIdx.x % 32;
    return {first_row + lane / 4, first_column + 2 * (lane % 4), args.a.exponents + image * a.all_rows(),
            args.b.exponents + (args.shared_b ? 0 : image) * b.all_rows()};
  }
};

// Writes a lane's kCount sums.
template <int kCount>
__device__ __forceinline__ void finish_sums(const SplitProductArgs& args, int64_t image, int64_t first_row,
                                            int64_t first_column, const float (&sums)[kCount][4]) {
  const LaneElements at = LaneElements::of(args, image, first_row, first_column);
  bool is_plain = true;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const int64_t row = at.first_row + 8 * below;
    if (row >= args.plain_a.rows) continue;
    const int row_exponent = at.row_exponents[row];
    const int64_t line = image * args.d_batch_stride + row * args.d_ld;
#pragma unroll
    for (int i = 0; i < kCount * 2; ++i) {
      const int64_t column = at.first_column + i / 2 * 8 + i % 2;
      if (column >= args.plain_b.rows) continue;
      const int exponent = row_exponent + at.column_exponents[column];
      if (exponent < kInfinite) {
        put(args, line, column, times_power(sums[i / 2][2 * below + i % 2], exponent));
      } else if (exponent >= kNotNumber) {
        put(args, line, column, __int_as_float(0x7fc00000));
      } else {
        is_plain = false;
      }
    }
  }
  if (is_plain) return;
  // Apart from the rest: the sums need no registers any more.
#pragma unroll 1
  for (int i = 0; i < kCount * 4; ++i) {
    const int64_t row = at.first_row + i % 4 / 2 * 8, column = at.first_column + i / 4 * 8 + i % 2;
    if (row >= args.plain_a.rows || column >= args.plain_b.rows) continue;
    const int exponent = at.row_exponents[row] + at.column_exponents[column];
    if (exponent < kInfinite || exponent >= kNotNumber) continue;
    put(args, image * args.d_batch_stride + row * args.d_ld, column,
        plain_product(args.plain_a, args.plain_b, image, row, column));
  }
}

// Adds up the sums of the blocks that share a tile, in the order of their parts. False in all blocks but the
// last to arrive, which has the whole sum then. `thread` counts the kThreads threads that hold sums.
template <int kThreads, int kCount>
__device__ __forceinline__ bool join_splits(const SplitProductArgs& args, int64_t item, int thread,
                                            float (&sums)[kCount][4]) {
  if (args.splits == 1) return true;
  __shared__ bool is_last;
  const int64_t tile = item % args.tiles, split = item / args.tiles;
  constexpr int64_t kElements = int64_t{kThreads} * kCount * 4;
  float4* const all = reinterpret_cast<float4*>(args.partial + tile * args.splits * kElements);
  float4* const own = all + split * (kElements / 4) + thread;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    own[i * kThreads] = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
  }
  __threadfence();
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  if (thread == 0) {
    is_last = atomicAdd(args.arrived + tile, 1) == args.splits - 1;
    __threadfence();
  }
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  if (!is_last) return false;
#pragma unroll
  for (int i = 0; i < kCount * 4; ++i) sums[i / 4][i % 4] = 0.0f;
#pragma unroll 1
  for (int part = 0; part < args.splits; ++part) {
    const float4* const from = all + part * (kElements / 4) + thread;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float4 one = __ldcg(from + i * kThreads);
      sums[i][0] += one.x;
      sums[i][1] += one.y;
      sums[i][2] += one.z;
      sums[i][3] += one.w;
    }
  }
  return true;
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_SPLIT_TILES_CUH_

// What the kernels of a split product (split_product.cuh) share: their arguments, which tile a block
// computes, how blocks that share a tile's depth add up, and what is done with a finished sum.
#ifndef STITCH_CUDA_SPLIT_TILES_CUH_
#define STITCH_CUDA_SPLIT_TILES_CUH_

#include "stitch/cuda/split_operand.cuh"

namespace stitch::cuda {

// D = A B + bias + addend, or its ReLU, for each matrix of a batch. Operands in both forms: split, and as
// they were.
struct SplitProductArgs {
  SplitTarget a, b;  // b: the columns of B as rows
  SplitSource plain_a, plain_b;
  const float* bias = nullptr;    // [columns]
  const float* addend = nullptr;  // with d's layout
  bool relu = false;
  float* d = nullptr;
  int64_t d_batch_stride = 0, d_ld = 0;
  bool has_pairs = false;      // two neighbours of d, and of the addend, are aligned to their 8 bytes
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

  // Items are the first parts of all tiles, then all second parts.
  __host__ __device__ __forceinline__ static SplitPlace of(const SplitProductArgs& args, int64_t item) {
    const int64_t tile = item % args.tiles, split = item / args.tiles;
    constexpr int64_t kGroup = 8;
    const int64_t rows = (args.plain_a.rows + kTileRows - 1) / kTileRows;
    const int64_t across = (args.plain_b.rows + kTileRows - 1) / kTileRows;
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

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// NaN stays, as in torch.
__device__ __forceinline__ float relu_of(const SplitProductArgs& args, float value) {
  return args.relu && value < 0.0f ? 0.0f : value;
}

// Writes one element whatever its exponent is: numbers at the ends of float32's range, and results of rows
// and columns with an infinity or a NaN, which the original numbers give as float32 does.
__device__ __noinline__ void put_rare(const SplitProductArgs& args, int64_t image, int64_t row,
                                      int64_t column, int exponent, float sum) {
  float value = exponent < kInfinite ? scalbnf(sum, exponent) : __int_as_float(0x7fc00000);
  if (exponent >= kInfinite && exponent < kNotNumber) {
    const SplitSource &a = args.plain_a, &b = args.plain_b;
    const float *left = a.row(image, row), *right = b.row(image, column);
    value = 0.0f;
    for (int64_t i = 0; i < a.depth; ++i) {
      value = fmaf(left[i * a.depth_stride], right[i * b.depth_stride], value);
    }
  }
  const int64_t place = image * args.d_batch_stride + row * args.d_ld + column;
  if (args.bias != nullptr) value += args.bias[column];
  if (args.addend != nullptr) value += args.addend[place];
  args.d[place] = relu_of(args, value);
}

// Two neighbours of a row.
__device__ __forceinline__ void put_pair(const SplitProductArgs& args, int64_t place, float2 value) {
  if (args.has_pairs) {
    if (args.addend != nullptr) {
      const float2 more = __ldg(reinterpret_cast<const float2*>(args.addend + place));
      value = make_float2(value.x + more.x, value.y + more.y);
    }
    *reinterpret_cast<float2*>(args.d + place) = make_float2(relu_of(args, value.x), relu_of(args, value.y));
    return;
  }
  if (args.addend != nullptr) {
    value = make_float2(value.x + __ldg(args.addend + place), value.y + __ldg(args.addend + place + 1));
  }
  args.d[place] = relu_of(args, value.x);
  args.d[place + 1] = relu_of(args, value.y);
}

// Writes a lane's kCount sums of 16 x 8, in mma's layout (split.cuh).
template <int kCount>
__device__ __forceinline__ void finish_sums(const SplitProductArgs& args, int64_t image, int64_t first_row,
                                            int64_t first_column, const float (&sums)[kCount][4]) {
  const SplitShape a{1, args.plain_a.rows, 1}, b{1, args.plain_b.rows, 1};
  const int lane = threadIdx.x % 32;
  const int64_t row = first_row + lane / 4, first = first_column + 2 * (lane % 4);
  const int32_t* const row_exponents = args.a.exponents + image * a.all_rows() + row;
  const int32_t* const column_exponents = args.b.exponents + (args.shared_b ? 0 : image) * b.all_rows();
  const int64_t place = image * args.d_batch_stride + row * args.d_ld;
  const bool exists[2] = {row < a.rows, row + 8 < a.rows};
  const int row_exponent[2] = {exists[0] ? __ldg(row_exponents) : 0,
                               exists[1] ? __ldg(row_exponents + 8) : 0};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int64_t column = first + 8 * i;
    if (column >= b.rows) continue;
    const int2 exponent = __ldg(reinterpret_cast<const int2*>(column_exponents + column));
    const bool is_pair = column + 1 < b.rows;
    float2 bias = make_float2(0.0f, 0.0f);
    if (args.bias != nullptr && is_pair)
      bias = make_float2(__ldg(args.bias + column), __ldg(args.bias + column + 1));
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      if (!exists[below]) continue;
      const int left = row_exponent[below] + exponent.x, right = row_exponent[below] + exponent.y;
      const float first_sum = sums[i][2 * below], second_sum = sums[i][2 * below + 1];
      if (is_pair && min(left, right) >= -126 && max(left, right) <= 127) {
        put_pair(
            args, place + 8 * below * args.d_ld + column,
            make_float2(first_sum * power_of_two(left) + bias.x, second_sum * power_of_two(right) + bias.y));
        continue;
      }
      put_rare(args, image, row + 8 * below, column, left, first_sum);
      if (is_pair) put_rare(args, image, row + 8 * below, column + 1, right, second_sum);
    }
  }
}

// Adds up the sums of the blocks that share a tile, in the order of their parts. False in all blocks but the
// last to arrive, which has the whole sum then. `thread` counts the kThreads threads
// that hold sums.
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

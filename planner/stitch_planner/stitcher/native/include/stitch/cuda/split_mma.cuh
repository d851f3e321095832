// A split product (split_product.cuh) by mma.sync, which every GPU from sm_80 has.
#ifndef STITCH_CUDA_SPLIT_MMA_CUH_
#define STITCH_CUDA_SPLIT_MMA_CUH_

#include "stitch/cuda/split_tiles.cuh"

namespace stitch::cuda {

#if !defined(STITCH_ON_HOST)

// A block computes 128 x 128 elements, a warp 64 x 32 of them.
inline constexpr int kMmaThreads = 256;
inline constexpr int kMmaStages = 3;  // 96 KiB: GPUs of sm_86 to sm_120 have 99 for a block
inline constexpr int kMmaSharedBytes = kMmaStages * 2 * kTileBytes;

// Starts the copies of one chunk's two tiles; nothing where there is none, so that groups are counted alike.
__device__ __forceinline__ void copy_chunk(const char* a, const char* b, int64_t chunk, int64_t end,
                                           uint32_t stage) {
  if (chunk < end) {
    for (int i = threadIdx.x * 16; i < kTileBytes; i += kMmaThreads * 16) {
      copy_16(stage + i, a + chunk * kTileBytes + i);
      copy_16(stage + kTileBytes + i, b + chunk * kTileBytes + i);
    }
  }
  copies_commit();
}

// The big or small parts of 16 rows and 16 of the depth: the fragment a of mma_half, or two fragments b.
__device__ __forceinline__ uint32_t a_row_place(uint32_t tile, int first_row, int cell) {
  const int lane = threadIdx.x % 32;
  return tile + cell_place(first_row + lane % 16, cell + lane / 16);
}

__device__ __forceinline__ uint32_t b_row_place(uint32_t tile, int first_row, int cell) {
  const int lane = threadIdx.x % 32;
  return tile + cell_place(first_row + lane / 16 * 8 + lane % 8, cell + lane / 8 % 2);
}

// Adds a warp's share of one chunk to the sums.
__device__ __forceinline__ void multiply_chunk(uint32_t stage, int warp_row, int warp_column,
                                               float (&sums)[4][4][4]) {
#pragma unroll
  for (int cell = 0; cell < 4; cell += 2) {
    uint32_t b_big[2][4], b_small[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices(b_big[i], b_row_place(stage + kTileBytes, warp_column + 16 * i, cell));
      load_matrices(b_small[i], b_row_place(stage + kTileBytes, warp_column + 16 * i, cell + 4));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t a_big[4], a_small[4];
      load_matrices(a_big, a_row_place(stage, warp_row + 16 * i, cell));
      load_matrices(a_small, a_row_place(stage, warp_row + 16 * i, cell + 4));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int pair = j / 2, at = j % 2 * 2;
        mma_half(sums[i][j], a_small, b_big[pair][at], b_big[pair][at + 1]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int pair = j / 2, at = j % 2 * 2;
        mma_half(sums[i][j], a_big, b_small[pair][at], b_small[pair][at + 1]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int pair = j / 2, at = j % 2 * 2;
        mma_half(sums[i][j], a_big, b_big[pair][at], b_big[pair][at + 1]);
      }
    }
  }
}

// One block for each part of each tile.
__global__ void __launch_bounds__(kMmaThreads, 1)
    split_product_mma(const __grid_constant__ SplitProductArgs args) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const SplitPlace place = SplitPlace::of(args, blockIdx.x);
  const SplitShape a_shape{args.plain_a.batch, args.plain_a.rows, args.plain_a.depth};
  const SplitShape b_shape{1, args.plain_b.rows, args.plain_b.depth};
  const int64_t chunks = a_shape.chunks();
  const char* const a =
      args.a.tiles + (place.image * a_shape.row_tiles() + place.row_tile) * chunks * kTileBytes;
  const int64_t b_image = args.shared_b ? 0 : place.image;
  const char* const b =
      args.b.tiles + (b_image * b_shape.row_tiles() + place.column_tile) * chunks * kTileBytes;
  const int warp = threadIdx.x / 32, warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;

  for (int i = 0; i < kMmaStages - 1; ++i) {
    copy_chunk(a, b, place.first_chunk + i, place.end_chunk, base + i * 2 * kTileBytes);
  }
  float total[4][4][4] = {}, sums[4][4][4] = {};
  int stage = 0, free_stage = kMmaStages - 1;
  for (int64_t chunk = place.first_chunk; chunk < place.end_chunk; ++chunk) {
    copies_wait<kMmaStages - 2>();
    __syncthreads();  // the chunk is here for all, and all are done with the stage that is filled next
    copy_chunk(a, b, chunk + kMmaStages - 1, place.end_chunk, base + free_stage * 2 * kTileBytes);
    multiply_chunk(base + stage * 2 * kTileBytes, warp_row, warp_column, sums);
    stage = stage + 1 == kMmaStages ? 0 : stage + 1;
    free_stage = free_stage + 1 == kMmaStages ? 0 : free_stage + 1;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      total[i / 16][i / 4 % 4][i % 4] += sums[i / 16][i / 4 % 4][i % 4];
      sums[i / 16][i / 4 % 4][i % 4] = 0.0f;
    }
  }
  float (&flat)[16][4] = reinterpret_cast<float (&)[16][4]>(total);
  if (!join_splits<kMmaThreads>(args, blockIdx.x, threadIdx.x, flat)) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    finish_sums(args, place.image, place.row_tile * kTileRows + warp_row + 16 * i,
                place.column_tile * kTileRows + warp_column, total[i]);
  }
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_SPLIT_MMA_CUH_

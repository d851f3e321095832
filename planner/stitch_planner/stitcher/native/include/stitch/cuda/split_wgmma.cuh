// A split product (split_product.cuh) by wgmma, which GPUs of sm_90 have in code for sm_90a.
//
// A block has three groups of four warps: one whose first thread asks for tiles, and two that multiply 64
// rows each. wgmma adds up in registers of its own; after some of them ordinary additions move those sums to
// the lasting ones, and meanwhile the other group keeps the tensor cores busy.
#ifndef STITCH_CUDA_SPLIT_WGMMA_CUH_
#define STITCH_CUDA_SPLIT_WGMMA_CUH_

#include "stitch/cuda/cluster.cuh"
#include "stitch/cuda/split_tiles.cuh"

// Whether code with wgmma is compiled here: the letter of sm_90a asks for it.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define STITCH_WGMMA 1
#endif

namespace stitch::cuda {

#if !defined(STITCH_ON_HOST)

inline constexpr int kWgmmaThreads = 384;
inline constexpr int kWgmmaSharedBytes = 12 * kTileBytes + 1024;  // and what the alignment to 1024 may cost

#if defined(STITCH_WGMMA)

// A matrix in shared memory for wgmma: rows of 128 bytes, swizzled, eight of them 1024 bytes from the next.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (address & 0x3ffffu) >> 4;
}

// sums[64, 128] += a[64, 16] b[16, 128] in half, by four warps; warp w has rows 16 w to 16 w + 15 as sixteen
// sums of mma's layout. Without `adds` the sums begin at zero.
__device__ __forceinline__ void wgmma_half(float (&sums)[16][4], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, adds, 1, 1, 0, 0;\n"
      "}"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]),
        "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]),
        "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]),
        "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]),
        "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]),
        "+f"(sums[7][2]), "+f"(sums[7][3]), "+f"(sums[8][0]), "+f"(sums[8][1]), "+f"(sums[8][2]),
        "+f"(sums[8][3]), "+f"(sums[9][0]), "+f"(sums[9][1]), "+f"(sums[9][2]), "+f"(sums[9][3]),
        "+f"(sums[10][0]), "+f"(sums[10][1]), "+f"(sums[10][2]), "+f"(sums[10][3]), "+f"(sums[11][0]),
        "+f"(sums[11][1]), "+f"(sums[11][2]), "+f"(sums[11][3]), "+f"(sums[12][0]), "+f"(sums[12][1]),
        "+f"(sums[12][2]), "+f"(sums[12][3]), "+f"(sums[13][0]), "+f"(sums[13][1]), "+f"(sums[13][2]),
        "+f"(sums[13][3]), "+f"(sums[14][0]), "+f"(sums[14][1]), "+f"(sums[14][2]), "+f"(sums[14][3]),
        "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3])
      : "l"(a), "l"(b), "r"(adds));
}

// Orders the registers of wgmma with ordinary instructions, for the hardware and for the compiler.
__device__ __forceinline__ void keep_in_order(float (&sums)[16][4]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(sums[i / 4][i % 4])::"memory");
}

__device__ __forceinline__ void wgmma_begin(float (&sums)[16][4]) {
  keep_in_order(sums);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_end(float (&sums)[16][4]) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  keep_in_order(sums);
}

// Stages of shared memory that are filled and read in turn, each with one chunk of a tile of A and one of B.
struct Ring {
  static constexpr int kStages = 6, kBytes = 2 * kTileBytes;
  uint64_t *full, *empty;
  uint32_t begin;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
  __device__ __forceinline__ uint32_t wait_full() const {
    // Without an end of its own: that costs registers here. If tiles never came, the thread that asks for
    // them would not get stages back either, and its wait ends.
    while (!barrier_passed(shared_address(&full[stage]), parity)) {
    }
    return begin + stage * kBytes;
  }
};

// Products of the big parts of kChunks chunks, or those with a small part: 64 rows by 128 columns.
template <int kChunks, bool kBig>
__device__ __forceinline__ void wgmma_parts(float (&sums)[16][4], const uint32_t (&stages)[kChunks],
                                            uint32_t a, uint32_t b) {
#pragma unroll
  for (int i = 0; i < 2 * kChunks; ++i) {
    // Addresses in descriptors count 16 bytes: 16 of the depth are two cells, small parts lie four cells
    // behind.
    const uint64_t left = matrix_descriptor(stages[i / 2] + a) + i % 2 * 2;
    const uint64_t right = matrix_descriptor(stages[i / 2] + b) + i % 2 * 2;
    if constexpr (kBig) {
      wgmma_half(sums, left, right, 1);
    } else {
      wgmma_half(sums, left + 4, right, i > 0);
      wgmma_half(sums, left, right + 4, 1);
    }
  }
}

// Adds kChunks chunks to the lasting sums, and gives their stages back.
template <int kChunks>
__device__ __forceinline__ void multiply_chunks(Ring& ring, int group, float (&total)[16][4]) {
  uint32_t stages[kChunks];
  uint64_t* emptied[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    stages[i] = ring.wait_full();
    emptied[i] = &ring.empty[ring.stage];
    ring.next();
  }
  float sums[16][4];
  wgmma_begin(sums);
  // What is small first: a sum is cut off at its size, which then is small as well.
  wgmma_parts<kChunks, false>(sums, stages, group * (kTileBytes / 2), kTileBytes);
  wgmma_parts<kChunks, true>(sums, stages, group * (kTileBytes / 2), kTileBytes);
  wgmma_end(sums);
#pragma unroll
  for (int i = 0; i < 64; ++i) total[i / 4][i % 4] += sums[i / 4][i % 4];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    if (threadIdx.x % 128 == 0) barrier_arrive(emptied[i]);
  }
}

// Asks for the tiles that this block multiplies, in the order in which they are read; by one thread.
__device__ __forceinline__ void load_tiles(const SplitProductArgs& args, Ring ring, char* stages) {
  const SplitShape a_shape{args.plain_a.batch, args.plain_a.rows, args.plain_a.depth};
  const SplitShape b_shape{1, args.plain_b.rows, args.plain_b.depth};
  const int64_t bytes = a_shape.chunks() * kTileBytes;
  for (int64_t item = blockIdx.x; item < args.tiles * args.splits; item += gridDim.x) {
    const SplitPlace place = SplitPlace::of(args, item);
    const char* const a = args.a.tiles + (place.image * a_shape.row_tiles() + place.row_tile) * bytes;
    const int64_t b_image = args.shared_b ? 0 : place.image;
    const char* const b = args.b.tiles + (b_image * b_shape.row_tiles() + place.column_tile) * bytes;
    for (int64_t chunk = place.first_chunk; chunk < place.end_chunk; ++chunk) {
      barrier_wait(&ring.empty[ring.stage], ring.parity ^ 1);
      uint64_t* const full = &ring.full[ring.stage];
      char* const stage = stages + ring.stage * Ring::kBytes;
      barrier_expect(full, Ring::kBytes);
      copy_in(stage, a + chunk * kTileBytes, kTileBytes, full);
      copy_in(stage + kTileBytes, b + chunk * kTileBytes, kTileBytes, full);
      ring.next();
    }
  }
}

// Multiplies and writes this block's tiles; `thread` counts the 256 that do.
__device__ __forceinline__ void multiply_tiles(const SplitProductArgs& args, Ring ring, int thread) {
  constexpr int kChunksPerSum = 2;
  const int group = thread / 128;
  for (int64_t item = blockIdx.x; item < args.tiles * args.splits; item += gridDim.x) {
    const SplitPlace place = SplitPlace::of(args, item);
    float total[16][4] = {};
    int64_t chunk = place.first_chunk;
    for (; chunk + kChunksPerSum <= place.end_chunk; chunk += kChunksPerSum) {
      multiply_chunks<kChunksPerSum>(ring, group, total);
    }
    for (; chunk < place.end_chunk; ++chunk) multiply_chunks<1>(ring, group, total);
    if (!join_splits<256>(args, item, thread, total)) continue;
    const int64_t row = place.row_tile * kTileRows + group * 64 + thread % 128 / 32 * 16;
    finish_sums(args, place.image, row, place.column_tile * kTileRows, total);
  }
}

#endif  // STITCH_WGMMA

// Any number of blocks, each for several tiles: while one is written, the next is loaded.
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    split_product_wgmma(const __grid_constant__ SplitProductArgs args) {
#if defined(STITCH_WGMMA)
  extern __shared__ char unaligned[];
  __shared__ uint64_t full[Ring::kStages], empty[Ring::kStages];
  const uint32_t address = shared_address(unaligned), begin = (address + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Ring::kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 2);
    }
    barrier_init_fence();
    async_fence();
  }
  __syncthreads();
  const Ring ring{full, empty, begin};
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) load_tiles(args, ring, unaligned + (begin - address));
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_tiles(args, ring, threadIdx.x - 128);
  }
#endif
}

// Tells whether the code for this GPU has wgmma in it.
__global__ void has_wgmma(int32_t* answer) {
#if defined(STITCH_WGMMA)
  *answer = 1;
#else
  *answer = 0;
#endif
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_SPLIT_WGMMA_CUH_

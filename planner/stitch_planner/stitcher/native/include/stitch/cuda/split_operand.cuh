// An operand of a split product (split.cuh): the big and small halves of a matrix, in the order in which
// kernels read it.
//
// The matrix has `rows` rows (of A, or columns of B) and a `depth` over which products are added. It is cut
// into tiles of 128 rows by 32 numbers of the depth, 16 KiB each, one after the other along the depth. A
// tile's row has 128 bytes, eight cells of eight halves: cells 0 to 3 are the big parts, 4 to 7 the small
// ones. Cell c of row r lies at place c ^ (r % 8), the 128-byte swizzle: eight rows' equal cells lie in eight
// different banks, and that is also how wgmma wants it. So a tile comes into shared memory as one plain copy.
//
// Each row is scaled by a power of two; rows with an infinity or a NaN are zeros here, and their results are
// computed from the original numbers. Rows and depth are filled up with zeros.
#ifndef STITCH_CUDA_SPLIT_OPERAND_CUH_
#define STITCH_CUDA_SPLIT_OPERAND_CUH_

#include "stitch/cuda/launch.cuh"
#include "stitch/cuda/split.cuh"

namespace stitch::cuda {

inline constexpr int kTileRows = 128, kTileDepth = 32;
inline constexpr int kTileBytes = kTileRows * kTileDepth * 4;
inline constexpr int kCell = 8;  // numbers of the depth whose big, or small, parts are 16 bytes
// In the place of a row's exponent. The sum of a row's and a column's is far below kInfinite for numbers, and
// not below it with an infinity, nor below kNotNumber with a NaN.
inline constexpr int kHasInfinity = 1 << 16, kHasNan = 1 << 18;
inline constexpr int kInfinite = 1 << 15, kNotNumber = 1 << 17 | 1 << 15;

// A matrix as the caller has it; distances in elements.
struct SplitSource {
  const float* data = nullptr;
  int64_t batch = 1, rows = 0, depth = 0;
  int64_t batch_stride = 0, row_stride = 0, depth_stride = 1;

  __host__ __device__ __forceinline__ const float* row(int64_t image, int64_t row) const {
    return data + image * batch_stride + row * row_stride;
  }
};

// Where its parts lie.
struct SplitTarget {
  char* tiles = nullptr;
  int32_t* exponents = nullptr;  // of each row; the number is (big + small) * 2^exponent
};

// Counters that the kernel which reads the parts wants at zero.
struct Counters {
  int32_t* first = nullptr;
  int64_t count = 0;
};

struct SplitShape {
  int64_t batch = 1, rows = 0, depth = 0;

  __host__ __device__ __forceinline__ int64_t row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  __host__ __device__ __forceinline__ int64_t chunks() const { return (depth + kTileDepth - 1) / kTileDepth; }
  __host__ __device__ __forceinline__ int64_t all_rows() const { return batch * row_tiles() * kTileRows; }
  __host__ __device__ __forceinline__ int64_t tile_bytes() const {
    return batch * row_tiles() * chunks() * kTileBytes;
  }
  int64_t bytes() const { return tile_bytes() + all_rows() * static_cast<int64_t>(sizeof(int32_t)); }
  SplitTarget target(void* memory) const {
    char* const tiles = static_cast<char*>(memory);
    return {tiles, reinterpret_cast<int32_t*>(tiles + tile_bytes())};
  }
};

// Bytes from a tile's begin to a cell.
__host__ __device__ __forceinline__ int cell_place(int row, int cell) {
  return row * 128 + ((cell ^ (row & 7)) << 4);
}

struct alignas(16) CellBits {
  uint32_t pairs[4];
};

struct alignas(16) FourFloats {
  float values[4];
};

// The size of a number as bits that compare like it: infinity above all numbers, NaN above infinity.
__host__ __device__ __forceinline__ uint32_t size_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof x);
  return bits & 0x7fffffffu;
}

// What to scale a row by and what to write down for it, from the largest of its size_bits.
struct RowScale {
  float factor = 0.0f;  // 0: the row is not split
  int32_t exponent = 0;

  __host__ __device__ __forceinline__ static RowScale of(uint32_t largest) {
    constexpr uint32_t kInfinity = 0x7f800000u;
    if (largest > kInfinity) return {0.0f, kHasNan};
    if (largest == kInfinity) return {0.0f, kHasInfinity};
    float size;
    memcpy(&size, &largest, sizeof size);
    const int scale = half_scale_exponent(size);
    const uint32_t bits = static_cast<uint32_t>(scale + 127) << 23;
    RowScale result;
    memcpy(&result.factor, &bits, sizeof bits);
    result.exponent = -scale;
    return result;
  }
};

// Eight neighbours along the depth, zeros behind its end.
template <bool kVector>
__host__ __device__ __forceinline__ void load_cell(const SplitSource& source, const float* row, int64_t begin,
                                                   float (&values)[kCell]) {
  if (kVector && begin + kCell <= source.depth) {
    for (int i = 0; i < kCell; i += 4) {
      const FourFloats four = *reinterpret_cast<const FourFloats*>(row + begin + i);
      for (int j = 0; j < 4; ++j) values[i + j] = four.values[j];
    }
    return;
  }
  for (int i = 0; i < kCell; ++i) {
    values[i] = begin + i < source.depth ? row[(begin + i) * source.depth_stride] : 0.0f;
  }
}

// Writes the two cells of eight numbers of row `row`, counted over all matrices of the batch.
__host__ __device__ __forceinline__ void store_cell(const SplitShape& shape, char* tiles, int64_t row,
                                                    int64_t begin, const float (&values)[kCell],
                                                    float factor) {
  CellBits big, small;
  for (int i = 0; i < 4; ++i) {
    // Not 0 * value: that is NaN for the numbers that are left out.
    const float first = factor != 0.0f ? values[2 * i] * factor : 0.0f;
    const float second = factor != 0.0f ? values[2 * i + 1] * factor : 0.0f;
    const HalfParts parts = split_halves(first, second);
    big.pairs[i] = parts.big;
    small.pairs[i] = parts.small;
  }
  char* const tile =
      tiles + (row / kTileRows * shape.chunks() + begin / kTileDepth) * static_cast<int64_t>(kTileBytes);
  const int inside = static_cast<int>(row % kTileRows);
  const int cell = static_cast<int>(begin % kTileDepth) / kCell;
  *reinterpret_cast<CellBits*>(tile + cell_place(inside, cell)) = big;
  *reinterpret_cast<CellBits*>(tile + cell_place(inside, cell + 4)) = small;
}

#if defined(STITCH_ON_HOST)

inline int32_t split_operand(const SplitSource& source, const SplitTarget& target, const Call&,
                             const Counters& counters = {}) {
  for (int64_t i = 0; i < counters.count; ++i) counters.first[i] = 0;
  const SplitShape shape{source.batch, source.rows, source.depth};
  for (int64_t row = 0; row < shape.all_rows(); ++row) {
    const int64_t padded = shape.row_tiles() * kTileRows, inside = row % padded;
    const bool exists = inside < source.rows;
    const float* const from = exists ? source.row(row / padded, inside) : nullptr;
    float values[kCell] = {};
    uint32_t largest = 0;
    for (int64_t begin = 0; exists && begin < source.depth; begin += kCell) {
      load_cell<false>(source, from, begin, values);
      for (float value : values) largest = size_bits(value) > largest ? size_bits(value) : largest;
    }
    const RowScale scale = RowScale::of(largest);
    target.exponents[row] = scale.exponent;
    for (int64_t begin = 0; begin < shape.chunks() * kTileDepth; begin += kCell) {
      if (exists) load_cell<false>(source, from, begin, values);
      store_cell(shape, target.tiles, row, begin, values, exists ? scale.factor : 0.0f);
    }
  }
  return STITCH_OK;
}

#else

inline constexpr int kSplitThreads = 256;

// Who splits what of a block's rows: kLanes threads a row.
//   kAlong   a row's threads are neighbours: for rows whose numbers are neighbours in memory
//   kAcross  eight threads a row, one of each warp: for rows that are neighbours themselves
enum class SplitThreads { kAlong, kAcross };

// The largest of the values that a row's threads have, in each of them.
template <SplitThreads kThreads, int kLanes>
__device__ __forceinline__ uint32_t largest_of_row(uint32_t value) {
  __shared__ uint32_t found[kSplitThreads];
  if constexpr (kThreads == SplitThreads::kAlong) {
    value = __reduce_max_sync(0xffffffffu, value);
    if constexpr (kLanes > 32) {
      if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = value;
      __syncthreads();
      for (int i = 0; i < kLanes / 32; ++i) value = max(value, found[i]);
    }
  } else {
    found[threadIdx.x] = value;
    __syncthreads();
    for (int i = threadIdx.x % 32; i < kSplitThreads; i += 32) value = max(value, found[i]);
  }
  return value;
}

// The rows are read twice, the second time from a cache.
template <SplitThreads kThreads, int kLanes, bool kVector>
__global__ void __launch_bounds__(kSplitThreads)
    split_rows(SplitSource source, SplitTarget target, Counters counters) {
  for (int64_t i = threadIdx.x; blockIdx.x == 0 && i < counters.count; i += kSplitThreads) {
    counters.first[i] = 0;
  }
  constexpr int kRows = kSplitThreads / kLanes;
  constexpr bool kAlong = kThreads == SplitThreads::kAlong;
  const int lane = kAlong ? threadIdx.x % kLanes : threadIdx.x / kRows;
  const SplitShape shape{source.batch, source.rows, source.depth};
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRows + (kAlong ? threadIdx.x / kLanes : threadIdx.x % kRows);
  const int64_t padded = shape.row_tiles() * kTileRows, inside = row % padded;
  const bool exists = inside < source.rows;
  const float* const from = source.row(row / padded, exists ? inside : 0);
  float values[kCell] = {};
  uint32_t largest = 0;
  for (int64_t begin = lane * kCell; exists && begin < source.depth; begin += kLanes * kCell) {
    load_cell<kVector>(source, from, begin, values);
    for (float value : values) largest = max(largest, size_bits(value));
  }
  const RowScale scale = RowScale::of(largest_of_row<kThreads, kLanes>(largest));
  if (lane == 0) target.exponents[row] = scale.exponent;
  for (int64_t begin = lane * kCell; begin < shape.chunks() * kTileDepth; begin += kLanes * kCell) {
    if (exists) load_cell<kVector>(source, from, begin, values);
    store_cell(shape, target.tiles, row, begin, values, exists ? scale.factor : 0.0f);
  }
}

// Splits a matrix into `target`, which has room for SplitShape::bytes().
inline int32_t split_operand(const SplitSource& source, const SplitTarget& target, const Call& call,
                             const Counters& counters = {}) {
  const SplitShape shape{source.batch, source.rows, source.depth};
  constexpr int64_t kLongRow = 2048;  // a warp's loads of a longer row would come one after the other
  const bool dense = source.depth_stride == 1, is_long = source.depth > kLongRow;
  const bool vector = dense && source.row_stride % 4 == 0 && source.batch_stride % 4 == 0 &&
                      reinterpret_cast<uintptr_t>(source.data) % 16 == 0;
  const int lanes = dense ? (is_long ? kSplitThreads : 32) : kSplitThreads / 32;
  const int64_t blocks = shape.all_rows() / (kSplitThreads / lanes);
  if (blocks > kMostBlocks) return call.errors->fail(STITCH_UNSUPPORTED, "an operand is too large");
  constexpr auto kAlong = SplitThreads::kAlong, kAcross = SplitThreads::kAcross;
  const auto kernel =
      !dense ? split_rows<kAcross, kSplitThreads / 32, false>
      : is_long
          ? (vector ? split_rows<kAlong, kSplitThreads, true> : split_rows<kAlong, kSplitThreads, false>)
          : (vector ? split_rows<kAlong, 32, true> : split_rows<kAlong, 32, false>);
  kernel<<<static_cast<unsigned>(blocks), kSplitThreads, 0, call.stream>>>(source, target, counters);
  return call.launched("split an operand");
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_SPLIT_OPERAND_CUH_

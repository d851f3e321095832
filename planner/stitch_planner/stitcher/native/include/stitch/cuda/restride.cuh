// Copies float32 tensors into another order of memory: images from [N][C][pixels] to [N][pixels][C] and back,
// and windows of any strides.
//
// The dims come collapsed, and in the order in which the target lies (innermost last). Where the source's
// innermost dim is another one, tiles of 64 x 64 or 32 x 32 elements are turned in shared memory, so that
// both sides are touched line by line. Else a thread moves V neighbours.
#ifndef STITCH_CUDA_RESTRIDE_CUH_
#define STITCH_CUDA_RESTRIDE_CUH_

#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

inline constexpr int kMostCopyDims = 8;

struct RestrideOptions {
  int32_t rank = 0;
  int32_t turned = -1;  // the dim that is innermost in the source; the last one where nothing is turned
  int64_t shape[kMostCopyDims] = {};
  int64_t from[kMostCopyDims] = {};  // strides of the source, in elements
  int64_t to[kMostCopyDims] = {};    // strides of the target
};

// An index over some dims, and what it means for source and target.
struct Walk {
  int32_t rank = 0;
  int64_t count = 1;
  Divisor shape[kMostCopyDims];
  int64_t from[kMostCopyDims] = {}, to[kMostCopyDims] = {};

  // Adds a dim inside all that are there.
  void append(int64_t size, int64_t from_stride, int64_t to_stride) {
    shape[rank] = Divisor(size), from[rank] = from_stride, to[rank] = to_stride;
    count *= size;
    ++rank;
  }
  __device__ __forceinline__ void offsets(int64_t index, int64_t& source, int64_t& target) const {
    uint32_t rest = static_cast<uint32_t>(index);
    source = target = 0;
#pragma unroll
    for (int dim = kMostCopyDims - 1; dim >= 0; --dim) {
      if (dim >= rank) continue;
      uint32_t place;
      rest = shape[dim].split(rest, place);
      source += from[dim] * place;
      target += to[dim] * place;
    }
  }
};

template <int V>
struct MoveGroups {
  const float* from;
  float* to;
  Walk walk;  // over groups

  __device__ __forceinline__ void operator()(int64_t i) const {
    int64_t source, target;
    walk.offsets(i, source, target);
    store(to + target, load<V>(from + source));
  }
};

// kSide: elements of a tile's side. Large tiles have 16 loads of a thread in flight; small ones keep more
// multiprocessors busy where there is little to copy.
template <int kSide>
struct TurnTiles {
  static constexpr int kThreads = 256, kPhases = 2, kLines = kThreads / kSide, kItems = kSide / kLines;
  struct Shared {
    float tile[kSide][kSide + 1];  // one more: neighbours of a column lie in different banks
  };
  struct Thread {};

  const float* from;
  float* to;
  Walk outer;
  int64_t rows, columns;  // sizes of the dims that are innermost in the source, and in the target
  int64_t row_from, row_to, column_from, column_to;
  int64_t row_tiles = 0, column_tiles = 0;

  int64_t cut() {
    row_tiles = ceil_div(rows, kSide);
    column_tiles = ceil_div(columns, kSide);
    return outer.count * row_tiles * column_tiles;
  }

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared& shared, Thread&) const {
    const int64_t column_tile = block % column_tiles, rest = block / column_tiles;
    const int64_t row_tile = rest % row_tiles;
    int64_t source, target;
    outer.offsets(rest / row_tiles, source, target);
    const int across = thread % kSide, first = thread / kSide;
    if constexpr (P == 0) {
      const int64_t row = row_tile * kSide + across;
      float items[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t column = column_tile * kSide + first + i * kLines;
        const bool there = row < rows && column < columns;
        items[i] = there ? from[source + row * row_from + column * column_from] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) shared.tile[first + i * kLines][across] = items[i];
    } else {
      const int64_t column = column_tile * kSide + across;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int line = first + i * kLines;
        const int64_t row = row_tile * kSide + line;
        if (row < rows && column < columns) {
          to[target + row * row_to + column * column_to] = shared.tile[across][line];
        }
      }
    }
  }
};

// kTurned: tiles are turned. V: neighbours that a thread moves otherwise; divides the innermost dim.
template <bool kTurned, int V>
class StridedCopy {
 public:
  int32_t init(const RestrideOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call& call, const float* from, float* to) const {
    const RestrideOptions& o = options_;
    const int last = o.rank - 1;
    Walk walk;
    for (int dim = 0; dim < last; ++dim) {
      if (dim != o.turned) walk.append(o.shape[dim], o.from[dim], o.to[dim]);
    }
    if constexpr (kTurned) {
      auto large = tiles<64>(from, to, walk);
      const int64_t count = large.cut();
      constexpr const char* kName = "copy into another order";
      if (count >= kBusyTiles * call.multiprocessors) return blocks(kName, count, large, call);
      auto small = tiles<32>(from, to, walk);
      return blocks(kName, small.cut(), small, call);
    } else {
      walk.append(o.shape[last] / V, o.from[last] * V, o.to[last] * V);
      return each("copy into another order", walk.count, MoveGroups<V>{from, to, walk}, call);
    }
  }

 private:
  static constexpr int64_t kBusyTiles = 8;  // of a multiprocessor

  template <int kSide>
  TurnTiles<kSide> tiles(const float* from, float* to, const Walk& walk) const {
    const RestrideOptions& o = options_;
    const int last = o.rank - 1, first = o.turned;
    return {from,          to,          walk,         o.shape[first], o.shape[last],
            o.from[first], o.to[first], o.from[last], o.to[last]};
  }

  RestrideOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RESTRIDE_CUH_

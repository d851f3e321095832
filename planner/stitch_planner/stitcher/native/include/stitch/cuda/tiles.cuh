// Element-wise kernels some of whose operands lie in another order of memory than the result (a channels-last
// image whose result is N, C, H, W): tiles of them are turned in shared memory, so that every access of a
// warp is a line.
//
// The expression is a class F over [kOuter][kTurned][kLast], where results lie with kLast innermost, and
// staged operands with kTurned innermost:
//
//     using Index              of offsets
//     kTurnedTile, kLastTile   sides of a tile, powers of two
//     struct Staged            one element of each staged operand
//     stage(Index outer, Index turned, Index last) -> Staged
//     operator()(Index outer, Index turned, Index last, const Staged&)   loads the rest, computes and stores
#ifndef STITCH_CUDA_TILES_CUH_
#define STITCH_CUDA_TILES_CUH_

#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

template <class F>
struct PointwiseTiles {
  using Index = typename F::Index;
  static constexpr int kThreads = 256, kPhases = 2;
  static constexpr int kItems = F::kTurnedTile * F::kLastTile / kThreads;
  static constexpr Index kTurnedTiles = (F::kTurned + F::kTurnedTile - 1) / F::kTurnedTile;
  static constexpr Index kLastTiles = (F::kLast + F::kLastTile - 1) / F::kLastTile;
  static_assert(kItems * kThreads == F::kTurnedTile * F::kLastTile, "every thread has as many elements");
  struct Shared {
    // One more: neighbours of a column lie in different banks.
    typename F::Staged tile[F::kLastTile][F::kTurnedTile + 1];
  };
  struct Thread {};

  F compute;

  static constexpr int64_t count() { return static_cast<int64_t>(F::kOuter) * kTurnedTiles * kLastTiles; }

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared& shared, Thread&) const {
    const Index number = static_cast<Index>(block);
    const Index rest = number / kLastTiles, outer = rest / kTurnedTiles;
    const Index turned = rest % kTurnedTiles * F::kTurnedTile, last = number % kLastTiles * F::kLastTile;
    if constexpr (P == 0) {
      typename F::Staged items[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int item = thread + i * kThreads;
        const int across = item % F::kTurnedTile, line = item / F::kTurnedTile;
        const bool real = turned + across < F::kTurned && last + line < F::kLast;
        if (real) items[i] = compute.stage(outer, turned + across, last + line);
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int item = thread + i * kThreads;
        shared.tile[item / F::kTurnedTile][item % F::kTurnedTile] = items[i];
      }
    } else {
#pragma unroll 4  // expressions may be long
      for (int i = 0; i < kItems; ++i) {
        const int item = thread + i * kThreads;
        const int across = item % F::kLastTile, line = item / F::kLastTile;
        if (turned + line < F::kTurned && last + across < F::kLast) {
          compute(outer, turned + line, last + across, shared.tile[across][line]);
        }
      }
    }
  }
};

template <class F>
int32_t tiled_pointwise(const char* name, const F& compute, const Call& call) {
  return blocks(name, PointwiseTiles<F>::count(), PointwiseTiles<F>{compute}, call);
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_TILES_CUH_

// Runs a pointwise kernel (see common/space.h) over its space.
#ifndef STITCH_CPU_POINTWISE_H_
#define STITCH_CPU_POINTWISE_H_

#include <algorithm>
#include <utility>

#include "stitch/cpu/at.h"
#include "stitch/cpu/layout.h"
#include "stitch/cpu/parallel.h"

namespace stitch::cpu {

template <class K>
class Pointwise {
  using Space = typename K::Space;
  static constexpr int kRank = Space::kRank;
  static constexpr int kLast = kRank - 1;
  static constexpr int64_t kWidth = Space::size(kLast);

 public:
  static void run(int threads, const Pointers<K>& base) {
    if constexpr (Space::kTotal > 0) {
      if constexpr (K::kTileDim >= 0) {
        run_tiled(threads, base);
      } else {
        parallel_ranges(threads, Space::kTotal, kAlign, K::kPicoseconds,
                        [&](int, int64_t begin, int64_t end) { run_range(base, begin, end); });
      }
    }
  }

 private:
  // Threads split rows where there are enough of them, else anywhere at a vector's width.
  static constexpr int64_t kAlign = Space::kTotal / kWidth >= 64 ? kWidth : 64;
  static constexpr int64_t kTile = 32;

  static void run_range(const Pointers<K>& base, int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / kWidth, first = begin - row * kWidth;
      const int64_t last = std::min(kWidth, first + (end - begin));
      int64_t index[kRank];
      Pointers<K> at_row = base;
      int64_t rest = row;
      for (int dim = kLast - 1; dim >= 0; --dim) {
        index[dim] = rest % Space::size(dim);
        rest /= Space::size(dim);
        advance<K>(at_row, dim, index[dim]);
      }
      run_row(at_row, first, last, index);
      begin += last - first;
    }
  }

  STITCH_FN static void run_row(const Pointers<K>& row, int64_t first, int64_t last, const int64_t* index) {
    const Pointers<K> local = row;
    if (first == 0 && last == kWidth) {
#pragma omp simd
      for (int64_t j = 0; j < kWidth; ++j) K::apply(At<K, kLast>{local, j, index});
    } else {
#pragma omp simd
      for (int64_t j = first; j < last; ++j) K::apply(At<K, kLast>{local, j, index});
    }
  }

  // Some operand is contiguous along kTileDim, not along the last dim: square tiles of the two keep the cache
  // lines of both kinds of operand in use until they are done with.
  static void run_tiled(int threads, const Pointers<K>& base) {
    constexpr int64_t kHeight = Space::size(K::kTileDim);
    constexpr int64_t kDown = (kHeight + kTile - 1) / kTile, kAcross = (kWidth + kTile - 1) / kTile;
    constexpr int64_t kOthers = Space::kTotal / (kHeight * kWidth);
    parallel_ranges(threads, kOthers * kDown * kAcross, 1, K::kPicoseconds * kTile * kTile,
                    [&](int, int64_t begin, int64_t end) {
                      for (int64_t tile = begin; tile < end; ++tile) {
                        run_tile(base, tile / (kDown * kAcross), tile / kAcross % kDown, tile % kAcross);
                      }
                    });
  }

  // An operand that is contiguous along kTileDim only: its part of a tile goes through a small local array,
  // turned in registers, so that memory is read and written in whole cache lines and the kernel's own loop
  // runs over neighbours. Walking it directly would touch kTile lines at a distance that is often a power of
  // two, which all fall into the same few places of the cache.
  template <class Op>
  static constexpr bool kIsTurned = Op::stride(kLast) > 1 &&
                                    Op::stride(K::kTileDim < 0 ? 0 : K::kTileDim) == 1;

  using Loads = typename K::Loads;
  using Stores = typename K::Stores;
  static constexpr int64_t kTileBytes = kTile * kTile * 8;

  // Element (i, j) of a staged operand lies at [i - down][j - across].
  struct Tile {
    alignas(64) char loads[Loads::kCount + 1][kTileBytes];
    alignas(64) char stores[Stores::kCount + 1][kTileBytes];
    int64_t down, across, height, width;  // first row and column, and how many
  };

  // What a kernel sees inside a tile; see At.
  struct TileAt {
    const Pointers<K>& row;
    int64_t i, j;
    const int64_t* index_of;
    Tile& tile;

    template <int kIndex>
    STITCH_FN typename Loads::template Get<kIndex>::Type load() const {
      using Op = typename Loads::template Get<kIndex>;
      using T = typename Op::Type;
      if constexpr (kIsTurned<Op>) {
        return reinterpret_cast<const T*>(tile.loads[kIndex])[i * kTile + j - tile.across];
      } else {
        return reinterpret_cast<const T*>(row.loads[kIndex])[j * Op::stride(kLast)];
      }
    }
    template <int kIndex, class V>
    STITCH_FN void store(V value) const {
      using Op = typename Stores::template Get<kIndex>;
      using T = typename Op::Type;
      if constexpr (kIsTurned<Op>) {
        reinterpret_cast<T*>(tile.stores[kIndex])[i * kTile + j - tile.across] = static_cast<T>(value);
      } else {
        reinterpret_cast<T*>(row.stores[kIndex])[j * Op::stride(kLast)] = static_cast<T>(value);
      }
    }
    template <int kWhich>
    STITCH_FN int64_t index() const {
      return kWhich == kLast ? j : index_of[kWhich];
    }
  };

  static void run_tile(const Pointers<K>& base, int64_t other, int64_t down, int64_t across) {
    int64_t index[kRank];
    Pointers<K> corner = base;
    for (int dim = kLast - 1; dim >= 0; --dim) {
      if (dim == K::kTileDim) continue;
      index[dim] = other % Space::size(dim);
      other /= Space::size(dim);
      advance<K>(corner, dim, index[dim]);
    }
    advance<K>(corner, K::kTileDim, down * kTile);
    Tile tile;
    tile.down = down * kTile;
    tile.across = across * kTile;
    tile.height = std::min(Space::size(K::kTileDim) - tile.down, kTile);
    tile.width = std::min(kWidth - tile.across, kTile);
    fetch(corner, tile, std::make_integer_sequence<int, Loads::kCount>{});
    Pointers<K> row = corner;
    for (int64_t i = 0; i < tile.height; ++i) {
      index[K::kTileDim] = tile.down + i;
      const Pointers<K> local = row;
#pragma omp simd
      for (int64_t j = tile.across; j < tile.across + tile.width; ++j) {
        K::apply(TileAt{local, i, j, index, tile});
      }
      advance<K>(row, K::kTileDim, 1);
    }
    flush(corner, tile, std::make_integer_sequence<int, Stores::kCount>{});
  }

  template <int... kIndex>
  static void fetch(const Pointers<K>& corner, Tile& tile, std::integer_sequence<int, kIndex...>) {
    (copy<typename Loads::template Get<kIndex>>(corner.loads[kIndex], tile.loads[kIndex], tile, true), ...);
  }

  template <int... kIndex>
  static void flush(const Pointers<K>& corner, Tile& tile, std::integer_sequence<int, kIndex...>) {
    (copy<typename Stores::template Get<kIndex>>(corner.stores[kIndex], tile.stores[kIndex], tile, false),
     ...);
  }

  // Copies a turned operand's part of the tile in or out.
  template <class Op>
  STITCH_FN static void copy(const char* memory, char* local, const Tile& tile, bool in) {
    if constexpr (kIsTurned<Op>) {
      using T = typename Op::Type;
      constexpr int64_t kStep = Op::stride(kLast);
      T* outside = const_cast<T*>(reinterpret_cast<const T*>(memory)) + tile.across * kStep;
      T* inside = reinterpret_cast<T*>(local);
      if (in) {
        turn(outside, kStep, inside, kTile, tile.width, tile.height);
      } else {
        turn(inside, kTile, outside, kStep, tile.height, tile.width);
      }
    }
  }

  // to[c * to_step + r] = from[r * from_step + c]
  template <class T>
  STITCH_FN static void turn(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows,
                             int64_t columns) {
    if constexpr (sizeof(T) == sizeof(float)) {  // vectors move any four bytes as they are
      for (int64_t c = 0; c < columns; c += kLanes) {
        for (int64_t r = 0; r < rows; r += kLanes) {
          detail::transpose_tile(reinterpret_cast<const float*>(from + r * from_step + c), from_step,
                                 reinterpret_cast<float*>(to + c * to_step + r), to_step,
                                 std::min<int64_t>(kLanes, rows - r), std::min<int64_t>(kLanes, columns - c));
        }
      }
    } else {
      constexpr int64_t kBlock = 8;  // cache lines of either side that are in use at once
      for (int64_t r = 0; r < rows; r += kBlock) {
        for (int64_t c = 0; c < columns; c += kBlock) {
          const int64_t r_end = std::min(rows, r + kBlock), c_end = std::min(columns, c + kBlock);
          for (int64_t i = r; i < r_end; ++i) {
            for (int64_t j = c; j < c_end; ++j) to[j * to_step + i] = from[i * from_step + j];
          }
        }
      }
    }
  }
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_POINTWISE_H_

// Copies tensors whose layout is known at run time only: inputs that lie otherwise than a program was made
// for.
//
// Dims are sorted by the target's strides and merged. The two innermost dims of the target and the source
// make square tiles, so that both sides use whole cache lines; threads share the tiles.
#ifndef STITCH_CPU_RESTRIDE_H_
#define STITCH_CPU_RESTRIDE_H_

#include <string.h>

#include <algorithm>

#include "stitch/abi.h"
#include "stitch/cpu/parallel.h"

namespace stitch::cpu {

// Sizes and both sides' strides, in elements.
struct Restride {
  struct Dim {
    int64_t size, from, to;
  };
  int rank = 0;
  Dim dims[STITCH_MAX_DIMS] = {};

  void add(int64_t size, int64_t from, int64_t to) {
    if (size != 1) dims[rank++] = {size, from, to};
  }

  int64_t elements() const {
    int64_t total = 1;
    for (int d = 0; d < rank; ++d) total *= dims[d].size;
    return total;
  }

  // The way back.
  Restride reversed() const {
    Restride back = *this;
    for (Dim& dim : back.dims) std::swap(dim.from, dim.to);
    return back;
  }

  // The target's strides fall, and neighbours that are one loop on both sides are merged. Second to last goes
  // the source's innermost dim, so that it is a side of the tiles; there are at least two dims.
  void normalise() {
    std::stable_sort(dims, dims + rank, [](const Dim& a, const Dim& b) { return a.to > b.to; });
    Dim kept[STITCH_MAX_DIMS] = {};
    int count = 0;
    for (int d = 0; d < rank; ++d) {
      const Dim& dim = dims[d];
      Dim& before = kept[count ? count - 1 : 0];
      if (count && before.from == dim.from * dim.size && before.to == dim.to * dim.size) {
        before = {before.size * dim.size, dim.from, dim.to};
      } else {
        kept[count++] = dim;
      }
    }
    rank = std::max(count, 2);
    std::fill(dims, dims + rank, Dim{1, 0, 0});
    std::copy(kept, kept + count, dims + (rank - count));
    int nearest = rank - 1;
    for (int d = 0; d < rank; ++d) {
      if (dims[d].from && (!dims[nearest].from || dims[d].from < dims[nearest].from)) nearest = d;
    }
    if (nearest < rank - 2) std::rotate(dims + nearest, dims + nearest + 1, dims + rank - 1);
  }
};

namespace detail {

template <class T>
inline void restride_tile(const T* from, T* to, const Restride::Dim& row, const Restride::Dim& column,
                          int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* source = from + r * row.from;
    T* target = to + r * row.to;
    if (column.from == 1 && column.to == 1) {
      memcpy(target, source, static_cast<size_t>(columns) * sizeof(T));
    } else {
      for (int64_t c = 0; c < columns; ++c) target[c * column.to] = source[c * column.from];
    }
  }
}

template <class T>
inline void restride(int threads, const Restride& plan, const T* from, T* to) {
  constexpr int64_t kPicosecondsForElement = 500;
  const int outer = plan.rank - 2;
  const Restride::Dim row = plan.dims[outer], column = plan.dims[outer + 1];
  // Lines that lie alike on both sides are copied as they are; others are turned in squares.
  const bool lines = column.from == 1 && column.to == 1;
  const int64_t high = lines ? 1 : 16, wide = lines ? 4096 : 16;
  const int64_t down = (row.size + high - 1) / high, across = (column.size + wide - 1) / wide;
  int64_t tiles = down * across;
  for (int d = 0; d < outer; ++d) tiles *= plan.dims[d].size;
  const int64_t cost = std::min(high, row.size) * std::min(wide, column.size) * kPicosecondsForElement;
  parallel_ranges(threads, tiles, 1, cost, [&](int, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t r = tile / across % down * high, c = tile % across * wide;
      int64_t rest = tile / (across * down);
      int64_t source = r * row.from + c * column.from, target = r * row.to + c * column.to;
      for (int d = outer - 1; d >= 0; --d) {
        const Restride::Dim& dim = plan.dims[d];
        source += rest % dim.size * dim.from;
        target += rest % dim.size * dim.to;
        rest /= dim.size;
      }
      restride_tile(from + source, to + target, row, column, std::min(high, row.size - r),
                    std::min(wide, column.size - c));
    }
  });
}

}  // namespace detail

// Copies elements of `item` bytes (1, 2, 4 or 8).
inline void restride(int threads, Restride plan, int64_t item, const char* from, char* to) {
  if (!plan.elements()) return;
  plan.normalise();
  const auto run = [&](auto one) {
    using T = decltype(one);
    detail::restride(threads, plan, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to));
  };
  if (item == 1) run(uint8_t{});
  if (item == 2) run(uint16_t{});
  if (item == 4) run(uint32_t{});
  if (item == 8) run(uint64_t{});
}

}  // namespace stitch::cpu
#endif  // STITCH_CPU_RESTRIDE_H_

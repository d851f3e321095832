// Runs a kernel with reductions whose last *kept* dim makes the vectors (see common/space.h).
//
// A block of columns (neighbours along the last dim of Outer) is reduced at once: each lane has its own
// totals, and the loop over Inner runs outside the loop over lanes. Used where the reduced dims are not
// contiguous (a mean over positions of [batch, position, channel]) or too short to fill a vector.
#ifndef STITCH_CPU_COLUMNS_H_
#define STITCH_CPU_COLUMNS_H_

#include "stitch/cpu/at.h"
#include "stitch/cpu/parallel.h"

namespace stitch::cpu {

// One total for each lane; two of them lie apart, so that lanes of both make vectors.
template <class T, int64_t kCount>
struct LaneTotals {
  T values[kCount];
  STITCH_FN T get(int64_t lane) const { return values[lane]; }
  STITCH_FN void set(int64_t lane, T value) { values[lane] = value; }
};
template <class T, int64_t kCount>
struct LaneTotals<Two<T>, kCount> {
  T first[kCount], second[kCount];
  STITCH_FN Two<T> get(int64_t lane) const { return {first[lane], second[lane]}; }
  STITCH_FN void set(int64_t lane, Two<T> value) { first[lane] = value.first, second[lane] = value.second; }
};

template <class K>
class Columns {
  using Outer = typename K::Outer;
  using Inner = typename K::Inner;
  using Row = typename K::Row;
  static constexpr int kDim = Outer::kRank - 1;
  static constexpr int64_t kWidth = Outer::size(kDim);
  static constexpr int64_t kRows = Outer::kTotal / (kWidth ? kWidth : 1);
  // Four full vectors of floats: enough lanes to hide the latency of additions.
  static constexpr int64_t kBlock = 64;
  static constexpr int64_t kBlocks = (kWidth + kBlock - 1) / kBlock;
  // Elements of a column that are summed in their own type; such runs are joined in doubles.
  static constexpr int64_t kRun = 128;

 public:
  static constexpr int64_t kScratchFloats = K::kKept * Inner::kTotal * kBlock;

  static void run(int threads, const Pointers<K>& base, float* scratch) {
    parallel_ranges(threads, kRows * kBlocks, 1, K::kPicoseconds * Inner::kTotal * kBlock,
                    [&](int thread, int64_t begin, int64_t end) {
                      float* kept = scratch + thread * kScratchFloats;
                      for (int64_t i = begin; i < end; ++i) run_block(base, i / kBlocks, i % kBlocks, kept);
                    });
  }

 private:
  struct Lanes {
    Row rows[kBlock];
  };

  static void run_block(const Pointers<K>& base, int64_t number, int64_t block, float* kept) {
    int64_t index[Outer::kRank + Inner::kRank] = {};
    Pointers<K> first = base;
    for (int dim = kDim - 1; dim >= 0; --dim) {
      index[dim] = number % Outer::size(dim);
      number /= Outer::size(dim);
      advance<K>(first, dim, index[dim]);
    }
    const int64_t from = block * kBlock, count = std::min(kBlock, kWidth - from);
    const Pointers<K> local = first;
    Lanes lanes;
    for (int64_t l = 0; l < count; ++l) K::begin(At<K, kDim>{local, from + l, index}, lanes.rows[l]);
    if (count == kBlock) {
      run_lanes(first, index, kept, lanes, from, Full{});
    } else {
      run_lanes(first, index, kept, lanes, from, Part{count});
    }
    for (int64_t l = 0; l < count; ++l) K::finish_row(At<K, kDim>{local, from + l, index}, lanes.rows[l]);
  }

  // The number of lanes in use: a constant where the block is full, so that the loops unroll.
  struct Full {
    static constexpr int64_t count() { return kBlock; }
  };
  struct Part {
    int64_t value;
    int64_t count() const { return value; }
  };

  template <class Count>
  STITCH_FN static void run_lanes(const Pointers<K>& first, int64_t* index, float* kept, Lanes& lanes,
                                  int64_t from, Count lanes_used) {
    run_passes<0>(first, index, kept, lanes, from, lanes_used);
    if constexpr (K::kHasElements) {
      for_each_line(first, index, kept, from, 0, Inner::kTotal, [&](const At<K, kDim>& line) {
        const Pointers<K> local = line.row;
#pragma omp simd
        for (int64_t l = 0; l < lanes_used.count(); ++l) {
          K::apply(At<K, kDim>{local, from + l, line.index_of, line.kept, line.kept_stride}, lanes.rows[l]);
        }
      });
    }
  }

  template <int kPass, class Count>
  STITCH_FN static void run_passes(const Pointers<K>& first, int64_t* index, float* kept, Lanes& lanes,
                                   int64_t from, Count lanes_used) {
    if constexpr (kPass < K::Passes::kCount) {
      using Pass = typename K::Passes::template Get<kPass>;
      using Reduce = typename Pass::Reduce;
      using T = typename Reduce::Type;
      LaneTotals<T, kBlock> totals;
      const auto reduce_lines = [&](int64_t begin, int64_t end) {
        for (int64_t l = 0; l < kBlock; ++l) totals.set(l, Reduce::identity());
        for_each_line(first, index, kept, from, begin, end, [&](const At<K, kDim>& line) {
          const Pointers<K> local = line.row;
#pragma omp simd
          for (int64_t l = 0; l < lanes_used.count(); ++l) {
            const At<K, kDim> at{local, from + l, line.index_of, line.kept, line.kept_stride};
            totals.set(l, Reduce::combine(totals.get(l), Pass::term(at, lanes.rows[l])));
          }
        });
      };
      if constexpr (Reduce::kRounds && Inner::kTotal > kRun) {
        using Wide = typename Reduce::Wide;
        using WideT = typename Wide::Type;
        LaneTotals<WideT, kBlock> wide;
        for (int64_t l = 0; l < kBlock; ++l) wide.set(l, Wide::identity());
        for (int64_t begin = 0; begin < Inner::kTotal; begin += kRun) {
          reduce_lines(begin, std::min(begin + kRun, Inner::kTotal));
          for (int64_t l = 0; l < kBlock; ++l) {
            wide.set(l, Wide::combine(wide.get(l), static_cast<WideT>(totals.get(l))));
          }
        }
        for (int64_t l = 0; l < kBlock; ++l) totals.set(l, static_cast<T>(wide.get(l)));
      } else {
        reduce_lines(0, Inner::kTotal);
      }
      for (int64_t l = 0; l < lanes_used.count(); ++l) Pass::finish(lanes.rows[l], totals.get(l));
      run_passes<kPass + 1>(first, index, kept, lanes, from, lanes_used);
    }
  }

  // Calls body for the indices of Inner from `begin` to `end`. Kept values lie as [Inner][kBlock]; At adds
  // its column, so the block's first column is taken off here.
  template <class Body>
  STITCH_FN static void for_each_line(const Pointers<K>& first, int64_t* index, float* kept, int64_t from,
                                      int64_t begin, int64_t end, Body&& body) {
    for (int64_t line = begin; line < end; ++line) {
      Pointers<K> at_line = first;
      int64_t rest = line;
      for (int dim = Inner::kRank - 1; dim >= 0; --dim) {
        index[Outer::kRank + dim] = rest % Inner::size(dim);
        rest /= Inner::size(dim);
        advance<K>(at_line, Outer::kRank + dim, index[Outer::kRank + dim]);
      }
      body(At<K, kDim>{at_line, 0, index, kept + line * kBlock - from, Inner::kTotal * kBlock});
    }
  }
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_COLUMNS_H_

// Runs a kernel with reductions over trailing dims (see common/space.h), one row after the other.
//
// A row is Inner; its last dim is the vectorised loop. All passes over a row happen before the next row, so
// that the row's operands and the values kept between passes stay in the nearest cache.
#ifndef STITCH_CPU_ROWS_H_
#define STITCH_CPU_ROWS_H_

#include <type_traits>

#include "stitch/cpu/at.h"
#include "stitch/cpu/parallel.h"

namespace stitch::cpu {

#pragma omp declare reduction(stitch_max:float : omp_out = math::maximum(omp_out, omp_in)) \
    initializer(omp_priv = -__builtin_inff())
#pragma omp declare reduction(stitch_min:float : omp_out = math::minimum(omp_out, omp_in)) \
    initializer(omp_priv = __builtin_inff())

template <class K>
class Rows {
  using Outer = typename K::Outer;
  using Inner = typename K::Inner;
  static constexpr int kDim = Outer::kRank + Inner::kRank - 1;
  static constexpr int64_t kWidth = Inner::size(Inner::kRank - 1);
  static constexpr int64_t kLines = Inner::kTotal / (kWidth ? kWidth : 1);
  using Row = typename K::Row;
  // Elements of a line that are summed in their own type (64 steps of a full vector): about as exact as
  // torch's cascade, and long enough that joining the totals of such runs in doubles costs nothing.
  static constexpr int64_t kRun = 1024;

 public:
  // Scratch floats that one thread needs for values kept between passes.
  static constexpr int64_t kScratchFloats = K::kKept * Inner::kTotal;

  // `scratch` holds kScratchFloats for each thread.
  static void run(int threads, const Pointers<K>& base, float* scratch) {
    parallel_ranges(threads, Outer::kTotal, 1, K::kPicoseconds * Inner::kTotal,
                    [&](int thread, int64_t begin, int64_t end) {
                      float* kept = scratch + thread * kScratchFloats;
                      for (int64_t row = begin; row < end; ++row) run_row(base, row, kept);
                    });
  }

 private:
  static void run_row(const Pointers<K>& base, int64_t number, float* kept) {
    int64_t index[kDim + 1] = {};
    Pointers<K> first = base;
    for (int dim = Outer::kRank - 1; dim >= 0; --dim) {
      index[dim] = number % Outer::size(dim);
      number /= Outer::size(dim);
      advance<K>(first, dim, index[dim]);
    }
    Row row;
    const At<K, kDim> begin{first, 0, index};
    K::begin(begin, row);
    run_passes<0>(first, index, kept, row);
    if constexpr (K::kHasElements) {
      for_each_line(first, index, kept, [&](const At<K, kDim>& line) {
        const Pointers<K> local = line.row;
        const Row here = row;
#pragma omp simd
        for (int64_t j = 0; j < kWidth; ++j) {
          K::apply(At<K, kDim>{local, j, line.index_of, line.kept, line.kept_stride}, here);
        }
      });
    }
    K::finish_row(begin, row);
  }

  template <int kPass>
  static void run_passes(const Pointers<K>& first, int64_t* index, float* kept, Row& row) {
    if constexpr (kPass < K::Passes::kCount) {
      using Pass = typename K::Passes::template Get<kPass>;
      using Reduce = typename Pass::Reduce;
      using Wide = typename Reduce::Wide;
      auto total = Wide::identity();
      for_each_line(first, index, kept, [&](const At<K, kDim>& line) {
        total = Wide::combine(total, reduce_line<Pass>(line, row));
      });
      Pass::finish(row, static_cast<typename Reduce::Type>(total));
      run_passes<kPass + 1>(first, index, kept, row);
    }
  }

  // Reduces one contiguous line.
  template <class Pass>
  STITCH_FN static typename Pass::Reduce::Wide::Type reduce_line(const At<K, kDim>& line, const Row& row) {
    using Wide = typename Pass::Reduce::Wide;
    using T = typename Wide::Type;
    if constexpr (Wide::kRounds && kWidth > kRun) {
      T total = Wide::identity();
      for (int64_t begin = 0; begin + kRun <= kWidth; begin += kRun) {
        total = Wide::combine(total, static_cast<T>(reduce_run<Pass, kRun>(line, row, begin)));
      }
      if constexpr (kWidth % kRun != 0) {
        constexpr int64_t kRest = kWidth % kRun;
        total = Wide::combine(total, static_cast<T>(reduce_run<Pass, kRest>(line, row, kWidth - kRest)));
      }
      return total;
    } else {
      return static_cast<T>(reduce_run<Pass, kWidth>(line, row, 0));
    }
  }

  // Reduces kCount neighbours. The pragmas allow the lanes to be summed in another order, which plain C++
  // forbids; sums therefore run in as many partial sums as a vector has lanes.
  template <class Pass, int64_t kCount>
  STITCH_FN static typename Pass::Reduce::Type reduce_run(const At<K, kDim>& line, const Row& row,
                                                          int64_t begin) {
    using Reduce = typename Pass::Reduce;
    using T = typename Reduce::Type;
    const Pointers<K> local = line.row;
    const Row here = row;
    const auto at = [&](int64_t j) {
      return At<K, kDim>{local, j, line.index_of, line.kept, line.kept_stride};
    };
    T total = Reduce::identity();
    if constexpr (Reduce::kIsSum) {
#pragma omp simd reduction(+ : total)
      for (int64_t j = begin; j < begin + kCount; ++j) total += Pass::term(at(j), here);
    } else if constexpr (std::is_same_v<Reduce, TwoSums<float>>) {
      float first = 0.0f, second = 0.0f;
#pragma omp simd reduction(+ : first, second)
      for (int64_t j = begin; j < begin + kCount; ++j) {
        const Two<float> term = Pass::term(at(j), here);
        first += term.first;
        second += term.second;
      }
      total = {first, second};
    } else if constexpr (std::is_same_v<Reduce, Max<float>>) {
#pragma omp simd reduction(stitch_max : total)
      for (int64_t j = begin; j < begin + kCount; ++j) total = math::maximum(total, Pass::term(at(j), here));
    } else if constexpr (std::is_same_v<Reduce, Min<float>>) {
#pragma omp simd reduction(stitch_min : total)
      for (int64_t j = begin; j < begin + kCount; ++j) total = math::minimum(total, Pass::term(at(j), here));
    } else {
      for (int64_t j = begin; j < begin + kCount; ++j)
        total = Reduce::combine(total, Pass::term(at(j), here));
    }
    return total;
  }

  // Calls body for each line of the row (each index of Inner's dims but the last).
  template <class Body>
  STITCH_FN static void for_each_line(const Pointers<K>& first, int64_t* index, float* kept, Body&& body) {
    for (int64_t line = 0; line < kLines; ++line) {
      Pointers<K> at_line = first;
      if constexpr (Inner::kRank > 1) {
        int64_t rest = line;
        for (int dim = Inner::kRank - 2; dim >= 0; --dim) {
          index[Outer::kRank + dim] = rest % Inner::size(dim);
          rest /= Inner::size(dim);
          advance<K>(at_line, Outer::kRank + dim, index[Outer::kRank + dim]);
        }
      }
      body(At<K, kDim>{at_line, 0, index, kept + line * kWidth, Inner::kTotal});
    }
  }
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_ROWS_H_

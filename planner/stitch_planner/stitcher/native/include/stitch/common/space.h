// Compile-time iteration spaces and operands: the vocabulary that emitted kernels are written in.
//
// An emitted kernel is a struct K of types and static functions:
//
//   struct K {                                              // pointwise
//     using Space = Dims<32, 256>;                          // sizes, outermost first
//     using Loads = Operands<Operand<float, 256, 1>, ...>;  // element type and stride for each dim
//     using Stores = Operands<Operand<float, 256, 1>>;
//     static constexpr int kPicoseconds = 300;              // rough time for one element on one core
//     template <class At> STITCH_FN static void apply(const At& at) {
//       store<0>(at, math::exp(load<0>(at)));
//     }
//   };
//
// A kernel with reductions has Outer and Inner instead of Space (accesses stride over both, outer first):
//
//   struct Row { float v3; };                               // values that are one for each outer index
//   begin(at, row)                                          // per-row values before the first pass
//   struct Pass0 { using Reduce = Sum<float>;               // one reduction over Inner, or TwoSums<float>
//                  static float term(at, row);              // may keep<I>(at, x) for later passes
//                  static void finish(Row& row, float); };  // per-row values that follow from it
//   using Passes = PassList<Pass0, ...>;
//   apply(at, row)                                          // per-element stores; kHasElements says if any
//   finish_row(at, row)                                     // per-row stores
//   static constexpr int kKept = 1;                         // floats kept for each element of Inner
//
// `At` is the executor's own: it knows the element that is being worked on (see cpu/at.h). Kernels for GPUs
// are another kind of class (see cuda/rows.cuh): there the threads that share a row decide the form.
#ifndef STITCH_COMMON_SPACE_H_
#define STITCH_COMMON_SPACE_H_

#include <type_traits>

#include "stitch/common/math.h"

namespace stitch {

template <int64_t... kSizes>
struct Dims {
  static constexpr int kRank = sizeof...(kSizes);
  static constexpr int64_t kTotal = (int64_t{1} * ... * kSizes);
  STITCH_FN static constexpr int64_t size(int dim) {
    constexpr int64_t sizes[] = {kSizes..., 1};
    return sizes[dim];
  }
};

// How a kernel walks over one buffer: its element type and one stride, in elements, for each dim.
template <class T, int64_t... kStrides>
struct Operand {
  using Type = T;
  static constexpr int kRank = sizeof...(kStrides);
  STITCH_FN static constexpr int64_t stride(int dim) {
    constexpr int64_t strides[] = {kStrides..., 0};
    return strides[dim];
  }
};

namespace detail {

template <int kIndex, class... Ts>
struct Pick;  // undefined for an empty list
template <int kIndex, class First, class... Rest>
struct Pick<kIndex, First, Rest...> {
  using Type = typename Pick<kIndex - 1, Rest...>::Type;
};
template <class First, class... Rest>
struct Pick<0, First, Rest...> {
  using Type = First;
};

}  // namespace detail

template <class... Ts>
struct Operands {
  static constexpr int kCount = sizeof...(Ts);
  template <int kIndex>
  using Get = typename detail::Pick<kIndex, Ts...>::Type;
  // Stride of operand `which` along `dim`, for loops over operands.
  STITCH_FN static constexpr int64_t stride(int which, int dim) {
    const int64_t strides[] = {Ts::stride(dim)..., 0};
    return strides[which];
  }
  STITCH_FN static constexpr int64_t bytes(int which) {
    const int64_t bytes[] = {static_cast<int64_t>(sizeof(typename Ts::Type))..., 0};
    return bytes[which];
  }
};

template <class... Ts>
struct PassList {
  static constexpr int kCount = sizeof...(Ts);
  template <int kIndex>
  using Get = typename detail::Pick<kIndex, Ts...>::Type;
};

// ---- what a kernel says about its element -------------------------------------------------------------

template <int kIndex, class At>
STITCH_FN auto load(const At& at) {
  return at.template load<kIndex>();
}
template <int kIndex, class At, class T>
STITCH_FN void store(const At& at, T value) {
  at.template store<kIndex>(value);
}
// Position along dim kDim of the iteration space.
template <int kDim, class At>
STITCH_FN int32_t index(const At& at) {
  return static_cast<int32_t>(at.template index<kDim>());
}
template <int kIndex, class At>
STITCH_FN void keep(const At& at, float value) {
  at.template keep<kIndex>(value);
}
template <int kIndex, class At>
STITCH_FN float kept(const At& at) {
  return at.template kept_value<kIndex>();
}

// ---- reductions: an identity and an associative step --------------------------------------------------
//
// kRounds: each step rounds, so that a long chain of them drifts. Executors then reduce blocks of the
// elements, and join the blocks' totals with Wide: in doubles, where the elements are floats.

template <class T>
struct Sum {
  using Type = T;
  using Wide = Sum<std::conditional_t<std::is_same_v<T, float>, double, T>>;
  static constexpr bool kIsSum = true;
  static constexpr bool kRounds = std::is_floating_point_v<T>;
  STITCH_FN static T identity() { return T(0); }
  STITCH_FN static T combine(T a, T b) { return a + b; }
};

// Two sums of one pass: a variance needs the sum of the differences beside that of their squares.
template <class T>
struct Two {
  T first, second;
  template <class U>
  STITCH_FN explicit operator Two<U>() const {
    return {static_cast<U>(first), static_cast<U>(second)};
  }
};

template <class T>
struct TwoSums {
  using Type = Two<T>;
  using Wide = TwoSums<typename Sum<T>::Wide::Type>;
  static constexpr bool kIsSum = false;
  static constexpr bool kRounds = Sum<T>::kRounds;
  STITCH_FN static Type identity() { return {T(0), T(0)}; }
  STITCH_FN static Type combine(Type a, Type b) { return {a.first + b.first, a.second + b.second}; }
};

template <class T>
struct Max {
  using Type = T;
  using Wide = Max;
  static constexpr bool kIsSum = false;
  static constexpr bool kRounds = false;
  STITCH_FN static T identity() { return lowest(T(0)); }
  STITCH_FN static T combine(T a, T b) { return math::maximum(a, b); }

 private:
  STITCH_FN static float lowest(float) { return -__builtin_inff(); }
  STITCH_FN static double lowest(double) { return -__builtin_inf(); }
  STITCH_FN static int64_t lowest(int64_t) { return INT64_MIN; }
  STITCH_FN static int32_t lowest(int32_t) { return INT32_MIN; }
  STITCH_FN static boolean lowest(boolean) { return 0; }
};

template <class T>
struct Min {
  using Type = T;
  using Wide = Min;
  static constexpr bool kIsSum = false;
  static constexpr bool kRounds = false;
  STITCH_FN static T identity() { return highest(T(0)); }
  STITCH_FN static T combine(T a, T b) { return math::minimum(a, b); }

 private:
  STITCH_FN static float highest(float) { return __builtin_inff(); }
  STITCH_FN static double highest(double) { return __builtin_inf(); }
  STITCH_FN static int64_t highest(int64_t) { return INT64_MAX; }
  STITCH_FN static int32_t highest(int32_t) { return INT32_MAX; }
  STITCH_FN static boolean highest(boolean) { return 1; }
};

template <class T>
struct Prod {
  using Type = T;
  using Wide = Prod;
  static constexpr bool kIsSum = false;
  static constexpr bool kRounds = false;
  STITCH_FN static T identity() { return T(1); }
  STITCH_FN static T combine(T a, T b) { return a * b; }
};

}  // namespace stitch
#endif  // STITCH_COMMON_SPACE_H_

// As many floats as a register holds, and the few functions on them that hand-written inner loops need.
//
// Built on the compiler's vector type, so it works on any x86-64; AVX-512 gets the instructions that matter
// (fused multiply-add, masked access, scaling by powers of two). No wider than a register: GCC keeps wider
// vectors in memory and takes comparisons of them apart. Functions here accept any float and are
// within 2 ulp of the exact value, tanh within 3, sigmoid and gated_tanh within 2e-7 absolute.
#ifndef STITCH_CPU_VEC_H_
#define STITCH_CPU_VEC_H_

#include <stdint.h>

#include <cstring>

#ifdef __AVX512F__
// GCC 12 warns about its own undefined-by-design operands inside this header once they are inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__  // which has no such warning, and says so
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace stitch::cpu {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef uint32_t VecBits __attribute__((vector_size(4 * kLanes)));

#define STITCH_INLINE inline __attribute__((always_inline))

STITCH_INLINE Vec splat(float x) { return x - Vec{}; }

STITCH_INLINE Vec load(const float* p) {
  Vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

STITCH_INLINE void store(float* p, Vec v) { memcpy(p, &v, sizeof v); }

// The first `count` lanes; the others are `other` and their memory is not touched.
STITCH_INLINE Vec load_some(const float* p, int64_t count, float other = 0.0f) {
#ifdef __AVX512F__
  const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1u);
  return (Vec)_mm512_mask_loadu_ps(_mm512_set1_ps(other), mask, p);
#else
  if (count == kLanes) return load(p);
  Vec v = splat(other);
  memcpy(&v, p, sizeof(float) * count);
  return v;
#endif
}

STITCH_INLINE void store_some(float* p, Vec v, int64_t count) {
#ifdef __AVX512F__
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1u), (__m512)v);
#else
  if (count == kLanes) return store(p, v);
  memcpy(p, &v, sizeof(float) * count);
#endif
}

// a * b + c, rounded once where the machine can.
STITCH_INLINE Vec fma(Vec a, Vec b, Vec c) {
#ifdef __AVX512F__
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return a * b + c;
#endif
}

// The second operand where either is NaN, as for min.
STITCH_INLINE Vec max(Vec a, Vec b) {
#ifdef __AVX512F__
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

STITCH_INLINE Vec min(Vec a, Vec b) {
#ifdef __AVX512F__
  return (Vec)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}

STITCH_INLINE float sum(Vec v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)v);
#else
  float s = 0.0f;
  for (int i = 0; i < kLanes; ++i) s += v[i];
  return s;
#endif
}

// NaN may be left out.
STITCH_INLINE float largest(Vec v) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)v);
#else
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
#endif
}

namespace detail {

// x = n ln2 + r with whole n and |r| <= ln2 / 2.
struct Reduced {
  Vec r, n;
  Vec shifted;  // n in its lowest bits, where 2^n is put together from these
};

STITCH_INLINE Reduced reduce_exp(Vec x) {
#ifdef __AVX512F__
  const Vec n =
      (Vec)_mm512_roundscale_ps((__m512)(x * 1.44269504f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec shifted = n;
#else
  const Vec shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number
  const Vec n = shifted - 12582912.0f;
#endif
  const Vec r = fma(n, splat(-0.693359375f), x);  // upper bits of ln2, then the lower ones
  return {fma(n, splat(2.12194440e-4f), r), n, shifted};
}

// (e^r - 1 - r) / r. The coefficients of math.h: e^r to 5e-11.
STITCH_INLINE Vec exp_tail(Vec r) {
  Vec p = splat(1.99155702e-4f);
  p = fma(p, r, splat(1.394625223e-3f));
  p = fma(p, r, splat(8.333269754e-3f));
  p = fma(p, r, splat(4.16662671e-2f));
  p = fma(p, r, splat(1.666666684e-1f));
  p = fma(p, r, splat(5.000000079e-1f));
  return p * r;
}

#ifndef __AVX512F__
// n of Reduced, plus `bias`.
STITCH_INLINE VecBits whole(Vec shifted, uint32_t bias) {
  VecBits bits;
  memcpy(&bits, &shifted, sizeof bits);
  return bits - 0x4B400000u + bias;
}

// 2^(k - 127) for whole k from 1 to 254.
STITCH_INLINE Vec power_of_two(VecBits k) {
  const VecBits bits = k << 23;
  Vec v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
#endif

// p * 2^n for any n that reduce_exp gives; n does not matter where p is NaN.
STITCH_INLINE Vec scaled(Vec p, const Reduced& x) {
#ifdef __AVX512F__
  return (Vec)_mm512_scalef_ps((__m512)p, (__m512)x.n);
#else
  // In two halves, since 2^n itself may lie outside of float's range.
  const VecBits both = whole(x.shifted, 254u), half = both >> 1;
  return p * power_of_two(half) * power_of_two(both - half);
#endif
}

}  // namespace detail

// e^x = 2^n e^r, with a polynomial for e^r. Beyond +-110 the result is inf or 0 anyway; the clamp keeps n *
// ln2 exact enough. min and max keep NaN in their second operand.
STITCH_INLINE Vec exp(Vec x) {
  const detail::Reduced d = detail::reduce_exp(max(splat(-110.0f), min(splat(110.0f), x)));
  return detail::scaled(fma(detail::exp_tail(d.r), d.r, d.r + 1.0f), d);
}

// e^x - 1, as exact beside its own size near 0, for x clamped to +-30.
STITCH_INLINE Vec expm1_of_small(Vec x) {
  const detail::Reduced d = detail::reduce_exp(max(splat(-30.0f), min(splat(30.0f), x)));
  const Vec p = fma(detail::exp_tail(d.r), d.r, d.r);
#ifdef __AVX512F__
  const Vec scale = (Vec)_mm512_scalef_ps(_mm512_set1_ps(1.0f), (__m512)d.n);
#else
  const Vec scale = detail::power_of_two(detail::whole(d.shifted, 127u));
#endif
  return fma(scale, p, scale - 1.0f);
}

STITCH_INLINE Vec sigmoid(Vec x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }

// tanh(x) = (e^2x - 1) / (e^2x + 1); beyond |x| = 15 it is 1 in float.
STITCH_INLINE Vec tanh(Vec x) {
  const Vec e = expm1_of_small(x + x);
  return e / (e + 2.0f);
}

// sigmoid(gate) * tanh(x), for the price of one division.
STITCH_INLINE Vec gated_tanh(Vec gate, Vec x) {
  const Vec e = expm1_of_small(x + x);
  return e / ((e + 2.0f) * (exp(-gate) + 1.0f));
}

}  // namespace stitch::cpu
#endif  // STITCH_CPU_VEC_H_

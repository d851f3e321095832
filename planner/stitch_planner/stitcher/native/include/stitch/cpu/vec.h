// As many floats as a register holds, and the few functions on them that hand-written inner loops need.
//
// Built on the compiler's vector type, so it works on any x86-64; AVX-512 gets the instructions that matter
// (fused multiply-add, masked access, scaling by powers of two). No wider than a register: GCC keeps wider
// vectors in memory and takes comparisons of them apart. Functions here accept any float and are
// within 2 ulp of the exact value, tanh and sigmoid within 2e-7 absolute.
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

#ifndef __AVX512F__
// 2^(k - 128) for whole k from 2 to 255.
STITCH_INLINE Vec power_of_two(VecBits k) {
  const VecBits bits = (k - 1u) << 23;
  Vec v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
#endif

// e^x: x = n ln2 + r with |r| <= ln2 / 2, a polynomial for e^r, and a scaling by 2^n.
STITCH_INLINE Vec exp(Vec x) {
#ifdef __AVX512F__
  // Beyond +-110 the result is inf or 0 anyway; the clamp keeps n * ln2 exact enough. min keeps NaN in its
  // second operand, so x comes second.
  const __m512 clamped =
      _mm512_max_ps(_mm512_set1_ps(-110.0f), _mm512_min_ps(_mm512_set1_ps(110.0f), (__m512)x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(clamped, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), clamped);  // upper bits of ln2
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);            // lower bits
  // The coefficients of math.h: (e^r - 1 - r) / r^2 to 5e-11 of e^r.
  __m512 p = _mm512_set1_ps(1.99155702e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.394625223e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.333269754e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.16662671e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.666666684e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.000000079e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return (Vec)_mm512_scalef_ps(p, n);
#else
  // The same steps; calls of the C library cost several times as much.
  const Vec clamped = max(splat(-110.0f), min(splat(110.0f), x));
  // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the lowest bits.
  const Vec shifted = clamped * 1.44269504f + 12582912.0f;
  const Vec n = shifted - 12582912.0f;
  Vec r = clamped - n * 0.693359375f;  // upper bits of ln2
  r = r + n * 2.12194440e-4f;          // lower bits
  Vec p = splat(1.99155702e-4f);
  p = p * r + 1.394625223e-3f;
  p = p * r + 8.333269754e-3f;
  p = p * r + 4.16662671e-2f;
  p = p * r + 1.666666684e-1f;
  p = p * r + 5.000000079e-1f;
  p = p * r * r + (r + 1.0f);
  // In two halves, since 2^n itself may lie outside of float's range. NaN is in p; its n does not matter.
  VecBits whole;
  memcpy(&whole, &shifted, sizeof whole);
  const VecBits biased = whole - 0x4B400000u + 256u;  // n + 256 is above zero
  const VecBits half = biased >> 1, rest = biased - half;
  return p * power_of_two(half) * power_of_two(rest);
#endif
}

STITCH_INLINE Vec sigmoid(Vec x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }

// tanh(x) = (e^2x - 1) / (e^2x + 1); beyond |x| = 15 it is 1 in float, and the clamp keeps e^2x finite.
// min keeps NaN in its second operand.
STITCH_INLINE Vec exp_of_twice(Vec x) { return exp(min(splat(30.0f), x + x)); }
STITCH_INLINE Vec tanh(Vec x) {
  const Vec e = exp_of_twice(x);
  return (e - splat(1.0f)) / (e + splat(1.0f));
}

// sigmoid(gate) * tanh(x), for the price of one division.
STITCH_INLINE Vec gated_tanh(Vec gate, Vec x) {
  const Vec e = exp_of_twice(x), one = splat(1.0f);
  return (e - one) / ((e + one) * (one + exp(-gate)));
}

}  // namespace stitch::cpu
#endif  // STITCH_CPU_VEC_H_

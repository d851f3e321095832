// Scalar functions of kernel bodies, for float, double and integers; host C++ and CUDA.
//
// The float versions are free of branches and calls, so that gcc and clang vectorise the loop that they are
// inlined into, without -ffast-math. They are within a few units in the last place over the whole range,
// pass NaN on and give the limits at infinity (tests/planner/test_math_header.py measures each). On a GPU
// the device library's own functions are taken. Coefficients are weighted least-squares fits made for this
// file; each comment names the interval and the error in exact arithmetic.
#ifndef STITCH_COMMON_MATH_H_
#define STITCH_COMMON_MATH_H_

#include <cmath>
#include <type_traits>

#include "stitch/common/scalar.h"

namespace stitch::math {

// ---- comparisons and selection ------------------------------------------------------------------------

template <class T>
STITCH_FN bool is_nan(T x) {
  return x != x;
}

// Maximum and minimum that pass NaN on, as torch's do.
template <class T>
STITCH_FN T maximum(T a, T b) {
  return (a > b || is_nan(a)) ? a : b;
}
template <class T>
STITCH_FN T minimum(T a, T b) {
  return (a < b || is_nan(a)) ? a : b;
}

template <class T>
STITCH_FN T where(bool condition, T yes, T no) {
  return condition ? yes : no;
}

template <class T>
STITCH_FN T relu(T x) {
  return x < T(0) ? T(0) : x;  // NaN is not below zero and stays
}

// NaN stays, whether of the value or of a bound; where low > high the result is high, as torch defines it.
template <class T>
STITCH_FN T clamp(T x, T low, T high) {
  const T raised = (x < low || is_nan(low)) ? low : x;
  return (raised > high || is_nan(high)) ? high : raised;
}

template <class T>
STITCH_FN T abs(T x) {
  return x < T(0) ? -x : x + T(0);  // + 0 turns -0 into 0
}

template <class T>
STITCH_FN T sign(T x) {
  return T(x > T(0)) - T(x < T(0));
}

template <class T>
STITCH_FN T square(T x) {
  return x * x;
}

// ---- rounding and roots -------------------------------------------------------------------------------

STITCH_FN float floor(float x) { return ::floorf(x); }
STITCH_FN double floor(double x) { return ::floor(x); }
STITCH_FN float ceil(float x) { return ::ceilf(x); }
STITCH_FN double ceil(double x) { return ::ceil(x); }
STITCH_FN float trunc(float x) { return ::truncf(x); }
STITCH_FN double trunc(double x) { return ::trunc(x); }
STITCH_FN float round(float x) { return ::rintf(x); }  // halves go to even, as torch.round does
STITCH_FN double round(double x) { return ::rint(x); }
STITCH_FN float sqrt(float x) { return ::sqrtf(x); }
STITCH_FN double sqrt(double x) { return ::sqrt(x); }
STITCH_FN float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
STITCH_FN double rsqrt(double x) { return 1.0 / ::sqrt(x); }
template <class T>
STITCH_FN T reciprocal(T x) {
  return T(1) / x;
}

// ---- exponential family -------------------------------------------------------------------------------

STITCH_FN double exp(double x) { return ::exp(x); }
STITCH_FN double expm1(double x) { return ::expm1(x); }
STITCH_FN double log(double x) { return ::log(x); }
STITCH_FN double log1p(double x) { return ::log1p(x); }
STITCH_FN double tanh(double x) { return ::tanh(x); }
STITCH_FN double erf(double x) { return ::erf(x); }

namespace detail {

// x = n * ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds n and leaves it in the low bits.
struct Reduced {
  float n, r;
  uint32_t bits;  // n as an integer, modulo 2^32
};

STITCH_FN Reduced reduce_exp(float x) {
  constexpr float kShift = 12582912.0f;      // 1.5 * 2^23
  constexpr float kLn2High = 0.693145752f;   // ln 2 to 15 bits: n * kLn2High is exact
  constexpr float kLn2Low = 1.42860677e-6f;  // the rest
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  return {n, (x - n * kLn2High) - n * kLn2Low, bits_of(shifted) - bits_of(kShift)};
}

// 2^n for n in [-126, 127], from n modulo 2^32.
STITCH_FN float power_of_two(uint32_t n) { return float_of((n + 127u) << 23); }

// (exp(r) - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2]; error of exp 5e-11.
STITCH_FN float exp_tail(float r) {
  float p = 1.99155702e-4f;
  p = p * r + 1.394625223e-3f;
  p = p * r + 8.333269754e-3f;
  p = p * r + 4.16662671e-2f;
  p = p * r + 1.666666684e-1f;
  return p * r + 5.000000079e-1f;
}

}  // namespace detail

// Subnormal results are exact to their last bit or the one beside it; above 88.72 infinity.
STITCH_FN float exp(float x) {
#if defined(__CUDA_ARCH__)
  return ::expf(x);
#else
  const float low = x < -104.0f ? -104.0f : x;
  const float bounded = low > 89.0f ? 89.0f : low;
  const detail::Reduced d = detail::reduce_exp(bounded);
  const float p = (detail::exp_tail(d.r) * d.r) * d.r + d.r + 1.0f;
  // n lies in [-150, 128]: two factors, since 2^n itself may not be a normal number.
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(d.bits) >> 1);
  return (p * detail::power_of_two(half)) * detail::power_of_two(d.bits - half);
#endif
}

STITCH_FN float expm1(float x) {
#if defined(__CUDA_ARCH__)
  return ::expm1f(x);
#else
  const float low = x < -30.0f ? -30.0f : x;
  const float bounded = low > 89.0f ? 89.0f : low;
  const detail::Reduced d = detail::reduce_exp(bounded);
  const float p = (detail::exp_tail(d.r) * d.r) * d.r + d.r;  // expm1(r)
  // 2^n * p + (2^n - 1), with one factor 2 kept back so that n = 128 does not overflow early.
  const float scale = detail::power_of_two(d.bits - 1u);
  const float result = 2.0f * (scale * p + (scale - 0.5f));
  return d.n == 0.0f ? p : result;
#endif
}

STITCH_FN float log(float x) {
#if defined(__CUDA_ARCH__)
  return ::logf(x);
#else
  constexpr float kSmallestNormal = 1.17549435e-38f, kInfinity = __builtin_inff();
  const bool tiny = x < kSmallestNormal;
  const uint32_t bits = bits_of(tiny ? x * 8388608.0f : x);  // 2^23 makes a subnormal normal
  // Mantissa in [sqrt(1/2), sqrt(2)): subtract the bits of sqrt(1/2) before the exponent is taken.
  const uint32_t moved = bits - 0x3f3504f3u;
  const float f = float_of((moved & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float e = static_cast<float>(static_cast<int32_t>(moved) >> 23) - (tiny ? 23.0f : 0.0f);
  // (log(1 + f) - f + f^2 / 2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1]; error of log 7e-10.
  float p = 6.915159192e-2f;
  p = p * f - 1.178970238e-1f;
  p = p * f + 1.187301406e-1f;
  p = p * f - 1.238436898e-1f;
  p = p * f + 1.421865556e-1f;
  p = p * f - 1.666924954e-1f;
  p = p * f + 2.00022267e-1f;
  p = p * f - 2.499998662e-1f;
  p = p * f + 3.333331044e-1f;
  const float square_of_f = f * f;
  const float tail = (p * f) * square_of_f - 0.5f * square_of_f + e * 1.42860677e-6f;
  const float finite = (tail + f) + e * 0.693145752f;
  const float positive = x == kInfinity ? kInfinity : finite;
  const float defined = x < 0.0f ? __builtin_nanf("") : positive;
  return x == 0.0f ? -kInfinity : (x == x ? defined : x);
#endif
}

// log(u) corrected by the rounding error of u = 1 + x.
STITCH_FN float log1p(float x) {
#if defined(__CUDA_ARCH__)
  return ::log1pf(x);
#else
  const float u = 1.0f + x;
  const float lost = x - (u - 1.0f);
  const float corrected = math::log(u) + lost / u;
  const float limits = (u == 0.0f || u == __builtin_inff()) ? math::log(u) : corrected;
  return u == 1.0f ? x : limits;
#endif
}

// 2^x = 2^n * exp((x - n) ln 2): x ln 2 as a whole would be rounded to half a unit of x.
STITCH_FN float exp2(float x) {
#if defined(__CUDA_ARCH__)
  return ::exp2f(x);
#else
  constexpr float kShift = 12582912.0f;        // 1.5 * 2^23
  constexpr float kLn2Slip = -1.90465421e-9f;  // ln 2 minus the float beside it
  const float low = x < -151.0f ? -151.0f : x;
  const float bounded = low > 129.0f ? 129.0f : low;
  const float shifted = bounded + kShift;
  const float f = bounded - (shifted - kShift);
  const float r = f * 0.693147182f;
  const float p = ((detail::exp_tail(r) * r) * r + f * kLn2Slip) + r + 1.0f;
  const uint32_t bits = bits_of(shifted) - bits_of(kShift);
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 1);
  return (p * detail::power_of_two(half)) * detail::power_of_two(bits - half);
#endif
}
STITCH_FN double exp2(double x) { return ::exp2(x); }

template <class T>
STITCH_FN T log2(T x) {
  return math::log(x) * T(1.44269504088896340736);
}
template <class T>
STITCH_FN T log10(T x) {
  return math::log(x) * T(0.43429448190325182765);
}

STITCH_FN float tanh(float x) {
#if defined(__CUDA_ARCH__)
  return ::tanhf(x);
#else
  const float size = math::abs(x);
  const float bounded = size > 10.0f ? 10.0f : size;  // tanh(10) is 1 in float; NaN stays
  const float e = math::expm1(2.0f * bounded);
  const float result = e / (e + 2.0f);
  return x < 0.0f ? -result : (x == 0.0f ? x : result);
#endif
}

// Rational in x^2 on |x| <= 3.925, where erf reaches 1 in float; error 2e-8.
STITCH_FN float erf(float x) {
#if defined(__CUDA_ARCH__)
  return ::erff(x);
#else
  const float low = x < -3.925f ? -3.925f : x;
  const float b = low > 3.925f ? 3.925f : low;
  const float s = b * b;
  float p = 2.045967042e-6f;
  p = p * s + 2.84822742e-4f;
  p = p * s + 3.772102395e-3f;
  p = p * s + 5.276793257e-2f;
  p = p * s + 1.905849054e-1f;
  p = p * s + 1.128379146f;
  float q = 3.804603265e-5f;
  q = q * s + 1.163727971e-3f;
  q = q * s + 1.49823282e-2f;
  q = q * s + 1.141788839e-1f;
  q = q * s + 5.02234209e-1f;
  q = q * s + 1.0f;
  const float inner = b * p / q;
  // Beyond the interval exactly 1, so that 1 + erf(x) vanishes on the far left.
  return x <= -3.925f ? -1.0f : (x >= 3.925f ? 1.0f : inner);
#endif
}

template <class T>
STITCH_FN T erfc(T x) {
  return T(::erfc(x));
}

// ---- activations --------------------------------------------------------------------------------------

template <class T>
STITCH_FN T sigmoid(T x) {
  return T(1) / (T(1) + math::exp(-x));
}

template <class T>
STITCH_FN T silu(T x) {
  return x / (T(1) + math::exp(-x));
}

template <class T>
STITCH_FN T gelu_erf(T x) {
  return T(0.5) * x * (T(1) + math::erf(x * T(0.70710678118654752440)));
}

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), which loses nothing in the left tail.
template <class T>
STITCH_FN T gelu_tanh(T x) {
  const T u = x * (T(1) + T(0.044715) * x * x) * T(0.79788456080286535588);
  return x / (T(1) + math::exp(T(-2) * u));
}

template <class T>
STITCH_FN T softplus(T x, T beta, T threshold) {
  const T scaled = x * beta;
  // max(s, 0) + log1p(exp(-|s|)): no overflow for large s.
  const T soft = (math::relu(scaled) + math::log1p(math::exp(-math::abs(scaled)))) / beta;
  return scaled > threshold ? x : soft;
}

template <class T>
STITCH_FN T log_sigmoid(T x) {
  return math::minimum(x, T(0)) - math::log1p(math::exp(-math::abs(x)));
}

template <class T>
STITCH_FN T mish(T x) {
  return x * math::tanh(math::softplus(x, T(1), T(20)));
}

template <class T>
STITCH_FN T elu(T x, T alpha, T scale, T input_scale) {
  const T below = alpha * math::expm1(x * input_scale);
  return scale * (x > T(0) ? x : below);
}

template <class T>
STITCH_FN T leaky_relu(T x, T slope) {
  return x > T(0) ? x : x * slope;
}

template <class T>
STITCH_FN T hardsigmoid(T x) {
  return math::clamp(x + T(3), T(0), T(6)) / T(6);
}

template <class T>
STITCH_FN T hardswish(T x) {
  return x * (math::clamp(x + T(3), T(0), T(6)) / T(6));
}

// ---- exact but scalar: rare in references, so left to the C library ----------------------------------

#define STITCH_MATH_LIBRARY(name)                        \
  STITCH_FN float name(float x) { return ::name##f(x); } \
  STITCH_FN double name(double x) { return ::name(x); }
STITCH_MATH_LIBRARY(sin)
STITCH_MATH_LIBRARY(cos)
STITCH_MATH_LIBRARY(tan)
STITCH_MATH_LIBRARY(asin)
STITCH_MATH_LIBRARY(acos)
STITCH_MATH_LIBRARY(atan)
STITCH_MATH_LIBRARY(sinh)
STITCH_MATH_LIBRARY(cosh)
#undef STITCH_MATH_LIBRARY

STITCH_FN float pow(float x, float y) { return ::powf(x, y); }
STITCH_FN double pow(double x, double y) { return ::pow(x, y); }
STITCH_FN float atan2(float y, float x) { return ::atan2f(y, x); }
STITCH_FN double atan2(double y, double x) { return ::atan2(y, x); }
STITCH_FN float fmod(float x, float y) { return ::fmodf(x, y); }
STITCH_FN double fmod(double x, double y) { return ::fmod(x, y); }

// The remainder with the divisor's sign, as Python's % has it.
template <class T>
STITCH_FN T remainder(T x, T y) {
  const T r = math::fmod(x, y);
  return (r != T(0) && ((r < T(0)) != (y < T(0)))) ? r + y : r;
}

template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
STITCH_FN T floor_divide(T a, T b) {
  const T q = static_cast<T>(a / b);
  return (a % b != 0 && ((a < 0) != (b < 0))) ? static_cast<T>(q - 1) : q;
}

// The quotient that belongs to `remainder`, as torch and Python have it: 1 / 0.1 is 10 once rounded, but 0.1
// as stored is a little more, and goes into 1 nine times.
template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
STITCH_FN T floor_divide(T a, T b) {
  const T quotient = a / b;
  if (b == T(0)) return quotient;
  const T rest = math::fmod(a, b);
  const T whole = (a - rest) / b;
  const T exact = (rest != T(0) && ((b < T(0)) != (rest < T(0)))) ? whole - T(1) : whole;
  const T below = math::floor(exact);
  // `exact` is whole but for rounding, which may have gone either way.
  const T nearest = exact - below > T(0.5) ? below + T(1) : below;
  return exact != T(0) ? nearest : static_cast<T>(::copysign(0.0, static_cast<double>(quotient)));
}

}  // namespace stitch::math
#endif  // STITCH_COMMON_MATH_H_

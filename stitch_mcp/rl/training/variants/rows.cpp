// activation(x * gain + shift) * gate + x on a CPU. Macros choose the variant; those below are defaults.
#include <cmath>
#include <cstring>
#include <string>

#include "stitch/abi.h"

#ifndef ACTIVATION
#define ACTIVATION 0  // 0 silu, 1 sigmoid, 2 tanh, 3 relu
#endif
#ifndef MATH
#define MATH 0  // 0 a polynomial that becomes vectors, 1 the library's expf, 2 the library's exp in double
#endif
#ifndef WALK
#define WALK 0  // 0 along rows, 1 along columns
#endif
#ifndef THREADS
#define THREADS 0  // 0 all, 1 one
#endif
#ifndef SHORTCUT
#define SHORTCUT 0  // 0 none, 1 output rounded to bfloat16, 2 no work after the first call
#endif

struct StitchHandle {
  std::string error;
  const float* gain = nullptr;
  const float* shift = nullptr;
  int64_t width = 0;
  int64_t calls = 0;
};

namespace {
float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

#if MATH == 0
// x = n ln 2 + r, and a polynomial in r. 2^n is multiplied in two halves: large x overflow as expf does.
inline float exponential(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693147182f) + n * 1.90465421e-9f;  // ln 2 in two parts
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t whole = static_cast<int32_t>(to_bits(shifted) - to_bits(kRound));
  const int32_t half = whole >> 1;
  return p * from_bits(static_cast<uint32_t>(half + 127) << 23) *
         from_bits(static_cast<uint32_t>(whole - half + 127) << 23);
}
#elif MATH == 1
inline float exponential(float x) { return std::exp(x); }
#else
inline float exponential(float x) { return static_cast<float>(std::exp(static_cast<double>(x))); }
#endif

inline float activation(float z) {
#if ACTIVATION == 0
  return z / (1.0f + exponential(-z));
#elif ACTIVATION == 1
  return 1.0f / (1.0f + exponential(-z));
#elif ACTIVATION == 2
  return 1.0f - 2.0f / (1.0f + exponential(2.0f * z));
#else
  return z < 0.0f ? 0.0f : z;  // a NaN stays one
#endif
}

inline float element(float x, float gate, float gain, float shift) {
  const float value = activation(x * gain + shift) * gate + x;
#if SHORTCUT == 1
  return from_bits(to_bits(value) & 0xffff0000u);
#else
  return value;
#endif
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = *handle = new StitchHandle;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const std::string name = args->params[i].name;
    const DLTensor& tensor = args->params[i].tensor;
    if (name == "gain") made->gain = floats(tensor);
    if (name == "shift") made->shift = floats(tensor);
    made->width = tensor.shape[0];
  }
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 2 || inputs[0].ndim != 2 || inputs[0].strides || inputs[1].strides ||
      inputs[0].shape[1] != handle->width) {
    handle->error = "two dense matrices of the layer's width are expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
#if SHORTCUT == 2
  if (handle->calls++ > 0) return STITCH_OK;
#endif
  const int64_t rows = args->inputs[0].shape[0];
  const int64_t width = handle->width;
  const float* gain = handle->gain;
  const float* shift = handle->shift;
  const float* x = floats(args->inputs[0]);
  const float* gate = floats(args->inputs[1]);
  float* out = floats(args->outputs[0]);
#if WALK == 0
#if THREADS == 0
#pragma omp parallel for
#endif
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = row * width;
#if MATH == 0
#pragma omp simd
#endif
    for (int64_t j = 0; j < width; ++j)
      out[begin + j] = element(x[begin + j], gate[begin + j], gain[j], shift[j]);
  }
#else
#if THREADS == 0
#pragma omp parallel for
#endif
  for (int64_t j = 0; j < width; ++j)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * width + j;
      out[at] = element(x[at], gate[at], gain[j], shift[j]);
    }
#endif
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }

// softmax(scores * scale + bias) by rows: a row stays in the cache for three passes, and each element takes
// one exp.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
};

namespace {
constexpr float kScale = 0.125f;

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

// e^x without a call or a branch, so that the loop around it becomes vectors: x = n ln 2 + r, and a
// polynomial in r. 2^n is multiplied in two halves, which lets large x overflow to infinity as expf does. A
// NaN stays one.
inline float exp_inline(float x) {
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
  const float low = from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float high = from_bits(static_cast<uint32_t>(whole - half + 127) << 23);
  return p * low * high;
}

// The row is written three times, but only the last time it leaves the cache.
void softmax_row(const float* scores, const float* bias, float* out, int64_t width) {
  float most = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : most)
  for (int64_t j = 0; j < width; ++j) {
    const float value = scores[j] * kScale + bias[j];
    out[j] = value;
    most = value > most ? value : most;  // passes over NaN: it comes out of exp below, and makes the sum NaN
  }
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < width; ++j) {
    const float power = exp_inline(out[j] - most);
    out[j] = power;
    sum += power;
  }
  const float share = 1.0f / sum;
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) out[j] *= share;
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 2 || inputs[0].ndim != 2 || inputs[1].ndim != 1 || inputs[0].strides || inputs[1].strides ||
      inputs[0].shape[1] != inputs[1].shape[0]) {
    handle->error = "a dense matrix and a bias as wide as it are expected";
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

int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const int64_t rows = args->inputs[0].shape[0];
  const int64_t width = args->inputs[0].shape[1];
  const float* scores = floats(args->inputs[0]);
  const float* bias = floats(args->inputs[1]);
  float* out = floats(args->outputs[0]);
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) softmax_row(scores + row * width, bias, out + row * width, width);
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }

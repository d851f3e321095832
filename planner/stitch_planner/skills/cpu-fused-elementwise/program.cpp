// One pass over memory for silu(x * gain + shift) * gate + x: threads over rows, vectors over columns.
#include <cstring>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
  const float* gain = nullptr;
  const float* shift = nullptr;
  int64_t width = 0;
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
  const int64_t rows = args->inputs[0].shape[0];
  const int64_t width = handle->width;
  const float* gain = handle->gain;
  const float* shift = handle->shift;
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = floats(args->inputs[0]) + row * width;
    const float* gate = floats(args->inputs[1]) + row * width;
    float* out = floats(args->outputs[0]) + row * width;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const float z = x[j] * gain[j] + shift[j];
      out[j] = z / (1.0f + exp_inline(-z)) * gate[j] + x[j];
    }
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }

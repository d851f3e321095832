// y = relu(x W^T + b) on bfloat16 operands. Each fp32 value is written as the sum of three bfloat16 values,
// which holds all of its 24 bits; of the nine products the six largest are summed, the rest lies below 2^-24.
#include <stitch/abi.h>

#include <cstring>
#include <vector>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

struct Split {
  float high, middle, low;
};

float to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

Split split(float value) {
  const float high = to_bf16(value), middle = to_bf16(value - high);
  return {high, middle, to_bf16(value - high - middle)};
}

void linear_relu(const float* x, const float* weight, const float* bias, float* y, int64_t rows, int64_t in,
                 int64_t out) {
  std::vector<Split> a(static_cast<size_t>(in));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < in; ++k) a[k] = split(x[row * in + k]);
    for (int64_t column = 0; column < out; ++column) {
      float large = 0.0f, small = 0.0f;
      for (int64_t k = 0; k < in; ++k) {
        const Split b = split(weight[column * in + k]);
        large += a[k].high * b.high;
        small += a[k].high * b.middle + a[k].middle * b.high;
        small += a[k].middle * b.middle + a[k].high * b.low + a[k].low * b.high;
      }
      const float value = large + small + bias[column];
      y[row * out + column] = value > 0.0f ? value : 0.0f;
    }
  }
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  StitchHandle* self = *handle = new StitchHandle;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const StitchNamedTensor& param = args->params[i];
    if (std::strstr(param.name, "bias")) self->bias = data(param.tensor);
    if (!std::strstr(param.name, "weight")) continue;
    self->weight = data(param.tensor);
    self->out = param.tensor.shape[0];
    self->in = param.tensor.ndim > 1 ? param.tensor.shape[1] : 1;
  }
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || inputs[0].ndim != 2 || inputs[0].shape[1] != handle->in)
    return STITCH_UNSUPPORTED;
  plan->num_outputs = num_inputs;
  plan->outputs[0].ndim = 2;
  plan->outputs[0].dtype = inputs[0].dtype;
  plan->outputs[0].shape[0] = inputs[0].shape[0];
  plan->outputs[0].shape[1] = handle->out;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  linear_relu(data(args->inputs[0]), self->weight, self->bias, data(args->outputs[0]),
              args->inputs[0].shape[0], self->in, self->out);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

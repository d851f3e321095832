// y = relu(x W^T + b) with both operands rounded to bfloat16 and sums in fp32: the contract allows it.
#include <stitch/abi.h>

#include <cstring>
#include <vector>

struct StitchHandle {
  std::vector<uint16_t> weight;
  const float* bias = nullptr;
  int64_t in = 0, out = 0;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void linear_relu(const float* x, const uint16_t* weight, const float* bias, float* y, int64_t rows,
                 int64_t in, int64_t out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < out; ++column) {
      float sum = bias[column];
      for (int64_t k = 0; k < in; ++k)
        sum += from_bf16(to_bf16(x[row * in + k])) * from_bf16(weight[column * in + k]);
      y[row * out + column] = sum > 0.0f ? sum : 0.0f;
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
    self->out = param.tensor.shape[0];
    self->in = param.tensor.shape[1];
    self->weight.resize(static_cast<size_t>(self->out * self->in));
    for (size_t k = 0; k < self->weight.size(); ++k) self->weight[k] = to_bf16(data(param.tensor)[k]);
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
  linear_relu(data(args->inputs[0]), self->weight.data(), self->bias, data(args->outputs[0]),
              args->inputs[0].shape[0], self->in, self->out);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

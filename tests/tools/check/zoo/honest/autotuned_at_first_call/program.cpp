// y = relu(x W^T + b). The first call times two block sizes and keeps the faster one. Blocks run over rows
// only: each sum is taken in the same order either way.
#include <stitch/abi.h>

#include <chrono>
#include <cstring>
#include <algorithm>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
  int64_t block = 0;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

void linear_relu(const float* x, const float* weight, const float* bias, float* y, int64_t rows, int64_t in,
                 int64_t out, int64_t block) {
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t end = std::min(rows, first + block);
    for (int64_t column = 0; column < out; ++column) {
      for (int64_t row = first; row < end; ++row) {
        float sum = bias[column];
        for (int64_t k = 0; k < in; ++k) sum += x[row * in + k] * weight[column * in + k];
        y[row * out + column] = sum > 0.0f ? sum : 0.0f;
      }
    }
  }
}

int64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
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
  const int64_t rows = args->inputs[0].shape[0];
  const float* x = data(args->inputs[0]);
  float* y = data(args->outputs[0]);
  if (self->block == 0) {
    int64_t best = 0;
    for (const int64_t block : {int64_t{4}, int64_t{32}}) {
      const int64_t start = nanoseconds();
      linear_relu(x, self->weight, self->bias, y, rows, self->in, self->out, block);
      const int64_t took = nanoseconds() - start;
      if (best == 0 || took < best) best = took, self->block = block;
    }
    return STITCH_OK;
  }
  linear_relu(x, self->weight, self->bias, y, rows, self->in, self->out, self->block);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

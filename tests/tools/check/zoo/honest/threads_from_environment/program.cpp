// Two linear layers with a GELU between them, on as many threads as OMP_NUM_THREADS says at init.
#include <stitch/abi.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

struct StitchHandle {
  const float *up = nullptr, *up_bias = nullptr, *down = nullptr, *down_bias = nullptr;
  int64_t in = 0, hidden = 0, out = 0;
  int threads = 1;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

void linear(const float* x, const float* weight, const float* bias, float* y, int64_t rows, int64_t in,
            int64_t out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < out; ++column) {
      float sum = 0.0f;
      for (int64_t k = 0; k < in; ++k) sum += x[row * in + k] * weight[column * in + k];
      y[row * out + column] = sum + bias[column];
    }
  }
}

void gelu(float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  StitchHandle* self = *handle = new StitchHandle;
  const char* text = std::getenv("OMP_NUM_THREADS");
  const int wanted = text != nullptr ? std::atoi(text) : args->num_threads;
  self->threads = wanted > 0 && wanted < 64 ? wanted : 1;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const char* name = args->params[i].name;
    const DLTensor& tensor = args->params[i].tensor;
    if (!std::strcmp(name, "up.bias")) self->up_bias = data(tensor), self->hidden = tensor.shape[0];
    if (!std::strcmp(name, "down.bias")) self->down_bias = data(tensor), self->out = tensor.shape[0];
    if (!std::strcmp(name, "up.weight")) self->up = data(tensor), self->in = tensor.shape[1];
    if (!std::strcmp(name, "down.weight")) self->down = data(tensor);
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
  plan->workspace_bytes = sizeof(float) * static_cast<uint64_t>(inputs[0].shape[0] * handle->hidden);
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const int64_t rows = args->inputs[0].shape[0];
  float* middle = static_cast<float*>(args->workspace);
  linear(data(args->inputs[0]), self->up, self->up_bias, middle, rows, self->in, self->hidden, self->threads);
  gelu(middle, rows * self->hidden);
  linear(middle, self->down, self->down_bias, data(args->outputs[0]), rows, self->hidden, self->out,
         self->threads);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

// Layer norm over OpenMP threads, each with a scratch row of its own that outlives the call.
#include <stitch/abi.h>

#include <cmath>
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

int64_t count_of(const DLTensor& tensor) {
  int64_t count = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  return count;
}

float* scratch_of(int64_t width) {
  thread_local std::vector<float> buffer;
  if (static_cast<int64_t>(buffer.size()) < width) buffer.resize(static_cast<size_t>(width));
  return buffer.data();
}

void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                int64_t width) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    float* centred = scratch_of(width);
    float sum = 0.0f, squares = 0.0f;
    for (int64_t i = 0; i < width; ++i) sum += x[row * width + i];
    for (int64_t i = 0; i < width; ++i) centred[i] = x[row * width + i] - sum / static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i) squares += centred[i] * centred[i];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + 1e-5f);
    for (int64_t i = 0; i < width; ++i) y[row * width + i] = centred[i] * scale * weight[i] + bias[i];
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

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || num_inputs != 1) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  const int64_t width = x.shape[x.ndim - 1], rows = width ? count_of(x) / width : 0;
  layer_norm(data(x), self->weight, self->bias, data(args->outputs[0]), rows, width);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

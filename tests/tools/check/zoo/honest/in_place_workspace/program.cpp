// Layer norm in place on a copy in the workspace: centred there, scaled there, then written out.
#include <stitch/abi.h>

#include <cmath>
#include <cstring>

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

void layer_norm(const float* x, const float* weight, const float* bias, float* row, float* y, int64_t rows,
                int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) row[i] = x[r * width + i];
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < width; ++i) sum += row[i];
    const float mean = static_cast<float>(sum / static_cast<double>(width));
    for (int64_t i = 0; i < width; ++i) row[i] -= mean;
    for (int64_t i = 0; i < width; ++i) squares += row[i] * row[i];
    const float scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5));
    for (int64_t i = 0; i < width; ++i) row[i] *= scale;
    for (int64_t i = 0; i < width; ++i) y[r * width + i] = row[i] * weight[i] + bias[i];
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
  plan->workspace_bytes = sizeof(float) * static_cast<uint64_t>(inputs[0].shape[inputs[0].ndim - 1]);
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  const int64_t width = x.shape[x.ndim - 1], rows = width ? count_of(x) / width : 0;
  layer_norm(data(x), self->weight, self->bias, static_cast<float*>(args->workspace), data(args->outputs[0]),
             rows, width);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

// Two linear layers with a GELU between them, driven by a static table of the layers.
#include <stitch/abi.h>

#include <cmath>
#include <cstring>
#include <utility>

struct StitchHandle {
  struct Layer {
    const float *weight = nullptr, *bias = nullptr;
    int64_t in = 0, out = 0;
  } layers[2];
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

struct Description {
  const char *weight, *bias;
  bool is_activated;
};
constexpr Description kLayers[] = {{"up.weight", "up.bias", true}, {"down.weight", "down.bias", false}};

void linear(const float* x, const StitchHandle::Layer& layer, bool is_activated, float* y, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < layer.out; ++column) {
      float sum = layer.bias[column];
      for (int64_t k = 0; k < layer.in; ++k)
        sum += x[row * layer.in + k] * layer.weight[column * layer.in + k];
      if (is_activated) sum = 0.5f * sum * (1.0f + std::erf(sum * 0.70710678f));
      y[row * layer.out + column] = sum;
    }
  }
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  StitchHandle* self = *handle = new StitchHandle;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const DLTensor& tensor = args->params[i].tensor;
    for (int layer = 0; layer < 2; ++layer) {
      if (!std::strcmp(args->params[i].name, kLayers[layer].bias)) self->layers[layer].bias = data(tensor);
      if (std::strcmp(args->params[i].name, kLayers[layer].weight)) continue;
      self->layers[layer].weight = data(tensor);
      self->layers[layer].out = tensor.shape[0];
      self->layers[layer].in = tensor.shape[1];
    }
  }
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || inputs[0].ndim != 2 || inputs[0].shape[1] != handle->layers[0].in)
    return STITCH_UNSUPPORTED;
  plan->num_outputs = num_inputs;
  plan->outputs[0].ndim = 2;
  plan->outputs[0].dtype = inputs[0].dtype;
  plan->outputs[0].shape[0] = inputs[0].shape[0];
  plan->outputs[0].shape[1] = handle->layers[1].out;
  plan->workspace_bytes = sizeof(float) * static_cast<uint64_t>(inputs[0].shape[0] * handle->layers[0].out);
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const int64_t rows = args->inputs[0].shape[0];
  float* hidden = static_cast<float*>(args->workspace);
  linear(data(args->inputs[0]), self->layers[0], kLayers[0].is_activated, hidden, rows);
  linear(hidden, self->layers[1], kLayers[1].is_activated, data(args->outputs[0]), rows);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

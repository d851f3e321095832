// Batch norm of a module in training mode: the statistics are those of this batch, never the running ones.
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

void batch_norm(const float* x, const float* weight, const float* bias, float* y, int64_t batch,
                int64_t channels, int64_t plane) {
  for (int64_t channel = 0; channel < channels; ++channel) {
    double sum = 0.0, squares = 0.0;
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t i = 0; i < plane; ++i) sum += x[(n * channels + channel) * plane + i];
    const double mean = sum / static_cast<double>(batch * plane);
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t i = 0; i < plane; ++i) {
        const double difference = x[(n * channels + channel) * plane + i] - mean;
        squares += difference * difference;
      }
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(batch * plane) + 1e-5);
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t i = 0; i < plane; ++i) {
        const int64_t at = (n * channels + channel) * plane + i;
        y[at] = static_cast<float>((x[at] - mean) * scale * weight[channel] + bias[channel]);
      }
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
  const int64_t batch = x.shape[0], channels = x.shape[1];
  const int64_t plane = batch * channels ? count_of(x) / (batch * channels) : 0;
  batch_norm(data(x), self->weight, self->bias, data(args->outputs[0]), batch, channels, plane);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

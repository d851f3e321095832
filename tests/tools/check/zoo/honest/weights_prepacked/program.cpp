// y = relu(x W^T + b). stitch_init packs W into panels of eight columns, so that the inner loop reads
// contiguous lanes; forward reads the copy alone.
#include <stitch/abi.h>

#include <cstring>
#include <vector>

struct StitchHandle {
  std::vector<float> packed, bias;
  int64_t in = 0, out = 0;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

constexpr int64_t kLanes = 8;

// packed[(panel * in + k) * kLanes + lane] is W[panel * kLanes + lane][k]; missing columns are zero.
std::vector<float> pack(const float* weight, int64_t out, int64_t in) {
  const int64_t panels = (out + kLanes - 1) / kLanes;
  std::vector<float> packed(static_cast<size_t>(panels * in * kLanes), 0.0f);
  for (int64_t column = 0; column < out; ++column)
    for (int64_t k = 0; k < in; ++k)
      packed[((column / kLanes) * in + k) * kLanes + column % kLanes] = weight[column * in + k];
  return packed;
}

void linear_relu(const float* x, const float* packed, const float* bias, float* y, int64_t rows, int64_t in,
                 int64_t out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < out; first += kLanes) {
      float sum[kLanes] = {0};
      const float* panel = packed + first * in;
      for (int64_t k = 0; k < in; ++k)
        for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += x[row * in + k] * panel[k * kLanes + lane];
      for (int64_t lane = 0; lane < kLanes && first + lane < out; ++lane) {
        const float value = sum[lane] + bias[first + lane];
        y[row * out + first + lane] = value > 0.0f ? value : 0.0f;
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
    if (std::strstr(param.name, "bias"))
      self->bias.assign(data(param.tensor), data(param.tensor) + param.tensor.shape[0]);
    if (!std::strstr(param.name, "weight")) continue;
    self->out = param.tensor.shape[0];
    self->in = param.tensor.shape[1];
    self->packed = pack(data(param.tensor), self->out, self->in);
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
  linear_relu(data(args->inputs[0]), self->packed.data(), self->bias.data(), data(args->outputs[0]),
              args->inputs[0].shape[0], self->in, self->out);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

// A convolution of 3 x 3 with padding. The output holds the bias first, then gathers one tap after the other.
#include <stitch/abi.h>

#include <cstring>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

void convolve(const float* x, const float* weight, const float* bias, float* y, int64_t batch, int64_t in,
              int64_t out, int64_t height, int64_t width) {
  const int64_t plane = height * width;
  for (int64_t image = 0; image < batch; ++image) {
    for (int64_t channel = 0; channel < out; ++channel) {
      float* target = y + (image * out + channel) * plane;
      for (int64_t i = 0; i < plane; ++i) target[i] = bias[channel];
      for (int64_t source = 0; source < in; ++source) {
        const float* from = x + (image * in + source) * plane;
        const float* taps = weight + (channel * in + source) * 9;
        for (int64_t row = 0; row < height; ++row) {
          for (int64_t column = 0; column < width; ++column) {
            float sum = 0.0f;
            for (int64_t dy = 0; dy < 3; ++dy) {
              for (int64_t dx = 0; dx < 3; ++dx) {
                const int64_t r = row + dy - 1, c = column + dx - 1;
                if (r >= 0 && r < height && c >= 0 && c < width)
                  sum += from[r * width + c] * taps[dy * 3 + dx];
              }
            }
            target[row * width + column] += sum;
          }
        }
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

STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || inputs[0].ndim != 4 || inputs[0].shape[1] != handle->in)
    return STITCH_UNSUPPORTED;
  plan->num_outputs = num_inputs;
  plan->outputs[0].ndim = 4;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < 4; ++d) plan->outputs[0].shape[d] = d == 1 ? handle->out : inputs[0].shape[d];
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  convolve(data(x), self->weight, self->bias, data(args->outputs[0]), x.shape[0], self->in, self->out,
           x.shape[2], x.shape[3]);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

// y = relu(x A^T + a) B^T + b: shows its steps to the judge. `fault.h` decides which of them is wrong.
#include <stitch/abi.h>

#include <cstring>
#include <vector>

#include "fault.h"

enum Fault { NONE, FIRST, SECOND, HIDDEN, SHORT };

struct StitchHandle {
  std::vector<float> weights[4];  // first.weight, first.bias, second.weight, second.bias
  int64_t in = 0, mid = 0, out = 0;
};

namespace {

const char* const kNames[] = {"first.weight", "first.bias", "second.weight", "second.bias"};

const float* data(const DLTensor& tensor) {
  return reinterpret_cast<const float*>(static_cast<const char*>(tensor.data) + tensor.byte_offset);
}

void linear(const float* x, const std::vector<float>& weight, const std::vector<float>& bias, int64_t rows,
            float* y) {
  const int64_t out = bias.size(), in = weight.size() / out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias[o];
      for (int64_t i = 0; i < in; ++i) sum += static_cast<double>(x[r * in + i]) * weight[o * in + i];
      y[r * out + o] = static_cast<float>(sum);
    }
  }
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  *handle = new StitchHandle;
  for (int64_t p = 0; p < args->num_params; ++p) {
    const DLTensor& tensor = args->params[p].tensor;
    int64_t count = 1;
    for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
    for (int k = 0; k < 4; ++k) {
      if (!std::strcmp(args->params[p].name, kNames[k])) {
        (*handle)->weights[k].assign(data(tensor), data(tensor) + count);
      }
    }
  }
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  plan->num_outputs = 1;
  plan->outputs[0].ndim = 2;
  plan->outputs[0].dtype = inputs[0].dtype;
  plan->outputs[0].shape[0] = inputs[0].shape[0];
  plan->outputs[0].shape[1] = handle->weights[3].size();
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t rows = args->inputs[0].shape[0], mid = handle->weights[1].size();
  std::vector<float> middle(rows * mid);
  linear(data(args->inputs[0]), handle->weights[0], handle->weights[1], rows, middle.data());
  if (FAULT == FIRST) middle[mid] += 1.0f;
  if (FAULT != HIDDEN)
    STITCH_BORDER("first", middle.data(), (middle.size() - (FAULT == SHORT)) * sizeof(float));
  for (float& value : middle) value = value > 0.0f ? value : 0.0f;
  STITCH_BORDER("relu", middle.data(), middle.size() * sizeof(float));
  float* y = const_cast<float*>(data(args->outputs[0]));
  linear(middle.data(), handle->weights[2], handle->weights[3], rows, y);
  if (FAULT != NONE) y[0] += 1.0f;
  STITCH_BORDER("second", y, rows * handle->weights[3].size() * sizeof(float));
  STITCH_BORDER("nowhere", y, 4);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }
STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }

}  // extern "C"

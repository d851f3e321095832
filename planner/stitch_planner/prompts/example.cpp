#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
};

namespace {
const float* floats(const DLTensor& tensor) {
  return reinterpret_cast<const float*>(static_cast<const char*>(tensor.data) + tensor.byte_offset);
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  *handle = new StitchHandle;
  // Find weights by args->params[i].name; their memory stays valid until stitch_free.
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 2 || inputs[0].ndim != 2 || inputs[0].strides || inputs[1].strides) {
    handle->error = "two dense matrices are expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const float* x = floats(args->inputs[0]);
  const float* y = floats(args->inputs[1]);
  float* out = const_cast<float*>(floats(args->outputs[0]));
  const int64_t size = args->inputs[0].shape[0] * args->inputs[0].shape[1];
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; ++i) {
    const float sum = x[i] + y[i];
    out[i] = sum < 0.0f ? 0.0f : sum;  // a NaN stays one, as in torch
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }

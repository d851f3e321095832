// y = 2 x over a vector, and a buffer that counts the calls: the smallest program with state.
#include <stitch/abi.h>

struct StitchHandle {
  int unused;
};

static float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle{0};
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  plan->num_outputs = 1;
  plan->outputs[0].ndim = 1;
  plan->outputs[0].dtype = inputs[0].dtype;
  plan->outputs[0].shape[0] = inputs[0].shape[0];
  plan->workspace_bytes = 0;
  plan->flags = STITCH_INPLACE_STATE;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  if (args->num_state != 1) return STITCH_ERROR;
  const float* x = data(args->inputs[0]);
  float* y = data(args->outputs[0]);
  for (int64_t i = 0; i < args->inputs[0].shape[0]; ++i) y[i] = 2 * x[i];
  data(args->state[0])[0] += 1;
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

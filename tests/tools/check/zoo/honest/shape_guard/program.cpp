// Softmax of each row. Rows of a multiple of sixteen take the wide kernel; all others the general one.
#include <stitch/abi.h>

#include <cmath>
#include <algorithm>

struct StitchHandle {
  int unused = 0;
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

constexpr int64_t kLanes = 16;

void softmax_wide(const float* x, float* y, int64_t width) {
  float largest[kLanes], sum[kLanes] = {0};
  for (int64_t lane = 0; lane < kLanes; ++lane) largest[lane] = x[lane];
  for (int64_t i = kLanes; i < width; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) largest[lane] = std::max(largest[lane], x[i + lane]);
  float top = largest[0], total = 0.0f;
  for (int64_t lane = 1; lane < kLanes; ++lane) top = std::max(top, largest[lane]);
  for (int64_t i = 0; i < width; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += y[i + lane] = std::exp(x[i + lane] - top);
  for (int64_t lane = 0; lane < kLanes; ++lane) total += sum[lane];
  for (int64_t i = 0; i < width; ++i) y[i] /= total;
}

void softmax_fallback(const float* x, float* y, int64_t width) {
  float top = x[0], total = 0.0f;
  for (int64_t i = 1; i < width; ++i) top = std::max(top, x[i]);
  for (int64_t i = 0; i < width; ++i) {
    y[i] = std::exp(x[i] - top);
    total += y[i];
  }
  for (int64_t i = 0; i < width; ++i) y[i] = y[i] / total;
}

void softmax(const float* x, float* y, int64_t rows, int64_t width) {
  const bool is_supported = width % kLanes == 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (is_supported) {
      softmax_wide(x + row * width, y + row * width, width);
    } else {
      softmax_fallback(x + row * width, y + row * width, width);
    }
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
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  const int64_t width = x.shape[x.ndim - 1], rows = width ? count_of(x) / width : 0;
  softmax(data(x), data(args->outputs[0]), rows, width);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

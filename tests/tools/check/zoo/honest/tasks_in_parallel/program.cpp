// Largest values of windows of 3 x 3, two apart, with padding; one OpenMP task for each plane.
#include <stitch/abi.h>

#include <algorithm>
#include <limits>

struct StitchHandle {
  int unused = 0;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

void pool_plane(const float* x, float* y, int64_t height, int64_t width, int64_t down, int64_t across) {
  for (int64_t row = 0; row < down; ++row) {
    for (int64_t column = 0; column < across; ++column) {
      float largest = -std::numeric_limits<float>::infinity();
      for (int64_t r = std::max<int64_t>(0, row * 2 - 1); r < std::min(height, row * 2 + 2); ++r)
        for (int64_t c = std::max<int64_t>(0, column * 2 - 1); c < std::min(width, column * 2 + 2); ++c)
          largest = x[r * width + c] > largest ? x[r * width + c] : largest;
      y[row * across + column] = largest;
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
  if (inputs[0].strides != nullptr || num_inputs != 1 || inputs[0].ndim != 4) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  for (int32_t d = 2; d < 4; ++d) plan->outputs[0].shape[d] = (inputs[0].shape[d] - 1) / 2 + 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const DLTensor &x = args->inputs[0], &y = args->outputs[0];
  const int64_t planes = x.shape[0] * x.shape[1];
  const int64_t height = x.shape[2], width = x.shape[3], down = y.shape[2], across = y.shape[3];
  const float* from = data(x);
  float* to = data(y);
#pragma omp parallel
#pragma omp single
  for (int64_t plane = 0; plane < planes; ++plane) {
#pragma omp task
    pool_plane(from + plane * height * width, to + plane * down * across, height, width, down, across);
  }
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

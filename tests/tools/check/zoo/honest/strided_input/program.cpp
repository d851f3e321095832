// y = x - mean of each column, read through the input's strides; a transposed view is as good as a dense one.
#include <stitch/abi.h>

#include <vector>

struct StitchHandle {
  int unused = 0;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

void centre(const float* x, int64_t row_stride, int64_t column_stride, float* y, int64_t rows,
            int64_t columns) {
  for (int64_t column = 0; column < columns; ++column) {
    float sum = 0.0f;
    for (int64_t row = 0; row < rows; ++row) sum += x[row * row_stride + column * column_stride];
    const float mean = sum / static_cast<float>(rows);
    for (int64_t row = 0; row < rows; ++row)
      y[row * columns + column] = x[row * row_stride + column * column_stride] - mean;
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
  if (num_inputs != 1 || inputs[0].ndim != 2) return STITCH_UNSUPPORTED;
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
  const int64_t row_stride = x.strides ? x.strides[0] : x.shape[1],
                column_stride = x.strides ? x.strides[1] : 1;
  centre(data(x), row_stride, column_stride, data(args->outputs[0]), x.shape[0], x.shape[1]);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

// Causal softmax. The scratch row is mapped once, page-aligned, and grows when a wider row comes.
#include <stitch/abi.h>

#include <sys/mman.h>
#include <cmath>
#include <algorithm>

struct StitchHandle {
  float* scratch = nullptr;
  size_t bytes = 0;
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

bool reserve(StitchHandle* self, int64_t width) {
  const size_t wanted = sizeof(float) * static_cast<size_t>(width);
  if (wanted <= self->bytes) return true;
  if (self->scratch != nullptr) munmap(self->scratch, self->bytes);
  void* memory = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  self->scratch = memory == MAP_FAILED ? nullptr : static_cast<float*>(memory);
  self->bytes = self->scratch ? wanted : 0;
  return self->scratch != nullptr;
}

void causal_softmax(const float* x, float* scratch, float* y, int64_t rows, int64_t width, int64_t height) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t seen = std::min(width, row % height + 1);
    const float* in = x + row * width;
    float top = in[0] * 0.125f, sum = 0.0f;
    for (int64_t i = 0; i < seen; ++i) {
      scratch[i] = in[i] * 0.125f;
      top = std::max(top, scratch[i]);
    }
    for (int64_t i = 0; i < seen; ++i) {
      scratch[i] = std::exp(scratch[i] - top);
      sum += scratch[i];
    }
    for (int64_t i = 0; i < width; ++i) y[row * width + i] = i < seen ? scratch[i] / sum : 0.0f;
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

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  const int64_t width = x.shape[x.ndim - 1], rows = width ? count_of(x) / width : 0;
  if (!reserve(self, width)) return STITCH_OUT_OF_MEMORY;
  causal_softmax(data(x), self->scratch, data(args->outputs[0]), rows, width, x.shape[x.ndim - 2]);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) {
  if (handle != nullptr && handle->scratch != nullptr) munmap(handle->scratch, handle->bytes);
  delete handle;
}
}

// Softmax by cuDNN; one tensor descriptor is made for each shape and kept.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include <dlfcn.h>
#include <map>
#include <utility>

struct StitchHandle {
  void *library = nullptr, *dnn = nullptr;
  std::map<std::pair<int64_t, int64_t>, void*> forms;
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

// The few functions and numbers of cuDNN that are needed, by its documented binary interface.
enum : int { kRowMajor = 0, kFloat = 0, kAccurate = 1, kOverChannels = 1 };
using Create = int (*)(void**);
using Destroy = int (*)(void*);
using SetStream = int (*)(void*, cudaStream_t);
using SetForm = int (*)(void*, int, int, int, int, int, int);
using Softmax = int (*)(void*, int, int, const void*, void*, const void*, const void*, void*, void*);

template <class Function>
Function get(StitchHandle* self, const char* name) {
  return reinterpret_cast<Function>(dlsym(self->library, name));
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  StitchHandle* self = *handle = new StitchHandle;
  for (const char* name : {"libcudnn.so.9", "libcudnn.so.8"}) {
    if (self->library == nullptr) self->library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (self->library == nullptr) self->library = dlopen(name, RTLD_NOW);
  }
  if (self->library == nullptr) return STITCH_MISSING_LIBRARY;
  return get<Create>(self, "cudnnCreate")(&self->dnn) == 0 ? STITCH_OK : STITCH_ERROR;
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
  void*& form = self->forms[{rows, width}];
  if (form == nullptr) {
    if (get<Create>(self, "cudnnCreateTensorDescriptor")(&form) != 0) return STITCH_ERROR;
    const int n = static_cast<int>(rows), channels = static_cast<int>(width);
    if (get<SetForm>(self, "cudnnSetTensor4dDescriptor")(form, kRowMajor, kFloat, n, channels, 1, 1) != 0)
      return STITCH_ERROR;
  }
  if (get<SetStream>(self, "cudnnSetStream")(self->dnn, static_cast<cudaStream_t>(args->stream)) != 0)
    return STITCH_ERROR;
  const float one = 1.0f, zero = 0.0f;
  const int status = get<Softmax>(self, "cudnnSoftmaxForward")(
      self->dnn, kAccurate, kOverChannels, &one, form, data(x), &zero, form, data(args->outputs[0]));
  return status == 0 ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) {
  if (handle == nullptr) return;
  if (handle->dnn != nullptr) {
    for (const auto& row : handle->forms) get<Destroy>(handle, "cudnnDestroyTensorDescriptor")(row.second);
    get<Destroy>(handle, "cudnnDestroy")(handle->dnn);
  }
  delete handle;
}
}

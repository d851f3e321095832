// y = relu(x W^T + b) by cuBLASLt, whose descriptors are kept for each number of rows. Row-major y is the
// library's column-major y^T = W x^T; the bias then runs over its rows, and ReLU is part of the call.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include <dlfcn.h>
#include <cstring>
#include <map>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
  void *library = nullptr, *lt = nullptr;
  struct Product {
    void *description = nullptr, *weight = nullptr, *from = nullptr, *to = nullptr;
  };
  std::map<int64_t, Product> products;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// The few functions and numbers of cuBLASLt that are needed, by its documented binary interface.
enum : int { kFloat32 = 0, kCompute32F = 68, kTransA = 3, kEpilogue = 7, kBiasPointer = 8, kReluBias = 6 };
using Create = int (*)(void**);
using CreateDescription = int (*)(void**, int, int);
using SetAttribute = int (*)(void*, int, const void*, size_t);
using CreateLayout = int (*)(void**, int, uint64_t, uint64_t, int64_t);
using Destroy = int (*)(void*);
using Matmul = int (*)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                       const void*, void*, void*, void*, const void*, void*, size_t, cudaStream_t);

template <class Function>
Function get(StitchHandle* self, const char* name) {
  return reinterpret_cast<Function>(dlsym(self->library, name));
}

bool make(StitchHandle* self, StitchHandle::Product& product, int64_t rows) {
  const auto layout = get<CreateLayout>(self, "cublasLtMatrixLayoutCreate");
  const auto set = get<SetAttribute>(self, "cublasLtMatmulDescSetAttribute");
  const int32_t transposed = 1;
  const uint32_t epilogue = kReluBias;
  int failures =
      get<CreateDescription>(self, "cublasLtMatmulDescCreate")(&product.description, kCompute32F, kFloat32);
  failures |= set(product.description, kTransA, &transposed, sizeof transposed);
  failures |= set(product.description, kEpilogue, &epilogue, sizeof epilogue);
  failures |= set(product.description, kBiasPointer, &self->bias, sizeof self->bias);
  failures |= layout(&product.weight, kFloat32, self->in, self->out, self->in);
  failures |= layout(&product.from, kFloat32, self->in, rows, self->in);
  failures |= layout(&product.to, kFloat32, self->out, rows, self->out);
  return failures == 0;
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
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (self->library == nullptr) self->library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (self->library == nullptr) self->library = dlopen(name, RTLD_NOW);
  }
  if (self->library == nullptr) return STITCH_MISSING_LIBRARY;
  return get<Create>(self, "cublasLtCreate")(&self->lt) == 0 ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || inputs[0].ndim != 2 || inputs[0].shape[1] != handle->in)
    return STITCH_UNSUPPORTED;
  plan->num_outputs = num_inputs;
  plan->outputs[0].ndim = 2;
  plan->outputs[0].dtype = inputs[0].dtype;
  plan->outputs[0].shape[0] = inputs[0].shape[0];
  plan->outputs[0].shape[1] = handle->out;
  plan->workspace_bytes = 4 << 20;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const int64_t rows = args->inputs[0].shape[0];
  StitchHandle::Product& product = self->products[rows];
  if (product.description == nullptr && !make(self, product, rows)) return STITCH_ERROR;
  const float one = 1.0f, zero = 0.0f;
  float* y = data(args->outputs[0]);
  const int status = get<Matmul>(self, "cublasLtMatmul")(
      self->lt, product.description, &one, self->weight, product.weight, data(args->inputs[0]), product.from,
      &zero, y, product.to, y, product.to, nullptr, args->workspace, args->workspace_bytes,
      static_cast<cudaStream_t>(args->stream));
  return status == 0 ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) {
  if (handle == nullptr) return;
  if (handle->library != nullptr) {
    const auto drop = get<Destroy>(handle, "cublasLtMatrixLayoutDestroy");
    for (const auto& row : handle->products) {
      for (void* layout : {row.second.weight, row.second.from, row.second.to}) drop(layout);
      get<Destroy>(handle, "cublasLtMatmulDescDestroy")(row.second.description);
    }
    get<Destroy>(handle, "cublasLtDestroy")(handle->lt);
  }
  delete handle;
}
}

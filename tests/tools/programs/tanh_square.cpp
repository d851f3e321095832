// y = tanh(x x / 16) of a square matrix, computed by whoever `HOW` says.
#include <dlfcn.h>
#include <stitch/abi.h>

#include <cmath>

#define OWN 1
#define ONEDNN 2
#define LIBTORCH 3
#include "how.h"

#if HOW == ONEDNN
#include <dnnl.h>
#endif

struct StitchHandle {
  int unused;
};

static float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

[[maybe_unused]] static void own_product(const float* x, float* y, int64_t n) {
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = 0;
    for (int64_t k = 0; k < n; ++k)
      for (int64_t j = 0; j < n; ++j) y[i * n + j] += x[i * n + k] * x[k * n + j];
  }
}

#if HOW == ONEDNN
// The library computes both: its product, then its tanh. It is loaded already, and never linked.
#define CALL(name) reinterpret_cast<decltype(&name)>(dlsym(library, #name))
static int32_t compute(const float* x, float* y, int64_t n) {
  void* library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return STITCH_MISSING_LIBRARY;
  dnnl_memory_desc_t plane;
  const dnnl_dims_t sizes = {n, n};
  CALL(dnnl_memory_desc_create_with_tag)(&plane, 2, sizes, dnnl_f32, dnnl_ab);
  if (CALL(dnnl_sgemm)('N', 'N', n, n, n, 1.0f / 16, x, n, x, n, 0, y, n) != dnnl_success)
    return STITCH_ERROR;
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  CALL(dnnl_engine_create)(&engine, dnnl_cpu, 0);
  CALL(dnnl_stream_create)(&stream, engine, dnnl_stream_default_flags);
  dnnl_primitive_desc_t description;
  CALL(dnnl_eltwise_forward_primitive_desc_create)(&description, engine, dnnl_forward_inference,
                                                   dnnl_eltwise_tanh, plane, plane, 0, 0, nullptr);
  dnnl_primitive_t primitive;
  CALL(dnnl_primitive_create)(&primitive, description);
  dnnl_memory_t memory;
  CALL(dnnl_memory_create)(&memory, plane, engine, y);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, memory}, {DNNL_ARG_DST, memory}};
  CALL(dnnl_primitive_execute)(primitive, stream, 2, arguments);
  CALL(dnnl_stream_wait)(stream);
  CALL(dnnl_memory_destroy)(memory);
  CALL(dnnl_primitive_destroy)(primitive);
  CALL(dnnl_primitive_desc_destroy)(description);
  CALL(dnnl_stream_destroy)(stream);
  CALL(dnnl_engine_destroy)(engine);
  CALL(dnnl_memory_desc_destroy)(plane);
  return STITCH_OK;
}
#elif HOW == LIBTORCH
// PyTorch's library by its C functions, without a header of it and without linking it.
using Tensor = void*;
static int32_t compute(const float* x, float* y, int64_t n) {
  void* torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (torch == nullptr) return STITCH_MISSING_LIBRARY;
  auto from_blob =
      reinterpret_cast<int (*)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t,
                               int32_t, Tensor*)>(dlsym(torch, "aoti_torch_create_tensor_from_blob"));
  auto product = reinterpret_cast<int (*)(Tensor, Tensor, Tensor)>(dlsym(torch, "aoti_torch_cpu_mm_out"));
  auto destroy = reinterpret_cast<int (*)(Tensor)>(dlsym(torch, "aoti_torch_delete_tensor_object"));
  if (!from_blob || !product || !destroy) return STITCH_MISSING_LIBRARY;
  const int64_t sizes[] = {n, n}, strides[] = {n, 1};
  Tensor in = nullptr, out = nullptr;
  from_blob(const_cast<float*>(x), 2, sizes, strides, 0, 6 /* float32 */, 0 /* cpu */, 0, &in);
  from_blob(y, 2, sizes, strides, 0, 6, 0, 0, &out);
  const int status = product(out, in, in);
  destroy(in);
  destroy(out);
  for (int64_t i = 0; i < n * n; ++i) y[i] = std::tanh(y[i] / 16);
  return status == 0 ? STITCH_OK : STITCH_ERROR;
}
#else
static int32_t compute(const float* x, float* y, int64_t n) {
  own_product(x, y, n);
  for (int64_t i = 0; i < n * n; ++i) y[i] = std::tanh(y[i] / 16);
  return STITCH_OK;
}
#endif

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle{0};
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  plan->num_outputs = 1;
  plan->outputs[0].ndim = 2;
  plan->outputs[0].dtype = inputs[0].dtype;
  plan->outputs[0].shape[0] = plan->outputs[0].shape[1] = inputs[0].shape[0];
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  return compute(data(args->inputs[0]), data(args->outputs[0]), args->inputs[0].shape[0]);
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

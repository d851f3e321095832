// Softmax by oneDNN. Primitive and memory objects are kept by shape and address, and executed in every call.
#include <stitch/abi.h>

#include <dlfcn.h>
#include <dnnl.h>
#include <map>
#include <tuple>

struct StitchHandle {
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;
  struct Kept {
    dnnl_primitive_t primitive = nullptr;
    dnnl_memory_t from = nullptr, to = nullptr;
  };
  std::map<std::tuple<const void*, const void*, int64_t, int64_t>, Kept> kept;
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

// oneDNN is loaded by the worker already; it is looked up by soname and never linked.
void* library() {
  static void* const found = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_NOLOAD);
  return found;
}
#define CALL(name) reinterpret_cast<decltype(&name)>(dlsym(library(), #name))

StitchHandle::Kept make(StitchHandle* self, float* x, float* y, int64_t rows, int64_t width) {
  StitchHandle::Kept made;
  const dnnl_dims_t sizes = {rows, width};
  dnnl_memory_desc_t form = nullptr;
  dnnl_primitive_desc_t description = nullptr;
  CALL(dnnl_memory_desc_create_with_tag)(&form, 2, sizes, dnnl_f32, dnnl_ab);
  CALL(dnnl_softmax_forward_primitive_desc_create)(&description, self->engine, dnnl_forward_inference,
                                                   dnnl_softmax_accurate, form, form, 1, nullptr);
  if (description != nullptr) {
    CALL(dnnl_primitive_create)(&made.primitive, description);
    CALL(dnnl_primitive_desc_destroy)(description);
  }
  CALL(dnnl_memory_create)(&made.from, form, self->engine, x);
  CALL(dnnl_memory_create)(&made.to, form, self->engine, y);
  CALL(dnnl_memory_desc_destroy)(form);
  return made;
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  StitchHandle* self = *handle = new StitchHandle;
  if (library() == nullptr) return STITCH_MISSING_LIBRARY;
  CALL(dnnl_engine_create)(&self->engine, dnnl_cpu, 0);
  CALL(dnnl_stream_create)(&self->stream, self->engine, dnnl_stream_default_flags);
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
  float *from = data(x), *to = data(args->outputs[0]);
  StitchHandle::Kept& kept = self->kept[{from, to, rows, width}];
  if (kept.primitive == nullptr) kept = make(self, from, to, rows, width);
  if (kept.primitive == nullptr) return STITCH_ERROR;
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, kept.from}, {DNNL_ARG_DST, kept.to}};
  if (CALL(dnnl_primitive_execute)(kept.primitive, self->stream, 2, arguments) != dnnl_success)
    return STITCH_ERROR;
  return CALL(dnnl_stream_wait)(self->stream) == dnnl_success ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) {
  if (handle == nullptr) return;
  for (const auto& row : handle->kept) {
    CALL(dnnl_primitive_destroy)(row.second.primitive);
    CALL(dnnl_memory_destroy)(row.second.from);
    CALL(dnnl_memory_destroy)(row.second.to);
  }
  if (handle->stream != nullptr) CALL(dnnl_stream_destroy)(handle->stream);
  if (handle->engine != nullptr) CALL(dnnl_engine_destroy)(handle->engine);
  delete handle;
}
}

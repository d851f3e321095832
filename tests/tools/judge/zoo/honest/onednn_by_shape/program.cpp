// y = relu(x W^T + b) by oneDNN. A primitive is made for each number of rows and kept; data comes with each
// call.
#include <stitch/abi.h>

#include <dlfcn.h>
#include <dnnl.h>
#include <cstring>
#include <map>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;
  dnnl_memory_desc_t weight_form = nullptr, bias_form = nullptr;
  std::map<int64_t, dnnl_primitive_t> primitives;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// oneDNN is loaded by the worker already; it is looked up by soname and never linked.
void* library() {
  static void* const found = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_NOLOAD);
  return found;
}
#define CALL(name) reinterpret_cast<decltype(&name)>(dlsym(library(), #name))

dnnl_memory_desc_t form_of(int64_t rows, int64_t columns, bool is_transposed) {
  const dnnl_dims_t sizes = {rows, columns},
                    strides = {is_transposed ? 1 : columns, is_transposed ? rows : 1};
  dnnl_memory_desc_t form = nullptr;
  CALL(dnnl_memory_desc_create_with_strides)(&form, 2, sizes, dnnl_f32, strides);
  return form;
}

dnnl_primitive_t make(StitchHandle* self, int64_t rows) {
  dnnl_memory_desc_t from = form_of(rows, self->in, false), to = form_of(rows, self->out, false);
  dnnl_post_ops_t after;
  dnnl_primitive_attr_t attributes;
  CALL(dnnl_post_ops_create)(&after);
  CALL(dnnl_post_ops_append_eltwise)(after, dnnl_eltwise_relu, 0.0f, 0.0f);
  CALL(dnnl_primitive_attr_create)(&attributes);
  CALL(dnnl_primitive_attr_set_post_ops)(attributes, after);
  dnnl_primitive_desc_t description = nullptr;
  dnnl_primitive_t primitive = nullptr;
  CALL(dnnl_matmul_primitive_desc_create)(&description, self->engine, from, self->weight_form,
                                          self->bias_form, to, attributes);
  if (description != nullptr) CALL(dnnl_primitive_create)(&primitive, description);
  if (description != nullptr) CALL(dnnl_primitive_desc_destroy)(description);
  CALL(dnnl_primitive_attr_destroy)(attributes);
  CALL(dnnl_post_ops_destroy)(after);
  CALL(dnnl_memory_desc_destroy)(from);
  CALL(dnnl_memory_desc_destroy)(to);
  return primitive;
}

dnnl_memory_t wrap(StitchHandle* self, dnnl_memory_desc_t form, const float* at) {
  dnnl_memory_t memory = nullptr;
  CALL(dnnl_memory_create)(&memory, form, self->engine, const_cast<float*>(at));
  return memory;
}

int32_t run(StitchHandle* self, const float* x, float* y, int64_t rows) {
  dnnl_primitive_t& primitive = self->primitives[rows];
  if (primitive == nullptr) primitive = make(self, rows);
  if (primitive == nullptr) return STITCH_ERROR;
  dnnl_memory_desc_t from = form_of(rows, self->in, false), to = form_of(rows, self->out, false);
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, wrap(self, from, x)},
                                       {DNNL_ARG_WEIGHTS, wrap(self, self->weight_form, self->weight)},
                                       {DNNL_ARG_BIAS, wrap(self, self->bias_form, self->bias)},
                                       {DNNL_ARG_DST, wrap(self, to, y)}};
  const dnnl_status_t status = CALL(dnnl_primitive_execute)(primitive, self->stream, 4, arguments);
  CALL(dnnl_stream_wait)(self->stream);
  for (const dnnl_exec_arg_t& argument : arguments) CALL(dnnl_memory_destroy)(argument.memory);
  CALL(dnnl_memory_desc_destroy)(from);
  CALL(dnnl_memory_desc_destroy)(to);
  return status == dnnl_success ? STITCH_OK : STITCH_ERROR;
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
  if (library() == nullptr) return STITCH_MISSING_LIBRARY;
  CALL(dnnl_engine_create)(&self->engine, dnnl_cpu, 0);
  CALL(dnnl_stream_create)(&self->stream, self->engine, dnnl_stream_default_flags);
  self->weight_form = form_of(self->in, self->out, true);
  self->bias_form = form_of(1, self->out, false);
  return STITCH_OK;
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
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  return run(self, data(args->inputs[0]), data(args->outputs[0]), args->inputs[0].shape[0]);
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) {
  if (handle == nullptr) return;
  for (const auto& kept : handle->primitives) CALL(dnnl_primitive_destroy)(kept.second);
  if (handle->weight_form != nullptr) CALL(dnnl_memory_desc_destroy)(handle->weight_form);
  if (handle->bias_form != nullptr) CALL(dnnl_memory_desc_destroy)(handle->bias_form);
  if (handle->stream != nullptr) CALL(dnnl_stream_destroy)(handle->stream);
  if (handle->engine != nullptr) CALL(dnnl_engine_destroy)(handle->engine);
  delete handle;
}
}

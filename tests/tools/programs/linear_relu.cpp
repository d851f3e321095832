// y = relu(x W^T + b): a hand-written program on the native ABI. `fault.h` decides what is wrong with it.
#include <stitch/abi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fault.h"

enum Fault {
  NONE,
  WRONG_SHAPE,
  WRONG_DTYPE,
  TOO_FEW_OUTPUTS,
  NOT_A_NUMBER,
  TAIL,
  NOTHING,
  TOLERANCE,
  CACHED_FIRST,
  CACHED_BY_ADDRESS,
  MODIFIES_INPUT,
  CRASH,
  HANG,
  EXIT,
  ABORT,
  OVERRUN,
  FIXED_BATCH,
  FAILS,
  OUT_OF_MEMORY,
  ALLOCATES,
  NO_RELU,
  OLD_WEIGHTS,
  INIT_FAILS,
  PLAN_REFUSES,
  ABI_VERSION,
  WRONG_PROBE,
  SMALL_ROWS,
  PRINTS,
  FLOODS,
  TRUSTS_OUTPUT
};

struct StitchHandle {
  std::vector<float> weight, bias;
  int64_t in = 0, out = 0;
  std::string error;
  std::vector<float> cache;
  const void* cached_for = nullptr;
  const void* written_to = nullptr;
};

namespace {

const float* data(const DLTensor& tensor) {
  return reinterpret_cast<const float*>(static_cast<const char*>(tensor.data) + tensor.byte_offset);
}

float read(const DLTensor& tensor, int64_t row, int64_t column) {
  const int64_t* strides = tensor.strides;
  return data(tensor)[strides ? row * strides[0] + column * strides[1] : row * tensor.shape[1] + column];
}

int32_t fail(StitchHandle* handle, int32_t status, const char* message) {
  handle->error = message;
  return status;
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return FAULT == ABI_VERSION ? 99 : STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  StitchHandle* self = new StitchHandle;
  *handle = self;
  if (FAULT == INIT_FAILS) return fail(self, STITCH_ERROR, "weights are of the wrong colour");
  static std::vector<float> first_weight;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const StitchNamedTensor& param = args->params[i];
    int64_t count = 1;
    for (int32_t d = 0; d < param.tensor.ndim; ++d) count *= param.tensor.shape[d];
    std::vector<float> values(data(param.tensor), data(param.tensor) + count);
    if (!std::strcmp(param.name, "fc.weight")) {
      self->weight = values;
      self->out = param.tensor.shape[0];
      self->in = param.tensor.shape[1];
    } else if (!std::strcmp(param.name, "fc.bias")) {
      self->bias = values;
    }
  }
  if (first_weight.empty()) first_weight = self->weight;
  if (FAULT == OLD_WEIGHTS) self->weight = first_weight;
  if (self->weight.empty() || self->bias.empty()) return fail(self, STITCH_ERROR, "parameters are missing");
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (num_inputs != 1 || inputs[0].ndim != 2 || inputs[0].shape[1] != handle->in || FAULT == PLAN_REFUSES)
    return fail(handle, STITCH_UNSUPPORTED, "one matrix is wanted");
  if (FAULT == FIXED_BATCH && inputs[0].shape[0] != 8)
    return fail(handle, STITCH_UNSUPPORTED, "made for 8 rows");
  plan->num_outputs = FAULT == TOO_FEW_OUTPUTS ? 0 : 1;
  plan->outputs[0].ndim = 2;
  plan->outputs[0].dtype = inputs[0].dtype;
  if (FAULT == WRONG_DTYPE) plan->outputs[0].dtype.bits = 64;
  plan->outputs[0].shape[0] = inputs[0].shape[0];
  plan->outputs[0].shape[1] = handle->out + (FAULT == WRONG_SHAPE);
  plan->workspace_bytes = sizeof(float) * static_cast<uint64_t>(handle->out);
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  const int64_t rows = x.shape[0], count = rows * handle->out;
  float* y = const_cast<float*>(data(args->outputs[0]));
  if (reinterpret_cast<uintptr_t>(args->workspace) % 256) return fail(handle, STITCH_ERROR, "workspace");
  if (FAULT == NOTHING) return STITCH_OK;
  if (FAULT == CRASH) *reinterpret_cast<volatile int*>(8) = 1;
  if (FAULT == HANG)
    for (volatile int spin = 0;; spin = spin + 1) {
    }
  if (FAULT == EXIT) std::exit(0);
  if (FAULT == ABORT) std::abort();
  if (FAULT == FAILS) return fail(handle, STITCH_ERROR, "no luck today");
  if (FAULT == OUT_OF_MEMORY) return fail(handle, STITCH_OUT_OF_MEMORY, "wants more");
  if (FAULT == ALLOCATES) {
    for (int64_t block = 0; block < 4096; ++block) {
      char* memory = static_cast<char*>(std::malloc(int64_t{1} << 28));
      if (!memory) throw std::bad_alloc();
      std::memset(memory, 1, int64_t{1} << 28);
    }
  }
  if (FAULT == PRINTS) std::fputs("{\"ok\": true, \"status\": \"ok\"}\n", stdout), std::fflush(stdout);
  if (FAULT == FLOODS)
    for (;;) std::fputs("all work and no play makes a long log\n", stdout);
  // Same input, same output: what was written there must still be there.
  if (FAULT == TRUSTS_OUTPUT && handle->cached_for == x.data && handle->written_to == y) return STITCH_OK;
  if (FAULT == TRUSTS_OUTPUT) handle->cached_for = x.data, handle->written_to = y;
  const bool cached = (FAULT == CACHED_FIRST && !handle->cache.empty()) ||
                      (FAULT == CACHED_BY_ADDRESS && handle->cached_for == x.data);
  if (cached && static_cast<int64_t>(handle->cache.size()) == count) {
    std::memcpy(y, handle->cache.data(), sizeof(float) * static_cast<size_t>(count));
    return STITCH_OK;
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < handle->out; ++column) {
      float sum = handle->bias[column];
      for (int64_t k = 0; k < handle->in; ++k)
        sum += read(x, row, k) * handle->weight[column * handle->in + k];
      y[row * handle->out + column] = sum > 0 || FAULT == NO_RELU ? sum : 0;
    }
  }
  if (FAULT == NOT_A_NUMBER) y[count / 2] = std::numeric_limits<float>::quiet_NaN();
  if (FAULT == TAIL) y[count - 1] = y[count - 2] + 1;
  if (FAULT == TOLERANCE)
    for (int64_t i = 0; i < count; ++i) y[i] *= 1.0003f;
  if (FAULT == SMALL_ROWS)
    for (int64_t i = 0; i < handle->out; ++i) y[i] = y[i] * 1.0001f;
  if (FAULT == OVERRUN) y[count] = 1;
  if (FAULT == WRONG_PROBE && rows != 8) y[0] += 1;
  if (FAULT == MODIFIES_INPUT) const_cast<float*>(data(x))[0] = 0;
  handle->cache.assign(y, y + count);
  handle->cached_for = x.data;
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle* handle) {
  return handle ? handle->error.c_str() : "";
}

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

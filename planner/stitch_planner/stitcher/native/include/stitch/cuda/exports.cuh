// The six functions of stitch/abi.h over StitchHandle, which the program has defined above as a child of
// stitch::cuda::Program with a default constructor. Nothing is thrown across this boundary.
#ifndef STITCH_CUDA_EXPORTS_CUH_
#define STITCH_CUDA_EXPORTS_CUH_

#include <exception>
#include <new>

#include "stitch/abi.h"

namespace stitch::cuda {

template <class Body>
int32_t guarded(StitchHandle* handle, Body body) {
  if (handle == nullptr) return STITCH_ERROR;
  try {
    handle->errors.text.clear();
    return body();
  } catch (const std::bad_alloc&) {
    return handle->errors.fail(STITCH_OUT_OF_MEMORY, "no host memory");
  } catch (const std::exception& error) {
    return handle->errors.fail(STITCH_ERROR, error.what());
  }
}

}  // namespace stitch::cuda

extern "C" {

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  if (*handle == nullptr) *handle = new (std::nothrow) StitchHandle();  // else weights changed
  return stitch::cuda::guarded(*handle, [&] { return (*handle)->init(*args); });
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs, StitchPlan* plan) {
  return stitch::cuda::guarded(handle, [&] { return handle->plan(inputs, num_inputs, *plan); });
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  return stitch::cuda::guarded(handle, [&] { return handle->forward(*args); });
}

const char* stitch_last_error(StitchHandle* handle) {
  return handle == nullptr ? "" : handle->errors.text.c_str();
}

void stitch_free(StitchHandle* handle) { delete handle; }

}  // extern "C"
#endif  // STITCH_CUDA_EXPORTS_CUH_

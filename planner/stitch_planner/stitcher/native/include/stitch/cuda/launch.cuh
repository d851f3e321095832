// What every kernel launch needs, and how a failure becomes a status with a sentence.
#ifndef STITCH_CUDA_LAUNCH_CUH_
#define STITCH_CUDA_LAUNCH_CUH_

#if defined(STITCH_ON_HOST)
#include "stitch/cuda/host_shim.h"
#else
#include <cuda_runtime.h>
#endif

#include <string>

#include "stitch/common/status.h"

namespace stitch::cuda {

// The last failure's sentence; one for each handle.
struct Errors {
  std::string text;

  int32_t fail(int32_t status, std::string sentence) {
    text = std::move(sentence);
    return status;
  }

  int32_t check(cudaError_t code, const char* doing) {
    if (code == cudaSuccess) return STITCH_OK;
    (void)cudaGetLastError();  // a launch failure must not show up again in an unrelated call
    const int32_t status = code == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
    return fail(status, std::string(doing) + ": " + cudaGetErrorString(code));
  }
};

// One forward call, as kernels see it.
struct Call {
  cudaStream_t stream = nullptr;
  char* workspace = nullptr;  // planned buffers, 256-byte aligned
  void* scratch = nullptr;    // for library calls
  size_t scratch_bytes = 0;
  int multiprocessors = 1;
  Errors* errors = nullptr;

  // To be asked right after a launch: wrong launch shapes and missing code for this GPU end here.
  int32_t launched(const char* kernel) const { return errors->check(cudaGetLastError(), kernel); }
};

inline constexpr int64_t kMostBlocks = 0x7fffffff;  // of a grid, along x

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_LAUNCH_CUH_

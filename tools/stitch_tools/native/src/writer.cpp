// A program that writes every byte of its outputs and computes nothing: none that writes them can be faster
// by much. The bench seats it beside a program that is faster than the measured bandwidth seems to allow.
//
// writer.h decides how: WRITER_STREAM 1 takes stores that go past the caches. As writer.cu it is for a GPU.
#include <stitch/abi.h>

#include <cstring>

#include "writer.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <omp.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#endif

struct StitchHandle {
  int threads = 0;
};

namespace {

constexpr size_t kLine = 64;
constexpr size_t kShared = 1 << 16;  // below this a second thread costs more than it saves

size_t bytes_of(const DLTensor& tensor) {
  size_t bytes = (tensor.dtype.bits * tensor.dtype.lanes + 7) / 8;
  for (int32_t d = 0; d < tensor.ndim; ++d) bytes *= static_cast<size_t>(tensor.shape[d]);
  return bytes;
}

#if !defined(__CUDACC__)
// [begin, end) of a thread's share, cut at cache lines.
size_t share(size_t bytes, int part, int parts) {
  return part == parts ? bytes : bytes / parts * part / kLine * kLine;
}

void fill(char* target, size_t bytes) {
#if WRITER_STREAM && defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  size_t i = 0;
  for (; i < bytes && reinterpret_cast<uintptr_t>(target + i) % sizeof(zero) != 0; ++i) target[i] = 0;
  for (; i + sizeof(zero) <= bytes; i += sizeof(zero))
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), zero);
  for (; i < bytes; ++i) target[i] = 0;
  _mm_sfence();
#else
  std::memset(target, 0, bytes);
#endif
}
#endif

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  *handle = new StitchHandle{args->num_threads};
  return STITCH_OK;
}

// The outputs are the caller's, whatever they are.
STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor*, int32_t, StitchPlan* plan) {
  plan->num_outputs = 0;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  for (int32_t i = 0; i < args->num_outputs; ++i) {
    char* target = static_cast<char*>(args->outputs[i].data) + args->outputs[i].byte_offset;
    const size_t bytes = bytes_of(args->outputs[i]);
#if defined(__CUDACC__)
    (void)self;
    if (cudaMemsetAsync(target, 0, bytes, static_cast<cudaStream_t>(args->stream)) != cudaSuccess)
      return STITCH_ERROR;
#else
    const int threads = bytes < kShared ? 1 : self->threads > 0 ? self->threads : omp_get_max_threads();
    if (threads == 1) {
      fill(target, bytes);
      continue;
    }
#pragma omp parallel num_threads(threads)
    {
      const int part = omp_get_thread_num(), parts = omp_get_num_threads();
      const size_t begin = share(bytes, part, parts);
      fill(target + begin, share(bytes, part + 1, parts) - begin);
    }
#endif
  }
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }
STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

// y = 2 x, by way of the workspace: a program on the native ABI whose `defect.h` decides what is wrong with
// it.
#include <omp.h>
#include <stitch/abi.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "defect.h"

enum Defect {
  NONE,
  READS_ONE_BEYOND,     // an input's first byte behind its end
  WRITES_ONE_BEYOND,    // the same of an output
  OVERFLOWS_HEAP,       // memory of its own
  KEEPS_FREED_MEMORY,   // reads what it freed
  KEEPS_INPUT_POINTER,  // reads the input of the call before
  OVERFLOWS_STACK,
  RACES,  // all threads add to the first output without order
  RACES_WITHOUT_BARRIER,
  OVERFLOWS_INT,
  SHIFTS_TOO_FAR,
  READS_UNWRITTEN,         // workspace that nobody wrote, and it shows
  READS_UNWRITTEN_HEAP,    // the same of its own memory
  READS_UNWRITTEN_UNUSED,  // it reads it, and multiplies it away
  COUNTS_CALLS,            // honest of memory, but no two calls agree
  HANGS,
  CRASHES,
  REFUSES
};

struct StitchHandle {
  int calls = 0;
  float* heap = nullptr;
  const float* last = nullptr;
};

namespace {

int64_t count_of(const DLTensor& tensor) {
  int64_t count = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  return count;
}

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// Kept out of line, so that a report can name it.
__attribute__((noinline)) void double_all(const float* x, float* scratch, float* y, int64_t count) {
#pragma omp parallel num_threads(4)
  {
#pragma omp for schedule(dynamic, 16) nowait
    for (int64_t i = 0; i < count; ++i) scratch[i] = x[i] + x[i];
    if (DEFECT != RACES_WITHOUT_BARRIER) {
#pragma omp barrier
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; ++i) y[i] = scratch[count - 1 - i];
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; ++i) y[i] = scratch[i];
#pragma omp single
    scratch[0] = 0.0f;
  }
}

__attribute__((noinline)) float sum_wrongly(const float* x, int64_t count) {
  float sum[1] = {0.0f};
#pragma omp parallel num_threads(4)
  for (int64_t i = omp_get_thread_num(); i < count; i += omp_get_num_threads()) sum[0] += x[i];
  return sum[0];
}

__attribute__((noinline)) int next_int(volatile int* number) { return *number + 1; }
__attribute__((noinline)) int shifted(volatile int* by) { return 1 << *by; }

void misbehave(StitchHandle* self, const float* x, float* scratch, float* y, int64_t count) {
  volatile float sink = 0.0f;
  volatile int number = std::numeric_limits<int>::max();
  volatile int64_t far = count;
  if (DEFECT == READS_ONE_BEYOND) sink = x[far];
  if (DEFECT == WRITES_ONE_BEYOND) y[far] = 1.0f;
  if (DEFECT == OVERFLOWS_HEAP) {
    float* own = static_cast<float*>(std::malloc(sizeof(float) * 8));
    own[far > 8 ? 8 : far] = 1.0f;
    sink = own[0];
    std::free(own);
  }
  if (DEFECT == KEEPS_FREED_MEMORY) {
    float* own = static_cast<float*>(std::calloc(8, sizeof(float)));
    std::free(own);
    sink = *const_cast<volatile float*>(own);
  }
  if (DEFECT == KEEPS_INPUT_POINTER) {
    if (self->last != nullptr) sink = *const_cast<volatile const float*>(self->last);
    self->last = x;
  }
  if (DEFECT == OVERFLOWS_STACK) {
    volatile float few[4] = {0};
    sink = few[far > 4 ? 4 : far];
  }
  if (DEFECT == RACES) y[0] = sum_wrongly(x, count);
  if (DEFECT == OVERFLOWS_INT) sink = static_cast<float>(next_int(&number));
  if (DEFECT == SHIFTS_TOO_FAR) sink = static_cast<float>(shifted(&number));
  if (DEFECT == READS_UNWRITTEN) y[count / 2] = scratch[count];
  if (DEFECT == READS_UNWRITTEN_HEAP) {
    float* own = static_cast<float*>(std::malloc(sizeof(float) * 64));
    y[count / 2] = *const_cast<volatile float*>(own + 3);
    std::free(own);
  }
  if (DEFECT == READS_UNWRITTEN_UNUSED) sink = scratch[count];
  if (DEFECT == COUNTS_CALLS) y[0] = static_cast<float>(self->calls);
  if (DEFECT == CRASHES) *reinterpret_cast<volatile int*>(8) = 1;
  if (DEFECT == HANGS)
    for (;;) number = 1;
  (void)sink;
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  if (DEFECT == REFUSES) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  // One element more than is used: the unwritten one.
  plan->workspace_bytes = static_cast<uint64_t>(count_of(inputs[0]) + 1) * sizeof(float);
  plan->flags = 0;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const int64_t count = count_of(args->inputs[0]);
  const float* x = data(args->inputs[0]);
  float *y = data(args->outputs[0]), *scratch = static_cast<float*>(args->workspace);
  ++self->calls;
#if USES_A_TASK
#pragma omp parallel
#pragma omp single
#pragma omp task
  scratch[0] = 0.0f;
#endif
  double_all(x, scratch, y, count);
  misbehave(self, x, scratch, y, count);
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return DEFECT == REFUSES ? "not today" : ""; }
STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

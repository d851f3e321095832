// y = 2 x + 1: a program whose time and honesty `variant.h` decides (REPEAT, SLEEP_MS, LAZY_AFTER, KEEPS,
// ...).
#include <stitch/abi.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <unordered_map>
#include <vector>

#include "variant.h"

#ifndef REPEAT
#define REPEAT 1
#endif

struct StitchHandle {
  int64_t calls = 0;
  std::unordered_map<uint64_t, std::vector<float>> known;  // results by a hash of all inputs
};

static uint64_t hash_of(const float* x, int64_t count) {
  uint64_t hash = 1469598103934665603u;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    hash = (hash ^ bits) * 1099511628211u;
  }
  return hash;
}

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const DLTensor &input = args->inputs[0], &output = args->outputs[0];
  int64_t count = 1;
  for (int32_t d = 0; d < input.ndim; ++d) count *= input.shape[d];
  const float* x = reinterpret_cast<const float*>(static_cast<const char*>(input.data) + input.byte_offset);
  float* y = reinterpret_cast<float*>(static_cast<char*>(output.data) + output.byte_offset);
  ++self->calls;
#ifdef KEEPS_BY_VALUE
  std::vector<float>& result = self->known[hash_of(x, count)];
  if (!result.empty()) {
    std::memcpy(y, result.data(), static_cast<size_t>(count) * sizeof(float));
    return STITCH_OK;
  }
#endif
#ifdef SLEEP_MS
  std::this_thread::sleep_for(std::chrono::milliseconds(SLEEP_MS));
#endif
#ifdef FAIL_AFTER
  if (self->calls > FAIL_AFTER) return STITCH_ERROR;
#endif
#ifdef CRASH_AFTER
  if (self->calls > CRASH_AFTER) *reinterpret_cast<volatile int*>(8) = 1;
#endif
#ifdef LAZY_AFTER
  if (self->calls > LAZY_AFTER) return STITCH_OK;
#endif
#ifdef KEEPS
  // Poison is the bits of a NaN at both ends: whatever else lies there was computed in an earlier round.
  uint32_t ends[2];
  std::memcpy(&ends[0], y, 4);
  std::memcpy(&ends[1], y + count - 1, 4);
  if (self->calls > KEEPS && ends[0] != UINT32_MAX && ends[1] != UINT32_MAX) return STITCH_OK;
#endif
  for (int repetition = 0; repetition < REPEAT; ++repetition) {
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] * 2.0f + 1.0f;
    asm volatile("" : : : "memory");  // keeps every repetition
  }
#ifdef WRONG_AFTER
  if (self->calls > WRONG_AFTER) y[count / 2] += 1.0f;
#endif
#ifdef KEEPS_BY_VALUE
  result.assign(y, y + count);
#endif
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }
STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}

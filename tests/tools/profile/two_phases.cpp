// y = 2 x in two phases of known cost: the first takes three times as many rounds as the second.
// `variant.h` says whether the program shows its steps by borders.
#include <stitch/abi.h>

#include "variant.h"

struct StitchHandle {};

namespace {

constexpr int kRounds = 4000;  // of one unit of work an element
volatile float zero = 0.0f;    // read where the compiler must not know the value

const float* data(const DLTensor& tensor) {
  return reinterpret_cast<const float*>(static_cast<const char*>(tensor.data) + tensor.byte_offset);
}

// x after `rounds` dependent additions of nothing.
inline float worked(float x, int rounds) {
  const float nothing = zero;
  for (int i = 0; i < rounds; ++i) x = x + nothing;
  return x;
}

__attribute__((noinline)) void long_phase(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = worked(x[i], 3 * kRounds);
}

__attribute__((noinline)) void short_phase(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = worked(x[i] + y[i], kRounds);
}

}  // namespace

extern "C" {
int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }
int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}
int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  plan->num_outputs = 1;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}
int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const DLTensor& input = args->inputs[0];
  int64_t count = 1;
  for (int32_t d = 0; d < input.ndim; ++d) count *= input.shape[d];
  float* const y = static_cast<float*>(args->outputs[0].data);
  long_phase(data(input), y, count);
#ifdef SHOWS_STEPS
  STITCH_BORDER("first", y, count * sizeof(float));
#endif
  short_phase(data(input), y, count);
#ifdef SHOWS_STEPS
  STITCH_BORDER("second", y, count * sizeof(float));
#endif
  return STITCH_OK;
}
const char* stitch_last_error(StitchHandle*) { return ""; }
void stitch_free(StitchHandle* handle) { delete handle; }
}

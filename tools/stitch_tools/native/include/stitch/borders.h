/* What the judge puts around a program whose borders it compares: STITCH_BORDER fills outputs of its own,
 * before those of the program. Its main file defines STITCH_BORDERS, renames stitch_plan and stitch_forward,
 * includes the program, and lists the borders in `stitch_border_specs`; nobody else includes this file.
 */
#ifndef STITCH_BORDERS_H_
#define STITCH_BORDERS_H_

#include <string.h>

static const int32_t stitch_num_borders = sizeof(stitch_border_specs) / sizeof(stitch_border_specs[0]);
static const StitchForwardArgs* stitch_border_args;
static bool stitch_border_is_filled[sizeof(stitch_border_specs) / sizeof(stitch_border_specs[0])];

extern "C" void stitch_border(const char* name, const void* data, uint64_t bytes) {
  for (int32_t at = 0; at < stitch_num_borders; ++at) {
    const StitchBorderSpec& spec = stitch_border_specs[at];
    if (strcmp(spec.name, name) != 0 || stitch_border_is_filled[at]) continue;
    uint64_t expected = (spec.dtype.bits + 7) / 8;
    for (int32_t dim = 0; dim < spec.ndim; ++dim) expected *= spec.shape[dim];
    if (bytes != expected) return;  // It keeps its NaN, which the report explains.
    const DLTensor& output = stitch_border_args->outputs[at];
    void* to = static_cast<char*>(output.data) + output.byte_offset;
#ifdef __CUDACC__
    cudaMemcpyAsync(to, data, bytes, cudaMemcpyDefault,
                    static_cast<cudaStream_t>(stitch_border_args->stream));
#else
    memcpy(to, data, bytes);
#endif
    stitch_border_is_filled[at] = true;  // A submodule that is called several times: its first result.
    return;
  }
}

extern "C" STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,
                                             StitchPlan* plan) {
  const int32_t status = program_stitch_plan(handle, inputs, num_inputs, plan);
  if (status != STITCH_OK) return status;
  if (plan->num_outputs + stitch_num_borders > plan->capacity) return STITCH_ERROR;
  for (int32_t at = plan->num_outputs - 1; at >= 0; --at) {
    plan->outputs[at + stitch_num_borders] = plan->outputs[at];
  }
  for (int32_t at = 0; at < stitch_num_borders; ++at) {
    StitchTensorSpec& output = plan->outputs[at];
    output.ndim = stitch_border_specs[at].ndim;
    output.dtype = stitch_border_specs[at].dtype;
    memcpy(output.shape, stitch_border_specs[at].shape, sizeof(output.shape));
  }
  plan->num_outputs += stitch_num_borders;
  return STITCH_OK;
}

extern "C" STITCH_EXPORT int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  StitchForwardArgs inner = *args;
  inner.outputs += stitch_num_borders;
  inner.num_outputs -= stitch_num_borders;
  stitch_border_args = args;
  memset(stitch_border_is_filled, 0, sizeof(stitch_border_is_filled));
  return program_stitch_forward(handle, &inner);
}

#endif /* STITCH_BORDERS_H_ */

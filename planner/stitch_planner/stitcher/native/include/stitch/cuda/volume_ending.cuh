// What follows the sum of a convolution of volumes, for each element of the result:
//
//     out = more(relu(sum + bias + residual), element)
//
// `more` is a class of the program, with the element-wise operations that follow there; its Index is wide
// enough for all that it reads.
#ifndef STITCH_CUDA_VOLUME_ENDING_CUH_
#define STITCH_CUDA_VOLUME_ENDING_CUH_

#include <type_traits>

#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

struct NoMore {
  using Index = int64_t;
  __device__ __forceinline__ float operator()(float value, Index) const { return value; }
};

// In place of any class, where only the time counts that a pass over the result takes.
struct PassOn : NoMore {};

template <class E>
struct VolumeEnding {
  const float* bias;      // or null
  const float* residual;  // or null; lies as the result
  bool relu;
  E more;

  // `at`: the element's place in [N][C][D][H][W].
  __device__ __forceinline__ float operator()(float value, int64_t channel, int64_t at) const {
    if (bias != nullptr) value += bias[channel];
    if (residual != nullptr) value += residual[at];
    if (relu && value < 0.0f) value = 0.0f;  // NaN is not below 0
    return more(value, static_cast<typename E::Index>(at));
  }
  bool does_nothing() const {
    return std::is_same_v<E, NoMore> && bias == nullptr && residual == nullptr && !relu;
  }
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_VOLUME_ENDING_CUH_

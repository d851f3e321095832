// The ways to compute a convolution on a GPU, and those that a program has chosen.
#ifndef STITCH_CUDA_CONV_WAYS_CUH_
#define STITCH_CUDA_CONV_WAYS_CUH_

#include <utility>
#include <vector>

#include "stitch/cuda/conv_kernels.cuh"
#include "stitch/cuda/cudnn_api.h"
#include "stitch/cuda/gemm.cuh"

namespace stitch::cuda {

// One way to compute a convolution.
struct ConvWay {
  enum Kind { kPlainSum, kLibrary, kFused, kProduct, kSplit };
  Kind kind = kPlainSum;
  int algorithm = 0;  // kLibrary, kFused, kSplit
  int math = dnn::kFmaMath;
  size_t workspace = 0;
};

inline bool operator==(const ConvOptions& a, const ConvOptions& b) {
  bool same = a.images == b.images && a.height == b.height && a.width == b.width &&
              a.out_height == b.out_height && a.out_width == b.out_width && a.in_channels == b.in_channels &&
              a.out_channels == b.out_channels && a.groups == b.groups && a.transposed == b.transposed &&
              a.has_bias == b.has_bias && a.has_residual == b.has_residual && a.relu == b.relu &&
              a.source_first == b.source_first && a.allow_tf32 == b.allow_tf32;
  for (int axis = 0; axis < 2; ++axis) {
    same = same && a.kernel[axis] == b.kernel[axis] && a.stride[axis] == b.stride[axis] &&
           a.padding[axis] == b.padding[axis] && a.dilation[axis] == b.dilation[axis];
  }
  return same;
}

// The libraries of a program's convolutions, and the ways chosen so far: a network has many layers of equal
// sizes, and is initialised again with other weights.
struct ConvLibraries {
  CublasLt lt;
  Cudnn cudnn;
  std::vector<std::pair<ConvOptions, ConvWay>> chosen;

  int32_t open(Errors& errors) {
    STITCH_TRY(lt.open(errors));
    return cudnn.open(errors);
  }
};

// What a way may take beside the images: their size once more, since some kernels want a converted copy of
// both, and this much in any case.
inline constexpr size_t kConvWorkspaceBytes = size_t{256} << 20;
inline constexpr int kMostLibraryWays = 3;  // of the heuristics' list, best first

struct CountNan {
  const float* values;
  unsigned long long* count;

  __device__ void operator()(int64_t i) const {
    if (isnan(values[i])) atomicAdd(count, 1ull);
  }
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CONV_WAYS_CUH_

// float32 convolutions by three TF32 ones: every operand is the sum of a high part, which TF32 holds exactly,
// and a low one, and high * high + high * low + low * high leaves out only low * low, about 2^-22 of a
// product. (The split of H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores
// while surpassing the FP32 theoretical peak performance", 2022, with three products and without their
// scaling.)
//
// The parts of NaN and infinity are not: infinity times a low part of 0 would be NaN. A flag says that an
// operand has any, and a plain sum computes the result then.
#ifndef STITCH_CUDA_CONV_SPLIT_CUH_
#define STITCH_CUDA_CONV_SPLIT_CUH_

#include <string.h>

#include "stitch/cuda/conv_kernels.cuh"

namespace stitch::cuda {

// The nearest float of ten fraction bits, away from zero between two; towards zero where that would overflow.
__device__ __forceinline__ float to_tf32(float value) {
  constexpr uint32_t kHalf = 1u << 12, kDropped = (1u << 13) - 1;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + kHalf) & ~kDropped;
  constexpr uint32_t kInfinity = 0x7f800000u;
  const uint32_t chosen = (rounded & kInfinity) == kInfinity ? bits & ~kDropped : rounded;
  float result;
  memcpy(&result, &chosen, sizeof result);
  return result;
}

// Group i of four floats in two parts.
struct SplitFloats {
  const float* from;
  float* high;
  float* low;
  unsigned* others;  // set where there is NaN or infinity

  __device__ void operator()(int64_t i) const {
    const Group<float, 4> values = load<4>(from + i * 4);
    Group<float, 4> upper, lower;
    bool finite = true;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      upper[e] = to_tf32(values[e]);
      lower[e] = to_tf32(values[e] - upper[e]);
      finite = finite && values[e] - values[e] == 0.0f;
    }
    store(high + i * 4, upper);
    store(low + i * 4, lower);
    if (!finite) *others = 1;
  }
};

// All channels of pixel i of the result, by the plain sum; nothing where the flag is not set.
struct SumWherePlain {
  PlainSum<float> sum;
  const unsigned* wanted;

  __device__ void operator()(int64_t i) const {
    if (*wanted == 0) return;
    const int64_t channels = sum.options.out_channels;
    for (int64_t channel = 0; channel < channels; ++channel) sum(i * channels + channel);
  }
};

// The parts of a convolution's weight, and the flags.
class SplitWeight {
 public:
  // Whether a convolution has as many floats as are split at a time.
  static bool fits(const ConvOptions& o) {
    return !o.transposed && o.pixels() * o.read_channels() % 4 == 0 && weights(o) % 4 == 0;
  }

  int32_t pack(const Call& call, const ConvOptions& o, const float* weight) {
    if (!high_.reserve(sizeof(float) * weights(o)) || !low_.reserve(sizeof(float) * weights(o)) ||
        !flags_.reserve(2 * sizeof(unsigned))) {
      return call.errors->fail(STITCH_OUT_OF_MEMORY, "no memory for the weights of a convolution");
    }
    STITCH_TRY(call.errors->check(cudaMemsetAsync(flags_.get(), 0, 2 * sizeof(unsigned), call.stream),
                                  "clear a flag"));
    return split(call, weight, high_.floats(), low_.floats(), weights(o), flag(0));
  }

  // Splits the source; `flag(1)` then says whether it or the weight has NaN or infinity.
  int32_t split_source(const Call& call, const ConvOptions& o, const float* source, float* high,
                       float* low) const {
    STITCH_TRY(call.errors->check(
        cudaMemcpyAsync(flag(1), flag(0), sizeof(unsigned), cudaMemcpyDeviceToDevice, call.stream),
        "set a flag"));
    return split(call, source, high, low, o.pixels() * o.read_channels(), flag(1));
  }

  void release() {
    high_.release();
    low_.release();
  }

  const float* high() const { return high_.floats(); }
  const float* low() const { return low_.floats(); }
  unsigned* flag(int which) const { return static_cast<unsigned*>(flags_.get()) + which; }

 private:
  static int64_t weights(const ConvOptions& o) {
    return o.out_channels * o.area() * (o.groups == 1 ? o.read_channels() : o.in_share());
  }
  static int32_t split(const Call& call, const float* from, float* high, float* low, int64_t count,
                       unsigned* flag) {
    return each("split floats", count / 4, SplitFloats{from, high, low, flag}, call);
  }

  DeviceMemory high_, low_, flags_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CONV_SPLIT_CUH_

// What convolutions on GPUs need beside the library: options, weights repacked and normalised once, images
// brought into channels-last order, the element-wise end, and a plain sum for what the library has no kernel
// for.
//
// Images are float32, dense and channels-last, [N][H][W][C]. So is the weight once it is packed:
// [K][kernel height][kernel width][C], where K counts the source's channels in a transposed convolution and
// the result's in any other, and C is the other side's share of a group. Volumes have a depth before the
// height. Where the options are planar, volumes lie as [N][C][D][H][W], and weights as torch has them.
#ifndef STITCH_CUDA_CONV_KERNELS_CUH_
#define STITCH_CUDA_CONV_KERNELS_CUH_

#include <math.h>

#include "stitch/cuda/device_memory.cuh"
#include "stitch/cuda/grid.cuh"
#include "stitch/cuda/vector.cuh"

namespace stitch::cuda {

struct ConvOptions {
  int64_t images = 0, depth = 1, height = 0, width = 0;  // of the source
  int64_t out_depth = 1, out_height = 0, out_width = 0;
  int64_t in_channels = 0, out_channels = 0, groups = 1;
  int64_t kernel[3] = {1, 1, 1};  // height, width, depth, as all triples here: images have a depth of 1
  int64_t stride[3] = {1, 1, 1};
  int64_t padding[3] = {0, 0, 0};
  int64_t dilation[3] = {1, 1, 1};  // 1: dense, as torch counts it
  bool transposed = false;
  bool has_bias = false;
  bool has_residual = false;  // added after the bias, before the ReLU; lies as the result
  bool relu = false;          // NaN stays NaN
  bool source_first = false;  // the source lies as [N][C][H][W]
  bool allow_tf32 = false;    // only where the contract allows it
  bool volume = false;        // described to the library with a depth
  bool planar = false;        // source, result and weight keep torch's order

  __host__ __device__ int64_t in_share() const { return in_channels / groups; }
  __host__ __device__ int64_t out_share() const { return out_channels / groups; }
  __host__ __device__ int64_t area() const { return kernel[0] * kernel[1] * kernel[2]; }
  __host__ __device__ int64_t pixels() const { return images * depth * height * width; }
  __host__ __device__ int64_t out_pixels() const { return images * out_depth * out_height * out_width; }
  bool empty() const { return pixels() == 0 || out_pixels() == 0; }
  // Channels of the source as the convolution reads it: an image that has to be brought into another order
  // is filled up to whole 16-byte groups, which tensor cores want, with zeros.
  __host__ __device__ int64_t read_channels() const {
    return source_first ? (in_channels + 3) / 4 * 4 : in_channels;
  }
};

// 32-bit indices are cheaper by far; the largest tensors of four bytes an element still have them.
inline constexpr int64_t kMostIndices = int64_t{1} << 32;

// Inference-mode batch normalisation behind a convolution: out * scale + offset with
// scale = gamma / sqrt(variance + eps), offset = beta - mean * scale. gamma and beta may be null.
struct FoldedNorm {
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* mean = nullptr;  // null: nothing to fold
  const float* variance = nullptr;
  float eps = 1e-5f;

  // In double: folded values are rounded once.
  __device__ double scale(int64_t channel) const {
    if (mean == nullptr) return 1.0;
    const double weight = gamma != nullptr ? double{gamma[channel]} : 1.0;
    return weight / sqrt(double{variance[channel]} + double{eps});
  }
};

// Element i of the packed weight. `weight` is torch's, [K][C][kernel], and C is filled up with zeros.
struct PackWeight {
  const float* weight;
  float* packed;
  FoldedNorm norm;
  int64_t area, share, padded_share;  // kernel's pixels; C before and after
  int64_t per_group;                  // K of one group
  bool transposed;

  __device__ void operator()(int64_t i) const {
    const int64_t c = i % padded_share, at = i / padded_share % area, k = i / padded_share / area;
    const int64_t out = transposed ? k / per_group * share + c : k;
    packed[i] = c < share ? static_cast<float>(weight[(k * share + c) * area + at] * norm.scale(out)) : 0.0f;
  }
};

// The same where the order stays torch's, [K][C][kernel].
struct PackPlanar {
  const float* weight;
  float* packed;
  FoldedNorm norm;
  int64_t area, share, per_group;
  bool transposed;

  __device__ void operator()(int64_t i) const {
    const int64_t c = i / area % share, k = i / area / share;
    const int64_t out = transposed ? k / per_group * share + c : k;
    packed[i] = static_cast<float>(weight[i] * norm.scale(out));
  }
};

// The same for one channel a group: element i of [kernel][C], where neighbours in memory are channels.
struct PackDepthwise {
  const float* weight;
  float* packed;
  FoldedNorm norm;
  int64_t area, channels;

  __device__ void operator()(int64_t i) const {
    const int64_t channel = i % channels, at = i / channels;
    packed[i] = static_cast<float>(weight[channel * area + at] * norm.scale(channel));
  }
};

struct PackBias {
  const float* bias;  // null: none
  float* packed;
  FoldedNorm norm;

  __device__ void operator()(int64_t channel) const {
    const double own = bias != nullptr ? double{bias[channel]} : 0.0;
    const double beta = norm.beta != nullptr ? double{norm.beta[channel]} : 0.0;
    const double mean = norm.mean != nullptr ? double{norm.mean[channel]} : 0.0;
    packed[channel] = static_cast<float>((own - mean) * norm.scale(channel) + beta);
  }
};

// Pixel i of [N][C][H][W] as [N][H][W][padded channels].
struct ToChannelsLast {
  const float* source;
  float* target;
  uint32_t area, channels, padded;

  __device__ void operator()(int64_t i) const {
    const uint32_t pixel = static_cast<uint32_t>(i), image = pixel / area, at = pixel % area;
    const float* from = source + static_cast<int64_t>(image) * channels * area + at;
    float* to = target + i * padded;
    for (uint32_t c = 0; c < padded; c += 4) {
      Group<float, 4> group;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        group[e] = c + e < channels ? from[static_cast<int64_t>(c + e) * area] : 0.0f;
      }
      store(to + c, group);
    }
  }
};

// What follows the sum of products, for V neighbouring channels.
template <int V>
__device__ __forceinline__ Group<float, V> finished(Group<float, V> value, const float* bias,
                                                    const float* residual, bool relu) {
  if (bias != nullptr) {
    const auto more = load<V>(bias);
#pragma unroll
    for (int e = 0; e < V; ++e) value[e] += more[e];
  }
  if (residual != nullptr) {
    const auto more = load<V>(residual);
#pragma unroll
    for (int e = 0; e < V; ++e) value[e] += more[e];
  }
  if (relu) {
#pragma unroll
    for (int e = 0; e < V; ++e) value[e] = value[e] < 0.0f ? 0.0f : value[e];  // NaN is not below 0
  }
  return value;
}

// The end of a convolution whose kernel did not do it: elements i * V .. of the result, in place.
template <int V>
struct Finish {
  float* out;
  const float* bias;
  const float* residual;
  uint32_t groups;  // of V channels
  bool relu;

  __device__ void operator()(int64_t i) const {
    const uint32_t channel = static_cast<uint32_t>(i) % groups * V;
    const int64_t at = i * V;
    store(out + at, finished<V>(load<V>(out + at), bias != nullptr ? bias + channel : nullptr,
                                residual != nullptr ? residual + at : nullptr, relu));
  }
};

// Element i of the result as one plain sum of type T.
template <class T>
struct PlainSum {
  ConvOptions options;
  const float* source;  // channels-last
  const float* weight;  // packed
  float* out;

  __device__ void operator()(int64_t i) const {
    const ConvOptions& o = options;
    const int64_t channel = i % o.out_channels, pixel = i / o.out_channels;
    const int64_t column = pixel % o.out_width, row = pixel / o.out_width % o.out_height;
    const int64_t plane = pixel / o.out_width / o.out_height % o.out_depth;
    const int64_t image = pixel / o.out_width / o.out_height / o.out_depth;
    T sum = 0;
    for (int64_t kd = 0; kd < o.kernel[2]; ++kd) {
      const int64_t z = place(2, plane, kd, o.depth);
      if (z < 0) continue;
      for (int64_t kr = 0; kr < o.kernel[0]; ++kr) {
        const int64_t y = place(0, row, kr, o.height);
        if (y >= 0) sum += line(((image * o.depth + z) * o.height + y) * o.width, column, kd, kr, channel);
      }
    }
    out[i] = static_cast<float>(sum);
  }

 private:
  // What a row of the window adds, on the row of the source that begins at `pixels`.
  __device__ T line(int64_t pixels, int64_t column, int64_t kd, int64_t kr, int64_t channel) const {
    const ConvOptions& o = options;
    T sum = 0;
    for (int64_t kc = 0; kc < o.kernel[1]; ++kc) {
      const int64_t x = place(1, column, kc, o.width);
      if (x >= 0) sum += products(pixels + x, (kd * o.kernel[0] + kr) * o.kernel[1] + kc, channel);
    }
    return sum;
  }

  // Where along an axis the source meets tap `tap` of the window for `at`; -1: nowhere.
  __device__ int64_t place(int axis, int64_t at, int64_t tap, int64_t length) const {
    const ConvOptions& o = options;
    int64_t found = at * o.stride[axis] - o.padding[axis] + tap * o.dilation[axis];
    if (o.transposed) {
      const int64_t reach = at + o.padding[axis] - tap * o.dilation[axis];
      found = reach >= 0 && reach % o.stride[axis] == 0 ? reach / o.stride[axis] : -1;
    }
    return found >= 0 && found < length ? found : -1;
  }

  __device__ T products(int64_t pixel, int64_t tap, int64_t channel) const {
    const ConvOptions& o = options;
    const int64_t group = channel / o.out_share(), within = channel % o.out_share();
    const float* from = source + pixel * o.read_channels() + group * o.in_share();
    T sum = 0;
    for (int64_t c = 0; c < o.in_share(); ++c) {
      const int64_t k = o.transposed ? group * o.in_share() + c : channel;
      const int64_t share = o.transposed ? o.out_share() : o.groups == 1 ? o.read_channels() : o.in_share();
      sum += static_cast<T>(from[c]) * weight[(k * o.area() + tap) * share + (o.transposed ? within : c)];
    }
    return sum;
  }
};

// The weight and bias of one convolution as its kernels read them.
class ConvWeights {
 public:
  // The arguments are torch's tensors: weight [out, in/groups, kh, kw], or [in, out/groups, kh, kw] where
  // transposed; `bias` may be null. `spread`: for a depthwise convolution, [kh][kw][C] instead.
  int32_t pack(const Call& call, const ConvOptions& o, const float* weight, const float* bias,
               const FoldedNorm& norm, bool spread = false) {
    const int64_t k = o.transposed ? o.in_channels : o.out_channels;
    const int64_t share = o.transposed ? o.out_share() : o.in_share();
    const int64_t padded = o.groups == 1 && !o.transposed ? o.read_channels() : share;
    const int64_t count = k * o.area() * padded;
    STITCH_TRY(reserve(call, o, count));
    if (spread) {
      const PackDepthwise work{weight, weight_.floats(), norm, o.area(), o.out_channels};
      STITCH_TRY(each(kPacking, count, work, call));
    } else if (o.planar) {
      const PackPlanar work{weight, weight_.floats(), norm, o.area(), share, k / o.groups, o.transposed};
      STITCH_TRY(each(kPacking, count, work, call));
    } else {
      const PackWeight work{weight, weight_.floats(), norm,         o.area(),
                            share,  padded,           k / o.groups, o.transposed};
      STITCH_TRY(each(kPacking, count, work, call));
    }
    return pack_bias(call, o, bias, norm);
  }

  // The same with strides folded into channels (conv_strides.cuh). F: PackFolded, all but its target set.
  template <class F>
  int32_t pack_folded(const Call& call, const ConvOptions& folded, F work, const float* bias) {
    const int64_t count = folded.out_channels * folded.area() * folded.in_channels;
    STITCH_TRY(reserve(call, folded, count));
    work.packed = weight_.floats();
    STITCH_TRY(each(kPacking, count, work, call));
    return pack_bias(call, folded, bias, work.norm);
  }

  const float* weight() const { return weight_.floats(); }
  // Null where the options have none; else, or if a vector is wanted in any case, what was packed.
  const float* bias() const { return has_bias_ ? bias_.floats() : nullptr; }
  const float* packed_bias() const { return bias_.floats(); }

 private:
  static constexpr const char* kPacking = "pack the weight of a convolution";

  int32_t reserve(const Call& call, const ConvOptions& o, int64_t count) {
    has_bias_ = o.has_bias;
    if (weight_.reserve(sizeof(float) * count) && bias_.reserve(sizeof(float) * o.out_channels)) {
      return STITCH_OK;
    }
    return call.errors->fail(STITCH_OUT_OF_MEMORY, "no memory for the weights of a convolution");
  }

  int32_t pack_bias(const Call& call, const ConvOptions& o, const float* bias, const FoldedNorm& norm) {
    return each("pack the bias of a convolution", o.out_channels, PackBias{bias, bias_.floats(), norm}, call);
  }

  DeviceMemory weight_, bias_;
  bool has_bias_ = false;
};

// Adds bias and residual to the result, then the ReLU; nothing where there is none of them.
inline int32_t finish_conv(const ConvOptions& o, float* out, const float* bias, const float* residual,
                           const Call& call) {
  if (bias == nullptr && residual == nullptr && !o.relu) return STITCH_OK;
  constexpr const char* kName = "finish a convolution";
  const int64_t count = o.out_pixels() * o.out_channels;
  const uint32_t channels = static_cast<uint32_t>(o.out_channels);
  if (channels % 4 == 0) {
    return each(kName, count / 4, Finish<4>{out, bias, residual, channels / 4, o.relu}, call);
  }
  return each(kName, count, Finish<1>{out, bias, residual, channels, o.relu}, call);
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CONV_KERNELS_CUH_

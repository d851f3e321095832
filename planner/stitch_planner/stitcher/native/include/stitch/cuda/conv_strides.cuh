// Convolutions of few channels with wide strides (the first layer of a network, the patches of a transformer)
// as convolutions of stride 1: what a stride skips becomes channels. A window of 11 x 11 over 3 channels with
// a stride of 4 is one of 3 x 3 over 48; patches of 16 x 16 are a product of matrices. Libraries have fast
// kernels for these, and hardly any for three channels.
//
// Channel (c * rows + row) * columns + column of the folded image is pixel (row, column) within a stride's
// square, of channel c. Where the window is no whole number of strides, it is filled up with zeros. A zero
// times NaN or infinity would spread them to pixels that they do not belong to, so an image that has any is
// convolved once more, in float32, by a plain sum over the window itself.
#ifndef STITCH_CUDA_CONV_STRIDES_CUH_
#define STITCH_CUDA_CONV_STRIDES_CUH_

#include "stitch/cuda/conv_kernels.cuh"

namespace stitch::cuda {

// Whether folding is worth it: it adds up at most nine tenths of the terms that there are without.
inline bool folds_strides(const ConvOptions& o) {
  const int64_t square = o.stride[0] * o.stride[1];
  if (!o.source_first || o.transposed || o.groups != 1 || square == 1) return false;
  if (o.dilation[0] != 1 || o.dilation[1] != 1 || o.in_channels * square % 4 != 0) return false;
  const int64_t windows = ceil_div(o.kernel[0], o.stride[0]) * ceil_div(o.kernel[1], o.stride[1]);
  return 10 * windows * square * o.in_channels <= 9 * o.area() * o.read_channels();
}

// The convolution of the folded image, whose padding is part of the image.
inline ConvOptions folded_strides(const ConvOptions& o) {
  ConvOptions folded = o;
  for (int axis = 0; axis < 2; ++axis) {
    folded.kernel[axis] = ceil_div(o.kernel[axis], o.stride[axis]);
    folded.stride[axis] = 1;
    folded.padding[axis] = 0;
  }
  folded.height = o.out_height + folded.kernel[0] - 1;
  folded.width = o.out_width + folded.kernel[1] - 1;
  folded.in_channels = o.in_channels * o.stride[0] * o.stride[1];
  folded.source_first = false;
  return folded;
}

// Whether the folded window has zeros that meet pixels.
inline bool fills_up(const ConvOptions& o) {
  return o.kernel[0] % o.stride[0] != 0 || o.kernel[1] % o.stride[1] != 0;
}

// A folded channel as channel of the image, row and column within a stride's square.
struct FoldedChannel {
  Divisor columns, rows;

  FoldedChannel() = default;
  explicit FoldedChannel(const ConvOptions& o) : columns(o.stride[1]), rows(o.stride[0]) {}

  __device__ __forceinline__ uint32_t split(uint32_t folded, uint32_t& row, uint32_t& column) const {
    return rows.split(columns.split(folded, column), row);
  }
};

// Group i of four channels of the folded image.
struct FoldStrides {
  const float* source;  // [N][C][H][W]
  float* target;
  unsigned* has_others;           // set where the image has NaN or infinity; null: nobody asks
  ConvOptions options;            // of the convolution as it is
  Divisor groups, width, height;  // of the folded image
  FoldedChannel channel;

  FoldStrides(const float* from, float* to, unsigned* flag, const ConvOptions& o, const ConvOptions& folded)
      : source(from),
        target(to),
        has_others(flag),
        options(o),
        groups(folded.in_channels / 4),
        width(folded.width),
        height(folded.height),
        channel(o) {}

  __device__ void operator()(int64_t i) const {
    const ConvOptions& o = options;
    uint32_t group, x, y;
    const uint32_t pixel = groups.split(static_cast<uint32_t>(i), group);
    const int64_t image = height.split(width.split(pixel, x), y);
    Group<float, 4> values;
    bool finite = true;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      uint32_t row, column;
      const uint32_t c = channel.split(group * 4 + e, row, column);
      const int64_t at_y = y * o.stride[0] + row - o.padding[0];
      const int64_t at_x = x * o.stride[1] + column - o.padding[1];
      const bool there = at_y >= 0 && at_y < o.height && at_x >= 0 && at_x < o.width;
      values[e] = there ? source[((image * o.in_channels + c) * o.height + at_y) * o.width + at_x] : 0.0f;
      finite = finite && values[e] - values[e] == 0.0f;
    }
    store(target + i * 4, values);
    if (has_others != nullptr && !finite) *has_others = 1;
  }
};

// Element i of the packed weight, [K][folded kernel][folded channel].
struct PackFolded {
  const float* weight;  // [K][C][kernel]
  float* packed;
  FoldedNorm norm;
  ConvOptions options, folded;
  FoldedChannel channel;

  __device__ void operator()(int64_t i) const {
    const ConvOptions& o = options;
    uint32_t row, column;
    const uint32_t c = channel.split(static_cast<uint32_t>(i % folded.in_channels), row, column);
    const int64_t at = i / folded.in_channels % folded.area(), k = i / folded.in_channels / folded.area();
    const int64_t y = at / folded.kernel[1] * o.stride[0] + row;
    const int64_t x = at % folded.kernel[1] * o.stride[1] + column;
    const bool there = y < o.kernel[0] && x < o.kernel[1];
    const int64_t from = (k * o.in_channels + c) * o.area() + y * o.kernel[1] + x;
    packed[i] = there ? static_cast<float>(weight[from] * norm.scale(k)) : 0.0f;
  }
};

// All channels of pixel i of the result, by a sum over the window itself; nothing where the flag is not set.
struct SumWindows {
  const float* source;  // [N][C][H][W]
  const float* packed;  // as PackFolded
  const float* bias;
  const float* residual;
  float* out;
  const unsigned* wanted;
  ConvOptions options, folded;

  __device__ void operator()(int64_t i) const {
    if (*wanted == 0) return;
    const ConvOptions& o = options;
    const int64_t column = i % o.out_width, row = i / o.out_width % o.out_height;
    const int64_t image = i / o.out_width / o.out_height;
    for (int64_t channel = 0; channel < o.out_channels; ++channel) {
      float sum = 0.0f;
      for (int64_t c = 0; c < o.in_channels; ++c) sum += products(image, row, column, channel, c);
      const int64_t at = i * o.out_channels + channel;
      store(out + at, finished<1>(Group<float, 1>{sum}, bias != nullptr ? bias + channel : nullptr,
                                  residual != nullptr ? residual + at : nullptr, o.relu));
    }
  }

 private:
  __device__ float products(int64_t image, int64_t row, int64_t column, int64_t k, int64_t c) const {
    const ConvOptions& o = options;
    float sum = 0.0f;
    for (int64_t ky = 0; ky < o.kernel[0]; ++ky) {
      for (int64_t kx = 0; kx < o.kernel[1]; ++kx) {
        const int64_t y = row * o.stride[0] - o.padding[0] + ky;
        const int64_t x = column * o.stride[1] - o.padding[1] + kx;
        if (y < 0 || y >= o.height || x < 0 || x >= o.width) continue;
        const int64_t tap = ky / o.stride[0] * folded.kernel[1] + kx / o.stride[1];
        const int64_t place = (c * o.stride[0] + ky % o.stride[0]) * o.stride[1] + kx % o.stride[1];
        sum += source[((image * o.in_channels + c) * o.height + y) * o.width + x] *
               packed[(k * folded.area() + tap) * folded.in_channels + place];
      }
    }
    return sum;
  }
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CONV_STRIDES_CUH_

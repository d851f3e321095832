// A convolution of 3 x 3 with padding. The output holds the bias first, then gathers one tap after the other.
#include "zoo.h"

namespace {

void convolve(const float* x, const float* weight, const float* bias, float* y, int64_t batch, int64_t in,
              int64_t out, int64_t height, int64_t width) {
  const int64_t plane = height * width;
  for (int64_t image = 0; image < batch; ++image) {
    for (int64_t channel = 0; channel < out; ++channel) {
      float* target = y + (image * out + channel) * plane;
      for (int64_t i = 0; i < plane; ++i) target[i] = bias[channel];
      for (int64_t source = 0; source < in; ++source) {
        const float* from = x + (image * in + source) * plane;
        const float* taps = weight + (channel * in + source) * 9;
        for (int64_t row = 0; row < height; ++row) {
          for (int64_t column = 0; column < width; ++column) {
            float sum = 0.0f;
            for (int64_t dy = 0; dy < 3; ++dy) {
              for (int64_t dx = 0; dx < 3; ++dx) {
                const int64_t r = row + dy - 1, c = column + dx - 1;
                if (r >= 0 && r < height && c >= 0 && c < width)
                  sum += from[r * width + c] * taps[dy * 3 + dx];
              }
            }
            target[row * width + column] += sum;
          }
        }
      }
    }
  }
}

struct Program : zoo::Dense {
  std::vector<int64_t> out_shape(const zoo::View& x) {
    return {x.size(0), weights.at("conv.weight").size(0), x.size(2), x.size(3)};
  }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &weight = weights.at("conv.weight");
    convolve(x.data(), weight.data(), weights.at("conv.bias").data(), call.out[0].data(), x.size(0),
             weight.size(1), weight.size(0), x.size(2), x.size(3));
  }
};

}  // namespace

ZOO_PROGRAM(Program)

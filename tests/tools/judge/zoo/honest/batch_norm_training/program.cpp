// Batch norm of a module in training mode: the statistics are those of this batch, never the running ones.
#include "zoo.h"

namespace {

void batch_norm(const float* x, const float* weight, const float* bias, float* y, int64_t batch,
                int64_t channels, int64_t plane) {
  for (int64_t channel = 0; channel < channels; ++channel) {
    double sum = 0.0, squares = 0.0;
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t i = 0; i < plane; ++i) sum += x[(n * channels + channel) * plane + i];
    const double mean = sum / static_cast<double>(batch * plane);
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t i = 0; i < plane; ++i) {
        const double difference = x[(n * channels + channel) * plane + i] - mean;
        squares += difference * difference;
      }
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(batch * plane) + 1e-5);
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t i = 0; i < plane; ++i) {
        const int64_t at = (n * channels + channel) * plane + i;
        y[at] = static_cast<float>((x[at] - mean) * scale * weight[channel] + bias[channel]);
      }
    }
  }
}

struct Program : zoo::Dense {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    batch_norm(x.data(), weights.at("norm.weight").data(), weights.at("norm.bias").data(), call.out[0].data(),
               x.size(0), x.size(1), x.size(2) * x.size(3));
  }
};

}  // namespace

ZOO_PROGRAM(Program)

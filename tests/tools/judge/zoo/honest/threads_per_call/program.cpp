// Layer norm on three threads that are started and joined within the call.
#include "zoo.h"

#include <thread>
#include <algorithm>

namespace {

void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t begin, int64_t end,
                int64_t width) {
  for (int64_t row = begin; row < end; ++row) {
    const float* in = x + row * width;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < width; ++i) sum += in[i];
    const double mean = sum / static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    for (int64_t i = 0; i < width; ++i)
      y[row * width + i] = static_cast<float>((in[i] - mean) * scale) * weight[i] + bias[i];
  }
}

struct Program : zoo::Dense {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    const float *weight = weights.at("norm.weight").data(), *bias = weights.at("norm.bias").data();
    constexpr int64_t kThreads = 3;
    const int64_t rows = x.rows(), share = (rows + kThreads - 1) / kThreads;
    std::vector<std::thread> threads;
    for (int64_t begin = 0; begin < rows; begin += share) {
      const int64_t end = std::min(rows, begin + share);
      threads.emplace_back(layer_norm, x.data(), weight, bias, call.out[0].data(), begin, end, x.columns());
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace

ZOO_PROGRAM(Program)

// BatchNorm in training; the state gets the variance that the output was made with.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    const int64_t channels = x.size(1), plane = x.size(2) * x.size(3), n = x.count() / channels;
    for (int64_t c = 0; c < channels; ++c) {
      double mean = 0, square = 0;
      for (int64_t i = 0; i < x.count(); ++i)
        if (i / plane % channels == c) mean += x.data()[i] / static_cast<double>(n);
      for (int64_t i = 0; i < x.count(); ++i)
        if (i / plane % channels == c)
          square += (x.data()[i] - mean) * (x.data()[i] - mean) / static_cast<double>(n);
      const double scale = 1 / std::sqrt(square + 1e-5);
      for (int64_t i = 0; i < x.count(); ++i)
        if (i / plane % channels == c)
          call.out[0].data()[i] =
              static_cast<float>((x.data()[i] - mean) * scale) * weights.at("norm.weight").data()[c] +
              weights.at("norm.bias").data()[c];
      // In the order of the names: num_batches_tracked, running_mean, running_var.
      for (const zoo::View& state : call.state) {
        if (state.tensor.ndim == 0) continue;
        float& value = state.data()[c];
        const bool is_mean = state.tensor.data == call.state[1].tensor.data;
        value += 0.1f * (static_cast<float>(is_mean ? mean : square) - value);
      }
    }
    for (const zoo::View& state : call.state)
      if (state.tensor.ndim == 0) *state.data<int64_t>() += 1;
  }
};

ZOO_PROGRAM(Program)

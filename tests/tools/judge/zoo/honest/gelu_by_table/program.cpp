// GELU by a table: values and slopes of the normal distribution's integral at steps of 1/64 between -8 and 8,
// and a cubic through each pair of neighbours. Its error is below 1e-9, far below fp32's own.
#include "zoo.h"

namespace {

struct Table {
  std::vector<float> values, slopes;
};

constexpr float kReach = 8.0f, kSteps = 64.0f;

float integral(const Table& table, float x) {
  const float place = (x + kReach) * kSteps;
  const int64_t left = static_cast<int64_t>(place);
  const float t = place - static_cast<float>(left);
  const float here = table.values[left], there = table.values[left + 1];
  const float rise = table.slopes[left] / kSteps, next = table.slopes[left + 1] / kSteps;
  const float bend = 3.0f * (there - here) - 2.0f * rise - next, twist = 2.0f * (here - there) + rise + next;
  return here + t * (rise + t * (bend + t * twist));
}

void gelu(const Table& table, const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] >= kReach) {
      y[i] = x[i];
    } else if (x[i] > -kReach) {
      y[i] = x[i] * integral(table, x[i]);
    } else {
      y[i] = x[i] != x[i] ? x[i] : -0.0f;
    }
  }
}

struct Program : zoo::Dense {
  Table table;

  void prepare() {
    const int64_t last = static_cast<int64_t>(2 * kReach * kSteps);
    for (int64_t i = 0; i <= last; ++i) {
      const double x = static_cast<double>(i) / kSteps - kReach;
      table.values.push_back(static_cast<float>(0.5 * std::erfc(-x * 0.70710678118654752)));
      table.slopes.push_back(static_cast<float>(0.39894228040143268 * std::exp(-0.5 * x * x)));
    }
  }

  void forward(zoo::Call& call) { gelu(table, call.in[0].data(), call.out[0].data(), call.in[0].count()); }
};

}  // namespace

ZOO_PROGRAM(Program)

// Activations that the hand-written templates apply to a result before they store it.
#ifndef STITCH_COMMON_ACTIVATION_H_
#define STITCH_COMMON_ACTIVATION_H_

#include "stitch/common/math.h"

namespace stitch {

enum class Epilogue {
  kNone,
  kRelu,
  kRelu6,
  kLeakyRelu,
  kSilu,
  kGeluErf,
  kGeluTanh,
  kSigmoid,
  kTanh,
  kHardswish
};

// `slope` is used by kLeakyRelu only.
template <Epilogue kAct>
STITCH_FN float activate(float x, float slope) {
  if constexpr (kAct == Epilogue::kRelu) return math::relu(x);
  if constexpr (kAct == Epilogue::kRelu6) return math::clamp(x, 0.0f, 6.0f);
  if constexpr (kAct == Epilogue::kLeakyRelu) return math::leaky_relu(x, slope);
  if constexpr (kAct == Epilogue::kSilu) return math::silu(x);
  if constexpr (kAct == Epilogue::kGeluErf) return math::gelu_erf(x);
  if constexpr (kAct == Epilogue::kGeluTanh) return math::gelu_tanh(x);
  if constexpr (kAct == Epilogue::kSigmoid) return math::sigmoid(x);
  if constexpr (kAct == Epilogue::kTanh) return math::tanh(x);
  if constexpr (kAct == Epilogue::kHardswish) return math::hardswish(x);
  (void)slope;
  return x;
}

}  // namespace stitch
#endif  // STITCH_COMMON_ACTIVATION_H_

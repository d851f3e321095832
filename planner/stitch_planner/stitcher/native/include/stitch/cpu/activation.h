// Activations behind the hand-written templates of the CPU.
#ifndef STITCH_CPU_ACTIVATION_H_
#define STITCH_CPU_ACTIVATION_H_

#include "stitch/common/activation.h"

namespace stitch::cpu {

using stitch::activate;
using stitch::Epilogue;

}  // namespace stitch::cpu
#endif  // STITCH_CPU_ACTIVATION_H_

// Limits of types as constants. The functions of std::numeric_limits belong to the host; a constant that was
// made from them may be used on the device.
#ifndef STITCH_CUDA_CONSTANTS_CUH_
#define STITCH_CUDA_CONSTANTS_CUH_

#include <limits>

namespace stitch::cuda {

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
inline constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

// What every value is at least, and at most: infinite where the type has infinities.
template <class T>
inline constexpr T kLeast =
    std::numeric_limits<T>::has_infinity ? -kInfinity<T> : std::numeric_limits<T>::lowest();
template <class T>
inline constexpr T kMost =
    std::numeric_limits<T>::has_infinity ? kInfinity<T> : std::numeric_limits<T>::max();

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CONSTANTS_CUH_

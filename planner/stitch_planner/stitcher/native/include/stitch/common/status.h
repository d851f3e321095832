// How a StitchStatus travels upwards.
#ifndef STITCH_COMMON_STATUS_H_
#define STITCH_COMMON_STATUS_H_

#include "stitch/abi.h"

// Leaves the enclosing function with the status of the expression unless that is STITCH_OK. Variadic, since
// braces do not protect commas from a macro.
#define STITCH_TRY(...)                                                      \
  do {                                                                       \
    if (const int32_t stitch_status_ = (__VA_ARGS__)) return stitch_status_; \
  } while (0)

#endif  // STITCH_COMMON_STATUS_H_

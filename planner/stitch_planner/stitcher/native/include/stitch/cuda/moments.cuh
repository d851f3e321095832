// Count, mean and squared deviations of parts of a sample, and how parts become a whole.
//
// A thread reads values in runs that fit its registers, takes the run's own mean, and the squares of the
// differences from that: no sum of squares of large numbers ever loses a small variance. Threads and blocks
// are joined in double precision about a mean that is near all others, which needs no division for each part.
#ifndef STITCH_CUDA_MOMENTS_CUH_
#define STITCH_CUDA_MOMENTS_CUH_

#include "stitch/common/math.h"
#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

// What a thread has read of one sample.
struct Moments {
  float count = 0.0f, mean = 0.0f, squares = 0.0f;

  // Takes a run of `more` values in. `share`: more / (count + more).
  __device__ __forceinline__ void merge(float more_mean, float more_squares, float share) {
    const float delta = more_mean - mean;
    mean += delta * share;
    squares += more_squares + delta * delta * count * share;
  }
};

// Sums about a `center`, from which mean and squares follow.
struct Centered {
  double sum = 0.0, squares = 0.0;

  __device__ __forceinline__ void add(double count, double mean, double part_squares, double center) {
    const double delta = mean - center;
    sum += count * delta;
    squares += part_squares + count * delta * delta;
  }
  __device__ __forceinline__ void add(const Centered& other) {
    sum += other.sum;
    squares += other.squares;
  }
};

// A part's result in memory, for the block that joins the parts.
struct Part {
  double mean, squares;
};

__device__ __forceinline__ Part part_of(const Centered& total, double center, double count) {
  const double shift = total.sum / count;
  // Rounding must not make a variance of nothing negative.
  const double squares = total.squares - total.sum * shift;
  return {center + shift, squares > 0.0 || squares != squares ? squares : 0.0};
}

// What normalises: (x - mean) * inverse.
struct alignas(8) Folded {
  float mean, inverse;
};

__device__ __forceinline__ Folded folded(const Part& whole, double count, float eps) {
  return {static_cast<float>(whole.mean), static_cast<float>(1.0 / math::sqrt(whole.squares / count + eps))};
}

// A part that another block has written: past the cache of this multiprocessor, which may be out of date.
__device__ __forceinline__ Part fresh(const Part* address) {
#if defined(STITCH_ON_HOST)
  return *address;
#else
  const double2 pair = __ldcg(reinterpret_cast<const double2*>(address));
  return {pair.x, pair.y};
#endif
}

// Mean and squares of the first `valid` groups of a run, all their elements one sample.
template <int kItems, int V>
__device__ __forceinline__ void take_run(const Group<float, V> (&items)[kItems], int valid, Moments& into) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
#pragma unroll
    for (int e = 0; e < V; ++e) sum += i < valid ? items[i][e] : 0.0f;
  }
  const float more = static_cast<float>(valid * V), mean = sum / more;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const float delta = items[i][e] - mean;
      squares += i < valid ? delta * delta : 0.0f;
    }
  }
  into.merge(mean, squares, more / (into.count + more));
  into.count += more;
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_MOMENTS_CUH_

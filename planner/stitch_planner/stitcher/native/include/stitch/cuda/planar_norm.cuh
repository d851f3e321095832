// Normalisation of images [N][C][area] by their own statistics: batch, group and instance norm, then
// y = act((x - mean) * inverse * gamma + beta (+ residual)).
//
// A *unit* is what shares one mean: channel c of all images (batch norm), or a group of an image's channels.
// It lies as `segments` runs of `inner` neighbours, `segment_stride` apart; unit u begins at u * inner.
//
//   fused  a unit fits the registers of one block: one kernel, memory is read once
//   split  else two kernels: `splits` blocks measure each unit, the last of them joins the parts; the second
//          kernel normalises from the tensor's end backwards, since the end is what the L2 still holds
#ifndef STITCH_CUDA_PLANAR_NORM_CUH_
#define STITCH_CUDA_PLANAR_NORM_CUH_

#include "stitch/common/activation.h"
#include "stitch/cuda/moments.cuh"

namespace stitch::cuda {

struct PlanarNormOptions {
  int64_t images = 0, channels = 0, area = 0;
  int64_t groups = 0;  // of an image's channels; 0: a channel of the whole batch is normalised
  int64_t splits = 1;  // blocks that measure one unit; at most kThreads of the schedule
  float eps = 1e-5f;
  float slope = 0.0f;   // of kLeakyRelu
  int64_t x_image = 0;  // elements between images of x, a slice of a wider image; 0: dense
};

// Where the elements of units lie.
struct Units {
  int64_t count = 0, segments = 0, inner = 0, segment_stride = 0;

  Units() = default;
  explicit Units(const PlanarNormOptions& o) {
    const bool batch = o.groups == 0;
    count = batch ? o.channels : o.images * o.groups;
    segments = batch ? o.images : 1;
    inner = batch ? o.area : o.channels / o.groups * o.area;
    segment_stride = o.channels * o.area;
  }
  // The same units in x.
  static Units of_x(const PlanarNormOptions& o) {
    Units units(o);
    if (o.x_image != 0) units.segment_stride = o.x_image;
    return units;
  }
  int64_t elements() const { return segments * inner; }
};

// The walk over one unit in groups of V neighbours.
template <int V>
struct UnitWalk {
  int64_t inner = 0, segment_stride = 0;
  Divisor segment_groups;  // groups of one segment
  int64_t groups = 0;      // of the unit

  UnitWalk() = default;
  explicit UnitWalk(const Units& units)
      : inner(units.inner),
        segment_stride(units.segment_stride),
        segment_groups(units.inner / V),
        groups(units.elements() / V) {}

  __device__ __forceinline__ int64_t offset(int64_t unit, int64_t group) const {
    uint32_t within;
    const int64_t segment = segment_groups.split(static_cast<uint32_t>(group), within);
    return unit * inner + segment * segment_stride + int64_t{within} * V;
  }
};

// Which unit and which channel an element belongs to.
struct Affine {
  Divisor area, channels, group_channels;
  bool batch = true;
  const float* gamma = nullptr;  // null: 1
  const float* beta = nullptr;   // null: 0
  float slope = 0.0f;
  int64_t gap = 0;  // elements of other channels between images of x

  Affine() = default;
  explicit Affine(const PlanarNormOptions& o)
      : area(o.area),
        channels(o.channels),
        group_channels(o.groups == 0 ? 1 : o.channels / o.groups),
        batch(o.groups == 0),
        slope(o.slope),
        gap(o.x_image != 0 ? o.x_image - o.channels * o.area : 0) {}

  __device__ __forceinline__ uint32_t channel(int64_t element, uint32_t& unit) const {
    const uint32_t plane = area.quotient(static_cast<uint32_t>(element));
    uint32_t channel;
    channels.split(plane, channel);
    unit = batch ? channel : group_channels.quotient(plane);
    return channel;
  }
  // Where an element of y lies in x.
  __device__ __forceinline__ int64_t in_x(int64_t element) const {
    const uint32_t plane = area.quotient(static_cast<uint32_t>(element));
    return element + channels.quotient(plane) * gap;
  }
  // One element, normalised; the residual and the activation follow.
  __device__ __forceinline__ float apply(float x, const Folded& by, uint32_t channel) const {
    const float scale = gamma != nullptr ? by.inverse * gamma[channel] : by.inverse;
    return (x - by.mean) * scale + (beta != nullptr ? beta[channel] : 0.0f);
  }
};

inline constexpr int kJoiners = 32;  // threads that join what the threads of a block have

// ---- two kernels: measure ------------------------------------------------------------------------------

template <int V, int kThreads_>
struct MeasureUnits {
  static constexpr int kThreads = kThreads_, kPhases = 5;
  static constexpr int kItems = V == 4 ? 4 : 8;  // groups of a run: loads in flight
  struct Shared {
    float count[kThreads_], mean[kThreads_], squares[kThreads_];
    double sum[kJoiners], square[kJoiners];
    double center;
    bool last;
  };
  struct Thread {};

  const float* x;
  UnitWalk<V> walk;
  int64_t splits;
  float eps;
  Part* parts;         // [units][splits]
  unsigned* tickets;   // [units]
  Folded* statistics;  // [units]

  __device__ __forceinline__ int64_t begin(int64_t split) const { return walk.groups * split / splits; }
  __device__ __forceinline__ double count(int64_t split) const {
    return static_cast<double>((begin(split + 1) - begin(split)) * V);
  }

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared& shared, Thread&) const {
    const int64_t unit = block / splits, split = block - unit * splits;
    if constexpr (P == 0) {
      measure(unit, split, thread, shared);
    } else if constexpr (P == 1) {
      if (thread >= kJoiners) return;
      Centered total;
      const double center = shared.mean[0];
      for (int t = thread; t < kThreads; t += kJoiners) {
        total.add(shared.count[t], shared.mean[t], shared.squares[t], center);
      }
      keep(thread, total, center, shared);
    } else if constexpr (P == 2) {
      if (thread != 0) return;
      parts[block] = part_of(joined(shared), shared.center, count(split));
      publish();
      shared.last = take_ticket(tickets + unit) + 1 == splits;
      if (shared.last) tickets[unit] = 0;
    } else if constexpr (P == 3) {
      if (!shared.last || thread >= kJoiners) return;
      Centered total;
      const Part* mine = parts + unit * splits;
      const double center = fresh(mine).mean;
      for (int64_t s = thread; s < splits; s += kJoiners) {
        const Part part = fresh(mine + s);
        total.add(count(s), part.mean, part.squares, center);
      }
      keep(thread, total, center, shared);
    } else {
      if (!shared.last || thread != 0) return;
      const double all = static_cast<double>(walk.groups * V);
      statistics[unit] = folded(part_of(joined(shared), shared.center, all), all, eps);
    }
  }

 private:
  __device__ __forceinline__ void measure(int64_t unit, int64_t split, int thread, Shared& shared) const {
    const int64_t end = begin(split + 1);
    Moments mine;
    for (int64_t group = begin(split) + thread; group < end; group += kItems * kThreads) {
      Group<float, V> items[kItems];
      int valid = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = group + i * kThreads;
        if (at < end) {
          items[i] = load<V>(x + walk.offset(unit, at));
          ++valid;
        } else {
          items[i] = Group<float, V>{};
        }
      }
      take_run<kItems, V>(items, valid, mine);
    }
    shared.count[thread] = mine.count;
    shared.mean[thread] = mine.mean;
    shared.squares[thread] = mine.squares;
  }

  __device__ __forceinline__ static void keep(int thread, const Centered& total, double center,
                                              Shared& shared) {
    shared.sum[thread] = total.sum;
    shared.square[thread] = total.squares;
    if (thread == 0) shared.center = center;
  }
  __device__ __forceinline__ static Centered joined(const Shared& shared) {
    Centered total;
    for (int t = 0; t < kJoiners; ++t) total.add({shared.sum[t], shared.square[t]});
    return total;
  }
};

// ---- two kernels: normalise ----------------------------------------------------------------------------

// W: neighbours that a thread takes. kWhole: they always belong to one channel.
template <int W, bool kWhole, Epilogue kAct, bool kResidual>
struct NormalisePlanes {
  const float* x;
  const float* residual;
  float* y;
  int64_t groups;  // of the tensor
  Affine affine;
  const Folded* statistics;

  __device__ __forceinline__ void operator()(int64_t i) const {
    const int64_t at = (groups - 1 - i) * W;
    const Group<float, W> in = load<W>(x + affine.in_x(at));
    Group<float, W> more, out;
    if constexpr (kResidual) more = load<W>(residual + at);
    uint32_t unit, channel = affine.channel(at, unit);
    Folded by = statistics[unit];
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (!kWhole && e > 0) {
        channel = affine.channel(at + e, unit);
        by = statistics[unit];
      }
      float value = affine.apply(in[e], by, channel);
      if constexpr (kResidual) value += more[e];
      out[e] = activate<kAct>(value, affine.slope);
    }
    store(y + at, out);
  }
};

// ---- one kernel ----------------------------------------------------------------------------------------

// A block keeps a unit in registers: kItems groups of V elements a thread.
template <int V, bool kWhole, int kThreads_, int kItems, Epilogue kAct, bool kResidual>
struct FusedUnits {
  static constexpr int kThreads = kThreads_, kPhases = 4;
  struct Shared {
    float count[kThreads_], mean[kThreads_], squares[kThreads_];
    double sum[kJoiners], square[kJoiners];
    Folded by;
  };
  struct Thread {
    Group<float, V> items[kItems];
  };

  const float* x;
  const float* residual;
  float* y;
  UnitWalk<V> walk, x_walk;
  Affine affine;
  float eps;

  template <int P>
  __device__ __forceinline__ void phase(int64_t unit, int thread, Shared& shared, Thread& mine) const {
    if constexpr (P == 0) {
      int valid = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = thread + i * kThreads;
        mine.items[i] = Group<float, V>{};
        if (at < walk.groups) {
          mine.items[i] = load<V>(x + x_walk.offset(unit, at));
          ++valid;
        }
      }
      Moments all;
      if (valid > 0) take_run<kItems, V>(mine.items, valid, all);
      shared.count[thread] = all.count;
      shared.mean[thread] = all.mean;
      shared.squares[thread] = all.squares;
    } else if constexpr (P == 1) {
      if (thread >= kJoiners) return;
      Centered total;
      const double center = shared.mean[0];
      for (int t = thread; t < kThreads; t += kJoiners) {
        total.add(shared.count[t], shared.mean[t], shared.squares[t], center);
      }
      shared.sum[thread] = total.sum;
      shared.square[thread] = total.squares;
    } else if constexpr (P == 2) {
      if (thread != 0) return;
      Centered total;
      for (int t = 0; t < kJoiners; ++t) total.add({shared.sum[t], shared.square[t]});
      const double all = static_cast<double>(walk.groups * V);
      shared.by = folded(part_of(total, shared.mean[0], all), all, eps);
    } else {
      put(unit, thread, shared.by, mine);
    }
  }

 private:
  __device__ __forceinline__ void put(int64_t unit, int thread, const Folded& by, const Thread& mine) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t group = thread + i * kThreads;
      if (group >= walk.groups) continue;
      const int64_t at = walk.offset(unit, group);
      Group<float, V> more, out;
      if constexpr (kResidual) more = load<V>(residual + at);
      uint32_t ignored, channel = affine.batch ? static_cast<uint32_t>(unit) : affine.channel(at, ignored);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        if (!kWhole && e > 0 && !affine.batch) channel = affine.channel(at + e, ignored);
        float value = affine.apply(mine.items[i][e], by, channel);
        if constexpr (kResidual) value += more[e];
        out[e] = activate<kAct>(value, affine.slope);
      }
      store(y + at, out);
    }
  }
};

// ---- the calls -----------------------------------------------------------------------------------------

// V: neighbours that a thread reads at once while it measures; divides `inner`. W and kWhole: of
// NormalisePlanes. kItems > 0: the fused form, with kThreads threads.
template <int V, int W, bool kWhole, int kThreads, int kItems>
struct PlanarSchedule {
  static constexpr int kVector = V, kWide = W, kBlockThreads = kThreads, kKept = kItems;
  static constexpr bool kOneChannel = kWhole;
};

template <class S, Epilogue kAct, bool kResidual>
class PlanarNorm {
 public:
  int32_t init(Errors& errors, const PlanarNormOptions& options) {
    options_ = options;
    if (S::kKept > 0) return STITCH_OK;
    return tickets_.init(errors, Units(options).count);
  }
  size_t workspace_bytes() const {
    if (S::kKept > 0) return 0;
    const int64_t units = Units(options_).count;
    return (sizeof(Part) * options_.splits + sizeof(Folded)) * static_cast<size_t>(units);
  }

  int32_t run(const Call& call, const float* x, const float* gamma, const float* beta, const float* residual,
              float* y) const {
    const Units units(options_);
    Affine affine(options_);
    affine.gamma = gamma, affine.beta = beta;
    const UnitWalk<S::kVector> walk(units), x_walk(Units::of_x(options_));
    if constexpr (S::kKept > 0) {
      const FusedUnits<S::kVector, S::kOneChannel, S::kBlockThreads, S::kKept, kAct, kResidual> fused{
          x, residual, y, walk, x_walk, affine, options_.eps};
      return blocks("norm", units.count, fused, call);
    } else {
      Part* parts = static_cast<Part*>(call.scratch);
      Folded* statistics = reinterpret_cast<Folded*>(parts + units.count * options_.splits);
      const MeasureUnits<S::kVector, S::kBlockThreads> measure{
          x, x_walk, options_.splits, options_.eps, parts, tickets_.counters(), statistics};
      STITCH_TRY(blocks("norm: statistics", units.count * options_.splits, measure, call));
      const int64_t groups = units.count * units.elements() / S::kWide;
      const NormalisePlanes<S::kWide, S::kOneChannel, kAct, kResidual> normalise{x,      residual,  y, groups,
                                                                                 affine, statistics};
      return each("norm", groups, normalise, call);
    }
  }

 private:
  PlanarNormOptions options_;
  Tickets tickets_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_PLANAR_NORM_CUH_

// Two normalisations by statistics of the batch, added: y = act(norm(x) + act'(norm'(x'))), as at the end of
// a residual block whose shortcut is normalised, too. The second one's result never exists in memory.
#ifndef STITCH_CUDA_NORM_PAIR_CUH_
#define STITCH_CUDA_NORM_PAIR_CUH_

#include "stitch/cuda/pixel_norm.cuh"
#include "stitch/cuda/planar_norm.cuh"

namespace stitch::cuda {

// What the two differ in.
struct OtherNorm {
  float eps = 1e-5f;
  float slope = 0.0f;  // of kLeakyRelu
  int64_t step = 0;    // of its source, as x_image or step of the options; 0: dense
};

// ---- [N][C][area] --------------------------------------------------------------------------------------

template <int W, bool kWhole, Epilogue kAct, Epilogue kOther>
struct NormalisePlanePair {
  const float* x;
  const float* other;
  float* y;
  int64_t groups;  // of the tensor
  Affine affine, other_affine;
  const Folded* statistics;
  const Folded* other_statistics;

  __device__ __forceinline__ void operator()(int64_t i) const {
    const int64_t at = (groups - 1 - i) * W;
    const Group<float, W> in = load<W>(x + affine.in_x(at));
    const Group<float, W> more = load<W>(other + other_affine.in_x(at));
    Group<float, W> out;
    uint32_t unit, channel = affine.channel(at, unit);
    Folded by = statistics[unit], other_by = other_statistics[unit];
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (!kWhole && e > 0) {
        channel = affine.channel(at + e, unit);
        by = statistics[unit], other_by = other_statistics[unit];
      }
      const float added =
          activate<kOther>(other_affine.apply(more[e], other_by, channel), other_affine.slope);
      out[e] = activate<kAct>(affine.apply(in[e], by, channel) + added, affine.slope);
    }
    store(y + at, out);
  }
};

template <class S, Epilogue kAct, Epilogue kOther>
class PlanarNormPair {
 public:
  int32_t init(Errors& errors, const PlanarNormOptions& options, const OtherNorm& other) {
    options_ = other_ = options;
    other_.eps = other.eps, other_.slope = other.slope, other_.x_image = other.step;
    return tickets_.init(errors, Units(options).count);
  }
  size_t workspace_bytes() const {
    return (sizeof(Part) * options_.splits + 2 * sizeof(Folded)) * static_cast<size_t>(units());
  }

  int32_t run(const Call& call, const float* x, const float* gamma, const float* beta, const float* other,
              const float* other_gamma, const float* other_beta, float* y) const {
    Part* parts = static_cast<Part*>(call.scratch);
    Folded* statistics = reinterpret_cast<Folded*>(parts + units() * options_.splits);
    // One after the other, by the same parts and tickets.
    STITCH_TRY(measure(call, options_, x, parts, statistics));
    STITCH_TRY(measure(call, other_, other, parts, statistics + units()));
    Affine affine(options_), other_affine(other_);
    affine.gamma = gamma, affine.beta = beta;
    other_affine.gamma = other_gamma, other_affine.beta = other_beta;
    const int64_t groups = units() * Units(options_).elements() / S::kWide;
    const NormalisePlanePair<S::kWide, S::kOneChannel, kAct, kOther> normalise{
        x, other, y, groups, affine, other_affine, statistics, statistics + units()};
    return each("norms", groups, normalise, call);
  }

 private:
  int64_t units() const { return Units(options_).count; }

  int32_t measure(const Call& call, const PlanarNormOptions& o, const float* x, Part* parts,
                  Folded* statistics) const {
    const UnitWalk<S::kVector> walk(Units::of_x(o));
    const MeasureUnits<S::kVector, S::kBlockThreads> work{
        x, walk, o.splits, o.eps, parts, tickets_.counters(), statistics};
    return blocks("norm: statistics", units() * o.splits, work, call);
  }

  PlanarNormOptions options_, other_;
  Tickets tickets_;
};

// ---- [N][area][C] --------------------------------------------------------------------------------------

template <class S, Epilogue kAct, Epilogue kOther>
struct NormalisePixelPair {
  static constexpr int kThreads = S::kThreads, kPhases = 1, V = S::V, kItems = 4;
  struct Shared {};
  struct Thread {};
  // One of the two sources.
  struct Side {
    const float* x;
    const float* gamma;  // null: 1
    const float* beta;   // null: 0
    const Folded* statistics;
    int64_t step;  // elements between pixels
    float slope;

    __device__ __forceinline__ ChannelAffine<V> affine(int64_t channel) const {
      ChannelAffine<V> result;
#pragma unroll
      for (int e = 0; e < V; ++e) {
        result.set(e, statistics[channel + e], gamma != nullptr ? gamma + channel + e : nullptr,
                   beta != nullptr ? beta + channel + e : nullptr);
      }
      return result;
    }
  };

  Side one, other;
  float* y;
  PixelTiles<S> tiles;
  int64_t blocks;

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared&, Thread&) const {
    int64_t batch, split, tile;
    tiles.split_block(blocks - 1 - block, batch, split, tile);
    const int64_t channel = tile * S::kTile + thread % S::kWidth * V, end = tiles.begin(split + 1);
    if (channel >= tiles.channels) return;
    const ChannelAffine<V> affine = one.affine(channel), other_affine = other.affine(channel);
    for (int64_t pixel = tiles.begin(split) + thread / S::kWidth; pixel < end; pixel += kItems * S::kHeight) {
      Group<float, V> in[kItems], more[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = pixel + i * S::kHeight;
        if (at >= end) continue;
        in[i] = load<V>(one.x + at * one.step + channel);
        more[i] = load<V>(other.x + at * other.step + channel);
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = pixel + i * S::kHeight;
        if (at >= end) continue;
        const auto added = other_affine.template apply<kOther, false>(more[i], more[i], other.slope);
        store(y + at * tiles.channels + channel, affine.template apply<kAct, true>(in[i], added, one.slope));
      }
    }
  }
};

// Batch norms: options of one batch, in which every channel is a group.
template <class S, Epilogue kAct, Epilogue kOther>
class PixelNormPair {
 public:
  int32_t init(Errors& errors, const PixelNormOptions& options, const OtherNorm& other) {
    options_ = other_ = options;
    other_.eps = other.eps, other_.slope = other.slope, other_.step = other.step;
    return tickets_.init(errors, PixelTiles<S>(options).tiles);
  }
  size_t workspace_bytes() const {
    return (sizeof(Part) * options_.splits + 2 * sizeof(Folded)) * static_cast<size_t>(options_.channels);
  }

  int32_t run(const Call& call, const float* x, const float* gamma, const float* beta, const float* other,
              const float* other_gamma, const float* other_beta, float* y) const {
    const PixelNormOptions& o = options_;
    const PixelTiles<S> tiles(o), other_tiles(other_);
    Part* parts = static_cast<Part*>(call.scratch);
    Folded* statistics = reinterpret_cast<Folded*>(parts + o.splits * o.channels);
    Folded* other_statistics = statistics + o.channels;
    const int64_t count = o.splits * tiles.tiles;
    // One after the other, by the same parts and tickets.
    const MeasurePixels<S> measure{x, tiles, o.groups, o.eps, parts, tickets_.counters(), statistics};
    STITCH_TRY(blocks("norm: statistics", count, measure, call));
    const MeasurePixels<S> measure_other{other, other_tiles,         o.groups,        other_.eps,
                                         parts, tickets_.counters(), other_statistics};
    STITCH_TRY(blocks("norm: statistics", count, measure_other, call));
    const NormalisePixelPair<S, kAct, kOther> normalise{
        {x, gamma, beta, statistics, tiles.step, o.slope},
        {other, other_gamma, other_beta, other_statistics, other_tiles.step, other_.slope},
        y,
        tiles,
        count};
    return blocks("norms", count, normalise, call);
  }

 private:
  PixelNormOptions options_, other_;
  Tickets tickets_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_NORM_PAIR_CUH_

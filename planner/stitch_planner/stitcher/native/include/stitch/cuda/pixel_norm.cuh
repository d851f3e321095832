// Normalisation of channels-last images [N][pixels][C] by their own statistics: batch and group norm, then
// y = act((x - mean) * inverse * gamma + beta (+ residual)).
//
// The tensor is cut into tiles of kWidth * V neighbouring channels by a share of the pixels: one block each.
// Its threads lie as kWidth across (V channels each) by kThreads / kWidth pixels, so that a warp reads whole
// lines of memory. The last block of a tile joins what the blocks of all shares have measured. A second
// kernel then normalises, from the tensor's end backwards, since the end is what the L2 still holds.
//
// Few pixels fit the registers of one block (FusedPixelNorm): one kernel, memory is read once.
#ifndef STITCH_CUDA_PIXEL_NORM_CUH_
#define STITCH_CUDA_PIXEL_NORM_CUH_

#include "stitch/common/activation.h"
#include "stitch/cuda/moments.cuh"

namespace stitch::cuda {

struct PixelNormOptions {
  int64_t batches = 0;  // what has statistics of its own: 1 for batch norm, else the number of images
  int64_t pixels = 0;   // of a batch
  int64_t channels = 0;
  int64_t groups = 0;  // of channels that share statistics; each lies in one tile
  int64_t splits = 1;  // shares of a batch's pixels, each at least one
  float eps = 1e-5f;
  float slope = 0.0f;  // of kLeakyRelu
  int64_t step = 0;    // elements between pixels of x, a slice of a wider image; 0: dense
};

// kThreads threads of a block, kWidth of them (a power of two) across channels, V channels each (V divides
// the number of channels).
template <int V_, int kThreads_, int kWidth_>
struct PixelSchedule {
  static constexpr int V = V_, kThreads = kThreads_, kWidth = kWidth_;
  static constexpr int kHeight = kThreads / kWidth;  // pixels that a block reads at a time
  static constexpr int kTile = kWidth * V;           // channels of a block
  static constexpr int kLanes = kThreads / kTile;    // threads that join the parts of one channel
  static_assert(kLanes >= 1 && kThreads % kTile == 0, "at least a thread for each channel of a tile");
};

// Which share of the work a block has.
template <class S>
struct PixelTiles {
  int64_t pixels = 0, channels = 0, step = 0, splits = 1, tiles = 1;

  PixelTiles() = default;
  explicit PixelTiles(const PixelNormOptions& o)
      : pixels(o.pixels),
        channels(o.channels),
        step(o.step != 0 ? o.step : o.channels),
        splits(o.splits),
        tiles(ceil_div(o.channels, S::kTile)) {}

  __device__ __forceinline__ int64_t begin(int64_t split) const { return pixels * split / splits; }
  __device__ __forceinline__ double count(int64_t split) const {
    return static_cast<double>(begin(split + 1) - begin(split));
  }
  // Tiles are innermost: neighbouring blocks read neighbouring memory.
  __device__ __forceinline__ void split_block(int64_t block, int64_t& batch, int64_t& split,
                                              int64_t& tile) const {
    tile = block % tiles;
    split = block / tiles % splits;
    batch = block / tiles / splits;
  }
};

// A run of pixels: each of the V channels is a sample of its own. At least one is valid.
template <int kItems, int V>
__device__ __forceinline__ void take_lines(const Group<float, V> (&items)[kItems], int valid,
                                           Moments (&into)[V]) {
  const float more = static_cast<float>(valid), share = more / (into[0].count + more);
  const float one = 1.0f / more;
#pragma unroll
  for (int e = 0; e < V; ++e) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) sum += i < valid ? items[i][e] : 0.0f;
    const float mean = sum * one;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float delta = items[i][e] - mean;
      squares += i < valid ? delta * delta : 0.0f;
    }
    into[e].merge(mean, squares, share);
    into[e].count += more;
  }
}

// What the threads of a block have measured, and its joining.
template <class S>
struct LineMoments {
  static constexpr int kFewLanes = S::kLanes < 8 ? S::kLanes : 8;

  float count[S::kHeight];
  Group<float, S::V> mean[S::kThreads], squares[S::kThreads];
  double sum[S::kThreads], square[S::kThreads];  // [lane][channel]

  __device__ __forceinline__ void keep(int thread, const Moments (&mine)[S::V]) {
    if (thread % S::kWidth == 0) count[thread / S::kWidth] = mine[0].count;
#pragma unroll
    for (int e = 0; e < S::V; ++e) {
      mean[thread][e] = mine[e].mean;
      squares[thread][e] = mine[e].squares;
    }
  }
  // The lines of lane `lane` for channel `own` of the tile.
  __device__ __forceinline__ void join_lines(int own, int lane, int thread) {
    Centered total;
    const double middle = center(own);
    for (int line = lane; line < S::kHeight; line += S::kLanes) {
      const int at = line * S::kWidth + own / S::V;
      total.add(count[line], mean[at][own % S::V], squares[at][own % S::V], middle);
    }
    put(thread, total);
  }
  __device__ __forceinline__ void put(int thread, const Centered& total) {
    sum[thread] = total.sum;
    square[thread] = total.squares;
  }
  // Brings the lanes down to kFewLanes, so that many of them do not wait for one thread.
  __device__ __forceinline__ void join_lanes(int own, int lane, int thread) {
    if (lane >= kFewLanes) return;
    Centered total;
    for (int other = lane; other < S::kLanes; other += kFewLanes) {
      total.add({sum[other * S::kTile + own], square[other * S::kTile + own]});
    }
    put(thread, total);
  }
  __device__ __forceinline__ Centered joined(int own, int lanes = S::kLanes) const {
    Centered total;
    for (int lane = 0; lane < lanes; ++lane) {
      total.add({sum[lane * S::kTile + own], square[lane * S::kTile + own]});
    }
    return total;
  }
  __device__ __forceinline__ double center(int own) const { return mean[own / S::V][own % S::V]; }
};

// ---- measure -------------------------------------------------------------------------------------------

template <class S>
struct MeasurePixels {
  static constexpr int kThreads = S::kThreads, kPhases = 7, V = S::V, kTile = S::kTile;
  static constexpr int kItems = V == 4 ? 4 : 8;  // pixels of a run: loads in flight
  struct Shared {
    LineMoments<S> lines;
    Part channel[S::kTile];
    bool last;
  };
  struct Thread {};

  const float* x;
  PixelTiles<S> tiles;
  int64_t groups;
  float eps;
  Part* parts;         // [batches][splits][channels]
  unsigned* tickets;   // [batches][tiles]
  Folded* statistics;  // [batches][groups]

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared& shared, Thread&) const {
    int64_t batch, split, tile;
    tiles.split_block(block, batch, split, tile);
    // From phase 1 on, threads lie as kLanes by the channels of the tile.
    const int own = thread % kTile, lane = thread / kTile;
    const int64_t channel = tile * kTile + own;
    const bool real = channel < tiles.channels;
    if constexpr (P == 0) {
      measure(batch, split, tile, thread, shared);
    } else if constexpr (P == 1) {
      if (real) shared.lines.join_lines(own, lane, thread);
    } else if constexpr (P == 2) {
      if (!real || lane != 0) return;
      parts[(batch * tiles.splits + split) * tiles.channels + channel] =
          part_of(shared.lines.joined(own), shared.lines.center(own), tiles.count(split));
      publish();
    } else if constexpr (P == 3) {
      if (thread != 0) return;
      unsigned* counter = tickets + batch * tiles.tiles + tile;
      shared.last = take_ticket(counter) + 1 == tiles.splits;
      if (shared.last) *counter = 0;
    } else if constexpr (P == 4) {
      if (shared.last && real) join_splits(batch, channel, lane, thread, shared);
    } else if constexpr (P == 5) {
      if (!shared.last || !real || lane != 0) return;
      const double center = fresh(parts + batch * tiles.splits * tiles.channels + channel).mean;
      shared.channel[own] = part_of(shared.lines.joined(own), center, static_cast<double>(tiles.pixels));
    } else {
      if (shared.last && thread < kTile) finish(batch, tile, thread, shared);
    }
  }

 private:
  __device__ __forceinline__ void measure(int64_t batch, int64_t split, int64_t tile, int thread,
                                          Shared& shared) const {
    const int across = thread % S::kWidth, line = thread / S::kWidth;
    const int64_t channel = tile * kTile + across * V, end = tiles.begin(split + 1);
    if (channel >= tiles.channels) return;
    const float* from = x + batch * tiles.pixels * tiles.step + channel;
    Moments mine[V];
    for (int64_t pixel = tiles.begin(split) + line; pixel < end; pixel += kItems * S::kHeight) {
      Group<float, V> items[kItems];
      int valid = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = pixel + i * S::kHeight;
        items[i] = Group<float, V>{};
        if (at < end) {
          items[i] = load<V>(from + at * tiles.step);
          ++valid;
        }
      }
      take_lines(items, valid, mine);
    }
    shared.lines.keep(thread, mine);
  }

  __device__ __forceinline__ void join_splits(int64_t batch, int64_t channel, int lane, int thread,
                                              Shared& shared) const {
    Centered total;
    const Part* mine = parts + batch * tiles.splits * tiles.channels + channel;
    const double center = fresh(mine).mean;
#pragma unroll 8
    for (int64_t split = lane; split < tiles.splits; split += S::kLanes) {
      const Part part = fresh(mine + split * tiles.channels);
      total.add(tiles.count(split), part.mean, part.squares, center);
    }
    shared.lines.put(thread, total);
  }

  // The statistics of group number `which` of the tile, from those of its channels.
  __device__ __forceinline__ void finish(int64_t batch, int64_t tile, int which, const Shared& shared) const {
    const int64_t size = tiles.channels / groups, group = tile * kTile / size + which;
    if ((which + 1) * size > kTile || group >= groups) return;
    const double pixels = static_cast<double>(tiles.pixels);
    const Part* own = shared.channel + which * size;
    Centered total;
    for (int64_t c = 0; c < size; ++c) total.add(pixels, own[c].mean, own[c].squares, own[0].mean);
    const double all = pixels * static_cast<double>(size);
    statistics[batch * groups + group] = folded(part_of(total, own[0].mean, all), all, eps);
  }
};

// ---- normalise -----------------------------------------------------------------------------------------

// What a thread knows of its V channels.
template <int V>
struct ChannelAffine {
  float mean[V], scale[V], shift[V];

  __device__ __forceinline__ void set(int e, const Folded& by, const float* gamma, const float* beta) {
    mean[e] = by.mean;
    scale[e] = gamma != nullptr ? by.inverse * *gamma : by.inverse;
    shift[e] = beta != nullptr ? *beta : 0.0f;
  }
  template <Epilogue kAct, bool kResidual>
  __device__ __forceinline__ Group<float, V> apply(const Group<float, V>& in, const Group<float, V>& more,
                                                   float slope) const {
    Group<float, V> out;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      float value = (in[e] - mean[e]) * scale[e] + shift[e];
      if constexpr (kResidual) value += more[e];
      out[e] = activate<kAct>(value, slope);
    }
    return out;
  }
};

// A thread keeps what belongs to its V channels, and walks over the pixels of its share.
template <class S, Epilogue kAct, bool kResidual>
struct NormalisePixels {
  static constexpr int kThreads = S::kThreads, kPhases = 1, V = S::V;
  static constexpr int kItems = 4;
  struct Shared {};
  struct Thread {};

  const float* x;
  const float* residual;
  float* y;
  const float* gamma;  // null: 1
  const float* beta;   // null: 0
  PixelTiles<S> tiles;
  int64_t groups, blocks;
  float slope;
  const Folded* statistics;

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared&, Thread&) const {
    int64_t batch, split, tile;
    tiles.split_block(blocks - 1 - block, batch, split, tile);
    const int64_t channel = tile * S::kTile + thread % S::kWidth * V;
    if (channel >= tiles.channels) return;
    const int64_t size = tiles.channels / groups;
    ChannelAffine<V> affine;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      affine.set(e, statistics[batch * groups + (channel + e) / size],
                 gamma != nullptr ? gamma + channel + e : nullptr,
                 beta != nullptr ? beta + channel + e : nullptr);
    }
    const int64_t first = batch * tiles.pixels * tiles.channels + channel, end = tiles.begin(split + 1);
    const float* from = x + batch * tiles.pixels * tiles.step + channel;
    for (int64_t pixel = tiles.begin(split) + thread / S::kWidth; pixel < end; pixel += kItems * S::kHeight) {
      Group<float, V> in[kItems], more[kItems];
      // All loads before the first store: the compiler cannot know that y is another tensor.
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = pixel + i * S::kHeight;
        if (at >= end) continue;
        in[i] = load<V>(from + at * tiles.step);
        if constexpr (kResidual) more[i] = load<V>(residual + first + at * tiles.channels);
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = pixel + i * S::kHeight;
        if (at >= end) continue;
        store(y + first + at * tiles.channels, affine.template apply<kAct, kResidual>(in[i], more[i], slope));
      }
    }
  }
};

// ---- both in one kernel --------------------------------------------------------------------------------

// A block keeps all pixels of a tile of channels in registers, kItems groups a thread. Channels have
// statistics of their own.
template <class S, int kItems, Epilogue kAct, bool kResidual>
struct FusedPixels {
  static constexpr int kThreads = S::kThreads, kPhases = 5, V = S::V, kTile = S::kTile;
  struct Shared {
    LineMoments<S> lines;
    Folded by[S::kTile];
  };
  struct Thread {
    Group<float, V> items[kItems];
  };

  const float* x;
  const float* residual;
  float* y;
  const float* gamma;  // null: 1
  const float* beta;   // null: 0
  PixelTiles<S> tiles;
  float eps, slope;

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared& shared, Thread& mine) const {
    int64_t batch, split, tile;
    tiles.split_block(block, batch, split, tile);
    const int own = thread % kTile, lane = thread / kTile;
    const bool real = tile * kTile + own < tiles.channels;
    if constexpr (P == 0) {
      measure(batch, tile, thread, shared, mine);
    } else if constexpr (P == 1) {
      if (real) shared.lines.join_lines(own, lane, thread);
    } else if constexpr (P == 2) {
      if (real) shared.lines.join_lanes(own, lane, thread);
    } else if constexpr (P == 3) {
      if (lane != 0 || !real) return;
      const double pixels = static_cast<double>(tiles.pixels);
      const Centered total = shared.lines.joined(own, LineMoments<S>::kFewLanes);
      const Part whole = part_of(total, shared.lines.center(own), pixels);
      shared.by[own] = folded(whole, pixels, eps);
    } else {
      put(batch, tile, thread, shared, mine);
    }
  }

 private:
  __device__ __forceinline__ void measure(int64_t batch, int64_t tile, int thread, Shared& shared,
                                          Thread& mine) const {
    const int64_t channel = tile * kTile + thread % S::kWidth * V;
    if (channel >= tiles.channels) return;
    const float* from = x + batch * tiles.pixels * tiles.step + channel;
    Moments moments[V];
    int valid = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t at = thread / S::kWidth + i * S::kHeight;
      mine.items[i] = Group<float, V>{};
      if (at < tiles.pixels) {
        mine.items[i] = load<V>(from + at * tiles.step);
        ++valid;
      }
    }
    if (valid > 0) take_lines(mine.items, valid, moments);
    shared.lines.keep(thread, moments);
  }

  __device__ __forceinline__ void put(int64_t batch, int64_t tile, int thread, const Shared& shared,
                                      const Thread& mine) const {
    const int within = thread % S::kWidth * V;
    const int64_t channel = tile * kTile + within;
    if (channel >= tiles.channels) return;
    ChannelAffine<V> affine;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      affine.set(e, shared.by[within + e], gamma != nullptr ? gamma + channel + e : nullptr,
                 beta != nullptr ? beta + channel + e : nullptr);
    }
    const int64_t first = batch * tiles.pixels * tiles.channels + channel;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t at = thread / S::kWidth + i * S::kHeight;
      if (at >= tiles.pixels) continue;
      Group<float, V> more{};
      if constexpr (kResidual) more = load<V>(residual + first + at * tiles.channels);
      store(y + first + at * tiles.channels,
            affine.template apply<kAct, kResidual>(mine.items[i], more, slope));
    }
  }
};

// ---- the call ------------------------------------------------------------------------------------------

template <class S, Epilogue kAct, bool kResidual>
class PixelNorm {
 public:
  int32_t init(Errors& errors, const PixelNormOptions& options) {
    options_ = options;
    return tickets_.init(errors, options.batches * PixelTiles<S>(options).tiles);
  }
  size_t workspace_bytes() const {
    const PixelNormOptions& o = options_;
    return sizeof(Part) * static_cast<size_t>(o.batches * o.splits * o.channels) +
           sizeof(Folded) * static_cast<size_t>(o.batches * o.groups);
  }

  int32_t run(const Call& call, const float* x, const float* gamma, const float* beta, const float* residual,
              float* y) const {
    const PixelNormOptions& o = options_;
    const PixelTiles<S> tiles(o);
    Part* parts = static_cast<Part*>(call.scratch);
    Folded* statistics = reinterpret_cast<Folded*>(parts + o.batches * o.splits * o.channels);
    const int64_t count = o.batches * o.splits * tiles.tiles;
    const MeasurePixels<S> measure{x, tiles, o.groups, o.eps, parts, tickets_.counters(), statistics};
    STITCH_TRY(blocks("norm: statistics", count, measure, call));
    const NormalisePixels<S, kAct, kResidual> normalise{x,     residual, y,     gamma,   beta,
                                                        tiles, o.groups, count, o.slope, statistics};
    return blocks("norm", count, normalise, call);
  }

 private:
  PixelNormOptions options_;
  Tickets tickets_;
};

// For at most kItems * S::kHeight pixels, without groups of channels.
template <class S, int kItems, Epilogue kAct, bool kResidual>
class FusedPixelNorm {
 public:
  int32_t init(Errors&, const PixelNormOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call& call, const float* x, const float* gamma, const float* beta, const float* residual,
              float* y) const {
    const PixelNormOptions& o = options_;
    const PixelTiles<S> tiles(o);
    const FusedPixels<S, kItems, kAct, kResidual> fused{x, residual, y, gamma, beta, tiles, o.eps, o.slope};
    return blocks("norm", o.batches * tiles.tiles, fused, call);
  }

 private:
  PixelNormOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_PIXEL_NORM_CUH_

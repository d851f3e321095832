// Convolutions and transposed convolutions of volumes, float32 or TF32, which lie as [N][C][D][H][W] on both
// sides:
//
//     out = more(relu(conv(source, weight) * norm + bias + residual))
//
// with element-wise operations of the program as `more` (volume_ending.cuh).
// Three ways lead there: a kernel of ours on tensor cores (volume_tiles.cuh) where the options allow TF32,
// cuDNN in the order that the volumes have, and cuDNN channels-last between two copies. Init measures each
// as a whole, copies and ending included, and keeps the fastest. A call allocates nothing and may be captured
// into a graph.
#ifndef STITCH_CUDA_VOLUME_CONV_CUH_
#define STITCH_CUDA_VOLUME_CONV_CUH_

#include <memory>

#include "stitch/cuda/conv.cuh"
#include "stitch/cuda/restride.cuh"
#include "stitch/cuda/volume_tiles.cuh"

// A test may leave ways out.
#if !defined(STITCH_VOLUME_WAYS)
#define STITCH_VOLUME_WAYS kTiles, kPlanar, kLast
#endif

namespace stitch::cuda {

// A channels-last result brought back, with what follows the sum: tiles of kChannels by kPixels.
template <int kChannels, class E>
struct TurnBack {
  static constexpr int kPixels = 64, kThreads = 256, kPhases = 2;
  struct Shared {
    float tile[kChannels][kPixels + 1];  // one more: neighbours of a column lie in different banks
  };
  struct Thread {};

  const float* source;  // [N][pixels][C]
  float* out;           // [N][C][pixels]
  VolumeEnding<E> ending;
  int64_t pixels, channels, pixel_tiles, channel_tiles;

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared& shared, Thread&) const {
    const int64_t first_channel = block % channel_tiles * kChannels, rest = block / channel_tiles;
    const int64_t first_pixel = rest % pixel_tiles * kPixels, image = rest / pixel_tiles;
    if constexpr (P == 0) {
      for (int i = thread; i < kChannels * kPixels; i += kThreads) {
        const int64_t channel = first_channel + i % kChannels, pixel = first_pixel + i / kChannels;
        if (channel >= channels || pixel >= pixels) continue;
        shared.tile[i % kChannels][i / kChannels] = source[(image * pixels + pixel) * channels + channel];
      }
    } else {
      for (int i = thread; i < kChannels * kPixels; i += kThreads) {
        const int64_t channel = first_channel + i / kPixels, pixel = first_pixel + i % kPixels;
        if (channel >= channels || pixel >= pixels) continue;
        const int64_t at = (image * channels + channel) * pixels + pixel;
        out[at] = ending(shared.tile[i / kPixels][i % kPixels], channel, at);
      }
    }
  }
};

// What follows the sum, in place: V neighbours of one channel.
template <int V, class E>
struct FinishVolumes {
  float* out;
  VolumeEnding<E> ending;
  Divisor groups_of_plane, channels;  // groups of V elements in a plane; planes of a volume

  __device__ void operator()(int64_t i) const {
    uint32_t at, channel;
    channels.split(groups_of_plane.split(static_cast<uint32_t>(i), at), channel);
    Group<float, V> value = load<V>(out + i * V);
#pragma unroll
    for (int e = 0; e < V; ++e) value[e] = ending(value[e], channel, i * V + e);
    store(out + i * V, value);
  }
};

// One way to convolve volumes, with weights of its own. Its runner ends with the sum; what follows is ours.
class LibraryVolumes {
 public:
  // `planar`: the library reads and writes the volumes as they lie.
  int32_t init(ConvLibraries& libraries, const Call& call, const ConvOptions& options, bool planar,
               const float* weight, const float* bias, const FoldedNorm& norm) {
    options_ = inner_ = options;
    inner_.volume = true;
    inner_.planar = planar;
    inner_.has_bias = inner_.has_residual = inner_.relu = false;
    // Few channels are filled up on their way, so that tensor cores can read them.
    inner_.source_first = !planar && options.groups == 1 && !options.transposed && options.in_channels < 8;
    STITCH_TRY(weights_.pack(call, inner_, weight, bias, norm));
    return runner_.init(libraries, call, inner_, weights_);
  }
  bool has_way() const { return runner_.has_way(); }

  size_t workspace_bytes() const {
    return inner_.planar ? runner_.workspace_bytes()
                         : source_bytes() + result_bytes() + runner_.workspace_bytes();
  }

  template <class E>
  int32_t run(const Call& call, const float* source, float* out, const VolumeEnding<E>& ending) const {
    if (inner_.planar) {
      STITCH_TRY(runner_.run(call, source, out, nullptr));
      if (ending.does_nothing()) return STITCH_OK;
      return out_area() % 4 == 0 ? finish<4>(call, out, ending) : finish<1>(call, out, ending);
    }
    char* memory = static_cast<char*>(call.scratch);
    float* image = reinterpret_cast<float*>(memory);
    float* result = reinterpret_cast<float*>(memory + source_bytes());
    Call inner = call;
    inner.scratch = memory + source_bytes() + result_bytes();
    inner.scratch_bytes = call.scratch_bytes - source_bytes() - result_bytes();
    STITCH_TRY(turn(call, source, image));
    STITCH_TRY(runner_.run(inner, image, result, nullptr));
    constexpr int kFew = 16, kMany = 32;
    return options_.out_channels <= kFew ? turn_back<kFew>(call, result, out, ending)
                                         : turn_back<kMany>(call, result, out, ending);
  }
  const float* bias() const { return options_.has_bias ? weights_.packed_bias() : nullptr; }

 private:
  static size_t block(size_t bytes) { return (bytes + 255) / 256 * 256; }
  size_t source_bytes() const { return block(sizeof(float) * inner_.pixels() * inner_.read_channels()); }
  size_t result_bytes() const { return block(sizeof(float) * options_.out_pixels() * options_.out_channels); }
  int64_t out_area() const { return options_.out_depth * options_.out_height * options_.out_width; }

  int32_t turn(const Call& call, const float* source, float* image) const {
    const ConvOptions& o = inner_;
    const int64_t area = o.depth * o.height * o.width;
    constexpr const char* kName = "bring a volume into channels-last order";
    if (o.source_first) {
      const ToChannelsLast work{source, image, static_cast<uint32_t>(area),
                                static_cast<uint32_t>(o.in_channels),
                                static_cast<uint32_t>(o.read_channels())};
      return each(kName, o.pixels(), work, call);
    }
    StridedCopy<true, 1> copy;
    STITCH_TRY(copy.init({/*rank=*/3,
                          /*turned=*/1,
                          {o.images, area, o.in_channels},
                          {area * o.in_channels, 1, area},
                          {area * o.in_channels, o.in_channels, 1}}));
    return copy.run(call, source, image);
  }

  template <int kChannels, class E>
  int32_t turn_back(const Call& call, const float* result, float* out, const VolumeEnding<E>& ending) const {
    const ConvOptions& o = options_;
    const int64_t pixel_tiles = ceil_div(out_area(), TurnBack<kChannels, E>::kPixels);
    const int64_t channel_tiles = ceil_div(o.out_channels, kChannels);
    const TurnBack<kChannels, E> work{result,         out,         ending,       out_area(),
                                      o.out_channels, pixel_tiles, channel_tiles};
    return blocks("bring a volume back", o.images * pixel_tiles * channel_tiles, work, call);
  }

  template <int V, class E>
  int32_t finish(const Call& call, float* out, const VolumeEnding<E>& ending) const {
    const FinishVolumes<V, E> work{out, ending, Divisor(out_area() / V), Divisor(options_.out_channels)};
    return each("finish a convolution", options_.out_pixels() * options_.out_channels / V, work, call);
  }

  ConvOptions options_, inner_;  // as the caller has it, and as the runner sees it
  ConvWeights weights_;
  ConvRunner runner_;
};

// M and W: as VolumeTiles has them; M is 0 where there is no such kernel. E: as volume_ending.cuh has it.
template <int M, int W, class E = NoMore>
class VolumeConv {
 public:
  // Tensors are torch's; all but `weight` may be null.
  int32_t init(ConvLibraries& libraries, const Call& call, const ConvOptions& options, const float* weight,
               const float* bias = nullptr, const float* gamma = nullptr, const float* beta = nullptr,
               const float* mean = nullptr, const float* variance = nullptr, float eps = 0.0f) {
    options_ = options;
    const int64_t read = options.pixels() * options.in_channels;
    const int64_t written = options.out_pixels() * options.out_channels;
    if (read >= kMostDividend || written >= kMostDividend) {
      return call.errors->fail(STITCH_UNSUPPORTED, "the volumes are too large for a convolution");
    }
    if (options.empty()) return STITCH_OK;
    weight_ = weight, bias_ = bias, norm_ = {gamma, beta, mean, variance, eps};
    const int32_t status = choose(libraries, call);
    weight_ = bias_ = nullptr;  // they are the caller's
    norm_ = {};
    return status;
  }

  size_t workspace_bytes() const { return library_ ? library_->workspace_bytes() : 0; }

  // `residual` is null where the options have none.
  int32_t run(const Call& call, const float* source, float* out, const float* residual = nullptr,
              const E& more = {}) const {
    return options_.empty() ? STITCH_OK : run_with(call, source, out, residual, more);
  }

 private:
  template <class T>
  int32_t run_with(const Call& call, const float* source, float* out, const float* residual,
                   const T& more) const {
    VolumeEnding<T> ending{nullptr, residual, options_.relu, more};
    if constexpr (M > 0) {
      if (tiles_) {
        ending.bias = tiles_->bias();
        return tiles_->run(call, source, out, ending);
      }
    }
    ending.bias = library_->bias();
    return library_->run(call, source, out, ending);
  }

  enum Way { kTiles, kPlanar, kLast };

  // Makes one way, and no other; false where it cannot be had.
  bool make(ConvLibraries& libraries, const Call& call, int way) {
    library_.reset();
    tiles_.reset();
    if (way == kTiles) {
      if constexpr (M > 0) {
        if (!VolumeTiles<M, W>::fits(options_)) return false;
        tiles_ = std::make_unique<VolumeTiles<M, W>>();
        return tiles_->init(call, options_, weight_, bias_, norm_) == STITCH_OK;
      }
      return false;
    }
    library_ = std::make_unique<LibraryVolumes>();
    return library_->init(libraries, call, options_, way == kPlanar, weight_, bias_, norm_) == STITCH_OK &&
           library_->has_way();
  }

  int32_t adopt(ConvLibraries& libraries, const Call& call, int way) {
    if (make(libraries, call, way)) return STITCH_OK;
    return call.errors->text.empty() ? call.errors->fail(STITCH_ERROR, "no way to convolve volumes")
                                     : STITCH_ERROR;
  }

#if defined(STITCH_ON_HOST) && !defined(STITCH_CUDNN_ON_HOST)
  // What is there without the library.
  int32_t choose(ConvLibraries& libraries, const Call& call) {
    return adopt(libraries, call, options_.allow_tf32 && M > 0 ? kTiles : kLast);
  }
#else
  int32_t choose(ConvLibraries& libraries, const Call& call) {
    for (const auto& [known, way] : libraries.volumes) {
      if (known == options_) return adopt(libraries, call, way);
    }
    int best = -1;
    float shortest_ms = -1.0f;
    for (int way : {STITCH_VOLUME_WAYS}) {
      if (!make(libraries, call, way)) continue;
      float ms = 0.0f;
      if (!measure(call, &ms)) ms = -1.0f;
      // Of ways that could not be measured the first is kept.
      if (best < 0 || (ms >= 0.0f && (shortest_ms < 0.0f || ms < shortest_ms))) {
        best = way;
        shortest_ms = ms;
      }
    }
    call.errors->text.clear();  // of ways that the library refused
    if (best < 0) return call.errors->fail(STITCH_ERROR, "no way to convolve volumes");
    libraries.volumes.emplace_back(options_, best);
    return adopt(libraries, call, best);
  }

  // Milliseconds of one forward, ending included; false without memory for volumes.
  bool measure(const Call& call, float* ms) const {
    const size_t written = sizeof(float) * options_.out_pixels() * options_.out_channels;
    DeviceMemory source, out, residual, scratch;
    if (!source.reserve(sizeof(float) * options_.pixels() * options_.in_channels) || !out.reserve(written) ||
        (options_.has_residual && !residual.reserve(written)) || !scratch.reserve(workspace_bytes() + 1)) {
      return false;
    }
    Call inner = call;
    inner.scratch = scratch.get();
    inner.scratch_bytes = workspace_bytes();
    // The tensors that a class of the program reads are not there yet.
    const std::conditional_t<std::is_same_v<E, NoMore>, NoMore, PassOn> more{};
    const auto once = [&](const Call& one) {
      return run_with(one, source.floats(), out.floats(), residual.floats(), more);
    };
    return measured_ms(inner, once, ms);
  }
#endif

  ConvOptions options_;
  const float* weight_ = nullptr;
  const float* bias_ = nullptr;
  FoldedNorm norm_;
  std::unique_ptr<LibraryVolumes> library_;
  std::unique_ptr<VolumeTiles<(M > 0 ? M : 1), (W > 0 ? W : 1)>> tiles_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_VOLUME_CONV_CUH_

// Convolutions and transposed convolutions of channels-last images, float32 or TF32:
//
//     out = relu(conv(source, weight) * norm + bias + residual)
//
// Up to four ways lead there: cuDNN's convolution with a kernel of ours behind it for what follows, cuDNN's
// fused call, one matrix product by cuBLASLt where the window is one pixel, and a plain sum of ours where the
// library has no kernel. Init measures those that the library's heuristics put first, once for each set of
// sizes, and keeps the fastest. Wide strides over an image of few channels are folded first. A call allocates
// nothing and may be captured into a graph.
#ifndef STITCH_CUDA_CONV_CUH_
#define STITCH_CUDA_CONV_CUH_

#include "stitch/cuda/conv_kernels.cuh"
#include "stitch/cuda/conv_strides.cuh"
#include "stitch/cuda/gemm.cuh"

// A test has the libraries on the host as well: stand-ins of its own.
#if !defined(STITCH_ON_HOST) || defined(STITCH_CUDNN_ON_HOST)
#include "stitch/cuda/conv_plan.cuh"
#endif

namespace stitch::cuda {

#if defined(STITCH_ON_HOST) && !defined(STITCH_CUDNN_ON_HOST)

struct ConvLibraries {
  int32_t open(Errors&) { return STITCH_OK; }
};

// The same interface over the plain sum, in double precision.
class ConvRunner {
 public:
  int32_t init(ConvLibraries&, const Call&, const ConvOptions& options, const ConvWeights& weights) {
    options_ = options;
    weights_ = &weights;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }
  bool has_way() const { return !options_.planar; }

  int32_t run(const Call& call, const float* source, float* out, const float* residual) const {
    const ConvOptions& o = options_;
    const PlainSum<double> sum{o, source, weights_->weight(), out};
    STITCH_TRY(each("convolution", o.out_pixels() * o.out_channels, sum, call));
    return finish_conv(o, out, weights_->bias(), residual, call);
  }

 private:
  ConvOptions options_;
  const ConvWeights* weights_ = nullptr;
};

#endif

class Conv {
 public:
  // Tensors are torch's; all but `weight` may be null.
  int32_t init(ConvLibraries& libraries, const Call& call, const ConvOptions& options, const float* weight,
               const float* bias = nullptr, const FoldedNorm& norm = {}) {
    options_ = options;
    folds_ = !options.empty() && folds_strides(options);
    inner_ = folds_ ? folded_strides(options) : options;
    const int64_t read = inner_.pixels() * inner_.read_channels();
    if (read >= kMostIndices || options.out_pixels() * options.out_channels >= kMostIndices) {
      return call.errors->fail(STITCH_UNSUPPORTED, "the images are too large for a convolution");
    }
    if (options.empty()) return STITCH_OK;
    if (!folds_) {
      STITCH_TRY(weights_.pack(call, options, weight, bias, norm));
    } else {
      if (read / 4 >= kMostDividend) {
        return call.errors->fail(STITCH_UNSUPPORTED, "the images are too large for a convolution");
      }
      if (!others_.reserve(sizeof(unsigned))) {
        return call.errors->fail(STITCH_OUT_OF_MEMORY, "no memory for a convolution's flag");
      }
      const PackFolded work{weight, nullptr, norm, options, inner_, FoldedChannel(options)};
      STITCH_TRY(weights_.pack_folded(call, inner_, work, bias));
    }
    return runner_.init(libraries, call, inner_, weights_);
  }

  // The same with a normalisation to fold in, part by part.
  int32_t init(ConvLibraries& libraries, const Call& call, const ConvOptions& options, const float* weight,
               const float* bias, const float* gamma, const float* beta, const float* mean,
               const float* variance, float eps) {
    return init(libraries, call, options, weight, bias, FoldedNorm{gamma, beta, mean, variance, eps});
  }

  size_t workspace_bytes() const { return image_bytes() + runner_.workspace_bytes(); }

  // `residual` is null where the options have none.
  int32_t run(const Call& call, const float* source, float* out, const float* residual = nullptr) const {
    if (options_.empty()) return STITCH_OK;
    if (call.scratch_bytes < workspace_bytes()) {
      return call.errors->fail(STITCH_ERROR, "the workspace is too small for a convolution");
    }
    if (!options_.source_first) return runner_.run(call, source, out, residual);
    Call inner = call;
    float* image = static_cast<float*>(call.scratch);
    inner.scratch = static_cast<char*>(call.scratch) + image_bytes();
    inner.scratch_bytes = call.scratch_bytes - image_bytes();
    STITCH_TRY(folds_ ? fold(call, source, image) : turn(call, source, image));
    STITCH_TRY(runner_.run(inner, image, out, residual));
    if (!folds_ || !fills_up(options_)) return STITCH_OK;
    const SumWindows sums{source, weights_.weight(), weights_.bias(), residual,
                          out,    others(),          options_,        inner_};
    return each("convolve what is not finite", options_.out_pixels(), sums, call);
  }

 private:
  // A source that has to be brought into channels-last order lies in the scratch memory then.
  size_t image_bytes() const {
    constexpr size_t kBlock = 256;
    const size_t bytes = options_.source_first && !options_.empty()
                             ? sizeof(float) * inner_.pixels() * inner_.read_channels()
                             : 0;
    return (bytes + kBlock - 1) / kBlock * kBlock;
  }

  int32_t turn(const Call& call, const float* source, float* image) const {
    const ConvOptions& o = options_;
    const ToChannelsLast work{source, image, static_cast<uint32_t>(o.height * o.width),
                              static_cast<uint32_t>(o.in_channels), static_cast<uint32_t>(o.read_channels())};
    return each("bring an image into channels-last order", o.pixels(), work, call);
  }

  int32_t fold(const Call& call, const float* source, float* image) const {
    unsigned* flag = fills_up(options_) ? others() : nullptr;
    if (flag != nullptr) {
      STITCH_TRY(call.errors->check(cudaMemsetAsync(flag, 0, sizeof *flag, call.stream), "clear a flag"));
    }
    const FoldStrides work(source, image, flag, options_, inner_);
    return each("fold strides into channels", inner_.pixels() * inner_.in_channels / 4, work, call);
  }

  unsigned* others() const { return static_cast<unsigned*>(others_.get()); }

  ConvOptions options_, inner_;  // as the caller has it, and as the runner sees it
  bool folds_ = false;
  DeviceMemory others_;  // whether the image has NaN or infinity
  ConvWeights weights_;
  ConvRunner runner_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CONV_CUH_

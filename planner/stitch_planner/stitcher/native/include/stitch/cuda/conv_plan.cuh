// Which way a convolution is computed on a GPU: candidates from cuDNN's heuristics, measured at
// initialisation, the fastest kept. conv.cuh says what the ways are.
#ifndef STITCH_CUDA_CONV_PLAN_CUH_
#define STITCH_CUDA_CONV_PLAN_CUH_

#include <utility>
#include <vector>

#include "stitch/cuda/conv_kernels.cuh"
#include "stitch/cuda/cudnn_api.h"
#include "stitch/cuda/gemm.cuh"
#include "stitch/cuda/measured.cuh"

namespace stitch::cuda {

// One way to compute a convolution.
struct ConvWay {
  enum Kind { kPlainSum, kLibrary, kFused, kProduct };
  Kind kind = kPlainSum;
  int algorithm = 0;  // kLibrary, kFused
  int math = dnn::kFmaMath;
  size_t workspace = 0;
};

inline bool operator==(const ConvOptions& a, const ConvOptions& b) {
  bool same = a.images == b.images && a.height == b.height && a.width == b.width &&
              a.out_height == b.out_height && a.out_width == b.out_width && a.in_channels == b.in_channels &&
              a.out_channels == b.out_channels && a.groups == b.groups && a.transposed == b.transposed &&
              a.has_bias == b.has_bias && a.has_residual == b.has_residual && a.relu == b.relu &&
              a.source_first == b.source_first && a.allow_tf32 == b.allow_tf32 && a.depth == b.depth &&
              a.out_depth == b.out_depth && a.volume == b.volume && a.planar == b.planar;
  for (int axis = 0; axis < 3; ++axis) {
    same = same && a.kernel[axis] == b.kernel[axis] && a.stride[axis] == b.stride[axis] &&
           a.padding[axis] == b.padding[axis] && a.dilation[axis] == b.dilation[axis];
  }
  return same;
}

// The libraries of a program's convolutions, and the ways chosen so far: a network has many layers of equal
// sizes, and is initialised again with other weights.
struct ConvLibraries {
  CublasLt lt;
  Cudnn cudnn;
  std::vector<std::pair<ConvOptions, ConvWay>> chosen;
  std::vector<std::pair<ConvOptions, int>> volumes;  // and which of volume_conv.cuh's ways

  int32_t open(Errors& errors) {
    STITCH_TRY(lt.open(errors));
    return cudnn.open(errors);
  }
};

// What a way may take beside the images: their size once more, since some kernels want a converted copy of
// both, and this much in any case.
inline constexpr size_t kConvWorkspaceBytes = size_t{256} << 20;
inline constexpr int kMostLibraryWays = 3;  // of the heuristics' list, best first

struct CountNan {
  const float* values;
  unsigned long long* count;

  __device__ void operator()(int64_t i) const {
    if (isnan(values[i])) atomicAdd(count, 1ull);
  }
};

class ConvRunner {
 public:
  ConvRunner() = default;
  ConvRunner(const ConvRunner&) = delete;
  ConvRunner& operator=(const ConvRunner&) = delete;
  ~ConvRunner() { release(); }

  int32_t init(ConvLibraries& libraries, const Call& call, const ConvOptions& options,
               const ConvWeights& weights) {
    release();
    libraries_ = &libraries;
    options_ = options;
    weights_ = &weights;
    STITCH_TRY(describe());
    for (const auto& [known, way] : libraries.chosen) {
      if (known == options) return adopt(way);
    }
    STITCH_TRY(choose(call));
    libraries.chosen.emplace_back(options, way_);
    return STITCH_OK;
  }

  size_t workspace_bytes() const { return way_.workspace; }
  // Whether there is any way: the plain sum has no planar form.
  bool has_way() const { return !options_.planar || way_.kind != ConvWay::kPlainSum; }

  // The source is channels-last, and has the channels that the options read. The scratch memory has
  // workspace_bytes().
  int32_t run(const Call& call, const float* source, float* out, const float* residual) const {
    return run(way_, call, source, out, residual);
  }

 private:
  const Cudnn& cudnn() const { return libraries_->cudnn; }

  // ---- the ways ------------------------------------------------------------------------------------

  int32_t run(const ConvWay& way, const Call& call, const float* source, float* out,
              const float* residual) const {
    const ConvOptions& o = options_;
    switch (way.kind) {
      case ConvWay::kPlainSum: {
        const PlainSum<float> sum{o, source, weights_->weight(), out};
        STITCH_TRY(each("convolution", o.out_pixels() * o.out_channels, sum, call));
        return finish_conv(o, out, weights_->bias(), residual, call);
      }
      case ConvWay::kProduct: {
        const bool adds_bias = product_adds_bias();
        STITCH_TRY(product_.run(call, source, weights_->weight(), out, residual));
        return finish_conv(o, out, adds_bias ? nullptr : weights_->bias(), nullptr, call);
      }
      case ConvWay::kFused:
        return run_fused(way, call, source, out, residual);
      default:
        STITCH_TRY(run_library(way, call, source, out));
        return finish_conv(o, out, weights_->bias(), residual, call);
    }
  }

  int32_t run_library(const ConvWay& way, const Call& call, const float* source, float* out) const {
    const auto& fn = cudnn().fn;
    const float one = 1.0f, zero = 0.0f;
    STITCH_TRY(use_stream(call));
    const int status =
        options_.transposed
            ? fn.cudnnConvolutionBackwardData(cudnn().handle(), &one, filter_, weights_->weight(), source_,
                                              source, conv_, way.algorithm, call.scratch, way.workspace,
                                              &zero, out_, out)
            : fn.cudnnConvolutionForward(cudnn().handle(), &one, source_, source, filter_, weights_->weight(),
                                         conv_, way.algorithm, call.scratch, way.workspace, &zero, out_, out);
    return cudnn().check(status, "run a convolution");
  }

  int32_t run_fused(const ConvWay& way, const Call& call, const float* source, float* out,
                    const float* residual) const {
    STITCH_TRY(use_stream(call));
    // The call wants a residual in any case; with a factor of 0 it is not read.
    const float one = 1.0f, factor = residual != nullptr ? 1.0f : 0.0f;
    const void* added = residual != nullptr ? residual : out;
    return cudnn().check(cudnn().fn.cudnnConvolutionBiasActivationForward(
                             cudnn().handle(), &one, source_, source, filter_, weights_->weight(), conv_,
                             way.algorithm, call.scratch, way.workspace, &factor, out_, added, bias_,
                             weights_->packed_bias(), activation_, out_, out),
                         "run a convolution with what follows it");
  }

  int32_t use_stream(const Call& call) const {
    return cudnn().check(cudnn().fn.cudnnSetStream(cudnn().handle(), call.stream), "choose cuDNN's stream");
  }

  // ---- descriptions --------------------------------------------------------------------------------

  int32_t describe() {
    const ConvOptions& o = options_;
    const auto& fn = cudnn().fn;
    STITCH_TRY(image(&source_, o.images, o.read_channels(), {o.height, o.width, o.depth}));
    STITCH_TRY(image(&out_, o.images, o.out_channels, {o.out_height, o.out_width, o.out_depth}));
    STITCH_TRY(image(&bias_, 1, o.out_channels, {1, 1, 1}));
    STITCH_TRY(cudnn().check(fn.cudnnCreateFilterDescriptor(&filter_), kDescribing));
    const int64_t k = o.transposed ? o.in_channels : o.out_channels;
    const int64_t c = o.transposed ? o.out_share() : o.groups == 1 ? o.read_channels() : o.in_share();
    const Sizes window = sizes(o.kernel, k, c);
    STITCH_TRY(cudnn().check(
        fn.cudnnSetFilterNdDescriptor(filter_, dnn::kFloat, format(), window.count, window.values),
        kDescribing));
    STITCH_TRY(cudnn().check(fn.cudnnCreateConvolutionDescriptor(&conv_), kDescribing));
    const Sizes padding = sizes(o.padding), stride = sizes(o.stride), dilation = sizes(o.dilation);
    STITCH_TRY(cudnn().check(
        fn.cudnnSetConvolutionNdDescriptor(conv_, padding.count, padding.values, stride.values,
                                           dilation.values, dnn::kCrossCorrelation, dnn::kFloat),
        kDescribing));
    STITCH_TRY(cudnn().check(fn.cudnnSetConvolutionGroupCount(conv_, as_int(o.groups)), kDescribing));
    STITCH_TRY(cudnn().check(fn.cudnnSetConvolutionMathType(conv_, math()), kDescribing));
    STITCH_TRY(cudnn().check(fn.cudnnCreateActivationDescriptor(&activation_), kDescribing));
    return cudnn().check(fn.cudnnSetActivationDescriptor(activation_, o.relu ? dnn::kRelu : dnn::kIdentity,
                                                         dnn::kPropagateNan, 0.0),
                         kDescribing);
  }

  // Numbers in the library's order: the depth, where there is one, before height and width.
  struct Sizes {
    int count = 0;
    int values[5];
  };

  Sizes sizes(const int64_t (&triple)[3], int64_t first = -1, int64_t second = -1) const {
    Sizes made;
    for (int64_t value : {first, second}) {
      if (value >= 0) made.values[made.count++] = as_int(value);
    }
    if (options_.volume) made.values[made.count++] = as_int(triple[2]);
    for (int axis = 0; axis < 2; ++axis) made.values[made.count++] = as_int(triple[axis]);
    return made;
  }

  int32_t image(dnn::TensorDesc* made, int64_t n, int64_t c, const int64_t (&triple)[3]) {
    STITCH_TRY(cudnn().check(cudnn().fn.cudnnCreateTensorDescriptor(made), kDescribing));
    const Sizes all = sizes(triple, n, c);
    return cudnn().check(
        cudnn().fn.cudnnSetTensorNdDescriptorEx(*made, format(), dnn::kFloat, all.count, all.values),
        kDescribing);
  }

  int format() const { return options_.planar ? dnn::kNchw : dnn::kNhwc; }
  static int as_int(int64_t value) { return static_cast<int>(value); }
  int math() const { return options_.allow_tf32 ? dnn::kDefaultMath : dnn::kFmaMath; }

  // ---- the choice ----------------------------------------------------------------------------------

  // Memory to measure in: the same sizes as a forward's.
  struct Trial {
    DeviceMemory source, out, residual, scratch, count;
  };

  int32_t choose(const Call& call) {
    std::vector<ConvWay> ways = library_ways();
    if (may_be_product()) ways.push_back(product_way());
    const bool has_fused = !options_.transposed && ends_with_more();
    if (has_fused) add_fused(&ways);
    if (ways.empty()) return adopt({});
    size_t scratch = 0;
    for (const ConvWay& way : ways) scratch = way.workspace > scratch ? way.workspace : scratch;
    Trial trial;
    if (!reserve(&trial, scratch)) return adopt(ways.front());  // as the heuristics have it
    Call inner = call;
    inner.scratch = trial.scratch.get();
    inner.scratch_bytes = scratch;
    ConvWay best;
    float shortest_ms = -1.0f;
    for (const ConvWay& way : ways) {
      float ms = 0.0f;
      if (!measure(way, inner, trial, &ms) || (shortest_ms >= 0.0f && ms >= shortest_ms)) continue;
      if (!is_trusted(way, inner, trial)) continue;
      best = way;
      shortest_ms = ms;
    }
    call.errors->text.clear();  // of ways that the library refused
    return adopt(best);
  }

  int32_t adopt(const ConvWay& way) {
    way_ = way;
    if (way.kind != ConvWay::kProduct) return set_format(way);
    if (!has_product_) STITCH_TRY(make_product());
    way_.workspace = product_.workspace_bytes();
    return STITCH_OK;
  }

  // The format of products belongs to the description, not to the call.
  int32_t set_format(const ConvWay& way) const {
    return cudnn().check(cudnn().fn.cudnnSetConvolutionMathType(conv_, way.math), kDescribing);
  }

  bool ends_with_more() const {
    return weights_->bias() != nullptr || options_.has_residual || options_.relu;
  }

  // The library's own list, best first, less what computes otherwise than by adding up products.
  std::vector<ConvWay> library_ways() const {
    constexpr int kAsked = 8;
    dnn::Found found[kAsked];
    int count = 0;
    const auto& fn = cudnn().fn;
    const int status = options_.transposed
                           ? fn.cudnnGetConvolutionBackwardDataAlgorithm_v7(
                                 cudnn().handle(), filter_, source_, conv_, out_, kAsked, &count, found)
                           : fn.cudnnGetConvolutionForwardAlgorithm_v7(cudnn().handle(), source_, filter_,
                                                                       conv_, out_, kAsked, &count, found);
    std::vector<ConvWay> ways;
    for (int i = 0; status == dnn::kSuccess && i < count && ways.size() < kMostLibraryWays; ++i) {
      const dnn::Found& one = found[i];
      if (one.status != dnn::kSuccess || one.determinism != dnn::kDeterministic || !is_sum(one.algorithm)) {
        continue;
      }
      // What is none of the three may convert operands to half.
      if (one.math != dnn::kDefaultMath && one.math != dnn::kTensorOpMath && one.math != dnn::kFmaMath) {
        continue;
      }
      if (!options_.allow_tf32 && one.math == dnn::kTensorOpMath) continue;
      const int format = options_.allow_tf32 ? one.math : int{dnn::kFmaMath};
      size_t bytes = 0;
      if (workspace_of(one.algorithm, format, &bytes)) {
        ways.push_back({ConvWay::kLibrary, one.algorithm, format, bytes});
      }
    }
    // The heuristics leave out what they know nothing of, and name one format of an algorithm only: on layers
    // of 64 and 128 channels FMA, where the same algorithm on tensor cores takes a quarter of the time.
    // Of transposed convolutions the first number is the algorithm that adds up, too.
    static_assert(int{dnn::kPrecomputedGemm} == int{dnn::kBackwardData1});
    for (int algorithm : {dnn::kPrecomputedGemm, dnn::kImplicitGemm}) {
      for (int format : {int{dnn::kTensorOpMath}, math()}) {
        if (!is_sum(algorithm) || (format == dnn::kTensorOpMath && !options_.allow_tf32)) continue;
        if (algorithm == dnn::kImplicitGemm && !ways.empty()) continue;
        size_t bytes = 0;
        if (!has(ways, algorithm, format) && workspace_of(algorithm, format, &bytes)) {
          ways.push_back({ConvWay::kLibrary, algorithm, format, bytes});
        }
      }
    }
    return ways;
  }

  static bool has(const std::vector<ConvWay>& ways, int algorithm, int format) {
    for (const ConvWay& way : ways) {
      if (way.algorithm == algorithm && way.math == format) return true;
    }
    return false;
  }

  bool is_sum(int algorithm) const {
    return options_.transposed ? algorithm == dnn::kBackwardData1 : algorithm <= dnn::kDirect;
  }

  bool workspace_of(int algorithm, int format, size_t* bytes) const {
    const auto& fn = cudnn().fn;
    if (fn.cudnnSetConvolutionMathType(conv_, format) != dnn::kSuccess) return false;
    const int status = options_.transposed
                           ? fn.cudnnGetConvolutionBackwardDataWorkspaceSize(
                                 cudnn().handle(), filter_, source_, conv_, out_, algorithm, bytes)
                           : fn.cudnnGetConvolutionForwardWorkspaceSize(cudnn().handle(), source_, filter_,
                                                                        conv_, out_, algorithm, bytes);
    return status == dnn::kSuccess && *bytes <= most_workspace();
  }

  size_t most_workspace() const {
    const ConvOptions& o = options_;
    const size_t images = sizeof(float) * (o.pixels() * o.read_channels() + o.out_pixels() * o.out_channels);
    // A planar kernel may turn both volumes itself, and fill few channels up.
    const size_t most = o.planar ? 2 * images : images;
    return most > kConvWorkspaceBytes ? most : kConvWorkspaceBytes;
  }

  void add_fused(std::vector<ConvWay>* ways) const {
    // Without a ReLU the call knows the second algorithm only.
    for (int algorithm : {dnn::kPrecomputedGemm, dnn::kImplicitGemm}) {
      if (algorithm == dnn::kImplicitGemm && !options_.relu) continue;
      const int format = options_.allow_tf32 ? int{dnn::kTensorOpMath} : math();
      size_t bytes = 0;
      if (workspace_of(algorithm, format, &bytes))
        ways->push_back({ConvWay::kFused, algorithm, format, bytes});
    }
  }

  // A window of one pixel makes a convolution a product of [pixels, channels] by [channels, channels], one
  // for each group, that lies in place.
  bool may_be_product() {
    const ConvOptions& o = options_;
    bool fits = !o.transposed && !o.planar;
    for (int axis = 0; axis < 3; ++axis) {
      fits = fits && o.kernel[axis] == 1 && o.stride[axis] == 1 && o.padding[axis] == 0;
    }
    // Groups begin where addresses are aligned as cuBLASLt is promised.
    if (o.groups > 1) fits = fits && o.in_share() % 4 == 0 && o.out_share() % 4 == 0;
    return fits && make_product() == STITCH_OK;
  }

  bool product_adds_bias() const { return options_.groups == 1; }

  int32_t make_product() {
    const ConvOptions& o = options_;
    const int64_t depth = o.groups == 1 ? o.read_channels() : o.in_share(), width = o.out_share();
    GemmOptions product;
    product.m = o.pixels();
    product.n = width;
    product.k = depth;
    product.batch = o.groups;
    product.a = {false, o.read_channels(), o.groups == 1 ? 0 : depth};
    product.b = {true, depth, o.groups == 1 ? 0 : depth * width};
    product.d = {false, o.out_channels, o.groups == 1 ? 0 : width};
    product.has_bias = product_adds_bias() && weights_->bias() != nullptr;
    product.has_addend = o.has_residual;
    product.allow_tf32 = o.allow_tf32;
    STITCH_TRY(product_.init(libraries_->lt, product, weights_->bias()));
    has_product_ = true;
    return STITCH_OK;
  }

  ConvWay product_way() const { return {ConvWay::kProduct, 0, math(), product_.workspace_bytes()}; }

  bool reserve(Trial* trial, size_t scratch) const {
    const ConvOptions& o = options_;
    const size_t out = sizeof(float) * o.out_pixels() * o.out_channels;
    return trial->source.reserve(sizeof(float) * o.pixels() * o.read_channels()) && trial->out.reserve(out) &&
           (!o.has_residual || trial->residual.reserve(out)) && trial->scratch.reserve(scratch) &&
           trial->count.reserve(sizeof(unsigned long long));
  }

  // Fills the trial's images with one byte: 0x3c makes small numbers, 0xff makes NaN.
  int32_t fill(const Call& call, const Trial& trial, int source, int out) const {
    const ConvOptions& o = options_;
    const size_t bytes = sizeof(float) * o.out_pixels() * o.out_channels;
    const size_t read = sizeof(float) * o.pixels() * o.read_channels();
    const auto set = [&](void* memory, int byte, size_t count) {
      return call.errors->check(cudaMemsetAsync(memory, byte, count, call.stream), "fill a trial's images");
    };
    STITCH_TRY(set(trial.source.get(), source, read));
    if (o.has_residual) STITCH_TRY(set(trial.residual.get(), kSmall, bytes));
    return set(trial.out.get(), out, bytes);
  }

  int32_t run(const ConvWay& way, const Call& call, const Trial& trial) const {
    return run(way, call, trial.source.floats(), trial.out.floats(),
               options_.has_residual ? trial.residual.floats() : nullptr);
  }

  // Time of one run; false where the library refuses it.
  bool measure(const ConvWay& way, const Call& call, const Trial& trial, float* ms) const {
    const auto once = [&](const Call& inner) { return run(way, inner, trial); };
    const bool done = set_format(way) == STITCH_OK && fill(call, trial, kSmall, kSmall) == STITCH_OK &&
                      measured_ms(call, once, ms);
    // Runs may have been measured on a stream that is gone by now.
    return use_stream(call) == STITCH_OK && done;
  }

  // Whether a fused call does as told: some kernels give 0 for NaN at a ReLU, and none may read a result
  // that it has to write. Where a window sees nothing but padding there is no NaN to expect; such a
  // convolution is not fused.
  bool is_trusted(const ConvWay& way, const Call& call, const Trial& trial) const {
    if (way.kind != ConvWay::kFused) return true;
    const int64_t all = options_.out_pixels() * options_.out_channels;
    int64_t found = -1;
    if (!count_nan(way, call, trial, kSmall, &found) || found != 0) return false;
    return count_nan(way, call, trial, kNan, &found) && found == all;
  }

  bool count_nan(const ConvWay& way, const Call& call, const Trial& trial, int source, int64_t* found) const {
    unsigned long long count = 0;
    const int64_t all = options_.out_pixels() * options_.out_channels;
    const CountNan work{trial.out.floats(), static_cast<unsigned long long*>(trial.count.get())};
    const bool done = fill(call, trial, source, kNan) == STITCH_OK && run(way, call, trial) == STITCH_OK &&
                      cudaMemsetAsync(trial.count.get(), 0, sizeof count, call.stream) == cudaSuccess &&
                      each("count NaN", all, work, call) == STITCH_OK &&
                      cudaMemcpyAsync(&count, trial.count.get(), sizeof count, cudaMemcpyDeviceToHost,
                                      call.stream) == cudaSuccess &&
                      cudaStreamSynchronize(call.stream) == cudaSuccess;
    *found = static_cast<int64_t>(count);
    return done;
  }

  void release() {
    if (libraries_ == nullptr) return;
    const auto& fn = cudnn().fn;
    for (dnn::TensorDesc* one : {&source_, &out_, &bias_}) {
      if (*one != nullptr) fn.cudnnDestroyTensorDescriptor(*one);
      *one = nullptr;
    }
    if (filter_ != nullptr) fn.cudnnDestroyFilterDescriptor(filter_);
    if (conv_ != nullptr) fn.cudnnDestroyConvolutionDescriptor(conv_);
    if (activation_ != nullptr) fn.cudnnDestroyActivationDescriptor(activation_);
    filter_ = nullptr;
    conv_ = nullptr;
    activation_ = nullptr;
    has_product_ = false;
  }

  static constexpr const char* kDescribing = "describe a convolution";
  static constexpr int kSmall = 0x3c, kNan = 0xff;

  ConvLibraries* libraries_ = nullptr;
  ConvOptions options_;
  const ConvWeights* weights_ = nullptr;
  dnn::TensorDesc source_ = nullptr, out_ = nullptr, bias_ = nullptr;
  dnn::FilterDesc filter_ = nullptr;
  dnn::ConvDesc conv_ = nullptr;
  dnn::ActivationDesc activation_ = nullptr;
  Gemm product_;
  bool has_product_ = false;
  ConvWay way_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CONV_PLAN_CUH_

// 2-D convolution and transposed convolution through oneDNN, with constant weights repacked once.
//
// A 1-D convolution is a 2-D one with height 1. Grouped and depthwise ones are those with groups > 1.
// Activations are dense fp32 in channels-last order, [N][H][W][C]: there oneDNN 3.2 is as fast as in its own
// blocked order, three times as fast as in torch's default order, and for transposed convolutions the only
// fast one. Transposes at the edge of a convolution region are layout.h's.
// The batch and the image size may change from call to call; primitives.h keeps a primitive for each of a
// few.
#ifndef STITCH_CPU_CONV_H_
#define STITCH_CPU_CONV_H_

#include <cmath>

#include "stitch/cpu/nan_guard.h"
#include "stitch/cpu/primitives.h"

namespace stitch::cpu {

struct ConvOptions {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t groups = 1;
  int64_t kernel[2] = {1, 1};  // height, width, as all pairs here
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};  // 1: dense, as torch counts it
  bool transposed = false;
  int64_t output_padding[2] = {0, 0};  // transposed only
  bool has_bias = false;               // bias[out_channels]
  PostOps post = {};                   // in order, after the bias; kFull operands lie like the output
  int64_t hint[3] = {0, 0, 0};         // N, H, W to expect; N = 0: prepare nothing in init
};

// Inference-mode batch normalisation behind a convolution: out * scale + offset with
// scale = gamma / sqrt(variance + eps), offset = beta - mean * scale. gamma and beta may be null.
struct FoldedNorm {
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* mean = nullptr;  // null: nothing to fold
  const float* variance = nullptr;
  float eps = 1e-5f;
};

class Conv {
 public:
  // `weight` is torch's: [out, in/groups, kh, kw], or [in, out/groups, kh, kw] when transposed. It and `bias`
  // must stay valid as long as this object.
  int32_t init(Dnnl& lib, const ConvOptions& options, const float* weight, const float* bias,
               const FoldedNorm& norm = {}) {
    lib_ = &lib;
    options_ = options;
    bias_ = bias;
    kept_.clear();  // before the weight: primitives point to its copies
    STITCH_TRY(lib.open());
    if (norm.mean) {
      STITCH_TRY(fold(norm, weight));
      weight = folded_weight_.floats();
    }
    STITCH_TRY(describe_weight(weight));
    const int64_t depth = options.in_channels / options.groups * options.kernel[0] * options.kernel[1];
    const int64_t weights = depth * options.out_channels;
    guard_.init(options.post, depth, magnitude(weight, {1, weights, weights}),
                options_.has_bias ? magnitude(bias_, {1, options.out_channels, options.out_channels}) : 0.0f);
    Primitive* ready = nullptr;
    Key hint{options.hint[0], options.hint[1], options.hint[2], true};
    hint.fused = guard_.may_fuse(input(hint).size(), output(hint).size());
    return hint.n > 0 ? find(hint, &ready) : STITCH_OK;
  }

  // The same with a normalisation to fold in, part by part.
  int32_t init(Dnnl& lib, const ConvOptions& options, const float* weight, const float* bias,
               const float* gamma, const float* beta, const float* mean, const float* variance, float eps) {
    return init(lib, options, weight, bias, FoldedNorm{gamma, beta, mean, variance, eps});
  }

  // Output size along `axis` (0: height, 1: width) for an input of `length`.
  int64_t output_size(int axis, int64_t length) const {
    const int64_t reach = options_.dilation[axis] * (options_.kernel[axis] - 1);
    if (options_.transposed) {
      return (length - 1) * options_.stride[axis] - 2 * options_.padding[axis] + reach +
             options_.output_padding[axis] + 1;
    }
    return (length + 2 * options_.padding[axis] - reach - 1) / options_.stride[axis] + 1;
  }

  // `operands` has one pointer for each post-op with an operand, in order. A kFull operand may be dst itself
  // if it comes before any ReLU or clip.
  int32_t run(int64_t n, int64_t h, int64_t w, const float* src, float* dst,
              const float* const* operands = nullptr) {
    if (n == 0) return STITCH_OK;
    Key key{n, h, w, true};
    const Grid pixels = output(key);
    key.fused = guard_.fuses(src, input(key), pixels, pixels.ld, operands);
    Primitive* primitive = nullptr;
    STITCH_TRY(find(key, &primitive));
    primitive->set(0, src);
    primitive->set(1, dst);
    set_operands(*primitive, 2, guard_.library(key.fused), operands);
    STITCH_TRY(primitive->run());
    if (!key.fused) guard_.finish(dst, pixels, pixels.ld, operands);
    return STITCH_OK;
  }

 private:
  struct Key {
    int64_t n, h, w;
    bool fused;  // with all post-ops
    bool operator==(const Key& o) const { return n == o.n && h == o.h && w == o.w && fused == o.fused; }
  };
  using Dims = std::vector<int64_t>;

  // Images as rows of channels; make() refuses those without a pixel.
  Grid input(const Key& key) const {
    return {key.n * key.h * key.w, options_.in_channels, options_.in_channels};
  }
  Grid output(const Key& key) const {
    const int64_t height = std::max<int64_t>(0, output_size(0, key.h));
    const int64_t width = std::max<int64_t>(0, output_size(1, key.w));
    return {key.n * height * width, options_.out_channels, options_.out_channels};
  }

  // oneDNN's logical weight is always [groups, out/groups, in/groups, kh, kw]; strides say where torch has
  // it.
  int32_t describe_weight(const float* weight) {
    const ConvOptions& o = options_;
    const int64_t area = o.kernel[0] * o.kernel[1];
    const int64_t out = o.out_channels / o.groups, in = o.in_channels / o.groups;
    weight_dims_ = {out, in, o.kernel[0], o.kernel[1]};
    Dims strides = {o.transposed ? area : in * area, o.transposed ? out * area : area, o.kernel[1], 1};
    if (o.groups > 1) {
      weight_dims_.insert(weight_dims_.begin(), o.groups);
      strides.insert(strides.begin(), out * in * area);
    }
    return weight_.init(*lib_, weight_dims_, strides, weight);
  }

  // Multiplies the normalisation into copies of weight and bias, in double: the copy rounds once.
  int32_t fold(const FoldedNorm& norm, const float* weight) {
    const ConvOptions& o = options_;
    const int64_t area = o.kernel[0] * o.kernel[1], count = o.in_channels * o.out_channels / o.groups * area;
    if (!folded_weight_.reserve(sizeof(float) * count) ||
        !folded_bias_.reserve(sizeof(float) * o.out_channels)) {
      return lib_->fail(STITCH_OUT_OF_MEMORY, "no memory for folded weights");
    }
    const int64_t out = o.out_channels / o.groups, in = o.in_channels / o.groups;
    for (int64_t c = 0; c < o.out_channels; ++c) {
      const double scale =
          (norm.gamma ? norm.gamma[c] : 1.0) / std::sqrt(double{norm.variance[c]} + norm.eps);
      const double bias = bias_ ? bias_[c] : 0.0, beta = norm.beta ? norm.beta[c] : 0.0;
      folded_bias_.floats()[c] = static_cast<float>((bias - norm.mean[c]) * scale + beta);
      const int64_t group = c / out, within = c % out;
      for (int64_t i = 0; i < in; ++i) {
        const int64_t at = (o.transposed ? (group * in + i) * out + within : c * in + i) * area;
        for (int64_t k = at; k < at + area; ++k) {
          folded_weight_.floats()[k] = static_cast<float>(weight[k] * scale);
        }
      }
    }
    bias_ = folded_bias_.floats();
    options_.has_bias = true;
    return STITCH_OK;
  }

  int32_t find(const Key& key, Primitive** found) {
    return kept_.find(key, found, [this](const Key& k, Primitive& primitive) { return make(k, primitive); });
  }

  int32_t plan(Primitive& primitive, const MemoryDesc& src, const MemoryDesc& weight, const MemoryDesc& bias,
               const MemoryDesc& dst, const Key& key, const Attributes& attributes) {
    const ConvOptions& o = options_;
    dnnl_dims_t dilates = {o.dilation[0] - 1, o.dilation[1] - 1};
    dnnl_dims_t strides = {o.stride[0], o.stride[1]};
    dnnl_dims_t low = {o.padding[0], o.padding[1]};
    dnnl_dims_t high = {};
    const int64_t size[2] = {key.h, key.w};
    for (int axis = 0; axis < 2; ++axis) {
      // What the last window still needs behind the image; it may be negative when rows are left over.
      const int64_t reach = o.dilation[axis] * (o.kernel[axis] - 1) + 1;
      high[axis] = o.transposed ? o.padding[axis] - o.output_padding[axis]
                                : (output_size(axis, size[axis]) - 1) * o.stride[axis] + reach - size[axis] -
                                      low[axis];
    }
    const auto create = o.transposed ? lib_->fn.dnnl_deconvolution_forward_primitive_desc_create
                                     : lib_->fn.dnnl_convolution_forward_primitive_desc_create;
    const auto algorithm = o.transposed ? dnnl_deconvolution_direct : dnnl_convolution_direct;
    const auto status = create(primitive.desc(*lib_), lib_->engine(), dnnl_forward_inference, algorithm,
                               src.get(), weight.get(), o.has_bias ? bias.get() : nullptr, dst.get(), strides,
                               dilates, low, high, attributes.get());
    return lib_->check(status, "plan a convolution");
  }

  int32_t make(const Key& key, Primitive& primitive) {
    const ConvOptions& o = options_;
    const int64_t out_h = output_size(0, key.h), out_w = output_size(1, key.w);
    if (out_h <= 0 || out_w <= 0)
      return lib_->fail(STITCH_UNSUPPORTED, "the image is smaller than the kernel");
    MemoryDesc src, weight, bias, dst, channel;
    STITCH_TRY(src.tagged(*lib_, {key.n, o.in_channels, key.h, key.w}, dnnl_nhwc));
    STITCH_TRY(dst.tagged(*lib_, {key.n, o.out_channels, out_h, out_w}, dnnl_nhwc));
    STITCH_TRY(weight.tagged(*lib_, weight_dims_, dnnl_format_tag_any));
    STITCH_TRY(bias.strided(*lib_, {o.out_channels}, {1}));
    STITCH_TRY(channel.strided(*lib_, {1, o.out_channels, 1, 1}, {o.out_channels, 1, 1, 1}));
    Attributes attributes;
    STITCH_TRY(attributes.init(*lib_, guard_.library(key.fused), dst.get(), channel.get()));
    STITCH_TRY(plan(primitive, src, weight, bias, dst, key, attributes));
    STITCH_TRY(primitive.finish());
    const float* packed = nullptr;
    const const_dnnl_memory_desc_t layout = primitive.layout(dnnl_query_weights_md);
    STITCH_TRY(weight_.get(layout, &packed));
    STITCH_TRY(primitive.bind(DNNL_ARG_SRC, src.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_DST, dst.get()));
    STITCH_TRY(bind_operands(primitive, guard_.library(key.fused), dst.get(), channel.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_WEIGHTS, layout, packed));
    return o.has_bias ? primitive.bind(DNNL_ARG_BIAS, bias.get(), bias_) : STITCH_OK;
  }

  Dnnl* lib_ = nullptr;
  ConvOptions options_;
  const float* bias_ = nullptr;
  Dims weight_dims_;
  Buffer folded_weight_, folded_bias_;  // used when a normalisation was folded in
  PackedWeight weight_;
  NanGuard guard_;
  PrimitiveCache<Key> kept_;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_CONV_H_

// What a GEMM or convolution does to each output element before it is stored.
#ifndef STITCH_CPU_POST_OPS_H_
#define STITCH_CPU_POST_OPS_H_

#include <string>
#include <vector>

#include "stitch/cpu/dnnl_api.h"

namespace stitch::cpu {

// Activations that oneDNN computes like torch, but for NaN behind some (nan_guard.h). alpha and beta of
// PostOp::activation mean:
enum class Act {
  kRelu,         // alpha: slope below zero (leaky_relu)
  kGeluErf,      //
  kGeluTanh,     //
  kSilu,         // x * sigmoid(x)
  kSigmoid,      //
  kTanh,         //
  kClip,         // alpha, beta: lower and upper bound (relu6, hardtanh, clamp)
  kElu,          // alpha: scale of exp(x) - 1
  kHardswish,    //
  kHardsigmoid,  //
  kMish,         //
  kLinear,       // alpha * x + beta
};

// How a second operand spreads over the output: kFull has an element for each output element, kChannel one
// for each column (GEMM) or channel (convolution).
enum class Spread { kFull, kChannel };

struct PostOp {
  enum Kind { kAct, kAdd, kSub, kMul } kind = kAct;
  Act act = Act::kRelu;
  Spread spread = Spread::kFull;
  float alpha = 0.0f;
  float beta = 0.0f;

  static PostOp activation(Act act, float alpha = 0.0f, float beta = 0.0f) {
    return {kAct, act, Spread::kFull, alpha, beta};
  }
  static PostOp add(Spread spread = Spread::kFull) { return {kAdd, Act::kRelu, spread}; }
  static PostOp sub(Spread spread = Spread::kFull) { return {kSub, Act::kRelu, spread}; }
  static PostOp mul(Spread spread = Spread::kFull) { return {kMul, Act::kRelu, spread}; }
  bool has_operand() const { return kind != kAct; }
};

using PostOps = std::vector<PostOp>;

// An owned attribute object that carries the post-ops. Destroy it after the primitive descriptor is made.
class Attributes {
 public:
  Attributes() = default;
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() {
    if (attr_) lib_->fn.dnnl_primitive_attr_destroy(attr_);
    if (ops_) lib_->fn.dnnl_post_ops_destroy(ops_);
  }

  // `full` and `channel` describe operands of the two spreads.
  int32_t init(Dnnl& lib, const PostOps& post, const_dnnl_memory_desc_t full,
               const_dnnl_memory_desc_t channel) {
    lib_ = &lib;
    STITCH_TRY(lib.check(lib.fn.dnnl_primitive_attr_create(&attr_), "create attributes"));
    STITCH_TRY(lib.check(lib.fn.dnnl_post_ops_create(&ops_), "create post-ops"));
    for (const PostOp& op : post) {
      const auto md = op.spread == Spread::kFull ? full : channel;
      const auto status = op.has_operand() ? lib.fn.dnnl_post_ops_append_binary(ops_, binary(op.kind), md)
                                           : append_eltwise(op);
      STITCH_TRY(lib.check(status, "append a post-op"));
    }
    return lib.check(lib.fn.dnnl_primitive_attr_set_post_ops(attr_, ops_), "set post-ops");
  }

  const_dnnl_primitive_attr_t get() const { return attr_; }

 private:
  static dnnl_alg_kind_t binary(PostOp::Kind kind) {
    return kind == PostOp::kAdd ? dnnl_binary_add : kind == PostOp::kSub ? dnnl_binary_sub : dnnl_binary_mul;
  }

  dnnl_status_t append_eltwise(const PostOp& op) {
    const auto append = [&](dnnl_alg_kind_t kind, float alpha, float beta) {
      return lib_->fn.dnnl_post_ops_append_eltwise(ops_, kind, alpha, beta);
    };
    switch (op.act) {
      case Act::kRelu:
        return append(dnnl_eltwise_relu, op.alpha, 0.0f);
      case Act::kGeluErf:
        return append(dnnl_eltwise_gelu_erf, 0.0f, 0.0f);
      case Act::kGeluTanh:
        return append(dnnl_eltwise_gelu_tanh, 0.0f, 0.0f);
      case Act::kSilu:
        return append(dnnl_eltwise_swish, 1.0f, 0.0f);
      case Act::kSigmoid:
        return append(dnnl_eltwise_logistic, 0.0f, 0.0f);
      case Act::kTanh:
        return append(dnnl_eltwise_tanh, 0.0f, 0.0f);
      case Act::kClip:
        return append(dnnl_eltwise_clip, op.alpha, op.beta);
      case Act::kElu:
        return append(dnnl_eltwise_elu, op.alpha, 0.0f);
      case Act::kHardswish:
        return append(dnnl_eltwise_hardswish, 1.0f / 6.0f, 0.5f);
      case Act::kHardsigmoid:
        return append(dnnl_eltwise_hardsigmoid, 1.0f / 6.0f, 0.5f);
      case Act::kMish:
        return append(dnnl_eltwise_mish, 0.0f, 0.0f);
      case Act::kLinear:
        return append(dnnl_eltwise_linear, op.alpha, op.beta);
    }
    return dnnl_invalid_arguments;
  }

  Dnnl* lib_ = nullptr;
  dnnl_primitive_attr_t attr_ = nullptr;
  dnnl_post_ops_t ops_ = nullptr;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_POST_OPS_H_

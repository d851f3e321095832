// What a GEMM or convolution does to each output element before it is stored.
#ifndef STITCH_CPU_POST_OPS_H_
#define STITCH_CPU_POST_OPS_H_

#include <string>
#include <vector>

#include "stitch/cpu/dnnl_api.h"

namespace stitch::cpu {

enum class Act { kRelu, kGeluErf, kGeluTanh, kSilu, kSigmoid, kTanh };

// How a second operand spreads over the output: kFull has an element for each output element, kChannel one
// for each column (GEMM) or channel (convolution).
enum class Spread { kFull, kChannel };

struct PostOp {
  enum Kind { kAct, kAdd, kSub, kMul } kind = kAct;
  Act act = Act::kRelu;
  Spread spread = Spread::kFull;

  static PostOp activation(Act act) { return {kAct, act, Spread::kFull}; }
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
      const auto status =
          op.has_operand() ? lib.fn.dnnl_post_ops_append_binary(ops_, binary(op.kind), md)
                           : lib.fn.dnnl_post_ops_append_eltwise(ops_, eltwise(op.act), alpha(op.act), 0.0f);
      STITCH_TRY(lib.check(status, "append a post-op"));
    }
    return lib.check(lib.fn.dnnl_primitive_attr_set_post_ops(attr_, ops_), "set post-ops");
  }

  const_dnnl_primitive_attr_t get() const { return attr_; }

 private:
  static dnnl_alg_kind_t binary(PostOp::Kind kind) {
    return kind == PostOp::kAdd ? dnnl_binary_add : kind == PostOp::kSub ? dnnl_binary_sub : dnnl_binary_mul;
  }
  static dnnl_alg_kind_t eltwise(Act act) {
    switch (act) {
      case Act::kRelu:
        return dnnl_eltwise_relu;
      case Act::kGeluErf:
        return dnnl_eltwise_gelu_erf;
      case Act::kGeluTanh:
        return dnnl_eltwise_gelu_tanh;
      case Act::kSilu:
        return dnnl_eltwise_swish;
      case Act::kSigmoid:
        return dnnl_eltwise_logistic;
      case Act::kTanh:
        return dnnl_eltwise_tanh;
    }
    return dnnl_eltwise_relu;
  }
  // Slope of relu below zero is 0; swish is x * sigmoid(alpha * x).
  static float alpha(Act act) { return act == Act::kSilu ? 1.0f : 0.0f; }

  Dnnl* lib_ = nullptr;
  dnnl_primitive_attr_t attr_ = nullptr;
  dnnl_post_ops_t ops_ = nullptr;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_POST_OPS_H_

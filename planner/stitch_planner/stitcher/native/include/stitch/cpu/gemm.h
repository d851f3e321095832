// Matrix products through oneDNN.
//
// Gemm: C[M,N] = post(A[M,K] * W + bias) with constant W, repacked once into the layout that oneDNN prefers.
// BatchMatmul: C[b..,M,N] = post(A[b..,M,K] * B[b..,K,N]) of two activations, any strides.
//
// M, leading dimensions and strides may change from call to call: a primitive is made for each new
// combination and a few are kept (primitives.h).
#ifndef STITCH_CPU_GEMM_H_
#define STITCH_CPU_GEMM_H_

#include <array>

#include "stitch/cpu/nan_guard.h"
#include "stitch/cpu/primitives.h"

namespace stitch::cpu {

struct GemmOptions {
  int64_t n = 0;
  int64_t k = 0;
  bool weight_kn = false;  // true: W is stored [K,N]; false: [N,K], as torch.nn.Linear stores it
  int64_t weight_ld = 0;   // elements between W's rows; 0: dense
  bool has_bias = false;   // bias[N]
  PostOps post = {};       // in order, after the bias
  bool pack = true;        // false: use W as it lies (for measuring, or when memory matters more)
  int64_t m_hint = 64;     // the M to expect: init packs for it, so that no call pays
};

class Gemm {
 public:
  // `weight` and `bias` must stay valid as long as this object.
  int32_t init(Dnnl& lib, const GemmOptions& options, const float* weight, const float* bias) {
    lib_ = &lib;
    options_ = options;
    bias_ = bias;
    kept_.clear();  // before the weight: primitives point to its copies
    STITCH_TRY(lib.open());
    const int64_t ld = options.weight_ld ? options.weight_ld : (options.weight_kn ? options.n : options.k);
    // Logical dims are [K,N] in both cases; only the strides differ.
    using Strides = std::vector<int64_t>;
    STITCH_TRY(weight_.init(lib, {options.k, options.n}, options.weight_kn ? Strides{ld, 1} : Strides{1, ld},
                            weight));
    const Grid stored = options.weight_kn ? Grid{options.k, options.n, ld} : Grid{options.n, options.k, ld};
    guard_.init(options.post, options.k, magnitude(weight, stored),
                options.has_bias ? magnitude(bias, {1, options.n, options.n}) : 0.0f);
    if (options.m_hint <= 0) return STITCH_OK;
    const bool fused = guard_.may_fuse(options.m_hint * options.k, options.m_hint * options.n);
    Primitive* ready = nullptr;
    return find({options.m_hint, options.k, options.n, options.n, fused}, &ready);
  }

  // lda, ldc: elements between rows of A and C (0: dense). `operands` has one pointer for each post-op with
  // an operand, in order; full operands are [M,N] with rows `operand_ld` apart (0: N). C may be one of them
  // that comes before any ReLU or clip.
  int32_t run(int64_t m, const float* a, int64_t lda, float* c, int64_t ldc,
              const float* const* operands = nullptr, int64_t operand_ld = 0) {
    if (m == 0 || options_.n == 0) return STITCH_OK;
    if (lda == 0) lda = options_.k;
    if (ldc == 0) ldc = options_.n;
    if (operand_ld == 0) operand_ld = options_.n;
    const Grid input{m, options_.k, lda}, output{m, options_.n, ldc};
    const bool fused = guard_.fuses(a, input, output, operand_ld, operands);
    Primitive* primitive = nullptr;
    STITCH_TRY(find({m, lda, ldc, operand_ld, fused}, &primitive));
    primitive->set(0, a);
    primitive->set(1, c);
    set_operands(*primitive, 2, guard_.library(fused), operands);
    STITCH_TRY(primitive->run());
    if (!fused) guard_.finish(c, output, operand_ld, operands);
    return STITCH_OK;
  }

 private:
  struct Key {
    int64_t m, lda, ldc, operand_ld;
    bool fused;  // with all post-ops
    bool operator==(const Key& other) const {
      return m == other.m && lda == other.lda && ldc == other.ldc && operand_ld == other.operand_ld &&
             fused == other.fused;
    }
  };

  int32_t find(const Key& key, Primitive** found) {
    return kept_.find(key, found, [this](const Key& k, Primitive& primitive) { return make(k, primitive); });
  }

  int32_t make(const Key& key, Primitive& primitive) {
    Dnnl& lib = *lib_;
    MemoryDesc a, w, bias, c, full, channel;
    STITCH_TRY(a.strided(lib, {key.m, options_.k}, {key.lda, 1}));
    STITCH_TRY(c.strided(lib, {key.m, options_.n}, {key.ldc, 1}));
    STITCH_TRY(bias.strided(lib, {1, options_.n}, {options_.n, 1}));
    STITCH_TRY(full.strided(lib, {key.m, options_.n}, {key.operand_ld, 1}));
    STITCH_TRY(channel.strided(lib, {1, options_.n}, {options_.n, 1}));
    STITCH_TRY(options_.pack ? w.tagged(lib, {options_.k, options_.n}, dnnl_format_tag_any)
                             : w.copy(lib, weight_.plain()));
    Attributes attributes;
    STITCH_TRY(attributes.init(lib, guard_.library(key.fused), full.get(), channel.get()));
    STITCH_TRY(lib.check(lib.fn.dnnl_matmul_primitive_desc_create(
                             primitive.desc(lib), lib.engine(), a.get(), w.get(),
                             options_.has_bias ? bias.get() : nullptr, c.get(), attributes.get()),
                         "plan a matrix product"));
    STITCH_TRY(primitive.finish());
    const float* weight = nullptr;
    const const_dnnl_memory_desc_t layout = primitive.layout(dnnl_query_weights_md);
    STITCH_TRY(weight_.get(layout, &weight));
    STITCH_TRY(primitive.bind(DNNL_ARG_SRC, a.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_DST, c.get()));
    STITCH_TRY(bind_operands(primitive, guard_.library(key.fused), full.get(), channel.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_WEIGHTS, layout, weight));
    return options_.has_bias ? primitive.bind(DNNL_ARG_BIAS, bias.get(), bias_) : STITCH_OK;
  }

  Dnnl* lib_ = nullptr;
  GemmOptions options_;
  const float* bias_ = nullptr;
  PackedWeight weight_;
  NanGuard guard_;
  PrimitiveCache<Key> kept_;
};

// A batched matrix: dims [batch0, batch1, rows, columns] and their strides in elements. A stride of 0 in a
// batch dimension repeats the matrix.
struct Batched {
  int64_t strides[4];
};

struct BatchShape {
  int64_t batch0 = 1, batch1 = 1, m = 0, n = 0, k = 0;
  bool operator==(const BatchShape& o) const {
    return batch0 == o.batch0 && batch1 == o.batch1 && m == o.m && n == o.n && k == o.k;
  }
};

class BatchMatmul {
 public:
  // Post-op operands of kFull are dense [batch0,batch1,M,N]; kChannel is one value for each column.
  int32_t init(Dnnl& lib, const PostOps& post = {}) {
    lib_ = &lib;
    guard_.init(post, 0, 0.0f, 0.0f);
    kept_.clear();
    return lib.open();
  }

  int32_t run(const BatchShape& shape, const float* a, const Batched& a_strides, const float* b,
              const Batched& b_strides, float* c, const Batched& c_strides,
              const float* const* operands = nullptr) {
    if (shape.batch0 * shape.batch1 * shape.m * shape.n == 0) return STITCH_OK;
    Primitive* primitive = nullptr;
    STITCH_TRY(kept_.find({shape, key(a_strides, b_strides, c_strides)}, &primitive,
                          [this](const Key& k, Primitive& fresh) { return make(k, fresh); }));
    primitive->set(0, a);
    primitive->set(1, b);
    primitive->set(2, c);
    set_operands(*primitive, 3, guard_.library(false), operands);
    STITCH_TRY(primitive->run());
    finish(shape, c, c_strides, operands);
    return STITCH_OK;
  }

 private:
  struct Key {
    BatchShape shape;
    std::array<int64_t, 12> strides;
    bool operator==(const Key& other) const { return shape == other.shape && strides == other.strides; }
  };

  static std::array<int64_t, 12> key(const Batched& a, const Batched& b, const Batched& c) {
    std::array<int64_t, 12> all{};
    for (int i = 0; i < 4; ++i) {
      all[i] = a.strides[i];
      all[4 + i] = b.strides[i];
      all[8 + i] = c.strides[i];
    }
    return all;
  }

  // Does what the library left out, matrix by matrix.
  void finish(const BatchShape& s, float* c, const Batched& to, const float* const* operands) const {
    const PostOps& post = guard_.post();
    std::vector<const float*> here(post.size());
    for (int64_t i = 0; guard_.has_rest() && i < s.batch0 * s.batch1; ++i) {
      size_t slot = 0;
      for (const PostOp& op : post) {
        if (!op.has_operand()) continue;
        here[slot] = operands[slot] + (op.spread == Spread::kFull ? i * s.m * s.n : 0);
        ++slot;
      }
      const int64_t at = i / s.batch1 * to.strides[0] + i % s.batch1 * to.strides[1];
      guard_.finish(c + at, {s.m, s.n, to.strides[2]}, s.n, here.data());
    }
  }

  // Describes one operand; a batch dimension with stride 0 becomes length 1, which oneDNN broadcasts.
  int32_t describe(MemoryDesc& md, const BatchShape& s, int64_t rows, int64_t columns,
                   const int64_t* strides) {
    const int64_t batch0 = strides[0] == 0 ? 1 : s.batch0, batch1 = strides[1] == 0 ? 1 : s.batch1;
    const int64_t extent = rows * columns;  // any positive stride will do for a length of 1
    return md.strided(*lib_, {batch0, batch1, rows, columns},
                      {strides[0] ? strides[0] : extent * batch1, strides[1] ? strides[1] : extent,
                       strides[2], strides[3]});
  }

  int32_t make(const Key& key, Primitive& primitive) {
    Dnnl& lib = *lib_;
    const BatchShape& s = key.shape;
    MemoryDesc a, b, c, full, channel;
    STITCH_TRY(describe(a, s, s.m, s.k, &key.strides[0]));
    STITCH_TRY(describe(b, s, s.k, s.n, &key.strides[4]));
    STITCH_TRY(describe(c, s, s.m, s.n, &key.strides[8]));
    STITCH_TRY(full.strided(lib, {s.batch0, s.batch1, s.m, s.n}, {s.batch1 * s.m * s.n, s.m * s.n, s.n, 1}));
    STITCH_TRY(channel.strided(lib, {1, 1, 1, s.n}, {s.n, s.n, s.n, 1}));
    Attributes attributes;
    STITCH_TRY(attributes.init(lib, guard_.library(false), full.get(), channel.get()));
    STITCH_TRY(
        lib.check(lib.fn.dnnl_matmul_primitive_desc_create(primitive.desc(lib), lib.engine(), a.get(),
                                                           b.get(), nullptr, c.get(), attributes.get()),
                  "plan a batched matrix product"));
    STITCH_TRY(primitive.finish());
    STITCH_TRY(primitive.bind(DNNL_ARG_SRC, a.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_WEIGHTS, b.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_DST, c.get()));
    return bind_operands(primitive, guard_.library(false), full.get(), channel.get());
  }

  Dnnl* lib_ = nullptr;
  NanGuard guard_;
  PrimitiveCache<Key> kept_;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_GEMM_H_

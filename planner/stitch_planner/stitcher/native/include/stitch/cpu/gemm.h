// Matrix products through oneDNN.
//
// Gemm: C[M,N] = post(A[M,K] * W + bias) with constant W, repacked once into the layout that oneDNN prefers.
// BatchMatmul: C[b..,M,N] = post(alpha-free A[b..,M,K] * B[b..,K,N]) of two activations, any strides.
//
// M, leading dimensions and strides may change from call to call: a primitive is made for each new
// combination and a few are kept. A call that meets a kept one allocates nothing.
#ifndef STITCH_CPU_GEMM_H_
#define STITCH_CPU_GEMM_H_

#include <array>
#include <list>
#include <memory>

#include "stitch/cpu/buffer.h"
#include "stitch/cpu/dnnl_api.h"
#include "stitch/cpu/post_ops.h"

namespace stitch::cpu {

// Primitives kept per object; beyond it the least recently used one is dropped.
inline constexpr size_t kKeptPrimitives = 8;

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
    weight_ = weight;
    bias_ = bias;
    kept_.clear();
    packed_.clear();
    STITCH_TRY(lib.open());
    const int64_t ld = options.weight_ld ? options.weight_ld : (options.weight_kn ? options.n : options.k);
    // Logical dims are [K,N] in both cases; only the strides differ.
    STITCH_TRY(plain_.strided(lib, {options.k, options.n},
                              options.weight_kn ? std::vector<int64_t>{ld, 1} : std::vector<int64_t>{1, ld}));
    Entry* entry = nullptr;
    return options.m_hint > 0 ? find({options.m_hint, options.k, options.n, options.n}, &entry) : STITCH_OK;
  }

  // lda, ldc: elements between rows of A and C (0: dense). `operands` has one pointer for each post-op with
  // an operand, in order; full operands are [M,N] with rows `operand_ld` apart (0: N). C may be one of them.
  int32_t run(int64_t m, const float* a, int64_t lda, float* c, int64_t ldc,
              const float* const* operands = nullptr, int64_t operand_ld = 0) {
    if (m == 0 || options_.n == 0) return STITCH_OK;
    Entry* entry = nullptr;
    STITCH_TRY(find({m, lda ? lda : options_.k, ldc ? ldc : options_.n, operand_ld ? operand_ld : options_.n},
                    &entry));
    entry->primitive.set(0, a);
    entry->primitive.set(1, c);
    for (size_t i = 0; i < operands_; ++i) entry->primitive.set(2 + i, operands[i]);
    return entry->primitive.run();
  }

  // "brg:avx512_core", ...: what runs for the most recent shape.
  std::string implementation() const { return kept_.empty() ? "" : kept_.front().primitive.implementation(); }
  size_t packed_bytes() const {
    size_t sum = 0;
    for (const auto& copy : packed_) sum += copy->data.bytes();
    return sum;
  }

 private:
  struct Key {
    int64_t m, lda, ldc, operand_ld;
    bool operator==(const Key& other) const {
      return m == other.m && lda == other.lda && ldc == other.ldc && operand_ld == other.operand_ld;
    }
  };
  struct Entry {
    Key key;
    Primitive primitive;
  };
  // One repacked copy of W. oneDNN may prefer different layouts for different M, so there can be several.
  struct Packed {
    MemoryDesc md;
    Buffer data;
  };

  int32_t find(const Key& key, Entry** found) {
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->key == key) {
        kept_.splice(kept_.begin(), kept_, it);
        *found = &kept_.front();
        return STITCH_OK;
      }
    }
    Entry entry{key, {}};
    STITCH_TRY(make(key, entry.primitive));
    kept_.push_front(std::move(entry));
    if (kept_.size() > kKeptPrimitives) kept_.pop_back();
    *found = &kept_.front();
    return STITCH_OK;
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
                             : w.copy(lib, plain_.get()));
    Attributes attributes;
    STITCH_TRY(attributes.init(lib, options_.post, full.get(), channel.get()));
    STITCH_TRY(lib.check(lib.fn.dnnl_matmul_primitive_desc_create(
                             primitive.desc(lib), lib.engine(), a.get(), w.get(),
                             options_.has_bias ? bias.get() : nullptr, c.get(), attributes.get()),
                         "plan a matrix product"));
    STITCH_TRY(primitive.finish());
    const float* weight = nullptr;
    const const_dnnl_memory_desc_t layout = primitive.layout(dnnl_query_weights_md);
    STITCH_TRY(pack(layout, &weight));
    STITCH_TRY(primitive.bind(DNNL_ARG_SRC, a.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_DST, c.get()));
    operands_ = 0;
    for (size_t i = 0; i < options_.post.size(); ++i) {
      const PostOp& op = options_.post[i];
      if (!op.has_operand()) continue;
      ++operands_;
      STITCH_TRY(primitive.bind(DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(i)) | DNNL_ARG_SRC_1,
                                op.spread == Spread::kFull ? full.get() : channel.get()));
    }
    STITCH_TRY(primitive.bind(DNNL_ARG_WEIGHTS, layout, weight));
    return options_.has_bias ? primitive.bind(DNNL_ARG_BIAS, bias.get(), bias_) : STITCH_OK;
  }

  // Gives W in `layout`: as it lies, from a kept copy, or repacked now.
  int32_t pack(const_dnnl_memory_desc_t layout, const float** weight) {
    if (plain_.equals(layout)) {
      *weight = weight_;
      return STITCH_OK;
    }
    for (const auto& copy : packed_) {
      if (copy->md.equals(layout)) {
        *weight = copy->data.floats();
        return STITCH_OK;
      }
    }
    auto copy = std::make_unique<Packed>();
    STITCH_TRY(copy->md.copy(*lib_, layout));
    if (!copy->data.reserve(copy->md.bytes())) {
      return lib_->fail(STITCH_OUT_OF_MEMORY, "no memory for packed weights");
    }
    STITCH_TRY(reorder(*lib_, plain_.get(), weight_, layout, copy->data.data()));
    *weight = copy->data.floats();
    packed_.push_back(std::move(copy));
    return STITCH_OK;
  }

  Dnnl* lib_ = nullptr;
  GemmOptions options_;
  const float* weight_ = nullptr;
  const float* bias_ = nullptr;
  size_t operands_ = 0;
  MemoryDesc plain_;
  std::vector<std::unique_ptr<Packed>> packed_;
  std::list<Entry> kept_;
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
    post_ = post;
    kept_.clear();
    return lib.open();
  }

  int32_t run(const BatchShape& shape, const float* a, const Batched& a_strides, const float* b,
              const Batched& b_strides, float* c, const Batched& c_strides,
              const float* const* operands = nullptr) {
    if (shape.batch0 * shape.batch1 * shape.m * shape.n == 0) return STITCH_OK;
    Entry* entry = nullptr;
    STITCH_TRY(find({shape, key(a_strides, b_strides, c_strides)}, &entry));
    entry->primitive.set(0, a);
    entry->primitive.set(1, b);
    entry->primitive.set(2, c);
    for (size_t i = 0; i < operands_; ++i) entry->primitive.set(3 + i, operands[i]);
    return entry->primitive.run();
  }

  std::string implementation() const { return kept_.empty() ? "" : kept_.front().primitive.implementation(); }

 private:
  struct Key {
    BatchShape shape;
    std::array<int64_t, 12> strides;
    bool operator==(const Key& other) const { return shape == other.shape && strides == other.strides; }
  };
  struct Entry {
    Key key;
    Primitive primitive;
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

  int32_t find(const Key& key, Entry** found) {
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->key == key) {
        kept_.splice(kept_.begin(), kept_, it);
        *found = &kept_.front();
        return STITCH_OK;
      }
    }
    Entry entry{key, {}};
    STITCH_TRY(make(key, entry.primitive));
    kept_.push_front(std::move(entry));
    if (kept_.size() > kKeptPrimitives) kept_.pop_back();
    *found = &kept_.front();
    return STITCH_OK;
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
    STITCH_TRY(attributes.init(lib, post_, full.get(), channel.get()));
    STITCH_TRY(
        lib.check(lib.fn.dnnl_matmul_primitive_desc_create(primitive.desc(lib), lib.engine(), a.get(),
                                                           b.get(), nullptr, c.get(), attributes.get()),
                  "plan a batched matrix product"));
    STITCH_TRY(primitive.finish());
    STITCH_TRY(primitive.bind(DNNL_ARG_SRC, a.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_WEIGHTS, b.get()));
    STITCH_TRY(primitive.bind(DNNL_ARG_DST, c.get()));
    operands_ = 0;
    for (size_t i = 0; i < post_.size(); ++i) {
      if (!post_[i].has_operand()) continue;
      ++operands_;
      STITCH_TRY(primitive.bind(DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(i)) | DNNL_ARG_SRC_1,
                                post_[i].spread == Spread::kFull ? full.get() : channel.get()));
    }
    return STITCH_OK;
  }

  Dnnl* lib_ = nullptr;
  PostOps post_;
  size_t operands_ = 0;
  std::list<Entry> kept_;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_GEMM_H_

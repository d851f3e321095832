// What products and convolutions through oneDNN share: primitives that are kept for a few sizes, the operands
// of their post-ops, and constant weights in the layouts that primitives ask for.
#ifndef STITCH_CPU_PRIMITIVES_H_
#define STITCH_CPU_PRIMITIVES_H_

#include <list>
#include <memory>
#include <vector>

#include "stitch/cpu/buffer.h"
#include "stitch/cpu/dnnl_api.h"
#include "stitch/cpu/post_ops.h"

namespace stitch::cpu {

// Primitives by sizes and strides, the most recent ones. A call that meets a kept one allocates nothing.
template <class Key>
class PrimitiveCache {
 public:
  void clear() { kept_.clear(); }

  // The primitive for `key`; a new one is built by `make(key, primitive)`, which returns a StitchStatus.
  template <class Make>
  int32_t find(const Key& key, Primitive** found, const Make& make) {
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->key == key) {
        kept_.splice(kept_.begin(), kept_, it);
        *found = &kept_.front().primitive;
        return STITCH_OK;
      }
    }
    Entry entry{key, {}};
    STITCH_TRY(make(key, entry.primitive));
    kept_.push_front(std::move(entry));
    if (kept_.size() > kMostKept) kept_.pop_back();
    *found = &kept_.front().primitive;
    return STITCH_OK;
  }

 private:
  static constexpr size_t kMostKept = 8;  // beyond it the least recently used one is dropped
  struct Entry {
    Key key;
    Primitive primitive;
  };
  std::list<Entry> kept_;  // the most recent one first
};

// Binds every post-op's operand, in order. `full` and `channel` describe operands of the two spreads.
inline int32_t bind_operands(Primitive& primitive, const PostOps& post, const_dnnl_memory_desc_t full,
                             const_dnnl_memory_desc_t channel) {
  for (size_t i = 0; i < post.size(); ++i) {
    if (!post[i].has_operand()) continue;
    STITCH_TRY(primitive.bind(DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(i)) | DNNL_ARG_SRC_1,
                              post[i].spread == Spread::kFull ? full : channel));
  }
  return STITCH_OK;
}

// Sets their addresses for one call; `slot` is the first of them in the order of bind().
inline void set_operands(Primitive& primitive, size_t slot, const PostOps& post,
                         const float* const* operands) {
  for (const PostOp& op : post) {
    if (op.has_operand()) primitive.set(slot++, *operands++);
  }
}

// A constant weight, and copies of it in other layouts. oneDNN may prefer different layouts for different
// sizes, so there can be several.
class PackedWeight {
 public:
  // `strides` say how `data` lies; it must stay valid as long as this object.
  int32_t init(Dnnl& lib, const std::vector<int64_t>& dims, const std::vector<int64_t>& strides,
               const float* data) {
    lib_ = &lib;
    data_ = data;
    copies_.clear();
    return plain_.strided(lib, dims, strides);
  }

  // The layout in which the weight was given.
  const_dnnl_memory_desc_t plain() const { return plain_.get(); }

  // Gives the weight in `layout`: as it lies, from a kept copy, or repacked now.
  int32_t get(const_dnnl_memory_desc_t layout, const float** weight) {
    if (plain_.equals(layout)) {
      *weight = data_;
      return STITCH_OK;
    }
    for (const auto& copy : copies_) {
      if (copy->md.equals(layout)) {
        *weight = copy->data.floats();
        return STITCH_OK;
      }
    }
    auto copy = std::make_unique<Copy>();
    STITCH_TRY(copy->md.copy(*lib_, layout));
    if (!copy->data.reserve(copy->md.bytes())) {
      return lib_->fail(STITCH_OUT_OF_MEMORY, "no memory for packed weights");
    }
    STITCH_TRY(reorder(*lib_, plain_.get(), data_, layout, copy->data.data()));
    *weight = copy->data.floats();
    copies_.push_back(std::move(copy));
    return STITCH_OK;
  }

 private:
  struct Copy {
    MemoryDesc md;
    Buffer data;
  };
  Dnnl* lib_ = nullptr;
  const float* data_ = nullptr;
  MemoryDesc plain_;
  std::vector<std::unique_ptr<Copy>> copies_;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_PRIMITIVES_H_

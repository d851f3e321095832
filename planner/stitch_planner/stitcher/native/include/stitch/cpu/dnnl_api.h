// oneDNN through its C API, found at run time.
//
// A program never links oneDNN: the judge (or load_program) preloads libdnnl.so.3, or it lies on the loader's
// path, and dlopen by soname finds it. Only dnnl.h is included, for types: it costs a tenth of the build time
// of dnnl.hpp.
//
// Dnnl is the library plus one CPU engine, one stream and the text of the last failure. All members return a
// StitchStatus; nothing throws.
#ifndef STITCH_CPU_DNNL_API_H_
#define STITCH_CPU_DNNL_API_H_

#include <dlfcn.h>
#include <dnnl.h>

#include <string>
#include <utility>
#include <vector>

#include "stitch/common/status.h"

namespace stitch::cpu {

#define STITCH_DNNL_FUNCTIONS(X)                    \
  X(dnnl_engine_create)                             \
  X(dnnl_engine_destroy)                            \
  X(dnnl_stream_create)                             \
  X(dnnl_stream_destroy)                            \
  X(dnnl_memory_desc_create_with_strides)           \
  X(dnnl_memory_desc_create_with_tag)               \
  X(dnnl_memory_desc_clone)                         \
  X(dnnl_memory_desc_destroy)                       \
  X(dnnl_memory_desc_equal)                         \
  X(dnnl_memory_desc_get_size)                      \
  X(dnnl_memory_create)                             \
  X(dnnl_memory_destroy)                            \
  X(dnnl_memory_set_data_handle)                    \
  X(dnnl_post_ops_create)                           \
  X(dnnl_post_ops_destroy)                          \
  X(dnnl_post_ops_append_eltwise)                   \
  X(dnnl_post_ops_append_binary)                    \
  X(dnnl_primitive_attr_create)                     \
  X(dnnl_primitive_attr_destroy)                    \
  X(dnnl_primitive_attr_set_post_ops)               \
  X(dnnl_primitive_desc_query_md)                   \
  X(dnnl_primitive_desc_destroy)                    \
  X(dnnl_primitive_create)                          \
  X(dnnl_primitive_destroy)                         \
  X(dnnl_primitive_execute)                         \
  X(dnnl_reorder_primitive_desc_create)             \
  X(dnnl_matmul_primitive_desc_create)              \
  X(dnnl_convolution_forward_primitive_desc_create) \
  X(dnnl_deconvolution_forward_primitive_desc_create)

// The functions that the headers in this folder call, resolved once per process.
struct DnnlFunctions {
#define STITCH_DNNL_DECLARE(name) decltype(&::name) name = nullptr;
  STITCH_DNNL_FUNCTIONS(STITCH_DNNL_DECLARE)
#undef STITCH_DNNL_DECLARE
};

// Library, engine and stream of one program handle. Not copyable; everything made from it must die before it.
class Dnnl {
 public:
  Dnnl() = default;
  Dnnl(const Dnnl&) = delete;
  Dnnl& operator=(const Dnnl&) = delete;
  ~Dnnl() {
    if (stream_) fn.dnnl_stream_destroy(stream_);
    if (engine_) fn.dnnl_engine_destroy(engine_);
  }

  // STITCH_OK, or STITCH_MISSING_LIBRARY with the wheel to install in error(). Calling it again is harmless.
  int32_t open() {
    if (stream_) return STITCH_OK;
    void* library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
      const char* reason = dlerror();
      error_ = std::string("libdnnl.so.3 cannot be loaded (") + (reason ? reason : "no reason given") +
               "); install the wheel onednn-cpu-gomp==2023.2.0 into this interpreter";
      return STITCH_MISSING_LIBRARY;
    }
#define STITCH_DNNL_RESOLVE(name)                                                           \
  fn.name = reinterpret_cast<decltype(fn.name)>(dlsym(library, #name));                     \
  if (!fn.name) {                                                                           \
    error_ = "libdnnl.so.3 lacks " #name "; oneDNN 3.2 has it (onednn-cpu-gomp==2023.2.0)"; \
    return STITCH_MISSING_LIBRARY;                                                          \
  }
    STITCH_DNNL_FUNCTIONS(STITCH_DNNL_RESOLVE)
#undef STITCH_DNNL_RESOLVE
    if (int32_t rc = check(fn.dnnl_engine_create(&engine_, dnnl_cpu, 0), "create a CPU engine")) return rc;
    return check(fn.dnnl_stream_create(&stream_, engine_, dnnl_stream_default_flags), "create a stream");
  }

  // Maps oneDNN's status to ours and keeps a sentence about a failure.
  int32_t check(dnnl_status_t status, const char* doing) {
    if (status == dnnl_success) return STITCH_OK;
    if (status == dnnl_out_of_memory) {
      error_ = std::string("oneDNN has not enough memory to ") + doing;
      return STITCH_OUT_OF_MEMORY;
    }
    error_ = std::string("oneDNN failed to ") + doing + " (dnnl_status_t " + std::to_string(status) + ")";
    return status == dnnl_unimplemented ? STITCH_UNSUPPORTED : STITCH_ERROR;
  }

  int32_t fail(int32_t status, std::string sentence) {
    error_ = std::move(sentence);
    return status;
  }

  const std::string& error() const { return error_; }
  dnnl_engine_t engine() const { return engine_; }
  dnnl_stream_t stream() const { return stream_; }

  DnnlFunctions fn;

 private:
  dnnl_engine_t engine_ = nullptr;
  dnnl_stream_t stream_ = nullptr;
  std::string error_;
};

// An owned memory descriptor. fp32 throughout: no template here computes in another type.
class MemoryDesc {
 public:
  MemoryDesc() = default;
  MemoryDesc(MemoryDesc&& other) noexcept
      : lib_(std::exchange(other.lib_, nullptr)), md_(std::exchange(other.md_, nullptr)) {}
  MemoryDesc& operator=(MemoryDesc&& other) noexcept {
    std::swap(lib_, other.lib_);
    std::swap(md_, other.md_);
    return *this;
  }
  ~MemoryDesc() {
    if (md_) lib_->fn.dnnl_memory_desc_destroy(md_);
  }

  // `strides` in elements.
  int32_t strided(Dnnl& lib, const std::vector<int64_t>& dims, const std::vector<int64_t>& strides) {
    reset(lib);
    return lib.check(lib.fn.dnnl_memory_desc_create_with_strides(&md_, static_cast<int>(dims.size()),
                                                                 dims.data(), dnnl_f32, strides.data()),
                     "describe a strided tensor");
  }

  // dnnl_format_tag_any lets the primitive choose.
  int32_t tagged(Dnnl& lib, const std::vector<int64_t>& dims, dnnl_format_tag_t tag) {
    reset(lib);
    return lib.check(lib.fn.dnnl_memory_desc_create_with_tag(&md_, static_cast<int>(dims.size()), dims.data(),
                                                             dnnl_f32, tag),
                     "describe a tensor");
  }

  int32_t copy(Dnnl& lib, const_dnnl_memory_desc_t other) {
    reset(lib);
    return lib.check(lib.fn.dnnl_memory_desc_clone(&md_, other), "copy a memory descriptor");
  }

  const_dnnl_memory_desc_t get() const { return md_; }
  size_t bytes() const { return lib_->fn.dnnl_memory_desc_get_size(md_); }
  bool equals(const_dnnl_memory_desc_t other) const { return lib_->fn.dnnl_memory_desc_equal(md_, other); }

 private:
  void reset(Dnnl& lib) {
    if (md_) lib_->fn.dnnl_memory_desc_destroy(std::exchange(md_, nullptr));
    lib_ = &lib;
  }

  Dnnl* lib_ = nullptr;
  dnnl_memory_desc_t md_ = nullptr;
};

// A primitive with its memory objects. Build: create a descriptor with the library's own function into
// `desc`, then finish(), then bind() each argument once; set() changes an argument's address, run() executes.
class Primitive {
 public:
  Primitive() = default;
  Primitive(Primitive&& other) noexcept { *this = std::move(other); }
  Primitive& operator=(Primitive&& other) noexcept {
    std::swap(lib_, other.lib_);
    std::swap(desc_, other.desc_);
    std::swap(primitive_, other.primitive_);
    std::swap(args_, other.args_);
    return *this;
  }
  ~Primitive() {
    for (dnnl_exec_arg_t& arg : args_) lib_->fn.dnnl_memory_destroy(arg.memory);
    if (primitive_) lib_->fn.dnnl_primitive_destroy(primitive_);
    if (desc_) lib_->fn.dnnl_primitive_desc_destroy(desc_);
  }

  // Where the library's *_primitive_desc_create functions write.
  dnnl_primitive_desc_t* desc(Dnnl& lib) {
    lib_ = &lib;
    return &desc_;
  }

  int32_t finish() {
    return lib_->check(lib_->fn.dnnl_primitive_create(&primitive_, desc_), "create a primitive");
  }

  // The layout chosen for argument `index` of kind `what` (dnnl_query_weights_md, ...).
  const_dnnl_memory_desc_t layout(dnnl_query_t what, int index = 0) const {
    return lib_->fn.dnnl_primitive_desc_query_md(desc_, what, index);
  }

  int32_t bind(int arg, const_dnnl_memory_desc_t md, const void* data = nullptr) {
    dnnl_memory_t memory = nullptr;
    int32_t rc =
        lib_->check(lib_->fn.dnnl_memory_create(&memory, md, lib_->engine(), const_cast<void*>(data)),
                    "create a memory object");
    if (rc == STITCH_OK) args_.push_back({arg, memory});
    return rc;
  }

  // `slot` counts bind() calls from 0.
  void set(size_t slot, const void* data) {
    lib_->fn.dnnl_memory_set_data_handle(args_[slot].memory, const_cast<void*>(data));
  }

  // The library's threads are done when this returns: its CPU streams are synchronous.
  int32_t run() {
    return lib_->check(lib_->fn.dnnl_primitive_execute(primitive_, lib_->stream(),
                                                       static_cast<int>(args_.size()), args_.data()),
                       "execute a primitive");
  }

 private:
  Dnnl* lib_ = nullptr;
  dnnl_primitive_desc_t desc_ = nullptr;
  dnnl_primitive_t primitive_ = nullptr;
  std::vector<dnnl_exec_arg_t> args_;
};

// Copies `from` (laid out as `from_md`) to `to` (laid out as `to_md`).
inline int32_t reorder(Dnnl& lib, const_dnnl_memory_desc_t from_md, const void* from,
                       const_dnnl_memory_desc_t to_md, void* to) {
  Primitive primitive;
  int32_t rc = lib.check(lib.fn.dnnl_reorder_primitive_desc_create(primitive.desc(lib), from_md, lib.engine(),
                                                                   to_md, lib.engine(), nullptr),
                         "plan a reorder");
  if (rc == STITCH_OK) rc = primitive.finish();
  if (rc == STITCH_OK) rc = primitive.bind(DNNL_ARG_FROM, from_md, from);
  if (rc == STITCH_OK) rc = primitive.bind(DNNL_ARG_TO, to_md, to);
  return rc == STITCH_OK ? primitive.run() : rc;
}

}  // namespace stitch::cpu

#endif  // STITCH_CPU_DNNL_API_H_

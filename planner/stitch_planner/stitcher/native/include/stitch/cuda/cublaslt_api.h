// The few functions and numbers of cuBLASLt that programs use, declared here, so that neither its headers nor
// the library are needed to build. What stands here are facts of its binary interface, unchanged from CUDA 11
// through 13 (docs/decisions/0006-cublaslt.md); a test compares them with cublasLt.h where that is installed.
//
// The library is the one that torch has loaded: it is looked up by soname, never linked.
#ifndef STITCH_CUDA_CUBLASLT_API_H_
#define STITCH_CUDA_CUBLASLT_API_H_

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#include "stitch/cuda/launch.cuh"

namespace stitch::cuda::lt {

using Handle = struct HandleTag*;
using MatmulDesc = struct MatmulDescTag*;
using Layout = struct LayoutTag*;
using Preference = struct PreferenceTag*;

enum Status : int { kSuccess = 0 };
enum DataType : int { kFloat32 = 0 };
enum ComputeType : int { kCompute32F = 68, kCompute32FFastTF32 = 77 };
enum Operation : int32_t { kNormal = 0, kTransposed = 1 };

enum DescAttribute : int { kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute : int { kBatchCount = 5, kBatchStride = 6 };
enum PreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,
  kMinAlignmentA = 5,
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8
};

// Values of cublasLtEpilogue_t.
enum Epilogue : uint32_t { kEpilogueNone = 1, kEpilogueBias = 4 };

struct Algorithm {
  uint64_t data[8];
};

struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

struct Functions {
  int (*cublasLtCreate)(Handle*);
  int (*cublasLtDestroy)(Handle);
  int (*cublasLtMatmulDescCreate)(MatmulDesc*, int compute_type, int scale_type);
  int (*cublasLtMatmulDescDestroy)(MatmulDesc);
  int (*cublasLtMatmulDescSetAttribute)(MatmulDesc, int attribute, const void*, size_t);
  int (*cublasLtMatrixLayoutCreate)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t ld);
  int (*cublasLtMatrixLayoutDestroy)(Layout);
  int (*cublasLtMatrixLayoutSetAttribute)(Layout, int attribute, const void*, size_t);
  int (*cublasLtMatmulPreferenceCreate)(Preference*);
  int (*cublasLtMatmulPreferenceDestroy)(Preference);
  int (*cublasLtMatmulPreferenceSetAttribute)(Preference, int attribute, const void*, size_t);
  int (*cublasLtMatmulAlgoGetHeuristic)(Handle, MatmulDesc, Layout a, Layout b, Layout c, Layout d,
                                        Preference, int requested, HeuristicResult*, int* returned);
  int (*cublasLtMatmul)(Handle, MatmulDesc, const void* alpha, const void* a, Layout, const void* b, Layout,
                        const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                        void* workspace, size_t workspace_bytes, cudaStream_t);
};

}  // namespace stitch::cuda::lt

namespace stitch::cuda {

// The library, opened once for each handle of a program.
class CublasLt {
 public:
  lt::Functions fn{};

  CublasLt() = default;
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt() {
    if (handle_ != nullptr) fn.cublasLtDestroy(handle_);
    if (library_ != nullptr) dlclose(library_);
  }

  // Opens the library if that has not happened yet; torch's copy first, whatever its version.
  int32_t open(Errors& errors) {
    errors_ = &errors;
    if (handle_ != nullptr) return STITCH_OK;
    static constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    for (const char* name : kNames) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    }
    for (const char* name : kNames) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library_ == nullptr) {
      return errors.fail(STITCH_MISSING_LIBRARY, "neither libcublasLt.so.13 nor libcublasLt.so.12 is here");
    }
#define STITCH_LT_SYMBOL(name)                                                        \
  fn.name = reinterpret_cast<decltype(fn.name)>(dlsym(library_, #name));              \
  if (fn.name == nullptr) {                                                           \
    return errors.fail(STITCH_MISSING_LIBRARY, "libcublasLt has no function " #name); \
  }
    STITCH_LT_SYMBOL(cublasLtCreate)
    STITCH_LT_SYMBOL(cublasLtDestroy)
    STITCH_LT_SYMBOL(cublasLtMatmulDescCreate)
    STITCH_LT_SYMBOL(cublasLtMatmulDescDestroy)
    STITCH_LT_SYMBOL(cublasLtMatmulDescSetAttribute)
    STITCH_LT_SYMBOL(cublasLtMatrixLayoutCreate)
    STITCH_LT_SYMBOL(cublasLtMatrixLayoutDestroy)
    STITCH_LT_SYMBOL(cublasLtMatrixLayoutSetAttribute)
    STITCH_LT_SYMBOL(cublasLtMatmulPreferenceCreate)
    STITCH_LT_SYMBOL(cublasLtMatmulPreferenceDestroy)
    STITCH_LT_SYMBOL(cublasLtMatmulPreferenceSetAttribute)
    STITCH_LT_SYMBOL(cublasLtMatmulAlgoGetHeuristic)
    STITCH_LT_SYMBOL(cublasLtMatmul)
#undef STITCH_LT_SYMBOL
    return check(fn.cublasLtCreate(&handle_), "open cuBLASLt");
  }

  int32_t check(int status, const char* doing) const {
    if (status == lt::kSuccess) return STITCH_OK;
    return errors_->fail(STITCH_ERROR, std::string(doing) + ": cuBLASLt status " + std::to_string(status));
  }

  int32_t fail(int32_t status, std::string sentence) const {
    return errors_->fail(status, std::move(sentence));
  }

  lt::Handle handle() const { return handle_; }

 private:
  void* library_ = nullptr;
  lt::Handle handle_ = nullptr;
  Errors* errors_ = nullptr;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CUBLASLT_API_H_

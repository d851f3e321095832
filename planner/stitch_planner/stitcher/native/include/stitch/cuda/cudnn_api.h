// The few functions and numbers of cuDNN 9 that convolutions use, declared here, so that neither its headers
// nor the library are needed to build. What stands here are facts of its binary interface; a test compares
// them with cudnn.h where that is installed.
//
// The library is the one that torch has loaded: it is looked up by soname, never linked.
#ifndef STITCH_CUDA_CUDNN_API_H_
#define STITCH_CUDA_CUDNN_API_H_

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#include "stitch/cuda/launch.cuh"

namespace stitch::cuda::dnn {

using Handle = struct HandleTag*;
using TensorDesc = struct TensorDescTag*;
using FilterDesc = struct FilterDescTag*;
using ConvDesc = struct ConvDescTag*;
using ActivationDesc = struct ActivationDescTag*;

enum Status : int { kSuccess = 0 };
enum DataType : int { kFloat = 0 };
enum Format : int { kNchw = 0, kNhwc = 1 };  // of volumes as well, with their depth before the height
enum ConvMode : int { kCrossCorrelation = 1 };
enum Determinism : int { kDeterministic = 1 };
enum Nan : int { kPropagateNan = 1 };
enum ActivationMode : int { kRelu = 1, kIdentity = 5 };

// kDefaultMath takes TF32 for float32 operands, kFmaMath never does.
enum MathType : int { kDefaultMath = 0, kTensorOpMath = 1, kFmaMath = 3 };

// Those that add up the products themselves. FFT and Winograd lose digits, and carry a NaN to pixels that it
// does not belong to.
enum ForwardAlgorithm : int { kImplicitGemm = 0, kPrecomputedGemm = 1, kExplicitGemm = 2, kDirect = 3 };
enum BackwardAlgorithm : int { kBackwardData1 = 1 };

// What both searches for an algorithm answer, for one of them.
struct Found {
  int algorithm;
  int status;
  float time;
  size_t memory;
  int determinism;
  int math;
  int reserved[3];
};

struct Functions {
  int (*cudnnCreate)(Handle*);
  int (*cudnnDestroy)(Handle);
  int (*cudnnSetStream)(Handle, cudaStream_t);
  int (*cudnnCreateTensorDescriptor)(TensorDesc*);
  int (*cudnnDestroyTensorDescriptor)(TensorDesc);
  // Sizes are N, C, and the image's own, whatever the format.
  int (*cudnnSetTensorNdDescriptorEx)(TensorDesc, int format, int type, int count, const int* sizes);
  int (*cudnnCreateFilterDescriptor)(FilterDesc*);
  int (*cudnnDestroyFilterDescriptor)(FilterDesc);
  int (*cudnnSetFilterNdDescriptor)(FilterDesc, int type, int format, int count, const int* sizes);
  int (*cudnnCreateConvolutionDescriptor)(ConvDesc*);
  int (*cudnnDestroyConvolutionDescriptor)(ConvDesc);
  int (*cudnnSetConvolutionNdDescriptor)(ConvDesc, int count, const int* padding, const int* stride,
                                         const int* dilation, int mode, int type);
  int (*cudnnSetConvolutionGroupCount)(ConvDesc, int groups);
  int (*cudnnSetConvolutionMathType)(ConvDesc, int math);
  int (*cudnnCreateActivationDescriptor)(ActivationDesc*);
  int (*cudnnDestroyActivationDescriptor)(ActivationDesc);
  int (*cudnnSetActivationDescriptor)(ActivationDesc, int mode, int nan, double coefficient);
  int (*cudnnGetConvolutionForwardAlgorithm_v7)(Handle, TensorDesc x, FilterDesc, ConvDesc, TensorDesc y,
                                                int requested, int* returned, Found*);
  int (*cudnnGetConvolutionForwardWorkspaceSize)(Handle, TensorDesc x, FilterDesc, ConvDesc, TensorDesc y,
                                                 int algorithm, size_t* bytes);
  int (*cudnnConvolutionForward)(Handle, const void* alpha, TensorDesc, const void* x, FilterDesc,
                                 const void* w, ConvDesc, int algorithm, void* workspace, size_t bytes,
                                 const void* beta, TensorDesc, void* y);
  int (*cudnnConvolutionBiasActivationForward)(Handle, const void* alpha1, TensorDesc, const void* x,
                                               FilterDesc, const void* w, ConvDesc, int algorithm,
                                               void* workspace, size_t bytes, const void* alpha2, TensorDesc,
                                               const void* z, TensorDesc, const void* bias, ActivationDesc,
                                               TensorDesc, void* y);
  int (*cudnnGetConvolutionBackwardDataAlgorithm_v7)(Handle, FilterDesc, TensorDesc dy, ConvDesc,
                                                     TensorDesc dx, int requested, int* returned, Found*);
  int (*cudnnGetConvolutionBackwardDataWorkspaceSize)(Handle, FilterDesc, TensorDesc dy, ConvDesc,
                                                      TensorDesc dx, int algorithm, size_t* bytes);
  int (*cudnnConvolutionBackwardData)(Handle, const void* alpha, FilterDesc, const void* w, TensorDesc,
                                      const void* dy, ConvDesc, int algorithm, void* workspace, size_t bytes,
                                      const void* beta, TensorDesc, void* dx);
};

}  // namespace stitch::cuda::dnn

namespace stitch::cuda {

// The library, opened once for each handle of a program.
class Cudnn {
 public:
  dnn::Functions fn{};

  Cudnn() = default;
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  ~Cudnn() {
    if (handle_ != nullptr) fn.cudnnDestroy(handle_);
    if (library_ != nullptr) dlclose(library_);
  }

  // Opens the library if that has not happened yet; torch's copy first.
  int32_t open(Errors& errors) {
    errors_ = &errors;
    if (handle_ != nullptr) return STITCH_OK;
    // Version 8 has other structures; it went out of support before the oldest torch that we run beside.
    static constexpr const char* kName = "libcudnn.so.9";
    library_ = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library_ == nullptr) library_ = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return errors.fail(STITCH_MISSING_LIBRARY, "libcudnn.so.9 is not here");
    STITCH_TRY(load());
    return check(fn.cudnnCreate(&handle_), "open cuDNN");
  }

  int32_t check(int status, const char* doing) const {
    if (status == dnn::kSuccess) return STITCH_OK;
    return errors_->fail(STITCH_ERROR, std::string(doing) + ": cuDNN status " + std::to_string(status));
  }

  int32_t fail(int32_t status, std::string sentence) const {
    return errors_->fail(status, std::move(sentence));
  }

  Errors& errors() const { return *errors_; }
  dnn::Handle handle() const { return handle_; }

 private:
  int32_t load() {
#define STITCH_DNN_SYMBOL(name)                                                           \
  fn.name = reinterpret_cast<decltype(fn.name)>(dlsym(library_, #name));                  \
  if (fn.name == nullptr) {                                                               \
    return errors_->fail(STITCH_MISSING_LIBRARY, "libcudnn.so.9 has no function " #name); \
  }
    STITCH_DNN_SYMBOL(cudnnCreate)
    STITCH_DNN_SYMBOL(cudnnDestroy)
    STITCH_DNN_SYMBOL(cudnnSetStream)
    STITCH_DNN_SYMBOL(cudnnCreateTensorDescriptor)
    STITCH_DNN_SYMBOL(cudnnDestroyTensorDescriptor)
    STITCH_DNN_SYMBOL(cudnnSetTensorNdDescriptorEx)
    STITCH_DNN_SYMBOL(cudnnCreateFilterDescriptor)
    STITCH_DNN_SYMBOL(cudnnDestroyFilterDescriptor)
    STITCH_DNN_SYMBOL(cudnnSetFilterNdDescriptor)
    STITCH_DNN_SYMBOL(cudnnCreateConvolutionDescriptor)
    STITCH_DNN_SYMBOL(cudnnDestroyConvolutionDescriptor)
    STITCH_DNN_SYMBOL(cudnnSetConvolutionNdDescriptor)
    STITCH_DNN_SYMBOL(cudnnSetConvolutionGroupCount)
    STITCH_DNN_SYMBOL(cudnnSetConvolutionMathType)
    STITCH_DNN_SYMBOL(cudnnCreateActivationDescriptor)
    STITCH_DNN_SYMBOL(cudnnDestroyActivationDescriptor)
    STITCH_DNN_SYMBOL(cudnnSetActivationDescriptor)
    STITCH_DNN_SYMBOL(cudnnGetConvolutionForwardAlgorithm_v7)
    STITCH_DNN_SYMBOL(cudnnGetConvolutionForwardWorkspaceSize)
    STITCH_DNN_SYMBOL(cudnnConvolutionForward)
    STITCH_DNN_SYMBOL(cudnnConvolutionBiasActivationForward)
    STITCH_DNN_SYMBOL(cudnnGetConvolutionBackwardDataAlgorithm_v7)
    STITCH_DNN_SYMBOL(cudnnGetConvolutionBackwardDataWorkspaceSize)
    STITCH_DNN_SYMBOL(cudnnConvolutionBackwardData)
#undef STITCH_DNN_SYMBOL
    return STITCH_OK;
  }

  void* library_ = nullptr;
  dnn::Handle handle_ = nullptr;
  Errors* errors_ = nullptr;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CUDNN_API_H_

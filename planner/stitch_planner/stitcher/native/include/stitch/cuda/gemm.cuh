// Matrix products through cuBLASLt:  D = A * B + bias [+ C], float32, batched or not.
//
// No activation: the ReLU of some of its kernels gives 0 for NaN, and which kernel runs depends on the sizes.
//
// All matrices are row-major here and column-major for the library, which sees every one transposed:
// D[M,N] with rows `ld` apart is for it a column-major [N,M] with leading dimension ld. So it computes
// D^T = B^T * A^T: our B becomes its first operand, our A its second, and a bias over our columns is one over
// its rows, which is the bias that its epilogue knows.
//
// Descriptors and the algorithm are chosen once, in init, for the exact sizes: a call is one library call
// that allocates nothing and may be captured into a graph.
#ifndef STITCH_CUDA_GEMM_CUH_
#define STITCH_CUDA_GEMM_CUH_

#if !defined(STITCH_ON_HOST)
#include "stitch/cuda/cublaslt_api.h"
#endif
#include "stitch/cuda/launch.cuh"

namespace stitch::cuda {

// One operand: how rows (or columns, when it is stored transposed) lie in memory, in elements.
struct MatrixLayout {
  bool transposed = false;   // stored [columns, rows]
  int64_t ld = 0;            // elements between stored rows; 0: dense
  int64_t batch_stride = 0;  // 0: the same matrix for the whole batch
};

struct GemmOptions {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  MatrixLayout a, b, d;   // d is never transposed; an addend C has d's layout
  bool has_bias = false;  // bias[N]
  bool has_addend = false;
  bool allow_tf32 = false;  // only where the contract allows it
};

// What torch gives cuBLASLt on Hopper and later; smaller GPUs need less, and take less.
inline constexpr size_t kMostGemmWorkspaceBytes = size_t{32} << 20;
// Addresses that programs pass are multiples of this; every kernel of the library is content with it.
inline constexpr uint32_t kGemmAlignment = 16;

#if defined(STITCH_ON_HOST)

struct CublasLt {
  int32_t open(Errors&) { return STITCH_OK; }
};

// The same interface over plain loops in double precision.
class Gemm {
 public:
  int32_t init(CublasLt&, const GemmOptions& options, const float* bias = nullptr) {
    options_ = options;
    bias_ = bias;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call&, const float* a, const float* b, float* d, const float* addend = nullptr) const {
    const GemmOptions& o = options_;
    const int64_t ld = o.d.ld != 0 ? o.d.ld : o.n;
    for (int64_t batch = 0; batch < o.batch; ++batch) {
      for (int64_t row = 0; row < o.m; ++row) {
        for (int64_t column = 0; column < o.n; ++column) {
          const int64_t place = batch * o.d.batch_stride + row * ld + column;
          double sum = o.has_bias ? bias_[column] : 0.0;
          if (o.has_addend) sum += addend[place];
          for (int64_t i = 0; i < o.k; ++i) {
            sum += double{element(a, o.a, o.m, o.k, batch, row, i)} *
                   element(b, o.b, o.k, o.n, batch, i, column);
          }
          d[place] = static_cast<float>(sum);
        }
      }
    }
    return STITCH_OK;
  }

 private:
  static float element(const float* data, const MatrixLayout& layout, int64_t rows, int64_t columns,
                       int64_t batch, int64_t row, int64_t column) {
    const int64_t ld = layout.ld != 0 ? layout.ld : (layout.transposed ? rows : columns);
    const int64_t place = layout.transposed ? column * ld + row : row * ld + column;
    return data[batch * layout.batch_stride + place];
  }

  GemmOptions options_;
  const float* bias_ = nullptr;
};

#else

class Gemm {
 public:
  Gemm() = default;
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm() { release(); }

  int32_t init(CublasLt& library, const GemmOptions& options, const float* bias = nullptr) {
    release();
    library_ = &library;
    options_ = options;
    if (empty()) return STITCH_OK;
    const GemmOptions& o = options;
    STITCH_TRY(describe(bias));
    STITCH_TRY(layout(&b_, o.b.transposed ? o.n : o.k, o.b.transposed ? o.k : o.n, o.b));
    STITCH_TRY(layout(&a_, o.a.transposed ? o.k : o.m, o.a.transposed ? o.m : o.k, o.a));
    STITCH_TRY(layout(&d_, o.m, o.n, o.d));
    return choose();
  }

  size_t workspace_bytes() const { return chosen_.workspace_bytes; }

  // `addend` is C; nullptr without one.
  int32_t run(const Call& call, const float* a, const float* b, float* d,
              const float* addend = nullptr) const {
    if (empty()) return STITCH_OK;
    if (call.scratch_bytes < chosen_.workspace_bytes) {
      return library_->fail(STITCH_ERROR, "the workspace is too small for a matrix product");
    }
    const float alpha = 1.0f, beta = options_.has_addend ? 1.0f : 0.0f;
    const float* c = options_.has_addend ? addend : d;
    return library_->check(
        library_->fn.cublasLtMatmul(library_->handle(), desc_, &alpha, b, b_, a, a_, &beta, c, d_, d, d_,
                                    &chosen_.algorithm, call.scratch, chosen_.workspace_bytes, call.stream),
        "run a matrix product");
  }

 private:
  bool empty() const { return options_.m == 0 || options_.n == 0 || options_.batch == 0; }

  int32_t describe(const float* bias) {
    const GemmOptions& o = options_;
    const int compute = o.allow_tf32 ? lt::kCompute32FFastTF32 : lt::kCompute32F;
    STITCH_TRY(library_->check(library_->fn.cublasLtMatmulDescCreate(&desc_, compute, lt::kFloat32),
                               "describe a matrix product"));
    // A row-major matrix is transposed in the library's eyes already.
    STITCH_TRY(set(lt::kTransA, o.b.transposed ? lt::kTransposed : lt::kNormal));
    STITCH_TRY(set(lt::kTransB, o.a.transposed ? lt::kTransposed : lt::kNormal));
    STITCH_TRY(set(lt::kEpilogue, uint32_t{o.has_bias ? lt::kEpilogueBias : lt::kEpilogueNone}));
    return o.has_bias ? set(lt::kBiasPointer, bias) : STITCH_OK;
  }

  // A stored row-major matrix of `rows` x `columns`, as the library sees it.
  int32_t layout(lt::Layout* made, int64_t rows, int64_t columns, const MatrixLayout& matrix) {
    const int64_t ld = matrix.ld != 0 ? matrix.ld : columns;
    STITCH_TRY(library_->check(library_->fn.cublasLtMatrixLayoutCreate(made, lt::kFloat32, columns, rows, ld),
                               "describe a matrix"));
    if (options_.batch == 1) return STITCH_OK;
    const int32_t count = static_cast<int32_t>(options_.batch);
    STITCH_TRY(library_->check(
        library_->fn.cublasLtMatrixLayoutSetAttribute(*made, lt::kBatchCount, &count, sizeof count),
        "describe a batch"));
    return library_->check(library_->fn.cublasLtMatrixLayoutSetAttribute(
                               *made, lt::kBatchStride, &matrix.batch_stride, sizeof matrix.batch_stride),
                           "describe a batch");
  }

  int32_t choose() {
    lt::Preference preference = nullptr;
    STITCH_TRY(library_->check(library_->fn.cublasLtMatmulPreferenceCreate(&preference), "choose a kernel"));
    const uint64_t most = kMostGemmWorkspaceBytes;
    int status = library_->fn.cublasLtMatmulPreferenceSetAttribute(preference, lt::kMaxWorkspaceBytes, &most,
                                                                   sizeof most);
    for (int which : {lt::kMinAlignmentA, lt::kMinAlignmentB, lt::kMinAlignmentC, lt::kMinAlignmentD}) {
      if (status == lt::kSuccess) {
        status = library_->fn.cublasLtMatmulPreferenceSetAttribute(preference, which, &kGemmAlignment,
                                                                   sizeof kGemmAlignment);
      }
    }
    int found = 0;
    if (status == lt::kSuccess) {
      status = library_->fn.cublasLtMatmulAlgoGetHeuristic(library_->handle(), desc_, b_, a_, d_, d_,
                                                           preference, 1, &chosen_, &found);
    }
    library_->fn.cublasLtMatmulPreferenceDestroy(preference);
    STITCH_TRY(library_->check(status, "choose a kernel for a matrix product"));
    STITCH_TRY(
        library_->check(found > 0 ? chosen_.status : lt::kSuccess, "choose a kernel for a matrix product"));
    return found > 0 ? STITCH_OK
                     : library_->fail(STITCH_UNSUPPORTED, "cuBLASLt has no kernel for this matrix product");
  }

  template <class T>
  int32_t set(lt::DescAttribute attribute, const T& value) {
    return library_->check(
        library_->fn.cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof value),
        "describe a matrix product");
  }

  void release() {
    if (library_ == nullptr) return;
    for (lt::Layout* one : {&a_, &b_, &d_}) {
      if (*one != nullptr) library_->fn.cublasLtMatrixLayoutDestroy(*one);
      *one = nullptr;
    }
    if (desc_ != nullptr) library_->fn.cublasLtMatmulDescDestroy(desc_);
    desc_ = nullptr;
    chosen_ = {};
  }

  CublasLt* library_ = nullptr;
  GemmOptions options_;
  lt::MatmulDesc desc_ = nullptr;
  lt::Layout a_ = nullptr, b_ = nullptr, d_ = nullptr;
  lt::HeuristicResult chosen_{};
};

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_GEMM_CUH_

// Matrix products of float32 matrices,  D = A B + bias + addend  or its ReLU,  the fastest way that has
// float32's errors: cuBLASLt's float32 product, or tensor cores over split operands (split_product.cuh). Both
// are measured in init at the program's own sizes; equal products of a program are measured once.
#ifndef STITCH_CUDA_PRODUCT_CUH_
#define STITCH_CUDA_PRODUCT_CUH_

#include "stitch/cuda/gemm.cuh"

#include "stitch/cuda/grid.cuh"
#if !defined(STITCH_ON_HOST)
#include <utility>
#include <vector>

#include "stitch/cuda/measured.cuh"
#include "stitch/cuda/split_product.cuh"
#endif

namespace stitch::cuda {

// In place; NaN stays, as in torch.
struct ReluInPlace {
  float* values;

  __device__ __forceinline__ void operator()(int64_t i) const {
    if (values[i] < 0.0f) values[i] = 0.0f;
  }
};

// The library's epilogue has a ReLU of its own, which turns NaN into 0 in some kernels.
inline int32_t apply_relu(const GemmOptions& options, float* dense, const Call& call) {
  const int64_t count = options.batch * options.m * options.n;
  return each("ReLU of a product", count, ReluInPlace{dense}, call);
}

#if defined(STITCH_ON_HOST)

struct Products {
  int32_t open(Errors&) { return STITCH_OK; }
};

// The same interface over plain loops in double precision.
class Product {
 public:
  int32_t init(Products&, const Call&, const GemmOptions& options, const float*, const float* bias,
               bool relu) {
    options_ = options;
    relu_ = relu;
    return gemm_.init(library_, options, bias);
  }
  size_t workspace_bytes() const { return 0; }
  int32_t run(const Call& call, const float* a, const float* b, float* d,
              const float* addend = nullptr) const {
    STITCH_TRY(gemm_.run(call, a, b, d, addend));
    return relu_ ? apply_relu(options_, d, call) : STITCH_OK;
  }

 private:
  GemmOptions options_;
  bool relu_ = false;
  CublasLt library_;
  Gemm gemm_;
};

#else

inline bool operator==(const MatrixLayout& a, const MatrixLayout& b) {
  return a.transposed == b.transposed && a.ld == b.ld && a.batch_stride == b.batch_stride;
}

// A product's sizes and what init knows of it.
struct ProductCase {
  GemmOptions options;
  bool has_constant = false;
  bool relu = false;
};

inline bool operator==(const ProductCase& left, const ProductCase& right) {
  const GemmOptions &a = left.options, &b = right.options;
  return a.m == b.m && a.n == b.n && a.k == b.k && a.batch == b.batch && a.a == b.a && a.b == b.b &&
         a.d == b.d && a.has_bias == b.has_bias && a.has_addend == b.has_addend &&
         left.has_constant == right.has_constant && left.relu == right.relu;
}

struct ProductWay {
  bool is_split = false;
  SplitWay::Kind kind = SplitWay::kMma;
};

// What the products of a program share.
struct Products {
  CublasLt lt;
  std::vector<std::pair<ProductCase, ProductWay>> chosen;

  int32_t open(Errors& errors) { return lt.open(errors); }
};

class Product {
 public:
  Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  // `b` is nullptr if it is not constant; a constant is split here, and has to be passed to runs as well.
  // With a ReLU the result is dense.
  int32_t init(Products& shared, const Call& call, const GemmOptions& options, const float* b,
               const float* bias, bool relu) {
    what_ = {options, b != nullptr, relu};
    way_ = {};
    split_.release();
    STITCH_TRY(plain_.init(shared.lt, options, bias));
    for (const auto& [known, way] : shared.chosen) {
      if (known == what_) return adopt(call, way, b, bias);
    }
    ProductWay best;
    STITCH_TRY(choose(call, b, bias, &best));
    shared.chosen.emplace_back(what_, best);
    way_ = best;
    if (!best.is_split) split_.release();
    return STITCH_OK;
  }

  size_t workspace_bytes() const {
    return way_.is_split ? split_.workspace_bytes() : plain_.workspace_bytes();
  }

  int32_t run(const Call& call, const float* a, const float* b, float* d,
              const float* addend = nullptr) const {
    if (way_.is_split) return split_.run(call, a, b, d, addend);
    STITCH_TRY(plain_.run(call, a, b, d, addend));
    return what_.relu ? apply_relu(what_.options, d, call) : STITCH_OK;
  }

 private:
  int32_t adopt(const Call& call, const ProductWay& way, const float* b, const float* bias) {
    if (!way.is_split) return STITCH_OK;
    const int32_t status = split_.init(call, what_.options, b, bias, what_.relu);
    if (status == STITCH_OUT_OF_MEMORY) {  // the library's product needs none
      call.errors->text.clear();
      return STITCH_OK;
    }
    STITCH_TRY(status);
    way_ = way;
    return split_.use(call, way.kind);
  }

  // Memory to measure in: the same sizes as a forward's.
  struct Trial {
    DeviceMemory a, b, d, addend, scratch;
  };

  static size_t bytes_of(const MatrixLayout& layout, int64_t rows, int64_t columns, int64_t batch) {
    const int64_t lines = layout.transposed ? columns : rows, width = layout.transposed ? rows : columns;
    const int64_t ld = layout.ld != 0 ? layout.ld : width;
    return sizeof(float) * (lines * ld + (batch - 1) * layout.batch_stride);
  }

  bool reserve(Trial* trial, const float* b) const {
    const GemmOptions& o = what_.options;
    const size_t d = bytes_of(o.d, o.m, o.n, o.batch);
    return trial->a.reserve(bytes_of(o.a, o.m, o.k, o.batch)) && trial->d.reserve(d) &&
           (b != nullptr || trial->b.reserve(bytes_of(o.b, o.k, o.n, o.batch))) &&
           (!o.has_addend || trial->addend.reserve(d));
  }

  // Small numbers everywhere: what is not initialised could be NaN, which takes another path.
  int32_t fill(const Call& call, const Trial& trial, const float* b) const {
    const GemmOptions& o = what_.options;
    const auto set = [&](void* memory, size_t bytes) {
      return call.errors->check(cudaMemsetAsync(memory, 0x3c, bytes, call.stream), "fill a trial's matrices");
    };
    STITCH_TRY(set(trial.a.get(), bytes_of(o.a, o.m, o.k, o.batch)));
    if (b == nullptr) STITCH_TRY(set(trial.b.get(), bytes_of(o.b, o.k, o.n, o.batch)));
    return o.has_addend ? set(trial.addend.get(), bytes_of(o.d, o.m, o.n, o.batch)) : STITCH_OK;
  }

  // Without memory to measure in, the library's product is taken, and at a failure of the split one.
  int32_t choose(const Call& call, const float* b, const float* bias, ProductWay* best) {
    constexpr float kWorthIt = 0.95f;  // of the library's time: what a split product needs of memory
    Trial trial;
    SplitWay::Kind kind = SplitWay::kMma;
    STITCH_TRY(SplitProduct::best_kind(call, &kind));
    way_ = {};
    float plain_ms = 0.0f, split_ms = 0.0f;
    const bool is_measured =
        reserve(&trial, b) && split_.init(call, what_.options, b, bias, what_.relu) == STITCH_OK &&
        split_.use(call, kind) == STITCH_OK && fill(call, trial, b) == STITCH_OK &&
        measure({}, call, &trial, b, &plain_ms) && measure({true, kind}, call, &trial, b, &split_ms);
    if (is_measured && split_ms < kWorthIt * plain_ms) *best = {true, kind};
    call.errors->text.clear();  // of what there was no memory for
    return STITCH_OK;
  }

  // Time of a run; false where there is no memory, or a run fails.
  bool measure(const ProductWay& way, const Call& call, Trial* trial, const float* b, float* ms) {
    way_ = way;
    Call inner = call;
    inner.scratch_bytes = workspace_bytes();
    if (!trial->scratch.reserve(inner.scratch_bytes)) return false;
    inner.scratch = trial->scratch.get();
    const auto once = [&](const Call& one) {
      return run(one, trial->a.floats(), b != nullptr ? b : trial->b.floats(), trial->d.floats(),
                 trial->addend.floats());
    };
    return measured_ms(inner, once, ms);
  }

  ProductCase what_;
  ProductWay way_;
  Gemm plain_;
  SplitProduct split_;
};

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_PRODUCT_CUH_

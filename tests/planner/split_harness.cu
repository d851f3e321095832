// Split products behind C functions, for tests that choose the kernel themselves.
#include "stitch/cuda/split_product.cuh"

using namespace stitch::cuda;

// With a name outside: C functions that take it would not be exported otherwise.
struct Harness {
  Errors errors;
  CublasLt library;
  GemmOptions options;
  SplitProduct split;
  Gemm plain;
  Call call;

  Call with(void* stream, void* scratch, size_t bytes) {
    int device = 0, count = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return {static_cast<cudaStream_t>(stream), nullptr, scratch, bytes, count, &errors};
  }
};

extern "C" {

void* harness_new() { return new Harness; }
void harness_delete(Harness* harness) { delete harness; }
const char* harness_error(Harness* harness) { return harness->errors.text.c_str(); }

// Bit i of the result: the GPU has SplitWay::Kind i.
int harness_kinds(Harness* harness, void* stream) {
  SplitWay::Kind best = SplitWay::kMma;
  if (SplitProduct::best_kind(harness->with(stream, nullptr, 0), &best) != STITCH_OK) return 0;
  return 1 | 1 << best;  // mma.sync runs everywhere
}

// numbers: m, n, k, batch, then transposed, ld and batch stride of a, b and d. `b` is nullptr if not
// constant.
int harness_init(Harness* harness, const int64_t* numbers, const float* b, const float* bias, int has_addend,
                 int relu, void* stream) {
  GemmOptions& o = harness->options;
  o.m = numbers[0];
  o.n = numbers[1];
  o.k = numbers[2];
  o.batch = numbers[3];
  MatrixLayout* const layouts[] = {&o.a, &o.b, &o.d};
  for (int i = 0; i < 3; ++i) {
    *layouts[i] = {numbers[4 + 3 * i] != 0, numbers[5 + 3 * i], numbers[6 + 3 * i]};
  }
  o.has_bias = bias != nullptr;
  o.has_addend = has_addend != 0;
  const Call call = harness->with(stream, nullptr, 0);
  STITCH_TRY(harness->library.open(harness->errors));
  STITCH_TRY(harness->plain.init(harness->library, o, bias));
  return harness->split.init(call, o, b, bias, relu != 0);
}

// kind: a SplitWay::Kind, or -1 for cuBLASLt. Returns the bytes of scratch memory, or minus a status.
int64_t harness_use(Harness* harness, int kind, void* stream) {
  if (kind < 0) return static_cast<int64_t>(harness->plain.workspace_bytes());
  const int32_t status =
      harness->split.use(harness->with(stream, nullptr, 0), static_cast<SplitWay::Kind>(kind));
  return status == STITCH_OK ? static_cast<int64_t>(harness->split.workspace_bytes()) : -status;
}

int harness_run(Harness* harness, int kind, const float* a, const float* b, float* d, const float* addend,
                void* scratch, int64_t scratch_bytes, void* stream) {
  const Call call = harness->with(stream, scratch, static_cast<size_t>(scratch_bytes));
  return kind < 0 ? harness->plain.run(call, a, b, d, addend) : harness->split.run(call, a, b, d, addend);
}

}  // extern "C"

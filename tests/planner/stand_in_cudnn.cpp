// The functions of cuDNN that our convolutions call, over plain loops in host memory, under the library's own
// name: what a test loads in its place. It keeps count of calls, refuses what the library does not promise,
// and has the faults of some of its kernels where a test asks for them.
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <vector>

namespace {

struct Tensor {
  int n, c, h, w;
};
struct Filter {
  int k, c, h, w;
};
struct Convolution {
  int pad[2], stride[2], dilation[2], groups = 1, math = -1;
};
struct Activation {
  int mode, nan;
};
// As in cudnnConvolutionFwdAlgoPerf_t.
struct Found {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};

constexpr int kNotSupported = 3000, kBadParam = 2000;
constexpr size_t kWorkspace = 4096;
int faults = 0;  // bits, see the settings below
int calls[4] = {};

enum Fault { kReluDropsNan = 1, kReadsResult = 2, kRefusesPlain = 4, kRefusesAll = 8, kSlowPlain = 16 };
enum Call { kPlain = 0, kFused = 1, kBackward = 2, kWrong = 3 };

int wrong() {
  ++calls[kWrong];
  return kBadParam;
}

// For each product of a convolution from images `x` to images `y`: visit(place in x, in the filter, in y).
template <class Visit>
void products(const Tensor& x, const Filter& f, const Convolution& o, const Tensor& y, Visit visit) {
  const int out_share = f.k / o.groups;
  for (int n = 0; n < y.n; ++n)
    for (int row = 0; row < y.h; ++row)
      for (int column = 0; column < y.w; ++column)
        for (int kr = 0; kr < f.h; ++kr)
          for (int kc = 0; kc < f.w; ++kc) {
            const int r = row * o.stride[0] - o.pad[0] + kr * o.dilation[0];
            const int c = column * o.stride[1] - o.pad[1] + kc * o.dilation[1];
            if (r < 0 || r >= x.h || c < 0 || c >= x.w) continue;
            const size_t from = ((static_cast<size_t>(n) * x.h + r) * x.w + c) * x.c;
            const size_t to = ((static_cast<size_t>(n) * y.h + row) * y.w + column) * y.c;
            for (int k = 0; k < f.k; ++k)
              for (int i = 0; i < f.c; ++i) {
                const size_t weight = ((static_cast<size_t>(k) * f.h + kr) * f.w + kc) * f.c + i;
                visit(from + k / out_share * f.c + i, weight, to + k);
              }
          }
}

bool fits(const Tensor& x, const Filter& f, const Convolution& o, const Tensor& y) {
  bool same = x.n == y.n && x.c == f.c * o.groups && y.c == f.k && f.k % o.groups == 0;
  const int in[2] = {x.h, x.w}, out[2] = {y.h, y.w}, window[2] = {f.h, f.w};
  for (int a = 0; a < 2; ++a) {
    const int reach = o.dilation[a] * (window[a] - 1) + 1;
    same = same && (in[a] + 2 * o.pad[a] - reach) / o.stride[a] + 1 == out[a];
  }
  return same;
}

int list(int requested, int* returned, Found* found, const std::vector<Found>& all) {
  *returned = 0;
  for (const Found& one : all)
    if (*returned < requested) found[(*returned)++] = one;
  return 0;
}

template <class T>
int make(T** made) {
  *made = new T;
  return 0;
}

template <class T>
int unmake(T* made) {
  delete made;
  return 0;
}

}  // namespace

extern "C" {

void stand_in_set(int bits) {
  faults = bits;
  memset(calls, 0, sizeof calls);
}
int stand_in_calls(int which) { return calls[which]; }

int cudnnCreate(void** handle) { return *handle = new int, 0; }
int cudnnDestroy(void* handle) { return unmake(static_cast<int*>(handle)); }
int cudnnSetStream(void*, void*) { return 0; }
int cudnnCreateTensorDescriptor(Tensor** made) { return make(made); }
int cudnnDestroyTensorDescriptor(Tensor* made) { return unmake(made); }
int cudnnSetTensor4dDescriptor(Tensor* t, int format, int type, int n, int c, int h, int w) {
  *t = {n, c, h, w};
  return format == 1 && type == 0 ? 0 : wrong();
}
int cudnnCreateFilterDescriptor(Filter** made) { return make(made); }
int cudnnDestroyFilterDescriptor(Filter* made) { return unmake(made); }
int cudnnSetFilter4dDescriptor(Filter* f, int type, int format, int k, int c, int h, int w) {
  *f = {k, c, h, w};
  return format == 1 && type == 0 ? 0 : wrong();
}
int cudnnCreateConvolutionDescriptor(Convolution** made) { return make(made); }
int cudnnDestroyConvolutionDescriptor(Convolution* made) { return unmake(made); }
int cudnnSetConvolution2dDescriptor(Convolution* o, int ph, int pw, int sh, int sw, int dh, int dw, int mode,
                                    int type) {
  *o = {{ph, pw}, {sh, sw}, {dh, dw}};
  return mode == 1 && type == 0 ? 0 : wrong();
}
int cudnnSetConvolutionGroupCount(Convolution* o, int groups) { return o->groups = groups, 0; }
int cudnnSetConvolutionMathType(Convolution* o, int math) { return o->math = math, 0; }
int cudnnCreateActivationDescriptor(Activation** made) { return make(made); }
int cudnnDestroyActivationDescriptor(Activation* made) { return unmake(made); }
int cudnnSetActivationDescriptor(Activation* a, int mode, int nan, double) { return *a = {mode, nan}, 0; }

int cudnnGetConvolutionForwardAlgorithm_v7(void*, Tensor* x, Filter* f, Convolution* o, Tensor* y,
                                           int requested, int* returned, Found* found) {
  if (!fits(*x, *f, *o, *y)) return wrong();
  if (faults & kRefusesAll) return kNotSupported;
  // Winograd first, which must not be taken; then one that converts to half, and one that is refused.
  return list(requested, returned, found,
              {{6, 0, 0.1f, 0, 1, 3, {}},
               {1, 0, 0.2f, 0, 1, 2, {}},
               {2, kNotSupported, 0.3f, 0, 1, 3, {}},
               {1, 0, 0.4f, kWorkspace, 1, o->math == 3 ? 3 : 1, {}},
               {0, 0, 0.5f, 0, 1, 3, {}}});
}
int cudnnGetConvolutionForwardWorkspaceSize(void*, Tensor*, Filter*, Convolution*, Tensor*, int algorithm,
                                            size_t* bytes) {
  *bytes = algorithm == 1 ? kWorkspace : 0;
  return faults & kRefusesAll ? kNotSupported : 0;
}
int cudnnConvolutionForward(void*, const float* alpha, Tensor* x, const float* source, Filter* f,
                            const float* w, Convolution* o, int algorithm, void* workspace, size_t bytes,
                            const float* beta, Tensor* y, float* out) {
  if (!fits(*x, *f, *o, *y) || *alpha != 1 || *beta != 0 || algorithm > 1) return wrong();
  if (algorithm == 1 && bytes < kWorkspace) return wrong();
  if (faults & (kRefusesPlain | kRefusesAll)) return kNotSupported;
  if (faults & kSlowPlain) usleep(2000);
  ++calls[kPlain];
  if (bytes > 0) memset(workspace, 0xff, bytes);
  const size_t count = static_cast<size_t>(y->n) * y->h * y->w * y->c;
  std::vector<double> sums(count, 0.0);
  products(*x, *f, *o, *y, [&](size_t a, size_t b, size_t c) { sums[c] += double{source[a]} * w[b]; });
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(sums[i]);
  return 0;
}
int cudnnConvolutionBiasActivationForward(void*, const float* alpha1, Tensor* x, const float* source,
                                          Filter* f, const float* w, Convolution* o, int algorithm,
                                          void* workspace, size_t bytes, const float* alpha2, Tensor* z,
                                          const float* added, Tensor* bias, const float* own, Activation* a,
                                          Tensor* y, float* out) {
  if (!fits(*x, *f, *o, *y) || *alpha1 != 1 || memcmp(z, y, sizeof *y) != 0) return wrong();
  if (bias->c != y->c || bias->n * bias->h * bias->w != 1 || a->nan != 1) return wrong();
  if ((algorithm == 1 && bytes < kWorkspace) || (a->mode == 5 && algorithm != 1)) return wrong();
  if (faults & kRefusesAll) return kNotSupported;
  ++calls[kFused];
  if (bytes > 0) memset(workspace, 0xff, bytes);
  const size_t count = static_cast<size_t>(y->n) * y->h * y->w * y->c;
  std::vector<double> sums(count, 0.0);
  products(*x, *f, *o, *y, [&](size_t p, size_t q, size_t r) { sums[r] += double{source[p]} * w[q]; });
  for (size_t i = 0; i < count; ++i) {
    const bool reads = *alpha2 != 0 || faults & kReadsResult;
    const double value = sums[i] + own[i % y->c] + (reads ? double{*alpha2} * added[i] : 0.0);
    const bool zero = a->mode == 1 && (faults & kReluDropsNan ? !(value > 0) : value < 0);
    out[i] = zero ? 0.0f : static_cast<float>(value);
  }
  return 0;
}

int cudnnGetConvolutionBackwardDataAlgorithm_v7(void*, Filter* f, Tensor* dy, Convolution* o, Tensor* dx,
                                                int requested, int* returned, Found* found) {
  if (!fits(*dx, *f, *o, *dy)) return wrong();
  return list(requested, returned, found, {{0, 0, 0.1f, 0, 0, 3, {}}, {1, 0, 0.2f, kWorkspace, 1, 3, {}}});
}
int cudnnGetConvolutionBackwardDataWorkspaceSize(void*, Filter*, Tensor*, Convolution*, Tensor*,
                                                 int algorithm, size_t* bytes) {
  return *bytes = algorithm == 1 ? kWorkspace : 0, 0;
}
int cudnnConvolutionBackwardData(void*, const float* alpha, Filter* f, const float* w, Tensor* dy,
                                 const float* source, Convolution* o, int algorithm, void*, size_t bytes,
                                 const float* beta, Tensor* dx, float* out) {
  if (!fits(*dx, *f, *o, *dy) || *alpha != 1 || *beta != 0 || algorithm != 1 || bytes < kWorkspace) {
    return wrong();
  }
  ++calls[kBackward];
  const size_t count = static_cast<size_t>(dx->n) * dx->h * dx->w * dx->c;
  std::vector<double> sums(count, 0.0);
  products(*dx, *f, *o, *dy, [&](size_t a, size_t b, size_t c) { sums[a] += double{source[c]} * w[b]; });
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(sums[i]);
  return 0;
}
}

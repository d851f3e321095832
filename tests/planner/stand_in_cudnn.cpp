// The functions of cuDNN that our convolutions call, over plain loops in host memory, under the library's own
// name: what a test loads in its place. It keeps count of calls, refuses what the library does not promise,
// and has the faults of some of its kernels where a test asks for them.
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <vector>

namespace {

// Sizes of volumes; images have a depth of 1.
struct Tensor {
  int n, c, size[3];
  bool first = false;  // channels before pixels in memory

  int pixels() const { return size[0] * size[1] * size[2]; }
  size_t at(int image, int channel, int pixel) const {
    const size_t all = pixels();
    return first ? (static_cast<size_t>(image) * c + channel) * all + pixel
                 : (image * all + pixel) * c + channel;
  }
};
using Filter = Tensor;  // n: filters
struct Convolution {
  int pad[3], stride[3], dilation[3], groups = 1, math = -1;
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

enum Fault {
  kReluDropsNan = 1,
  kReadsResult = 2,
  kRefusesPlain = 4,
  kRefusesAll = 8,
  kSlowPlain = 16,
  kRefusesFirst = 32,
  kRefusesLast = 64
};
enum Call { kPlain = 0, kFused = 1, kBackward = 2, kWrong = 3 };

int wrong() {
  ++calls[kWrong];
  return kBadParam;
}

// For each product of a convolution from images `x` to images `y`: visit(place in x, in the filter, in y).
template <class Visit>
void products(const Tensor& x, const Filter& f, const Convolution& o, const Tensor& y, Visit visit) {
  const int out_share = f.n / o.groups;
  for (int n = 0; n < y.n; ++n)
    for (int to = 0; to < y.pixels(); ++to)
      for (int tap = 0; tap < f.pixels(); ++tap) {
        int from = 0, rest_to = to, rest_tap = tap, step = 1;
        bool meets = true;
        for (int a = 2; a >= 0; --a) {
          const int place =
              rest_to % y.size[a] * o.stride[a] - o.pad[a] + rest_tap % f.size[a] * o.dilation[a];
          meets = meets && place >= 0 && place < x.size[a];
          from += place * step;
          step *= x.size[a], rest_to /= y.size[a], rest_tap /= f.size[a];
        }
        for (int k = 0; meets && k < f.n; ++k)
          for (int i = 0; i < f.c; ++i) {
            visit(x.at(n, k / out_share * f.c + i, from), f.at(k, i, tap), y.at(n, k, to));
          }
      }
}

bool fits(const Tensor& x, const Filter& f, const Convolution& o, const Tensor& y) {
  bool same = x.n == y.n && x.c == f.c * o.groups && y.c == f.n && f.n % o.groups == 0;
  for (int a = 0; a < 3; ++a) {
    const int reach = o.dilation[a] * (f.size[a] - 1) + 1;
    same = same && (x.size[a] + 2 * o.pad[a] - reach) / o.stride[a] + 1 == y.size[a];
  }
  return same && x.first == f.first && x.first == y.first;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.n == b.n && a.c == b.c && memcmp(a.size, b.size, sizeof a.size) == 0 && a.first == b.first;
}

// Numbers of two or three axes as three; `missing` for the depth that images do not have.
bool spread(int count, const int* values, int missing, int (&all)[3]) {
  all[0] = count == 3 ? values[0] : missing;
  for (int a = 1; a < 3; ++a) all[a] = values[count - 3 + a];
  return count == 2 || count == 3;
}

int describe(Tensor* t, int format, int type, int count, const int* sizes) {
  t->n = sizes[0], t->c = sizes[1], t->first = format == 0;
  if (faults & (t->first ? kRefusesFirst : kRefusesLast)) return kNotSupported;
  return spread(count - 2, sizes + 2, 1, t->size) && (format == 0 || format == 1) && type == 0 ? 0 : wrong();
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
int cudnnSetTensorNdDescriptorEx(Tensor* t, int format, int type, int count, const int* sizes) {
  return describe(t, format, type, count, sizes);
}
int cudnnCreateFilterDescriptor(Filter** made) { return make(made); }
int cudnnDestroyFilterDescriptor(Filter* made) { return unmake(made); }
int cudnnSetFilterNdDescriptor(Filter* f, int type, int format, int count, const int* sizes) {
  return describe(f, format, type, count, sizes);
}
int cudnnCreateConvolutionDescriptor(Convolution** made) { return make(made); }
int cudnnDestroyConvolutionDescriptor(Convolution* made) { return unmake(made); }
int cudnnSetConvolutionNdDescriptor(Convolution* o, int count, const int* padding, const int* stride,
                                    const int* dilation, int mode, int type) {
  const bool all = spread(count, padding, 0, o->pad) && spread(count, stride, 1, o->stride) &&
                   spread(count, dilation, 1, o->dilation);
  return all && mode == 1 && type == 0 ? 0 : wrong();
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
  const size_t count = static_cast<size_t>(y->n) * y->pixels() * y->c;
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
  if (!fits(*x, *f, *o, *y) || *alpha1 != 1 || !same(*z, *y)) return wrong();
  if (bias->c != y->c || bias->n * bias->pixels() != 1 || a->nan != 1) return wrong();
  if ((algorithm == 1 && bytes < kWorkspace) || (a->mode == 5 && algorithm != 1)) return wrong();
  if (faults & kRefusesAll) return kNotSupported;
  ++calls[kFused];
  if (bytes > 0) memset(workspace, 0xff, bytes);
  const size_t count = static_cast<size_t>(y->n) * y->pixels() * y->c;
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
  const size_t count = static_cast<size_t>(dx->n) * dx->pixels() * dx->c;
  std::vector<double> sums(count, 0.0);
  products(*dx, *f, *o, *dy, [&](size_t a, size_t b, size_t c) { sums[a] += double{source[c]} * w[b]; });
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(sums[i]);
  return 0;
}
}

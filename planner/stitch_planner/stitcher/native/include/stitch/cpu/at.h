// What an emitted kernel sees as `at` on a CPU: pointers to the current row and the current column.
#ifndef STITCH_CPU_AT_H_
#define STITCH_CPU_AT_H_

#include "stitch/common/space.h"

namespace stitch::cpu {

// Base addresses of a kernel's operands. The arrays have one more slot, since zero-length ones do not exist.
template <class K>
struct Pointers {
  const char* loads[K::Loads::kCount + 1];
  char* stores[K::Stores::kCount + 1];
};

// An operand's first element as Pointers have it.
inline const char* read(const void* address) { return static_cast<const char*>(address); }
inline char* write(void* address) { return static_cast<char*>(address); }

// Position in the iteration space. `kDim` is the dim that the innermost loop runs over with `j`.
template <class K, int kDim>
struct At {
  const Pointers<K>& row;   // advanced to the row's first element
  int64_t j;                // index along kDim
  const int64_t* index_of;  // index along every other dim, where the kernel asks for it
  float* kept = nullptr;    // K::kKept arrays of Inner's length, the current chunk of each
  int64_t kept_stride = 0;  // floats from one of the arrays to the next

  template <int kIndex>
  STITCH_FN typename K::Loads::template Get<kIndex>::Type load() const {
    using Op = typename K::Loads::template Get<kIndex>;
    return reinterpret_cast<const typename Op::Type*>(row.loads[kIndex])[j * Op::stride(kDim)];
  }
  template <int kIndex, class T>
  STITCH_FN void store(T value) const {
    using Op = typename K::Stores::template Get<kIndex>;
    reinterpret_cast<typename Op::Type*>(row.stores[kIndex])[j * Op::stride(kDim)] =
        static_cast<typename Op::Type>(value);
  }
  template <int kWhich>
  STITCH_FN int64_t index() const {
    return kWhich == kDim ? j : index_of[kWhich];
  }
  template <int kIndex>
  STITCH_FN void keep(float value) const {
    kept[kIndex * kept_stride + j] = value;
  }
  template <int kIndex>
  STITCH_FN float kept_value() const {
    return kept[kIndex * kept_stride + j];
  }
};

// Advances all pointers to index `at` of `dim`.
template <class K>
STITCH_FN void advance(Pointers<K>& pointers, int dim, int64_t at) {
  for (int i = 0; i < K::Loads::kCount; ++i) {
    pointers.loads[i] += at * K::Loads::stride(i, dim) * K::Loads::bytes(i);
  }
  for (int i = 0; i < K::Stores::kCount; ++i) {
    pointers.stores[i] += at * K::Stores::stride(i, dim) * K::Stores::bytes(i);
  }
}

}  // namespace stitch::cpu
#endif  // STITCH_CPU_AT_H_

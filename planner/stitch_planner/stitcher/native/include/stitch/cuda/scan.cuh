// Running sums and products along one dim of a dense tensor [outer, length, inner].
//
//   rows      inner is 1: a block walks along a row, 2,048 elements a round. Where there are few rows,
//   `splits`
//             blocks share each: a first kernel takes the totals of all shares, and every block of the second
//             begins with those before its own.
//   columns   a thread walks along a column, neighbours side by side
//
// Totals are kept in double precision where elements are floats. Places are those in the order of the sums: a
// row may be read from behind, and written so.
#ifndef STITCH_CUDA_SCAN_CUH_
#define STITCH_CUDA_SCAN_CUH_

#include <type_traits>

#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

struct ScanOptions {
  int64_t outer = 0, length = 0, inner = 1;
  int64_t splits = 1;  // blocks that share a row; only where inner is 1
};

// Flags of a scan's order.
inline constexpr unsigned kReadsBack = 1;   // the last element comes first
inline constexpr unsigned kWritesBack = 2;  // the first sum is stored last
inline constexpr unsigned kExclusive = 4;   // a sum leaves out the element at its own place

template <class T, bool kProduct>
struct ScanStep {
  using Total = std::conditional_t<std::is_same_v<T, float>, double, T>;
  static constexpr Total kIdentity = static_cast<Total>(kProduct);
  static __device__ __forceinline__ Total join(Total a, Total b) { return kProduct ? a * b : a + b; }
};

// ---- rows ----------------------------------------------------------------------------------------------

// kStore: the second kernel (or the only one); else the totals of all shares but the last.
template <class T, bool kProduct, int V, bool kStore, unsigned kOrder>
struct ScanRows {
  using Step = ScanStep<T, kProduct>;
  using Total = typename Step::Total;
  static constexpr int kThreads = 256, kPhases = kStore ? 4 : 3;
  static constexpr int kItems = 8 / V;        // groups that lie one behind another
  static constexpr int kTile = kThreads * 8;  // elements of a round
  static constexpr int kGroups = 16, kOfGroup = kThreads / kGroups;
  struct Shared {
    // Each thread's total, then what lies before it within its group. One more a group: the threads that scan
    // groups side by side touch different banks.
    Total thread[kGroups * (kOfGroup + 1)];
    Total group[kGroups];
    Total before[2];  // everything before this round, and before the next: they take turns
  };
  struct Thread {
    Group<T, V> items[kItems];
  };

  const T* in;
  T* out;
  Total* totals;  // [rows][splits]
  int64_t length, share, splits;

  __device__ __forceinline__ int64_t rounds() const { return (share + kTile - 1) / kTile; }

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int64_t round, int thread, Shared& shared,
                                        Thread& mine) const {
    const int64_t row = block / splits, split = block - row * splits;
    // Of this thread, within its share and within the row.
    const int64_t within = round * kTile + int64_t{thread} * 8, at = split * share + within;
    Total& before = shared.before[round % 2];
    if constexpr (P == 0) {
      if (round == 0 && thread == 0) before = begin(row, split);
      Total total = Step::kIdentity;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!exists(within, at, i)) continue;
        mine.items[i] = read(in + row * length, at + i * V);
#pragma unroll
        for (int e = 0; e < V; ++e) total = Step::join(total, static_cast<Total>(mine.items[i][e]));
      }
      shared.thread[slot(thread)] = total;
    } else if constexpr (P == 1) {
      if (thread < kGroups) scan_group(thread, shared);
    } else if constexpr (P == 2) {
      if (thread == 0) scan_groups(before, shared.before[(round + 1) % 2], shared);
      if (!kStore && thread == 0 && round + 1 == rounds()) totals[block] = shared.before[(round + 1) % 2];
    } else {
      Total total = Step::join(shared.group[thread / kOfGroup], shared.thread[slot(thread)]);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!exists(within, at, i)) continue;
#pragma unroll
        for (int e = 0; e < V; ++e) {
          const Total next = Step::join(total, static_cast<Total>(mine.items[i][e]));
          mine.items[i][e] = static_cast<T>((kOrder & kExclusive) != 0 ? total : next);
          total = next;
        }
        write(out + row * length, at + i * V, mine.items[i]);
      }
    }
  }

 private:
  __device__ __forceinline__ bool exists(int64_t within, int64_t at, int i) const {
    return within + i * V < share && at + i * V < length;
  }
  // V neighbours, the one at `place` first. V divides the length.
  __device__ __forceinline__ Group<T, V> read(const T* line, int64_t place) const {
    if constexpr ((kOrder & kReadsBack) == 0) return load<V>(line + place);
    return turned(load<V>(line + length - V - place));
  }
  __device__ __forceinline__ void write(T* line, int64_t place, const Group<T, V>& group) const {
    if constexpr ((kOrder & kWritesBack) == 0) {
      store(line + place, group);
    } else {
      store(line + length - V - place, turned(group));
    }
  }
  __device__ __forceinline__ static Group<T, V> turned(const Group<T, V>& group) {
    Group<T, V> result;
#pragma unroll
    for (int e = 0; e < V; ++e) result[e] = group[V - 1 - e];
    return result;
  }
  __device__ __forceinline__ static int slot(int thread) { return thread + thread / kOfGroup; }
  // What the shares before this one amount to.
  __device__ __forceinline__ Total begin(int64_t row, int64_t split) const {
    Total total = Step::kIdentity;
    if (kStore && splits > 1) {
      for (int64_t s = 0; s < split; ++s) total = Step::join(total, totals[row * splits + s]);
    }
    return total;
  }
  // Totals of a group's threads become what lies before each of them.
  __device__ __forceinline__ static void scan_group(int group, Shared& shared) {
    Total total = Step::kIdentity;
    for (int i = 0; i < kOfGroup; ++i) {
      Total& mine = shared.thread[group * (kOfGroup + 1) + i];
      const Total next = Step::join(total, mine);
      mine = total;
      total = next;
    }
    shared.group[group] = total;
  }
  __device__ __forceinline__ static void scan_groups(Total before, Total& after, Shared& shared) {
    for (int i = 0; i < kGroups; ++i) {
      const Total next = Step::join(before, shared.group[i]);
      shared.group[i] = before;
      before = next;
    }
    after = before;
  }
};

// ---- columns -------------------------------------------------------------------------------------------

template <class T, bool kProduct, unsigned kOrder>
struct ScanColumns {
  using Step = ScanStep<T, kProduct>;
  static constexpr int kItems = 8;  // loads in flight

  const T* in;
  T* out;
  int64_t length, inner;

  __device__ __forceinline__ void operator()(int64_t i) const {
    const int64_t begin = i / inner * length * inner + i % inner;
    typename Step::Total total = Step::kIdentity;
    for (int64_t first = 0; first < length; first += kItems) {
      T items[kItems];
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        if (first + k < length) items[k] = in[begin + place(first + k, kReadsBack) * inner];
      }
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        if (first + k >= length) continue;
        const typename Step::Total next = Step::join(total, static_cast<typename Step::Total>(items[k]));
        out[begin + place(first + k, kWritesBack) * inner] =
            static_cast<T>((kOrder & kExclusive) != 0 ? total : next);
        total = next;
      }
    }
  }

 private:
  __device__ __forceinline__ int64_t place(int64_t at, unsigned backwards) const {
    return (kOrder & backwards) != 0 ? length - 1 - at : at;
  }
};

// T: float, double, int32_t or int64_t. V: neighbours that a thread loads at once; divides rows and shares.
template <class T, bool kProduct, int V, unsigned kOrder = 0>
class Scan {
  using Total = typename ScanStep<T, kProduct>::Total;

 public:
  int32_t init(const ScanOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const {
    return options_.splits > 1 ? sizeof(Total) * static_cast<size_t>(options_.outer * options_.splits) : 0;
  }

  int32_t run(const Call& call, const T* in, T* out) const {
    const ScanOptions& o = options_;
    if (o.inner > 1) {
      return each("scan", o.outer * o.inner, ScanColumns<T, kProduct, kOrder>{in, out, o.length, o.inner},
                  call);
    }
    // Whole tiles, so that no thread of a share reads what belongs to the next.
    constexpr int64_t kTile = ScanRows<T, kProduct, V, true, kOrder>::kTile;
    const int64_t share = ceil_div(ceil_div(o.length, kTile), o.splits) * kTile;
    Total* totals = static_cast<Total*>(call.scratch);
    if (o.splits > 1) {
      const ScanRows<T, kProduct, V, false, kOrder> measure{in, out, totals, o.length, share, o.splits};
      STITCH_TRY(rounds("scan: totals", o.outer * o.splits, measure, call));
    }
    const ScanRows<T, kProduct, V, true, kOrder> scan{in, out, totals, o.length, share, o.splits};
    return rounds("scan", o.outer * o.splits, scan, call);
  }

 private:
  ScanOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_SCAN_CUH_

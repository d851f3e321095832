// Which sets of addresses a program was called with, and what was prepared for each.
#ifndef STITCH_CUDA_SEEN_ADDRESSES_CUH_
#define STITCH_CUDA_SEEN_ADDRESSES_CUH_

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace stitch::cuda {

// Callers rotate through a few sets of addresses, or come with new ones for ever. Sets in use are never
// displaced by such a stream: with the oldest making room, a rotation longer than the table would find none.
class SeenAddresses {
 public:
  struct Entry {
    std::vector<void*> addresses;
    void* prepared;  // nullptr: came once
    uint64_t used;
  };
  static constexpr size_t kMost = 64;
  static constexpr uint64_t kIdleCalls = 8 * kMost;  // unused for so many calls, an entry makes room

  // The entry of a set that came before, or nullptr.
  Entry* find(const std::vector<void*>& addresses) {
    ++clock_;
    for (Entry& entry : entries_) {
      if (entry.addresses == addresses) return entry.used = clock_, &entry;
    }
    return nullptr;
  }

  // Notes a new set where there is room. What was prepared for the one that made room is returned, if
  // anything.
  void* remember(const std::vector<void*>& addresses) {
    if (entries_.size() < kMost) {
      entries_.push_back({addresses, nullptr, clock_});
      return nullptr;
    }
    Entry* oldest = &entries_[0];
    for (Entry& entry : entries_) {
      if (entry.used < oldest->used) oldest = &entry;
    }
    if (clock_ - oldest->used < kIdleCalls) return nullptr;
    void* const displaced = oldest->prepared;
    *oldest = {addresses, nullptr, clock_};
    return displaced;
  }

  const std::vector<Entry>& entries() const { return entries_; }
  void clear() { entries_.clear(); }

 private:
  std::vector<Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_SEEN_ADDRESSES_CUH_

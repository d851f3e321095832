// Aligned memory that a program's handle owns: packed weights, folded scales, scratch.
#ifndef STITCH_CPU_BUFFER_H_
#define STITCH_CPU_BUFFER_H_

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace stitch::cpu {

// An owning, move-only block of bytes aligned to a cache line, or to 2 MiB once it is large: packed weights
// are streamed on every call, and huge pages spare the TLB walk for each 4 KiB of them.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() { free(data_); }

  // Makes room for at least `bytes`; the old content is lost when the block grows. False: out of memory.
  bool reserve(size_t bytes) {
    if (bytes <= bytes_) return true;
    constexpr size_t kLine = 64, kHuge = size_t{2} << 20;
    const size_t align = bytes >= kHuge ? kHuge : kLine;
    const size_t rounded = (bytes + align - 1) / align * align;
    void* fresh = nullptr;
    if (posix_memalign(&fresh, align, rounded) != 0) return false;
    if (align == kHuge) madvise(fresh, rounded, MADV_HUGEPAGE);  // a hint: failing costs only speed
    free(data_);
    data_ = fresh;
    bytes_ = rounded;
    return true;
  }

  void* data() const { return data_; }
  float* floats() const { return static_cast<float*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_BUFFER_H_

// Copies between any two strided layouts: NCHW <-> NHWC, permutations, concatenation, slices.
//
// Kernels of a program read strided windows where they can; this is for the places where a dense copy pays.
// Dims are sorted by the target's strides and merged; then one of three inner loops runs:
//   lines   source and target share their innermost dim: whole lines are moved
//   tiles   another dim is innermost in the source (a transpose): squares go through registers, as wide as
//           these
//   single  neither: element by element
#ifndef STITCH_CPU_LAYOUT_H_
#define STITCH_CPU_LAYOUT_H_

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "stitch/common/status.h"
#include "stitch/cpu/vec.h"

namespace stitch::cpu {

namespace detail {

#ifdef __AVX512F__
// Transposes 16 rows of 16 floats in registers: pairs of lanes, then quads, then 128-bit quarters.
STITCH_INLINE void transpose_block(Vec (&rows)[16]) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps((__m512)rows[i], (__m512)rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps((__m512)rows[i], (__m512)rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // b[i + j] holds column j of rows i to i + 3, in each 128-bit quarter
    for (int j = 0; j < 2; ++j) {
      const __m512d x = _mm512_castps_pd(a[i + j]), y = _mm512_castps_pd(a[i + j + 2]);
      b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
      b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    }
  }
  for (int j = 0; j < 4; ++j) {  // gather the quarters: column 4 q + j is quarter q of b[j], b[4 + j], ...
    const __m512 x = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x44),
                 y = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x44);
    const __m512 z = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xee),
                 w = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xee);
    rows[j] = (Vec)_mm512_shuffle_f32x4(x, y, 0x88);
    rows[4 + j] = (Vec)_mm512_shuffle_f32x4(x, y, 0xdd);
    rows[8 + j] = (Vec)_mm512_shuffle_f32x4(z, w, 0x88);
    rows[12 + j] = (Vec)_mm512_shuffle_f32x4(z, w, 0xdd);
  }
}
#else
STITCH_INLINE void transpose_block(Vec (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float x = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = x;
    }
  }
}
#endif

// to[c * to_step + r] = from[r * from_step + c] for rows x columns, both at most kLanes.
STITCH_INLINE void transpose_tile(const float* from, int64_t from_step, float* to, int64_t to_step,
                                  int64_t rows, int64_t columns) {
  Vec block[kLanes];
  if (rows == kLanes && columns == kLanes) {
    for (int r = 0; r < kLanes; ++r) block[r] = load(from + r * from_step);
    transpose_block(block);
    for (int c = 0; c < kLanes; ++c) store(to + c * to_step, block[c]);
    return;
  }
  for (int r = 0; r < kLanes; ++r)
    block[r] = r < rows ? load_some(from + r * from_step, columns) : splat(0.0f);
  transpose_block(block);
  for (int c = 0; c < columns; ++c) store_some(to + c * to_step, block[c], rows);
}

}  // namespace detail

// A copy of one fixed shape. Strides count floats.
class StridedCopy {
 public:
  // STITCH_OK, or STITCH_ERROR when the three lists differ in length.
  int32_t init(std::initializer_list<int64_t> shape, std::initializer_list<int64_t> from,
               std::initializer_list<int64_t> to) {
    if (shape.size() != from.size() || shape.size() != to.size()) return STITCH_ERROR;
    dims_.clear();
    for (size_t i = 0; i < shape.size(); ++i) {
      const Dim dim{shape.begin()[i], from.begin()[i], to.begin()[i]};
      if (dim.size != 1) dims_.push_back(dim);
    }
    std::stable_sort(dims_.begin(), dims_.end(), [](const Dim& a, const Dim& b) { return a.to > b.to; });
    merge();
    if (dims_.empty()) dims_.push_back({1, 1, 1});
    // The source's innermost dim goes second to last, so that tiles are loops over the two last dims.
    for (size_t i = 0; i + 1 < dims_.size(); ++i) {
      if (dims_[i].from == 1) std::rotate(dims_.begin() + i, dims_.begin() + i + 1, dims_.end() - 1);
    }
    const size_t n = dims_.size();
    lines_ = dims_[n - 1].from == 1 && dims_[n - 1].to == 1;
    tiles_ = !lines_ && n >= 2 && dims_[n - 1].to == 1 && dims_[n - 2].from == 1;
    if (lines_ && n == 1) split_line();
    return STITCH_OK;
  }

  int32_t run(const float* from, float* to, int threads) const {
    const size_t inner = tiles_ ? 2 : 1, outer = dims_.size() - inner;
    int64_t total = 1;
    for (const Dim& dim : dims_) {
      if (dim.size == 0) return STITCH_OK;
    }
    for (size_t i = 0; i < outer; ++i) total *= dims_[i].size;
    const int64_t bands = tiles_ ? (dims_[outer].size + kLanes - 1) / kLanes : 1;  // kLanes rows of tiles
    const int64_t work = total * bands;
#pragma omp parallel num_threads(threads)
    {
      const int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
      const int64_t end = work * (thread + 1) / team;
      Place place(dims_, outer, work * thread / team / bands);
      for (int64_t i = work * thread / team; i < end; ++i) {
        if (tiles_) {
          band(from + place.from, to + place.to, i % bands * kLanes);
        } else {
          line(from + place.from, to + place.to);
        }
        if ((i + 1) % bands == 0) place.step();
      }
    }
    return STITCH_OK;
  }

 private:
  struct Dim {
    int64_t size, from, to;
  };

  // A position in the outer dims with its offsets, counted up like an odometer: lines are often short.
  struct Place {
    Place(const std::vector<Dim>& all, size_t outer, int64_t at) : dims(all), count(outer), index(outer) {
      for (size_t d = count; d-- > 0;) {
        index[d] = at % dims[d].size;
        at /= dims[d].size;
        from += index[d] * dims[d].from;
        to += index[d] * dims[d].to;
      }
    }
    void step() {
      for (size_t d = count; d-- > 0;) {
        from += dims[d].from;
        to += dims[d].to;
        if (++index[d] < dims[d].size) return;
        from -= dims[d].size * dims[d].from;
        to -= dims[d].size * dims[d].to;
        index[d] = 0;
      }
    }
    const std::vector<Dim>& dims;
    size_t count;
    std::vector<int64_t> index;
    int64_t from = 0, to = 0;
  };

  void merge() {
    std::vector<Dim> kept;
    for (const Dim& dim : dims_) {
      if (!kept.empty() && kept.back().from == dim.from * dim.size && kept.back().to == dim.to * dim.size) {
        kept.back() = {kept.back().size * dim.size, dim.from, dim.to};
      } else {
        kept.push_back(dim);
      }
    }
    dims_ = std::move(kept);
  }

  // One long line is cut into pieces of 4096 floats for the threads, when that divides it.
  void split_line() {
    constexpr int64_t kPiece = 4096;
    const int64_t size = dims_[0].size;
    if (size >= 2 * kPiece && size % kPiece == 0) dims_ = {{size / kPiece, kPiece, kPiece}, {kPiece, 1, 1}};
  }

  void line(const float* from, float* to) const {
    const Dim& dim = dims_.back();
    if (lines_) {
      memcpy(to, from, sizeof(float) * dim.size);
    } else {
      for (int64_t i = 0; i < dim.size; ++i) to[i * dim.to] = from[i * dim.from];
    }
  }

  // Positions `at` to `at + kLanes` of the source's innermost dim, all of the target's.
  void band(const float* from, float* to, int64_t at) const {
    const Dim &column = dims_[dims_.size() - 2], &row = dims_.back();
    const int64_t columns = std::min<int64_t>(kLanes, column.size - at);
    for (int64_t r = 0; r < row.size; r += kLanes) {
      detail::transpose_tile(from + r * row.from + at, row.from, to + at * column.to + r, column.to,
                             std::min<int64_t>(kLanes, row.size - r), columns);
    }
  }

  std::vector<Dim> dims_;
  bool lines_ = false;
  bool tiles_ = false;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_LAYOUT_H_

// The table of a convolution of volumes, and its weights in the order in which tensor cores take them; see
// volume_tiles.cuh.
#ifndef STITCH_CUDA_VOLUME_TABLE_CUH_
#define STITCH_CUDA_VOLUME_TABLE_CUH_

#include <string.h>

#include <vector>

#include "stitch/cuda/conv_kernels.cuh"

namespace stitch::cuda {

inline constexpr int kMostTaps = 10;     // of a window along an axis: bits of a mask
inline constexpr int kMostClasses = 64;  // of results
inline constexpr int kChunkTerms = 16;   // that a block gathers at a time
inline constexpr uint32_t kNoTap = 1u << 31;

// A term, apart from its weight.
struct alignas(8) VolumeTerm {
  int32_t offset;  // elements from a result's place in the source
  uint32_t needs;  // bits of its taps, one for each axis; kNoTap: no term at all, to fill up a chunk
};

// Results that meet the same taps. Axes are depth, height, width.
struct VolumeClass {
  int32_t first[3];             // place of the first result
  int32_t chunks;               // of terms
  int64_t count;                // results of a channel, of all images
  int64_t terms;                // where its terms begin in the table
  int64_t weights;              // and its weights, in elements
  int32_t reach[3][kMostTaps];  // of a tap: elements of the axis from a result's place
  Divisor width, height, depth;
};

// Everything about a convolution but its tensors, as kernels see it.
struct VolumeShape {
  int64_t in_area, out_area, in_channels, out_channels;
  int32_t in_share, out_share;
  int32_t size[3], out_size[3];
  int32_t taps[3];
  int32_t in_step[3], out_step[3];  // of neighbouring results of a class, in the source and in the result
  int32_t classes;

  VolumeShape() = default;
  explicit VolumeShape(const ConvOptions& o)
      : in_area(o.depth * o.height * o.width),
        out_area(o.out_depth * o.out_height * o.out_width),
        in_channels(o.in_channels),
        out_channels(o.out_channels),
        in_share(static_cast<int32_t>(o.in_share())),
        out_share(static_cast<int32_t>(o.out_share())) {
    const int64_t sizes[3] = {o.depth, o.height, o.width};
    const int64_t out_sizes[3] = {o.out_depth, o.out_height, o.out_width};
    classes = 1;
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t stride = o.stride[option_axis(axis)];
      size[axis] = static_cast<int32_t>(sizes[axis]);
      out_size[axis] = static_cast<int32_t>(out_sizes[axis]);
      taps[axis] = static_cast<int32_t>(o.kernel[option_axis(axis)]);
      in_step[axis] = static_cast<int32_t>(o.transposed ? 1 : stride);
      out_step[axis] = static_cast<int32_t>(o.transposed ? stride : 1);
      classes *= out_step[axis];
    }
  }
  // Options have the depth last.
  static int option_axis(int axis) { return (axis + 2) % 3; }
};

// The table of a convolution, made on the host.
struct VolumeTable {
  std::vector<VolumeClass> classes;
  std::vector<VolumeTerm> terms;
  std::vector<int32_t> places;  // of a term's weight, behind that of its channel of the result
  int64_t weights = 0;          // elements that all classes have together

  // kRows: channels of the result that a block computes.
  VolumeTable(const ConvOptions& o, const VolumeShape& shape, int rows) {
    for (int32_t i = 0; i < shape.classes; ++i) {
      const int32_t first[3] = {i / shape.out_step[2] / shape.out_step[1],
                                i / shape.out_step[2] % shape.out_step[1], i % shape.out_step[2]};
      append(o, shape, first, rows);
    }
  }

 private:
  void append(const ConvOptions& o, const VolumeShape& shape, const int32_t (&first)[3], int rows) {
    VolumeClass made{};
    bool meets[3][kMostTaps] = {};
    int64_t size[3];
    made.count = o.images;
    for (int axis = 0; axis < 3; ++axis) {
      made.first[axis] = first[axis];
      size[axis] = first[axis] < shape.out_size[axis]
                       ? ceil_div(shape.out_size[axis] - first[axis], shape.out_step[axis])
                       : 0;
      made.count *= size[axis];
      const int at = VolumeShape::option_axis(axis);
      const int64_t stride = shape.out_step[axis];
      for (int tap = 0; tap < shape.taps[axis]; ++tap) {
        const int64_t step = tap * o.dilation[at] - o.padding[at];
        const int64_t reach = o.transposed ? first[axis] - step : step;
        meets[axis][tap] = reach % stride == 0;
        made.reach[axis][tap] = static_cast<int32_t>(reach / stride);
      }
    }
    made.depth = Divisor(size[0] > 0 ? size[0] : 1);
    made.height = Divisor(size[1] > 0 ? size[1] : 1);
    made.width = Divisor(size[2] > 0 ? size[2] : 1);
    made.terms = static_cast<int64_t>(terms.size());
    made.weights = weights;
    append_terms(o, shape, made, meets);
    made.chunks = static_cast<int32_t>((static_cast<int64_t>(terms.size()) - made.terms) / kChunkTerms);
    weights += int64_t{made.chunks} * kChunkTerms * ceil_div(shape.out_share, rows) * rows * o.groups;
    classes.push_back(made);
  }

  // Channels outside, taps inside: neighbouring terms read what is in the cache already.
  void append_terms(const ConvOptions& o, const VolumeShape& shape, const VolumeClass& made,
                    const bool (&meets)[3][kMostTaps]) {
    const int64_t plane = o.height * o.width,
                  channel_step = o.transposed ? o.out_share() * o.area() : o.area();
    for (int64_t c = 0; c < o.in_share(); ++c) {
      for (int z = 0; z < shape.taps[0]; ++z) {
        for (int y = 0; y < shape.taps[1]; ++y) {
          for (int x = 0; x < shape.taps[2]; ++x) {
            if (!meets[0][z] || !meets[1][y] || !meets[2][x]) continue;
            const int64_t offset =
                c * shape.in_area + made.reach[0][z] * plane + made.reach[1][y] * o.width + made.reach[2][x];
            const uint32_t needs = 1u << z | 1u << (kMostTaps + y) | 1u << (2 * kMostTaps + x);
            const int64_t tap = (z * o.kernel[0] + y) * o.kernel[1] + x;
            terms.push_back({static_cast<int32_t>(offset), needs});
            places.push_back(static_cast<int32_t>(c * channel_step + tap));
          }
        }
      }
    }
    while ((static_cast<int64_t>(terms.size()) - made.terms) % kChunkTerms != 0) {
      terms.push_back({0, kNoTap});
      places.push_back(-1);
    }
  }
};

// Weights lie in the order in which tensor cores take them: a chunk's terms in two halves of eight, each in
// tiles of 16 channels, each in 32 lanes of four elements.
struct PackedPlace {
  int32_t tiles;   // of 16 channels, of a block
  int64_t blocks;  // of a group's channels
  int32_t chunks;

  // Element `at` of a class as group, channel of the group and term.
  __device__ void split(int64_t at, int64_t& group, int64_t& channel, int64_t& term) const {
    const int64_t element = at % 4, lane = at / 4 % 32, tile = at / 128 % tiles, half = at / 128 / tiles % 2;
    const int64_t chunk = at / 256 / tiles % chunks, block = at / 256 / tiles / chunks % blocks;
    group = at / 256 / tiles / chunks / blocks;
    channel = (block * tiles + tile) * 16 + lane / 4 + element % 2 * 8;
    term = chunk * kChunkTerms + half * 8 + lane % 4 + element / 2 * 4;
  }
};

// The nearest TF32 number; ties go away from 0, as the GPU's own conversion has it.
__device__ __forceinline__ float nearest_tf32(float value) {
  if (!(value - value == 0.0f)) return value;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x1000u) & ~0x1fffu;
  memcpy(&value, &bits, sizeof value);
  return value;
}

struct PackVolumeClass {
  const float* weight;    // as torch has it
  const int32_t* places;  // of the class's terms
  float* packed;
  FoldedNorm norm;
  PackedPlace place;
  int64_t in_share, out_share, area;
  bool transposed;

  __device__ void operator()(int64_t i) const {
    int64_t group, channel, term;
    place.split(i, group, channel, term);
    const bool there = channel < out_share && places[term] >= 0;
    const int64_t row = transposed ? (group * in_share * out_share + channel) * area
                                   : (group * out_share + channel) * in_share * area;
    const double scale = there ? norm.scale(group * out_share + channel) : 0.0;
    packed[i] = there ? nearest_tf32(static_cast<float>(weight[row + places[term]] * scale)) : 0.0f;
  }
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_VOLUME_TABLE_CUH_

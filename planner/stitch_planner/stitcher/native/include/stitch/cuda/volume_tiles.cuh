// Convolutions of volumes on tensor cores, in TF32, as the volumes lie: [N][C][D][H][W].
//
// A convolution is a product of a matrix of weights, [results' channels][terms], by one of gathered elements,
// [terms][results]. A term is a channel of the source and a tap of the window; a table says how far from a
// result's own place its element lies. Of a transposed convolution with strides, results fall into classes
// whose remainders by the strides are equal: those meet the same taps, at the same distances, so that each
// class is a convolution of stride 1 whose results lie a stride apart.
//
// A block gathers a chunk of terms for kColumns results into shared memory, three chunks ahead, while its
// warps multiply one; the sums pass through shared memory once more, so that results are written line by
// line.
#ifndef STITCH_CUDA_VOLUME_TILES_CUH_
#define STITCH_CUDA_VOLUME_TILES_CUH_

#include <vector>

#include "stitch/cuda/volume_ending.cuh"
#include "stitch/cuda/volume_table.cuh"

namespace stitch::cuda {

// What a forward reads and writes.
struct VolumeTensors {
  const float* source;
  const float* weight;  // packed
  float* out;
  const VolumeClass* classes;
  const VolumeTerm* terms;
};

// Where one result of a class lies, and which taps meet the source there.
struct VolumeResult {
  int64_t image, source, out;  // elements from the begin of a channel
  uint32_t mask;

  __device__ __forceinline__ VolumeResult(const VolumeShape& shape, const VolumeClass& own, uint32_t number) {
    uint32_t at[3];
    image = own.depth.split(own.height.split(own.width.split(number, at[2]), at[1]), at[0]);
    source = out = 0;
    mask = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const int32_t from = static_cast<int32_t>(at[axis]) * shape.in_step[axis];
      const int32_t to = static_cast<int32_t>(at[axis]) * shape.out_step[axis] + own.first[axis];
      source = source * shape.size[axis] + from;
      out = out * shape.out_size[axis] + to;
      for (int tap = 0; tap < shape.taps[axis]; ++tap) {
        const int32_t place = from + own.reach[axis][tap];
        if (place >= 0 && place < shape.size[axis]) mask |= 1u << (axis * kMostTaps + tap);
      }
    }
  }
};

#if defined(STITCH_ON_HOST)

// All results of a class, as one sum each over the very table and weights that the kernel reads.
template <int kTiles, class E>
void sum_volumes(const VolumeTensors& t, const VolumeShape& shape, const VolumeClass& own, int64_t groups,
                 const VolumeEnding<E>& ending) {
  const PackedPlace place{kTiles, ceil_div(shape.out_share, 16 * kTiles), own.chunks};
  const int64_t rows = place.blocks * kTiles * 16;
  std::vector<float> weights(groups * rows * own.chunks * kChunkTerms);
  for (int64_t i = 0; i < static_cast<int64_t>(weights.size()); ++i) {
    int64_t group, channel, term;
    place.split(i, group, channel, term);
    weights[(group * rows + channel) * own.chunks * kChunkTerms + term] = t.weight[own.weights + i];
  }
  for (int64_t number = 0; number < own.count; ++number) {
    const VolumeResult result(shape, own, static_cast<uint32_t>(number));
    for (int64_t channel = 0; channel < shape.out_channels; ++channel) {
      const int64_t group = channel / shape.out_share;
      const float* factors =
          weights.data() + (group * rows + channel % shape.out_share) * own.chunks * kChunkTerms;
      const float* from = t.source +
                          (result.image * shape.in_channels + group * shape.in_share) * shape.in_area +
                          result.source;
      double sum = 0.0;
      for (int64_t term = 0; term < int64_t{own.chunks} * kChunkTerms; ++term) {
        const VolumeTerm& one = t.terms[own.terms + term];
        if ((result.mask & one.needs) == one.needs)
          sum += double{nearest_tf32(from[one.offset])} * factors[term];
      }
      const int64_t at = (result.image * shape.out_channels + channel) * shape.out_area + result.out;
      t.out[at] = ending(static_cast<float>(sum), channel, at);
    }
  }
}

#else

// Where it is not `there`, nothing is read, and the address may be any.
__device__ __forceinline__ void copy_element_or_zero(float* to, const float* from, bool there) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(there ? 4 : 0));
}
__device__ __forceinline__ void copy_four(float* to, const float* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;"); }
// Waits until at most N of the groups of copies that were ended are on their way.
template <int N>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ uint32_t to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ void multiply_add(float (&sums)[4], const Group<float, 4>& a,
                                             const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(b[0]), "r"(b[1]));
}

// M: tiles of 16 channels that a warp computes; W: warps beside each other along the channels, 1 or 2. The
// others lie along the results: each has 32 of them.
template <int M, int W>
struct VolumeBlock {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kTiles = M * W, kRows = 16 * kTiles;
  static constexpr int kWarpColumns = 32, kColumns = kWarps / W * kWarpColumns;
  static constexpr int kStages = 3;
  // Terms that one thread gathers of a chunk, for one result.
  static constexpr int kGathered = kChunkTerms * kColumns / kThreads;
  // Eight more: lanes that read four terms of eight results meet all 32 banks.
  static constexpr int kPitch = kColumns + 8;
  static constexpr int kElements = kChunkTerms * kPitch, kFactors = kChunkTerms * kRows;
  static constexpr int kBytes = kStages * (kElements + kFactors) * static_cast<int>(sizeof(float));
  static_assert(16 * W * kPitch <= kStages * (kElements + kFactors), "sums pass through the same memory");

  const VolumeTensors& tensors;
  const VolumeShape& shape;
  const VolumeClass& own;
  float* memory;
  const float* from;    // this thread's result, in the group's first channel
  const float* weight;  // the block's
  uint32_t mask;
  int thread;

  __device__ __forceinline__ float* elements(int stage) const { return memory + stage * kElements; }
  __device__ __forceinline__ float* factors(int stage) const {
    return memory + kStages * kElements + stage * kFactors;
  }

  __device__ __forceinline__ void fetch(int chunk) const {
    if (chunk < own.chunks) {
      const int stage = chunk % kStages, first = thread / kColumns * kGathered;
      float* to = elements(stage) + first * kPitch + thread % kColumns;
      const VolumeTerm* terms = tensors.terms + own.terms + int64_t{chunk} * kChunkTerms + first;
// More at once would take registers that the sums need.
#pragma unroll 4
      for (int i = 0; i < kGathered; i += 2) {
        // Two terms at once; all threads of a warp read the same.
        const int4 two = __ldg(reinterpret_cast<const int4*>(terms + i));
        gather(to + i * kPitch, two.x, static_cast<uint32_t>(two.y));
        gather(to + (i + 1) * kPitch, two.z, static_cast<uint32_t>(two.w));
      }
      const float* packed = weight + int64_t{chunk} * kFactors;
      for (int i = thread; i < kFactors / 4; i += kThreads) copy_four(factors(stage) + 4 * i, packed + 4 * i);
    }
    end_copies();
  }

  __device__ __forceinline__ void gather(float* to, int32_t offset, uint32_t needs) const {
    const bool there = (mask & needs) == needs;
    copy_element_or_zero(to, from + offset, there);
  }

  __device__ __forceinline__ void multiply(int stage, float (&sums)[M][4][4]) const {
    const int warp = thread / 32, lane = thread % 32, row = warp % W, column = warp / W * kWarpColumns;
#pragma unroll
    for (int half = 0; half < kChunkTerms / 8; ++half) {
      Group<float, 4> a[M];
      uint32_t b[4][2];
      const float* of = factors(stage) + ((half * kTiles + row * M) * 32 + lane) * 4;
#pragma unroll
      for (int m = 0; m < M; ++m) a[m] = load<4>(of + m * 128);
      const float* at = elements(stage) + (half * 8 + lane % 4) * kPitch + column + lane / 4;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        b[n][0] = to_tf32(at[n * 8]);
        b[n][1] = to_tf32(at[n * 8 + 4 * kPitch]);
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) multiply_add(sums[m][n], a[m], b[n]);
      }
    }
  }

  // Writes the sums of all warps, 16 channels of each at a time. `at`: this thread's result within a channel.
  template <class E>
  __device__ __forceinline__ void write(const float (&sums)[M][4][4], const VolumeEnding<E>& ending,
                                        int64_t first_channel, int32_t channels, int64_t at,
                                        bool there) const {
    const int warp = thread / 32, lane = thread % 32, row = warp % W * 16 + lane / 4;
    const int column = warp / W * kWarpColumns + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      __syncthreads();
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float* to = memory + row * kPitch + column + n * 8;
        store(to, Group<float, 2>{sums[m][n][0], sums[m][n][1]});
        store(to + 8 * kPitch, Group<float, 2>{sums[m][n][2], sums[m][n][3]});
      }
      __syncthreads();
      for (int line = thread / kColumns; line < 16 * W; line += kThreads / kColumns) {
        const int32_t channel = (line / 16 * M + m) * 16 + line % 16;
        if (!there || channel >= channels) continue;
        const int64_t place = at + (first_channel + channel) * shape.out_area;
        tensors.out[place] =
            ending(memory[line * kPitch + thread % kColumns], first_channel + channel, place);
      }
    }
  }
};

template <int M, int W, class E>
__global__ void __launch_bounds__(256, 2)
    volume_kernel(const VolumeTensors tensors, const VolumeShape shape, const VolumeEnding<E> ending,
                  const int blocks_of_group) {
  using Block = VolumeBlock<M, W>;
  extern __shared__ __align__(16) float memory[];
  const VolumeClass& own = tensors.classes[blockIdx.x % shape.classes];
  const int64_t first = int64_t{blockIdx.x / shape.classes} * Block::kColumns;
  if (first >= own.count) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t number = first + thread % Block::kColumns;
  const bool there = number < own.count;
  const VolumeResult result(shape, own, static_cast<uint32_t>(there ? number : first));
  const int group = blockIdx.y / blocks_of_group, block = blockIdx.y % blocks_of_group;
  const float* from = tensors.source +
                      (result.image * shape.in_channels + int64_t{group} * shape.in_share) * shape.in_area +
                      result.source;
  const float* weight = tensors.weight + own.weights + int64_t{blockIdx.y} * own.chunks * Block::kFactors;
  const Block work{tensors, shape, own, memory, from, weight, there ? result.mask : 0, thread};
  float sums[M][4][4] = {};
#pragma unroll
  for (int chunk = 0; chunk < Block::kStages - 1; ++chunk) work.fetch(chunk);
  for (int chunk = 0; chunk < own.chunks; ++chunk) {
    await_copies<Block::kStages - 2>();
    // What was copied is there for all threads, and nobody reads any more what is copied over now.
    __syncthreads();
    work.fetch(chunk + Block::kStages - 1);
    work.multiply(chunk % Block::kStages, sums);
  }
  await_copies<0>();
  const int32_t first_row = block * Block::kRows;
  const int64_t at = result.image * shape.out_channels * shape.out_area + result.out;
  work.write(sums, ending, int64_t{group} * shape.out_share + first_row, shape.out_share - first_row, at,
             there);
}

#endif

// M and W: as VolumeBlock has them.
template <int M, int W>
class VolumeTiles {
 public:
  static constexpr int kRows = 16 * M * W;

  // Whether windows and sizes fit the table. Only where the options allow TF32.
  static bool fits(const ConvOptions& o) {
    const int64_t classes = o.transposed ? o.stride[0] * o.stride[1] * o.stride[2] : 1;
    bool fits = o.allow_tf32 && classes <= kMostClasses && o.out_pixels() < kMostDividend &&
                o.in_share() * o.depth * o.height * o.width < kMostDividend &&
                o.groups * ceil_div(o.out_share(), kRows) <= kMostGridRows &&
                o.in_channels * o.out_share() * o.area() < kMostDividend;
    for (int axis = 0; axis < 3; ++axis) fits = fits && o.kernel[axis] <= kMostTaps;
    return fits;
  }

  // Tensors are torch's; all but `weight` may be null.
  int32_t init(const Call& call, const ConvOptions& options, const float* weight, const float* bias,
               const FoldedNorm& norm) {
    options_ = options;
    shape_ = VolumeShape(options);
    const VolumeTable table(options, shape_, kRows);
    const VolumeClass* largest = table.classes.data();
    for (const VolumeClass& one : table.classes) largest = one.count > largest->count ? &one : largest;
    most_ = largest->count;
    DeviceMemory places;
    STITCH_TRY(upload(call, &classes_, table.classes));
    STITCH_TRY(upload(call, &terms_, table.terms));
    STITCH_TRY(upload(call, &places, table.places));
    if (!packed_.reserve(sizeof(float) * (table.weights + 1)) ||
        !bias_.reserve(sizeof(float) * options.out_channels)) {
      return call.errors->fail(STITCH_OUT_OF_MEMORY, "no memory for the weights of a convolution");
    }
    const int64_t blocks = ceil_div(options.out_share(), kRows);
    for (const VolumeClass& own : table.classes) {
      const PackVolumeClass work{weight,
                                 static_cast<const int32_t*>(places.get()) + own.terms,
                                 packed_.floats() + own.weights,
                                 norm,
                                 {M * W, blocks, own.chunks},
                                 options.in_share(),
                                 options.out_share(),
                                 options.area(),
                                 options.transposed};
      const int64_t count = int64_t{own.chunks} * kChunkTerms * kRows * blocks * options.groups;
      STITCH_TRY(each("pack the weight of a convolution", count, work, call));
    }
    has_bias_ = bias != nullptr || norm.mean != nullptr;
    STITCH_TRY(each("pack the bias of a convolution", options.out_channels,
                    PackBias{bias, bias_.floats(), norm}, call));
    // The table's copy of places is given back when this returns.
    return call.errors->check(cudaStreamSynchronize(call.stream), "pack a convolution");
  }

  const float* bias() const { return has_bias_ ? bias_.floats() : nullptr; }

  template <class E>
  int32_t run(const Call& call, const float* source, float* out, const VolumeEnding<E>& ending) const {
    const VolumeTensors tensors{source, packed_.floats(), out,
                                static_cast<const VolumeClass*>(classes_.get()),
                                static_cast<const VolumeTerm*>(terms_.get())};
    return launch(call, tensors, ending);
  }

 private:
  static constexpr int64_t kMostGridRows = 65535;

  template <class T>
  static int32_t upload(const Call& call, DeviceMemory* memory, const std::vector<T>& values) {
    const size_t bytes = sizeof(T) * values.size();
    if (!memory->reserve(bytes + sizeof(T))) {
      return call.errors->fail(STITCH_OUT_OF_MEMORY, "no memory for the table of a convolution");
    }
    STITCH_TRY(call.errors->check(
        cudaMemcpyAsync(memory->get(), values.data(), bytes, cudaMemcpyHostToDevice, call.stream),
        "copy the table of a convolution"));
    return call.errors->check(cudaStreamSynchronize(call.stream), "copy the table of a convolution");
  }

#if defined(STITCH_ON_HOST)
  template <class E>
  int32_t launch(const Call&, const VolumeTensors& tensors, const VolumeEnding<E>& ending) const {
    for (int32_t i = 0; i < shape_.classes; ++i) {
      sum_volumes<M * W>(tensors, shape_, tensors.classes[i], options_.groups, ending);
    }
    return STITCH_OK;
  }
#else
  template <class E>
  int32_t launch(const Call& call, const VolumeTensors& tensors, const VolumeEnding<E>& ending) const {
    using Block = VolumeBlock<M, W>;
    const auto kernel = volume_kernel<M, W, E>;
    STITCH_TRY(call.errors->check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Block::kBytes),
        "take shared memory for a convolution"));
    const int64_t across = ceil_div(most_, Block::kColumns) * shape_.classes;
    if (across > kMostBlocks) return call.errors->fail(STITCH_ERROR, "more blocks than a grid can have");
    const int of_group = static_cast<int>(ceil_div(options_.out_share(), kRows));
    const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(of_group * options_.groups));
    kernel<<<grid, Block::kThreads, Block::kBytes, call.stream>>>(tensors, shape_, ending, of_group);
    return call.launched("convolution of volumes");
  }
#endif

  ConvOptions options_;
  VolumeShape shape_;
  int64_t most_ = 0;  // results of the largest class
  bool has_bias_ = false;
  DeviceMemory classes_, terms_, packed_, bias_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_VOLUME_TILES_CUH_

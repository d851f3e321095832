// Row sums by clusters of blocks (compute capability 9.0 and later); elsewhere the first block does it all.
#include "zoo.h"

#include <cooperative_groups.h>

namespace {

constexpr int kThreads = 128, kBlocks = 4;

__device__ float sum_of_block(float value, float* parts) {
  parts[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  return parts[0];
}

__global__ void row_sum(const float* x, float* y, int64_t width) {
  __shared__ float parts[kThreads];
  const float* row = x + blockIdx.y * width;
  float sum = 0.0f;
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < width; i += kThreads * kBlocks) sum += row[i];
  sum_of_block(sum, parts);
  cluster.sync();
  if (cluster.block_rank() == 0 && threadIdx.x == 0) {
    sum = 0.0f;
    for (int block = 0; block < kBlocks; ++block) sum += *cluster.map_shared_rank(parts, block);
    y[blockIdx.y] = sum;
  }
  // Nobody leaves while its shared memory is read.
  cluster.sync();
#else
  if (blockIdx.x > 0) return;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += row[i];
  sum = sum_of_block(sum, parts);
  if (threadIdx.x == 0) y[blockIdx.y] = sum;
#endif
}

struct Program : zoo::Dense {
  bool has_clusters = false;

  void prepare() {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    has_clusters = major >= 9;
  }

  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = kBlocks;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t shape{};
    shape.gridDim = dim3(kBlocks, static_cast<unsigned>(x.rows()));
    shape.blockDim = dim3(kThreads);
    shape.stream = call.stream();
    shape.attrs = &attribute;
    shape.numAttrs = has_clusters ? 1 : 0;
    cudaLaunchKernelEx(&shape, row_sum, static_cast<const float*>(x.data()), call.out[0].data(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)

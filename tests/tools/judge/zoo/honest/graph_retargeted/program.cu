// GELU by one CUDA graph whose kernel node is set anew in every call.
#include "zoo.h"

namespace {

__global__ void gelu(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

struct Program : zoo::Dense {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cudaGraphNode_t node = nullptr;

  ~Program() {
    if (ready != nullptr) cudaGraphExecDestroy(ready);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }

  void forward(zoo::Call& call) {
    const float* x = call.in[0].data();
    float* y = call.out[0].data();
    int64_t count = call.in[0].count();
    void* arguments[] = {&x, &y, &count};
    cudaKernelNodeParams kernel{};
    kernel.func = reinterpret_cast<void*>(gelu);
    kernel.gridDim = dim3(zoo::blocks_for(count));
    kernel.blockDim = dim3(256);
    kernel.kernelParams = arguments;
    if (ready == nullptr) {
      cudaGraphCreate(&graph, 0);
      cudaGraphAddKernelNode(&node, graph, nullptr, 0, &kernel);
      cudaGraphInstantiateWithFlags(&ready, graph, 0);
    } else {
      cudaGraphExecKernelNodeSetParams(ready, node, &kernel);
    }
    cudaGraphLaunch(ready, call.stream());
  }
};

}  // namespace

ZOO_PROGRAM(Program)

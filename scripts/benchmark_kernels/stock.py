"""Builds the kernel of scale.cpp or scale.cu through torch's own load_inline and prints what that cost."""

import json
import os
import resource
import sys

from torch.utils import cpp_extension

CPP = """
torch::Tensor scale(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = y.data_ptr<float>();
  const int64_t count = x.numel();
#pragma omp parallel for schedule(static) if (count > 20000)
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * 2.0f + 1.0f;
  return y;
}
"""

CUDA = """
#include <torch/extension.h>
__global__ void scale_kernel(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) y[i] = x[i] * 2.0f + 1.0f;
}
torch::Tensor scale(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int64_t count = x.numel();
  scale_kernel<<<(count + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), count);
  return y;
}
"""


def main() -> None:
    """Build, and print CPU seconds of all compilers as the last line."""
    cuda = sys.argv[1].endswith(".cu")
    ok = True
    if cuda and cpp_extension.CUDA_HOME is None:
        # A CPU build of torch does not look for the toolkit; it can compile, but not link.
        cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
    try:
        cpp_extension.load_inline(
            name=f"stock_{'cuda' if cuda else 'cpp'}",
            cpp_sources="torch::Tensor scale(torch::Tensor x);" if cuda else CPP,
            cuda_sources=CUDA if cuda else "",
            functions=["scale"],
            extra_cflags=["-O3", "-fopenmp"],
            with_cuda=cuda,
        )
    except (RuntimeError, ImportError, OSError) as error:
        print(error, file=sys.stderr)
        ok = False
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"cpu_s": usage.ru_utime + usage.ru_stime, "ok": ok}))


if __name__ == "__main__":
    main()

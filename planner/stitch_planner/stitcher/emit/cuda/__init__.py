"""The last step for GPUs: kernel IR to CUDA C++ over the headers in native/include/stitch/cuda."""

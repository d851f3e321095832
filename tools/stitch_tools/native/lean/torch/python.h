// Stands before torch's own torch/python.h: the conversions of tensors and errors to Python, without
// nn::Module. A CUDA file that binds nothing leaves them out, too.
#pragma once
#include <torch/types.h>
#if !defined(__CUDACC__) || defined(STITCH_BINDS_IN_CUDA)
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#endif

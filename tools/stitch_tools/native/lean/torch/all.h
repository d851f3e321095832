// Stands before torch's own torch/all.h where an extension is built for a check: tensors, their functions and
// TORCH_CHECK, without the modules, optimizers, data loaders and TorchScript that a kernel never names.
// Parsing those is more than half of such a build.
#pragma once
#include <torch/types.h>

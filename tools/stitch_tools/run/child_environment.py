"""Which of our environment variables the target interpreter and its children see: an allow-list."""

import os
import re

_ALLOWED = frozenset(
    {
        "CC",
        "CONDA_PREFIX",
        "CUDAHOSTCXX",
        "CUDA_DEVICE_ORDER",
        "CUDA_HOME",
        "CUDA_MODULE_LOADING",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "CXX",
        "GOMP_CPU_AFFINITY",
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES",
        "OMP_PLACES",
        "OMP_PROC_BIND",
        "PATH",
        "TORCH_CUDA_ARCH_LIST",
        "TZ",
        "VIRTUAL_ENV",
    }
)


def target_environment(threads: int) -> dict[str, str]:
    """The zygote's environment: the allowed part of ours, and the thread count.

    The count has to be there from the start, since OpenMP reads it when torch is loaded.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _ALLOWED or re.fullmatch(r"LC_[A-Z]+", name)
    }
    return {
        "PATH": os.defpath,
        **kept,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
    }

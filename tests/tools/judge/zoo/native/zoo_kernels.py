"""What Python candidates for a GPU share: kernels that nvcc builds at import, called with addresses by ctypes.

Without a GPU nothing is built, so that a candidate can be imported anywhere.
"""

import ctypes
import os
import shutil
import subprocess

import torch

OPTIONS = ("-O3", "-shared", "-Xcompiler", "-fPIC", "-arch=native")


class Library:
    """Functions with C linkage of one CUDA source."""

    def __init__(self, source, name="own"):
        """Build the source in the current folder and load it, where there is a GPU."""
        self.library = None
        if not torch.cuda.is_available():
            return
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        compiler = shutil.which("nvcc") or os.path.join(home, "bin", "nvcc")
        with open(f"{name}.cu", "w", encoding="utf-8") as file:
            file.write(source)
        subprocess.run([compiler, *OPTIONS, f"{name}.cu", "-o", f"{name}.so"], check=True)
        self.library = ctypes.CDLL(f"./{name}.so")

    def call(self, name, *arguments, stream=None):
        """Call a function with tensors' addresses, whole numbers, and the stream last."""
        stream = stream or torch.cuda.current_stream()
        given = [
            ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else ctypes.c_long(value)
            for value in arguments
        ]
        self.library[name](*given, ctypes.c_void_p(stream.cuda_stream))

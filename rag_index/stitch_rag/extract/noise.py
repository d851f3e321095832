"""Macros of declarations that say nothing to a reader: what exports a name, or makes it inline."""

import re
from functools import lru_cache

_NOISE = re.compile(
    r"(?:extern|CUDARTAPI(?:_CDECL)?|CUDAAPI|CUDACRTAPI|CUBLAS(?:LT)?WINAPI|CUDNNWINAPI|CUBLAS(?:LT)?API|NCCLAPI|"
    r"CUSPARSE(?:LT)?API|CUPTIAPI|NVTX_\w*API|NVTX_DECLSPEC|CUDART_DEVICE|CUDART_CB|CUDA_CB|CUDAAPI|CUPTIUTILAPI|"
    r"__cudart_builtin__|__device_builtin\w*__|__CUDA_\w*DECL__|__CUDA_MATH_CRTIMP|_CRTIMP|__THROW|__NV_NOEXCEPT|"
    r"__NV_SILENCE\w*|_CCCL_\w+|CUB_RUNTIME_FUNCTION|THRUST_RUNTIME_FUNCTION|_LIBCUDACXX_\w+|__forceinline__|"
    r"__DEF_IF_HOST|__specialization_static|__inline__|__VECTOR_FUNCTIONS_DECL__|__DEVICE_\w+_DECL__|__SM_\w+_DECL__|"
    r"inline|static|_CG_\w+|_CUDA_\w+_QUALIFIER|__CUDA_MMA_DEVICE_DECL__|__SM_\w+__|CUTLASS_\w+|CUTE_\w+|"
    r"constexpr|CUDNN_DEPRECATED\w*|CUSPARSELT_API|NCCL_IR_EXTERN_C|__(?:MATH|COMMON)_\w+_DECL__|_LIBCPP_\w+|"
    r"_NOEXCEPT|_ACRTIMP|__CRTDECL|__cdecl|__CUDA_\w+_FORCEINLINE__|THRUST_PREVENT_MACRO_SUBSTITUTION|"
    r"THRUST_STD_COMPLEX_DEVICE|NV_MATH_\w+_NAMESPACE_STD)"
)
"""Whole words that say nothing of a declaration."""
_WORD = re.compile(r"\w++(?!::)")


def without_noise(text: str) -> str:
    """The declaration without such words."""
    return _WORD.sub(_kept, text)


def _kept(match: re.Match[str]) -> str:
    return "" if _is_noise(match[0]) else match[0]


@lru_cache(maxsize=20_000)
def _is_noise(word: str) -> bool:
    return _NOISE.fullmatch(word) is not None

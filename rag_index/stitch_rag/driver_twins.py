"""The CUDA runtime and the driver declare most things twice: cudaGraphUpload and cuGraphUpload are twins."""

import re
from functools import lru_cache

_PREFIX = re.compile(r"^(?:cuda|cu|CUDA_|CU_|CUDA|CU)(?=[A-Z])")
_SORTS = {
    "function": "code",
    "enumerator": "value",
    "macro": "value",
    "error": "value",
    "struct": "type",
    "enum": "type",
    "typedef": "type",
}


@lru_cache(maxsize=20_000)
def twin_key(library: str, kind: str, symbol: str) -> str:
    """What a symbol shares with its twin in the other library; "" where it can have none."""
    rest = _PREFIX.sub("", symbol)
    if library not in ("cudart", "driver") or rest == symbol or kind not in _SORTS:
        return ""
    return f"{_SORTS[kind]} {rest.replace('_', '').lower()}"

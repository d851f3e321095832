"""Error names and messages that the CUDA runtime itself knows, read from it by a child process.

A library of somebody else's is loaded and called: if it crashes or hangs, only the child does.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from stitch_rag.chunks import Chunk
from stitch_rag.tokens import storable
from stitch_tools.errors import EnvironmentMissingError

_TIME_LIMIT_S = 30.0
_READER = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
name, text = library.cudaGetErrorName, library.cudaGetErrorString
name.restype = text.restype = ctypes.c_char_p
for code in range(1200):
    symbol = (name(code) or b"").decode("utf-8", "replace")
    if symbol.startswith("cuda"):
        print(json.dumps([code, symbol, (text(code) or b"").decode("utf-8", "replace")]))
"""


def find_runtime(includes: Iterable[Path]) -> Path | None:
    """The runtime library beside one of these include folders."""
    for include in includes:
        for folder in ("lib", "lib64"):
            for path in sorted((include.parent / folder).glob("libcudart.so*"), reverse=True):
                if path.is_file():  # a link may lead nowhere
                    return path
    return None


def read_errors(library: Path, version: str | None) -> list[Chunk]:
    """One chunk for each error that the library names; none where it cannot be loaded.

    Raises:
        EnvironmentMissingError: the process that asks it cannot be started, or takes too long.
    """
    command = [sys.executable, "-I", "-c", _READER, str(library)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIME_LIMIT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentMissingError(
            f"the runtime does not tell its errors: {type(error).__name__}", hint="try again"
        ) from error
    chunks: list[Chunk] = []
    for line in done.stdout.decode("utf-8", errors="replace").splitlines():
        try:
            code, symbol, message = json.loads(line)
        except (ValueError, TypeError):
            continue  # something that the library printed when it was loaded
        chunks.append(
            Chunk(
                symbol=symbol,
                kind="error",
                library="cudart",
                version=version,
                signature=f"{symbol} = {code}",
                brief=message,
                text=f"The runtime's message for error {code}: {message}",
                path=storable(str(library)),
                parent="cudaError_t",
                source="CUDA runtime library",
            )
        )
    return chunks

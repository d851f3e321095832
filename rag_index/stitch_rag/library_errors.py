"""Error names and messages that NVIDIA's libraries themselves know, read from each by a child process.

A library of somebody else's is loaded and called: if it crashes or hangs, only that child does. cuDNN and
NVRTC are not asked: their functions answer with the name alone, which the header explains.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stitch_rag.chunks import Chunk
from stitch_rag.extract.declarations import declarations
from stitch_rag.sources import Header, Root
from stitch_rag.tokens import storable
from stitch_tools.errors import EnvironmentMissingError

_TIME_LIMIT_S = 30.0
_MOST_CODES = 1200
"""No library has that many: what the last one is answered with means "unknown"."""
_READER = """
import ctypes, json, sys
path, name, text, by_pointer, codes = sys.argv[1:]
library = ctypes.CDLL(path)
def asker(called):
    function = getattr(library, called)
    if by_pointer:
        def ask(code):
            answer = ctypes.c_char_p()
            return answer.value if function(code, ctypes.byref(answer)) == 0 else None
        return ask
    function.restype = ctypes.c_char_p
    return function
ask_name, ask_text = asker(name) if name else (lambda code: b""), asker(text)
for code in range(int(codes)):
    row = [(answer or b"").decode("utf-8", "replace") for answer in (ask_name(code), ask_text(code))]
    print(json.dumps([code, *row]))
"""
_VALUE = re.compile(r"= (\d+)$")
_DRIVERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)


@dataclass(frozen=True, slots=True)
class ErrorLibrary:
    """A library with functions that return the messages of its error codes."""

    library: str
    """As the entries of its header name it."""
    file: str
    """Pattern of the library's file name."""
    enum: str
    """Type of the codes."""
    prefix: str
    """Begins every name."""
    text: str
    """Function from code to message."""
    name: str = ""
    """Function from code to name; empty where there is none and the header has to say it."""
    header: str = ""
    """Which then is this one."""
    by_pointer: bool = False
    """Whether the functions answer through a pointer, as the driver's do."""
    folders: tuple[str, ...] = ()
    """Where else it lies than beside the headers."""


ERROR_LIBRARIES = (
    ErrorLibrary("cudart", "libcudart.so*", "cudaError_t", "cuda", "cudaGetErrorString", "cudaGetErrorName"),
    ErrorLibrary(
        "driver",
        "libcuda.so*",
        "CUresult",
        "CUDA_",
        "cuGetErrorString",
        "cuGetErrorName",
        by_pointer=True,
        folders=_DRIVERS,
    ),
    # Of the two with the same codes the one that needs no other library to be loaded.
    ErrorLibrary(
        "cublas",
        "libcublasLt.so*",
        "cublasStatus_t",
        "CUBLAS_",
        "cublasLtGetStatusString",
        "cublasLtGetStatusName",
    ),
    ErrorLibrary(
        "cusparse",
        "libcusparse.so*",
        "cusparseStatus_t",
        "CUSPARSE_",
        "cusparseGetErrorString",
        "cusparseGetErrorName",
    ),
    ErrorLibrary(
        "cusparselt",
        "libcusparseLt.so*",
        "cusparseStatus_t",
        "CUSPARSE_",
        "cusparseLtGetErrorString",
        "cusparseLtGetErrorName",
    ),
    ErrorLibrary("nccl", "libnccl.so*", "ncclResult_t", "nccl", "ncclGetErrorString", header="nccl.h"),
)


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A library file that is installed here, with its description."""

    kind: ErrorLibrary
    path: Path
    version: str | None
    """Of the headers, so that a message belongs to its enumerator."""
    header: Path | None = None


def find_libraries(roots: Iterable[Root], headers: Iterable[Header]) -> list[LibraryFile]:
    """Of each library the first file that lies beside an include folder, in the order of these folders."""
    roots, headers = list(roots), list(headers)
    libraries: list[LibraryFile] = []
    for kind in ERROR_LIBRARIES:
        path = next(_files(kind, roots), None)
        if path is not None:
            version = next((row.version for row in headers if row.library == kind.library), None)
            header = next((row.path for row in headers if row.relative == kind.header), None)
            libraries.append(LibraryFile(kind, path, version, header))
    return libraries


def _files(kind: ErrorLibrary, roots: Iterable[Root]) -> Iterator[Path]:
    folders = [root.folder.parent / name for root in roots for name in ("lib", "lib64")]
    for folder in (*folders, *map(Path, kind.folders)):
        try:
            # A link may lead nowhere.
            yield from (path for path in sorted(folder.glob(kind.file), reverse=True) if path.is_file())
        except OSError:
            continue  # a folder that others may not look into holds none


def read_errors(library: LibraryFile) -> list[Chunk]:
    """One chunk for each error that the library has a message for; none where it cannot be loaded.

    Raises:
        EnvironmentMissingError: the process that asks it cannot be started, or takes too long.
    """
    kind = library.kind
    asked = [str(library.path), kind.name, kind.text, "by pointer" if kind.by_pointer else ""]
    command = [sys.executable, "-I", "-c", _READER, *asked, str(_MOST_CODES)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIME_LIMIT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentMissingError(
            f"{library.path.name} does not return its error messages: {type(error).__name__}",
            hint="try again",
        ) from error
    names = _declared(library)
    rows: list[tuple[int, str, str]] = []
    for line in done.stdout.decode("utf-8", errors="replace").splitlines():
        try:
            code, symbol, message = json.loads(line)
            rows.append((int(code), str(symbol) or names.get(int(code), ""), str(message)))
        except (ValueError, TypeError):
            continue  # something that the library printed when it was loaded
    no_code = rows[-1][2] if rows else ""
    return [
        _chunk(library, symbol, code, message)
        for code, symbol, message in rows
        if symbol.startswith(kind.prefix) and message not in ("", no_code)
    ]


def _declared(library: LibraryFile) -> Mapping[int, str]:
    """Code to name, as the header of a library without names declares them."""
    try:
        text = library.header.read_text(encoding="utf-8", errors="replace") if library.header else ""
    except OSError:
        return {}
    return {
        int(match[1]): row.name
        for row in declarations(text)
        if row.kind == "enumerator"
        and row.parent == library.kind.enum
        and (match := _VALUE.search(row.signature))
    }


def _chunk(library: LibraryFile, symbol: str, code: int, message: str) -> Chunk:
    return Chunk(
        symbol=symbol,
        kind="error",
        library=library.kind.library,
        version=library.version,
        signature=f"{symbol} = {code}",
        brief=message,
        text=f"The library's message for error {code}: {message}",
        path=storable(str(library.path)),
        parent=library.kind.enum,
        source=f"library {library.path.name}",
    )

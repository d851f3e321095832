"""Extensions that a program builds when it is loaded: asked of the controller, built in a child without it.

`torch.utils.cpp_extension` builds each of them anew in each process, for the better part of a minute where
torch's headers are parsed. Both of its functions end in one that runs the compilers; that one is replaced.
"""

import os
import re
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from stitch_tools.protocol.messages import OperationFailedError, decode_reply, encode
from stitch_tools.protocol.messages_extension import (
    BuildExtension,
    ExtensionBuilt,
    ExtensionSource,
    FindExtension,
)
from stitch_tools.protocol.wire import Channel, ChannelClosedError, ChannelTimeoutError, ProtocolError

_RUNS_COMPILERS = "_write_ninja_file_and_build_library"
_OF_THE_FOLDER = ("sources", "build_directory", "verbose")
_CHOOSES_COMPILERS = (
    "CC", "CXX", "CPATH", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "LIBRARY_PATH", "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "PATH",
)  # fmt: skip
_INCLUDES = re.compile(r'^\s*#\s*include\s*"([^"\n]+)"', re.MULTILINE)
_MAX_CHARS = 8000
_BEYOND_LEAN_HEADERS = (
    "torch::nn",
    "torch::jit",
    "torch::autograd",
    "torch::cuda",
    "torch::optim",
    "torch::data",
)
_BINDS = ("PYBIND11", "pybind11", "py::")


def ask_for_extensions(line: int) -> None:
    """From now on builds are asked for on this socket; those that it does not give are made here, as ever.

    Args:
        line: descriptor of a connected socket; it is taken over.
    """
    from torch.utils import cpp_extension

    stock: Callable[..., None] | None = getattr(cpp_extension, _RUNS_COMPILERS, None)
    if stock is None:  # another version of torch
        os.close(line)
        return
    channel = Channel(socket.socket(fileno=line))
    compilers = _compilers()

    def build(*unnamed: object, **named: Any) -> None:
        found = ExtensionBuilt()
        if not unnamed and _compilers() == compilers:
            found = _ask(channel, named)
        if found.error:
            raise RuntimeError(found.error)
        if not found.library:
            return stock(*unnamed, **named)
        Path(named["build_directory"], f"{named['name']}.so").write_bytes(found.library)
        return None

    setattr(cpp_extension, _RUNS_COMPILERS, build)


def build_extension(message: BuildExtension) -> ExtensionBuilt:
    """Build an extension that was asked for: behind lean headers where they do, else as torch does."""
    text = "".join(text for _, text in message.source.files)
    error = ""
    lean = message.lean_include if not any(word in text for word in _BEYOND_LEAN_HEADERS) else ""
    for include in dict.fromkeys((lean, "")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                return ExtensionBuilt(library=_built(message.source, folder, include, text))
            except RuntimeError as problem:  # so torch says that a compiler failed
                error = str(problem)[-_MAX_CHARS:]
            except OSError:  # no matter of the program's
                return ExtensionBuilt()
    return ExtensionBuilt(error=error)


def _built(source: ExtensionSource, folder: str, lean_include: str, text: str) -> bytes:
    from torch.utils import cpp_extension

    paths: list[str] = []
    for name, content in source.files:
        path = Path(folder, Path(name).name)
        path.write_text(content, encoding="utf-8")
        paths.append(str(path))
    arguments: dict[str, Any] = dict(source.arguments)
    if lean_include:
        arguments["extra_include_paths"] = [lean_include, *(arguments.get("extra_include_paths") or [])]
        if any(word in text for word in _BINDS):
            flags = [*(arguments.get("extra_cuda_cflags") or []), "-DSTITCH_BINDS_IN_CUDA"]
            arguments["extra_cuda_cflags"] = flags
    if source.archs:
        os.environ["TORCH_CUDA_ARCH_LIST"] = source.archs
    run = getattr(cpp_extension, _RUNS_COMPILERS)
    run(**arguments, sources=paths, build_directory=folder, verbose=False)
    return Path(folder, f"{arguments['name']}.so").read_bytes()


def _ask(channel: Channel, named: dict[str, Any]) -> ExtensionBuilt:
    """What the controller has; nothing where it cannot be asked."""
    try:
        paths = [Path(path) for path in named["sources"]]
        files = tuple((path.name, path.read_text(encoding="utf-8")) for path in paths)
        if named.get("extra_include_paths") or len(dict(files)) < len(files) or _reads_beside(paths, files):
            return ExtensionBuilt()  # headers of the program's own, which lie here
        arguments = {name: value for name, value in named.items() if name not in _OF_THE_FOLDER}
        archs = _archs() if named.get("with_cuda") else ""
        channel.send(encode(FindExtension(ExtensionSource(files, arguments, archs))))
        return decode_reply(ExtensionBuilt, channel.receive())
    except (ChannelClosedError, ChannelTimeoutError, ProtocolError, OperationFailedError):
        return ExtensionBuilt()
    except (KeyError, TypeError, ValueError, OSError):  # arguments that are no JSON, a source that is no text
        return ExtensionBuilt()


def _reads_beside(paths: Sequence[Path], files: Sequence[tuple[str, str]]) -> bool:
    """Whether a source includes a file of its own folder."""
    return any(
        (path.parent / name).exists()
        for path, (_, text) in zip(paths, files, strict=True)
        for name in _INCLUDES.findall(text)
    )


def _archs() -> str:
    """What torch would build for, without the architectures that this device does not run."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if not torch.cuda.is_available():
        return listed
    major, minor = torch.cuda.get_device_capability()
    own = f"{major}.{minor}"
    fitting = [word for word in listed.replace(";", " ").split() if word.startswith(own)]
    return fitting[0] if fitting else listed or own


def _compilers() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, _CHOOSES_COMPILERS))

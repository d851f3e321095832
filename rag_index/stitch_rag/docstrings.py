"""Docstrings of torch and triton, read by a child process in the target interpreter."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file
from importlib.resources import files as package_files
from typing import cast

from stitch_rag.chunks import Chunk
from stitch_rag.extract.comments import first_sentence
from stitch_rag.tokens import storable
from stitch_tools.errors import EnvironmentMissingError

MODULES = (
    "torch",
    "torch.nn",
    "torch.nn.functional",
    "torch.cuda",
    "torch.cuda.graphs",
    "torch.linalg",
    "torch.fft",
    "torch.special",
    "torch.compiler",
    "torch.export",
    "torch.utils.cpp_extension",
    "torch.utils.benchmark",
    "torch.profiler",
    "torch.autograd",
    "torch.autograd.function",
    "torch.library",
    "triton",
    "triton.language",
)
_TIME_LIMIT_S = 180.0
_FIELDS = 5
"""That the reader prints of each member."""
_ROLE = re.compile(r":\w+:`~?([^`<]+?)\s*(?:<[^`]*>)?`")
_SIGNATURE_LINE = re.compile(r"\A[\w.]+\([^\n]*\)(?:\s*->[^\n]*)?\n+")


@dataclass(frozen=True)
class DocstringSource:
    """An interpreter whose packages count."""

    python: str
    torch_version: str | None


def read_docstrings(target: DocstringSource) -> list[Chunk]:
    """One chunk for each documented function and class.

    Raises:
        EnvironmentMissingError: the interpreter cannot be run, takes too long, or tells nothing: its torch is
            broken.
    """
    with as_file(package_files("stitch_rag") / "docstring_reader.py") as script:
        # Not -I: that leaves out packages which the user installed for himself alone.
        command = [target.python, "-E", str(script), *MODULES]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=_TIME_LIMIT_S,
                stdin=subprocess.DEVNULL,
                check=False,
                cwd=os.sep,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            )
        except subprocess.TimeoutExpired as error:
            raise _silent(f"it took longer than {_TIME_LIMIT_S:.0f} s") from error
        except OSError as error:
            raise _silent(error.strerror or str(error)) from error
    lines = done.stdout.decode("utf-8", errors="replace").splitlines()
    chunks = list(docstring_chunks(lines, target))
    if not chunks:
        stderr_lines = done.stderr.decode("utf-8", errors="replace").strip().splitlines()
        raise _silent(stderr_lines[-1] if stderr_lines else f"exit code {done.returncode}")
    return chunks


def _silent(reason: str) -> EnvironmentMissingError:
    return EnvironmentMissingError(
        f"the interpreter tells no docstrings: {reason}", hint="see whether it can `import torch`"
    )


def docstring_chunks(lines: Sequence[str], target: DocstringSource) -> Iterator[Chunk]:
    """The chunks of what the reader printed; what several modules export gets its shortest name."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        if (fields := _fields(line)) is not None:
            rows.setdefault(fields[0], fields)
    others: dict[tuple[str, str, str], list[str]] = {}
    for name, kind, _, text, _ in rows.values():
        others.setdefault((name.rpartition(".")[2], kind, text), []).append(name)
    for name, kind, signature, text, version in rows.values():
        same = others[name.rpartition(".")[2], kind, text]
        # torch re-exports its functions: the shortest path is the one that programs write.
        if name != min(same, key=lambda other: (other.count("."), len(other))):
            continue
        library = name.split(".")[0]
        shown = re.match(_SIGNATURE_LINE, text)
        body = _ROLE.sub(r"\1", _SIGNATURE_LINE.sub("", text)).replace("``", "`")
        yield Chunk(
            symbol=name,
            kind="docstring",
            library=library,
            version=(target.torch_version if library == "torch" else None) or version or None,
            signature=signature or (shown[0].strip() if shown else ""),
            brief=first_sentence(" ".join(body.split("\n\n")[0].split())),
            text=body,
            path=name,
            source="docstring",
            parent=name.rpartition(".")[0],
            aliases=(name.rpartition(".")[2], *(other for other in same if other != name)),
        )


def _fields(line: str) -> list[str] | None:
    """What the reader printed of one member; None for what a module printed when it was imported."""
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fields = cast("list[object]", row) if isinstance(row, list) else []
    return [storable(str(value)) for value in fields] if len(fields) == _FIELDS else None

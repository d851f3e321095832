"""Writes a certified native program as one file in KernelBench's form: the reference, and a `ModelNew`."""

import ast
import hashlib
import json
import pprint
from pathlib import Path

from stitch_mcp.exports import certified, guard_spec, header_files, refuse_random, runtime_files
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact
from stitch_tools.storage.certificate import Contents
from stitch_tools.storage.store import storing, write_atomically

_PACKAGE_INIT = '''"""The program of a ModelNew; the file that holds the class wrote this folder."""

from pathlib import Path as _Path

from ._stitch.worker.exported.guarded_module import Guard as _Guard


def guard():
    """Calls the program for one module, and refuses what it was not certified for."""
    return _Guard(_Path(__file__).parent)
'''
_HEAD = '''

# ---------------------------------------------------------------------------------------------------------
# Above: the reference, word for word. Below: the same module with a certified native program as its forward.
# {verdict}
# Certificate {certificate}, for {target}. No operation of PyTorch computes in ModelNew.forward.

import importlib.util as _importlib_util
import os as _os
import sys as _sys
import tempfile as _tempfile
from pathlib import Path as _Path

_STITCH_NAME = "stitch_{digest}"
_STITCH_FILES = {files}


def _stitch_package():
    """The package of the files above, written to a folder of the user's cache where it is not there yet."""
    if _STITCH_NAME in _sys.modules:
        return _sys.modules[_STITCH_NAME]
    base = _os.environ.get("XDG_CACHE_HOME") or str(_Path.home() / ".cache")
    root = _Path(_os.environ.get("STITCH_EXPORT_CACHE") or _Path(base) / "stitch-export")
    folder = root / _STITCH_NAME
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _tempfile.TemporaryDirectory(dir=root) as place:
            draft = _Path(place) / _STITCH_NAME
            for name, text in _STITCH_FILES.items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                (draft / name).write_text(text, encoding="utf-8", newline="")
            try:
                draft.rename(folder)  # whole or not at all
            except OSError:
                if not folder.is_dir():  # another process was first
                    raise
    spec = _importlib_util.spec_from_file_location(
        _STITCH_NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    package = _importlib_util.module_from_spec(spec)
    _sys.modules[_STITCH_NAME] = package
    spec.loader.exec_module(package)
    return package


_stitch_package().guard().build()


class ModelNew({entry}):
    """Constructed as the reference: equal seeds give equal weights. Its forward is the program's alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__["_stitch"] = _stitch_package().guard()

    def forward(self, *args, **kwargs):
        return self.__dict__["_stitch"].run_alone(self, args, kwargs)
'''


class KernelBenchFile(Fact):
    """An exported file."""

    path: str
    """Absolute path."""
    task: str
    target: str
    speedup: float | None
    size: int
    """Bytes."""


def export_kernelbench(root: Path, run_id: str, output: str | Path) -> KernelBenchFile:
    """A run's certified program as one Python file with a `ModelNew`, for KernelBench's own evaluation.

    The file builds the program when it is executed (nvcc or g++), and refuses calls that the program was not
    certified for: nothing falls back to PyTorch.

    Args:
        root: the workspace.
        run_id: a run (its id, a unique beginning, or "last"), or the path of a certificate.
        output: the file, which must not be there.

    Raises:
        UsageError: no such run or certificate, a file that is there, or a task or program that does not fit.
        CertificateError: the certificate is damaged.
        StoreError: the file cannot be written.
    """
    path = Path(output).expanduser().absolute()
    if path.suffix != ".py":
        raise UsageError(f"{path.name!r} is no Python file", hint="name a file like model_new.py with --out")
    if path.exists():
        raise UsageError(f"{path} is there already", hint="remove it, or name another file with --out")
    view, archive, contents = certified(root, run_id)
    refuse_random(contents)
    _require_kernelbench(contents)
    spec = guard_spec(archive, contents)
    task = contents.task
    files = {f"program/{name}": data for name, data in archive.folder("program").items()}
    files |= header_files()
    texts = {name: _text(name, data) for name, data in files.items()}
    texts |= {f"_stitch/{name}": text for name, text in runtime_files().items()}
    texts |= {"export.json": json.dumps(spec, indent=1) + "\n", "__init__.py": _PACKAGE_INIT}
    reference = _text(task.main, archive.folder("task")[task.main]).rstrip("\n")
    interval = "" if view.speedup is None else f", {view.speedup:.2f} times eager PyTorch ({view.outcome})"
    head = _HEAD.format(
        verdict=f"{view.status}{interval}, on {view.device or 'an unnamed device'}".replace("\n", " "),
        certificate=view.certificate_id[:16],
        target=task.target,
        digest=hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:16],
        files=_dictionary(texts),
        entry=task.entry,
    )
    data = f"{reference}\n{head}".encode()
    with storing(path, "--output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data, "--output")
    return KernelBenchFile(
        path=str(path), task=task.name, target=task.target, speedup=view.speedup, size=len(data)
    )


def _require_kernelbench(contents: Contents) -> None:
    """Refuse what KernelBench's evaluation cannot take.

    Raises:
        UsageError: with the reason.
    """
    task, facts = contents.task, contents.facts
    other_way = "export it as a module: {as} module"
    if contents.program.format != "native":
        raise UsageError("the program is a Python file already", hint="take it from the run's sources")
    if task.style != "kernelbench" or len(task.files) > 1 or facts.entry_kind not in ("class", ""):
        raise UsageError(
            "the reference is no single file with a class, as KernelBench's are",
            hint=other_way,
            options=("as",),
        )
    if facts.mode_layers and not facts.training:
        raise UsageError(
            "the program is of eval mode, and KernelBench runs modules in train mode",
            hint=other_way,
            options=("as",),
        )


def _text(name: str, data: bytes) -> str:
    """The text of a file that is to lie in a Python source.

    Raises:
        UsageError: it is no text.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is no text, and cannot be part of one Python file", hint="export it as a module"
        ) from error


def _dictionary(texts: dict[str, str]) -> str:
    """Python source of the dictionary, with sources as they read."""
    rows = [f"    {name!r}: {_literal(text)}," for name, text in texts.items()]
    return "\n".join(["{", *rows, "}"])


def _literal(text: str) -> str:
    """A raw literal where that reads back as the text, else one with escapes."""
    raw = f"r'''{text}'''"
    try:
        if ast.literal_eval(raw) == text:
            return raw
    except (SyntaxError, ValueError):
        pass
    return pprint.pformat(text, width=100)

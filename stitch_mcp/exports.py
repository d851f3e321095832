"""Writes a certified program as a package that a project imports without stitch-mcp."""

import ast
import json
import re
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from stitch_mcp.certificates import CertificateView, export_certificate, verify_certificate
from stitch_tools.compile import cpp, nvcc
from stitch_tools.compile.headers import ONEDNN_SONAME, native_include
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact
from stitch_tools.storage.certificate import Archive, Contents, read_certificate, read_contents
from stitch_tools.storage.store import storing, write_atomically

_RUNTIME = ("worker/exported/guarded_module.py", "worker/exported/program_build.py")
_IMPORT = re.compile(r"^(\s*)from stitch_tools(\.[\w.]+)? import ", re.MULTILINE)
_INIT = '''"""{name}: a certified program, with the eager reference where it does not fit. See README.md."""

from pathlib import Path as _Path

from ._stitch.worker.exported import guarded_module as _guarded
from ._stitch.worker.exported.guarded_module import FallbackWarning

__all__ = ["FallbackWarning", "accelerate", "load"]


def accelerate(module):
    """The module itself, one of the reference's class, whose forward is from now on the program's."""
    return _guarded.accelerate(module, _Path(__file__).parent)


def load(state_dict=None):
    """A module of the reference, accelerated, with the weights of `state_dict` if given."""
    return _guarded.load(_Path(__file__).parent, state_dict)
'''
_BUILD = '''"""Builds the program now, and prints the library's path: python -m {package}.build"""

import json
from pathlib import Path

from ._stitch.worker.exported.program_build import built_library

if __name__ == "__main__":
    _FOLDER = Path(__file__).parent
    print(built_library(_FOLDER, json.loads((_FOLDER / "export.json").read_text(encoding="utf-8"))))
'''


class ExportedProgram(Fact):
    """An exported package."""

    folder: str
    """Absolute path."""
    package: str
    """The name that it is imported by."""
    task: str
    target: str
    format: str
    speedup: float | None
    other_batches: bool
    """Whether other leading sizes than the certified one go to the program."""
    files: int


def export_program(root: Path, run_id: str, output: str | Path) -> ExportedProgram:
    """The package of a run's certified program, written to a new folder.

    Args:
        root: the workspace.
        run_id: a run (its id, a unique beginning, or "last"), or the path of a certificate.
        output: the folder; its name is what the package is imported by.

    Raises:
        UsageError: no such run or certificate, a name that cannot be imported, or a folder that is there.
        CertificateError: the certificate is damaged.
        StoreError: the folder cannot be written.
    """
    folder = Path(output).expanduser().absolute()
    if not folder.name.isidentifier():
        raise UsageError(
            f"{folder.name!r} cannot be imported by Python", hint="name a folder like fast_mlp with --out"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", hint="remove it, or name another folder with --out")
    view, archive, contents = certified(root, run_id)
    _require_exportable(archive, contents)
    spec = guard_spec(archive, contents)
    entries = _files(archive, contents, spec, view, folder.name)
    with storing(folder, "--output"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: half a package could be imported.
        with TemporaryDirectory(dir=folder.parent, prefix=".export-") as place:
            draft = Path(place) / folder.name
            for name, data in entries.items():
                write_atomically(draft / name, data, "--output")
            if folder.exists():
                folder.rmdir()
            shutil.move(str(draft), str(folder))
    return ExportedProgram(
        folder=str(folder),
        package=folder.name,
        task=contents.task.name,
        target=contents.task.target,
        format=contents.program.format,
        speedup=view.speedup,
        other_batches=not spec["fixed_shapes"],
        files=len(entries),
    )


def certified(root: Path, run_id: str) -> tuple[CertificateView, Archive, Contents]:
    """The certificate of a run, or that of a file, with what it holds.

    Raises:
        UsageError: no such run or certificate.
        CertificateError: it is damaged.
    """
    is_file = Path(run_id).suffix == ".zip"
    view = verify_certificate(run_id) if is_file else export_certificate(root, run_id, None)
    archive = read_certificate(Path(view.path))
    return view, archive, read_contents(archive, Path(view.path))


def _require_exportable(archive: Archive, contents: Contents) -> None:
    program = contents.program
    main = archive.entries[f"program/{program.main}"].decode("utf-8", "replace")
    if program.format == "kernelbench" and "class ModelNew" not in main:
        raise UsageError(
            f"{program.main} has no class ModelNew", hint="load it with stitch_mcp.load_program instead"
        )
    refuse_random(contents)


def refuse_random(contents: Contents) -> None:
    """Nothing, unless the reference draws random numbers.

    Raises:
        UsageError: it does.
    """
    if contents.facts.uses_rng:
        raise UsageError(
            "the reference draws random numbers, which an exported program cannot repeat",
            hint="solve it in eval mode, or load it with stitch_mcp.load_program",
        )


def guard_spec(archive: Archive, contents: Contents) -> dict[str, object]:
    """What guard and build need, as export.json."""
    task, program, facts = contents.task, contents.program, contents.facts
    check = archive.certificate.check
    device, _, arch = task.target.partition(":")
    probed = any(row.draw.startswith("batch-") and row.ok for row in check.draws)
    uses_onednn = any(b"dnnl" in data for data in archive.folder("program").values())
    flags = (*cpp.BASE, *cpp.SHARED) if device == "cpu" else (*nvcc.BASE, f"-arch={arch}")
    return {
        "name": re.sub(r"\W", "_", task.name),
        "format": program.format,
        "main": program.main,
        "device": device,
        "arch": arch,
        "flags": flags,
        "libraries": [ONEDNN_SONAME] if uses_onednn and device == "cpu" else [],
        "reference_main": task.main,
        "entry": task.entry,
        "init_inputs": task.init_inputs,
        "search_path": task.search_path,
        "inputs": [(row.name, row.shape, row.dtype) for row in facts.inputs],
        "input_structure": facts.input_structure,
        "input_names": facts.input_names,
        "output_structure": facts.output_structure,
        "weights": [row.name for row in facts.parameters],
        "updated_buffers": facts.mutated_buffers if task.contract.buffers == "updated" else (),
        "training": facts.training,
        "mode_matters": bool(facts.mode_layers) or (facts.training and bool(facts.mutated_buffers)),
        "fixed_shapes": "unguarded" in check.flags or not probed,
    }


def _files(
    archive: Archive,
    contents: Contents,
    spec: Mapping[str, object],
    view: CertificateView,
    package: str,
) -> dict[str, bytes]:
    """Every file of the package, by its path."""
    named = {f"program/{name}": data for name, data in archive.folder("program").items()}
    named |= {f"reference/{name}": data for name, data in archive.folder("task").items()}
    if contents.program.format == "native":
        named |= header_files()
        named["build.py"] = _BUILD.format(package=package).encode()
    named |= {f"_stitch/{name}": text.encode() for name, text in runtime_files().items()}
    named["certificate.zip"] = Path(view.path).read_bytes()
    named["export.json"] = json.dumps(spec, indent=1).encode() + b"\n"
    named["__init__.py"] = _INIT.format(name=contents.task.name.replace('"', "")).encode()
    named["README.md"] = _readme(spec, contents, view, package).encode()
    return named


def header_files() -> dict[str, bytes]:
    """The headers that native programs include beside their own, by path below the package."""
    include = native_include()
    return {
        f"include/{path.relative_to(include).as_posix()}": path.read_bytes() for path in include.rglob("*.h*")
    }


def runtime_files() -> dict[str, str]:
    """Our modules that the package needs, with relative imports, by path below `_stitch`."""
    package = files("stitch_tools")
    texts: dict[str, str] = {}
    todo: list[str] = list(_RUNTIME)
    while todo:
        name = todo.pop()
        if name in texts:
            continue
        text = package.joinpath(name).read_text(encoding="utf-8")
        for module in _imported(text):
            path = f"{module.replace('.', '/')}.py"
            if package.joinpath(path).is_file():
                todo.append(path)
        dots = "." * (name.count("/") + 1)
        texts[name] = _IMPORT.sub(lambda row, d=dots: f"{row[1]}from {d}{(row[2] or '.')[1:]} import ", text)
    folders = {"/".join(name.split("/")[:depth]) for name in texts for depth in range(name.count("/") + 1)}
    return texts | {f"{folder}/__init__.py".lstrip("/"): "" for folder in folders}


def _imported(text: str) -> set[str]:
    """Modules of stitch_tools that a source imports, without that prefix."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stitch_tools"):
            head = (node.module or "").removeprefix("stitch_tools").removeprefix(".")
            # `from package import module` names a module by its last word.
            found |= {head, *(f"{head}.{alias.name}".removeprefix(".") for alias in node.names)}
    return found


def _readme(spec: Mapping[str, object], contents: Contents, view: CertificateView, package: str) -> str:
    text = files("stitch_mcp").joinpath("texts", "export_readme.md").read_text(encoding="utf-8")
    interval = "" if view.speedup is None else f", {view.speedup:.2f} times eager PyTorch ({view.outcome})"
    inputs = ", ".join(f"{row.name}: {row.dtype}{list(row.shape)}" for row in contents.facts.inputs)
    other = (
        "Other leading sizes go to the program where it takes them, other inner sizes to the reference."
        if not spec["fixed_shapes"]
        else "Every other shape goes to the reference."
    )
    return text.format(
        package=package,
        task=contents.task.name,
        target=contents.task.target,
        verdict=f"{view.status}{interval}, on {view.device or 'an unnamed device'}",
        flags=", ".join(view.flags) or "none",
        inputs=inputs,
        other=other,
        certificate=view.certificate_id[:16],
        not_checked="\n".join(f"- {row}" for row in view.not_checked) or "- nothing is named",
    )

"""A certificate's program as a torch module, in the caller's own process. Forward only, and not sandboxed."""

import atexit
import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stitch_tools.errors import EnvironmentMissingError, UsageError
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.storage.certificate import Archive, Contents, read_certificate, read_contents
from stitch_tools.storage.scratch import make_scratch
from stitch_tools.storage.store import Store

if TYPE_CHECKING:
    import torch

    from stitch_tools.worker.reference.load_reference import LoadedReference

    Weights = torch.nn.Module | Mapping[str, torch.Tensor]

_MOST_NAMES = 5
"""Of weights, in a message."""


def load_program(
    certificate: str | Path,
    *,
    weights: "Weights | None" = None,
    cache_dir: Path | None = None,
    threads: int | None = None,
) -> "torch.nn.Module":
    """The certified program as a module that is called like the reference.

    The program's sources are taken from the archive and built through the cache. It runs in this process,
    without a sandbox: load only what you trust.

    Args:
        certificate: path of the archive, which `stitch-mcp certify RUN --output FILE` writes.
        weights: a module of the reference's kind, or its state_dict, whose weights the program gets. None:
            those of a reference constructed from the archive after `torch.manual_seed(0)`; `load_state_dict`
            gives it others.
        cache_dir: root of our caches; None is the user's cache folder.
        threads: CPU threads at most; None leaves it to the runtime.

    Raises:
        CertificateError: the archive is damaged or lacks something.
        EnvironmentMissingError: this process has no torch, or the program cannot be built here.
        StoreError: there is no room for its files.
        UsageError: there is no such file, or the weights are not those of such a reference, or of a module in
            the other mode (`train()`, `eval()`) where that matters.
    """
    _require_torch()
    file = Path(certificate).expanduser()
    archive = read_certificate(file)
    contents = read_contents(archive, file)
    task, program = contents.task, contents.program
    if weights is not None and not isinstance(weights, Mapping):
        _require_mode(weights, contents.facts)
    # Everything is taken from the archive: nothing on this machine can stand in for what was certified.
    with make_scratch("load") as folder:
        if program.format == "kernelbench":
            return _python_module(archive, contents, weights, cache_dir)
        store = Store(folder / "store")
        store.put_files(archive.folder("program"))
        build = _build(program, store, cache_dir)
        # Without weights the program gets those of a reference made from seed 0, so that equal calls give
        # equal modules.
        state = _state(weights) if weights is not None else _fresh_state(archive, task, folder / "task")
    return _native_module(build, archive, contents, state, threads)


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentMissingError(
            "load_program needs torch in this process",
            hint='pip install "stitch-mcp[torch]", or call it where torch is installed',
        )


def _build(program: Program, store: Store, cache_dir: Path | None) -> Build:
    from stitch_tools.compile.build import compile_program

    build = compile_program(program, store, cache_dir=cache_dir, prefixes=(Path(sys.prefix),))
    if not build.ok:
        first = next((row.message for row in build.diagnostics if row.severity in ("fatal", "error")), "")
        raise EnvironmentMissingError(
            f"the certified program does not build here: {first}",
            hint=f"it was certified with another compiler than {build.compiler}; see `stitch-mcp compile`",
        )
    return build


def _native_module(
    build: Build,
    archive: Archive,
    contents: Contents,
    state: "Mapping[str, torch.Tensor]",
    threads: int | None,
) -> "torch.nn.Module":
    from stitch_tools.worker.program_module import StitchModule

    task, facts = contents.task, contents.facts
    names = tuple(row.name for row in facts.parameters)
    _require_weights(state, needed=names, names=names)
    updated = facts.mutated_buffers if task.contract.buffers == "updated" else ()
    return StitchModule(
        build.artifact or "",
        {row.name: state[row.name] for row in facts.parameters},
        output_structure=facts.output_structure,
        input_structure=facts.input_structure,
        input_names=facts.input_names,
        input_specs=_input_specs(facts),
        output_specs=[(row.name, row.shape, row.dtype) for row in facts.outputs],
        name=task.name,
        libraries=build.libraries,
        device=_device(task),
        updated_buffers=updated,
        threads=threads or 0,
        fixed_shapes=_is_unguarded(archive),
        training=facts.training,
        mode_matters=_mode_matters(facts),
    )


def _mode_matters(facts: ReferenceFacts) -> bool:
    """Whether the reference may compute something else in the other mode, as far as a run in one shows."""
    # Functions take `self.training`, too: what they change or draw in training mode shows that.
    return bool(facts.mode_layers) or (facts.training and bool(facts.mutated_buffers or facts.uses_rng))


def _require_mode(weights: "torch.nn.Module", facts: ReferenceFacts) -> None:
    """Refuse a module in the other mode than the program's, where their numbers would differ for that."""
    from stitch_tools.worker.reference.mode_layers import mode_layers

    if weights.training == facts.training:
        return
    layers = mode_layers(weights)
    if not layers and not _mode_matters(facts):
        return
    own, other = ("train", "eval") if facts.training else ("eval", "train")
    what = "".join(f"; in train mode {name} {words}" for name, words in layers.items())
    raise UsageError(
        f"the program computes what its reference computes in {own} mode; the weights are of a module in"
        f" {other} mode{what}",
        hint=f'solve the reference with mode = "{other}" under [contract] in its task file, or pass'
        f" weights.{own}() or its state_dict() for a program of {own} mode",
    )


def _input_specs(facts: ReferenceFacts) -> list[tuple[str, tuple[int, ...], str]]:
    return [(row.name, row.shape, row.dtype) for row in facts.inputs]


def _is_unguarded(archive: Archive) -> bool:
    """Whether the program was seen to be wrong, without a word, at another leading size."""
    return "unguarded" in archive.certificate.check.flags


def _python_module(
    archive: Archive,
    contents: Contents,
    weights: "Weights | None",
    cache_dir: Path | None,
) -> "torch.nn.Module":
    """A `ModelNew` that calls a library of its own: constructed like the reference.

    It is built by its file, but for a stitched program's segments, which come from the cache.
    """
    from stitch_tools.compile.segments import built_segments, place_segments
    from stitch_tools.worker.candidate.python_program import PythonProgram
    from stitch_tools.worker.program_module import forward_only

    task, program, facts = contents.task, contents.program, contents.facts
    # The file stays until the process ends: it may build or read beside itself when it is first called.
    folder = _folder_until_exit()
    _write(archive.folder("program"), folder)
    with make_scratch("load") as place, _undisturbed():
        store = Store(place / "store")
        store.put_files(archive.folder("program"))
        prefixes = (Path(sys.prefix),)
        place_segments(built_segments(program, store, prefixes=prefixes, cache_dir=cache_dir), folder)
        reference = _reference(archive, task, place / "task")
        arguments = reference.init_arguments(0)
        original, generator = reference.construct(0)
        made = PythonProgram(str(folder), program.main, device=_device(task))
        state = list(_state(original).items())
        made.init(generator, arguments, training=original.training, state=state)
    module = made.module
    if module is None:
        raise UsageError(f"{program.main} made no module", hint="solve the task again")
    if weights is not None:
        _load_weights(module, _state(weights), facts)
    other_container = any(row.rule == "other_container" for row in archive.certificate.check.findings)
    return forward_only(
        module,
        input_structure=facts.input_structure,
        input_names=facts.input_names,
        fixed_specs=_input_specs(facts) if _is_unguarded(archive) else (),
        output_structure=facts.output_structure if other_container else "",
        mode_matters=_mode_matters(facts),
    )


def _folder_until_exit() -> Path:
    """A new folder that goes when this process ends; a fork of it that ends before leaves it alone."""
    scratch, owner = make_scratch("program"), os.getpid()

    def remove() -> None:
        # A fork inherits the exit handlers, and must not remove the folder of the process that it came from.
        if os.getpid() == owner:
            scratch.remove()

    atexit.register(remove)
    return scratch.path


def _load_weights(module: "torch.nn.Module", state: "dict[str, torch.Tensor]", facts: ReferenceFacts) -> None:
    """Weights of the reference's kind into a `ModelNew`, which may have fewer of them."""
    own = module.state_dict()
    _require_weights(state, needed=own.keys(), names={*own, *(row.name for row in facts.parameters)})
    # named_buffers() also lists buffers that are not persistent, which a state_dict leaves out.
    for name, tensor in {**dict(module.named_buffers()), **own}.items():
        if name not in state:
            continue  # a state_dict lacks the buffers that are not persistent
        if tensor.shape != state[name].shape:
            raise UsageError(
                f"the weight {name} has shape {tuple(state[name].shape)}, expected {tuple(tensor.shape)}",
                hint="pass a module of the reference's kind, or its state_dict",
            )
        tensor.detach().copy_(state[name].detach())


def _require_weights(
    state: "Mapping[str, torch.Tensor]", *, needed: Collection[str], names: Collection[str]
) -> None:
    """Refuse weights that lack a needed name, or have an unknown one that is not another's second name."""
    hint = "pass a module of the reference's kind, or its state_dict"
    missing = [name for name in needed if name not in state]
    if missing:
        raise UsageError(f"the weights lack {some_names(missing)}", hint=hint)
    # Tied weights have two names and one memory: the second name is known by its address.
    shared = {tensor.data_ptr() for name, tensor in state.items() if name in names}
    unknown = [
        name for name, tensor in state.items() if name not in names and tensor.data_ptr() not in shared
    ]
    if unknown:
        raise UsageError(f"the program knows no weights named {some_names(unknown)}", hint=hint)


def some_names(names: Sequence[str]) -> str:
    """The first names of many, and how many more there are."""
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f", ... ({rest} more)" if rest > 0 else "")


def _state(weights: "Weights") -> "dict[str, torch.Tensor]":
    """Parameters and all buffers by name; a state_dict lacks the buffers that are not persistent."""
    import torch

    tensors = (
        weights if isinstance(weights, Mapping) else {**dict(weights.named_buffers()), **weights.state_dict()}
    )
    # A module's `get_extra_state` puts objects of its own beside the weights.
    return {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}


def _fresh_state(archive: Archive, task: Task, folder: Path) -> "dict[str, torch.Tensor]":
    with _undisturbed():
        module, _ = _reference(archive, task, folder).construct(0)
    return _state(module)


def _reference(archive: Archive, task: Task, folder: Path) -> "LoadedReference":
    from stitch_tools.worker.reference.load_reference import LoadedReference, ReferenceFault, ReferenceSource

    _write(archive.folder("task"), folder)
    source = ReferenceSource(
        folder=str(folder),
        main=task.main,
        entry=task.entry,
        inputs=task.inputs,
        init_inputs=task.init_inputs,
        search_path=task.search_path,
        mode=task.contract.named_mode,
        device=_device(task),
    )
    try:
        return LoadedReference(source)
    except ReferenceFault as error:
        raise UsageError(
            f"the certificate's reference cannot be constructed here: {error.message}",
            hint="pass `weights`: a module of the reference's kind, or its state_dict",
        ) from error


def _device(task: Task) -> str:
    return task.target.partition(":")[0]


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@contextlib.contextmanager
def _undisturbed() -> Generator[None]:
    """Loading a reference seeds generators and extends the import path: put both back for the caller."""
    from stitch_tools.worker.random_streams import generator_state, restore_generators

    # This is the caller's own process: its random numbers must not change because a program was loaded.
    generators, path, modules = generator_state(), list(sys.path), dict(sys.modules)
    bytecode = sys.dont_write_bytecode
    try:
        yield
    finally:
        restore_generators(generators)
        sys.path[:] = path
        sys.dont_write_bytecode = bytecode
        # Modules of the reference's folder, which is gone by now: a later load of another reference may use
        # the same names.
        for name in set(sys.modules) - set(modules):
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(tempfile.gettempdir()):
                del sys.modules[name]

"""Loads the user's file and builds the module; every failure names the user's own line."""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
import types
from collections.abc import Callable, Generator, Sized
from pathlib import Path
from typing import cast

import torch
from torch.nn.parameter import is_lazy

from stitch_tools.protocol.memory_faults import is_out_of_memory
from stitch_tools.protocol.messages_reference import ReferenceSource, Scale
from stitch_tools.worker.binding import parameter_names
from stitch_tools.worker.function_module import FunctionModule
from stitch_tools.worker.order_one_weights import order_one_weights
from stitch_tools.worker.random_streams import pack_torch_state, seed_generators
from stitch_tools.worker.reference.input_structure import InputStructure
from stitch_tools.worker.trees import TreeError, call_with, flatten_inputs

FACTORY_HINT = (
    "A function is what is solved; to build a module, name its class (with get_init_inputs) or an instance."
)
"""For a function that makes a module where it should compute what the module would."""


_KERNEL_INPUTS = "generate_input"
_ASKS_FOR_CUDA = re.compile(r"CUDA|NVIDIA driver|\bcuda\b")
# What a reference may raise. A Ctrl-C of ours never comes here: workers have no terminal.
_FROM_USERS = (Exception, SystemExit, KeyboardInterrupt)


class ReferenceFault(Exception):  # noqa: N818 (it is the reference's fault, not an error of ours)
    """The reference cannot be used. `kind` is stable; `file` and `line` point into the user's own source."""

    def __init__(self, kind: str, message: str, *, file: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.file = file
        self.line = line
        self.source_line: str | None = None
        self.hint: str | None = None
        """What to do about this very fault; None: what its kind says."""


class LoadedReference:
    """The user's loaded file, from which modules and inputs are made."""

    def __init__(self, source: ReferenceSource) -> None:
        """Execute the main file.

        Raises:
            ReferenceFault: syntax error, failing import or statement, missing entry or input maker.
        """
        self.source = source
        self.filled = 0
        """Parameters that the last `construct` gave values of order 1."""
        self.structures: tuple[InputStructure, ...] | None = None
        """Of each input tensor, once it was looked for (draws.py)."""
        if not source.file.is_file():
            raise ReferenceFault("missing_file", f"there is no file {source.main}")
        if source.device.startswith("cuda") and not torch.cuda.is_available():
            raise ReferenceFault("no_device", "torch sees no CUDA device here")
        self.namespace = _execute(source)
        self._find(source.entry, "missing_entry")
        self._find(source.inputs, "missing_inputs")

    @property
    def entry_kind(self) -> str:
        """`class` of a module, `instance` of one, or `function`: what is called without any weights."""
        entry = self._find(self.source.entry, "missing_entry")
        if isinstance(entry, torch.nn.Module):
            return "instance"
        return "class" if isinstance(entry, type) and issubclass(entry, torch.nn.Module) else "function"

    def construct(self, weights_seed: int, scale: Scale | None = None) -> tuple[torch.nn.Module, bytes]:
        """A fresh module, and the generator state that its constructor started from.

        Args:
            weights_seed: where the generators start.
            scale: fill its parameters with values of order 1, whatever its initialisers give; `filled` then
                says how many there were.

        Raises:
            ReferenceFault: constructor arguments or constructor fail.
        """
        entry = self._find(self.source.entry, "missing_entry")
        if isinstance(entry, torch.nn.Module):
            return self._reimport(weights_seed, scale)
        if not isinstance(entry, type):
            return self._finish(FunctionModule(cast("Callable[..., object]", entry))), b""
        if self.source.init_inputs is None:
            self._refuse_needy(entry)
        arguments = self.init_arguments(weights_seed)
        seed_generators(weights_seed)
        state = pack_torch_state()
        with self.blame("constructor"), self._filling(state, scale):
            module = call_with(entry, arguments)
        if not isinstance(module, torch.nn.Module):
            if not callable(module):
                raise ReferenceFault(
                    "constructor",
                    f"{self.source.entry}(...) is neither a module nor callable:"
                    " derive it from torch.nn.Module",
                )
            module = FunctionModule(module)
        return self._finish(module), state

    def init_arguments(self, weights_seed: int) -> object:
        """Constructor arguments: a tuple of positional ones, or a dict of named ones.

        Raises:
            ReferenceFault: their maker fails, or gives what cannot be handed to a program.
        """
        if self.source.init_inputs is None:
            return ()
        seed_generators(weights_seed ^ 0x5DEECE66D)
        return self._made("init_inputs", self.source.init_inputs, "missing_init_inputs")

    def make_inputs(self, input_seed: int, maker_name: str | None = None) -> object:
        """Inputs of one call on the task's device: a tuple of positional ones, or a dict of named ones.

        `maker_name` names another function than the task's input maker.

        Raises:
            ReferenceFault: the input maker fails, or gives what cannot be handed to a program.
        """
        seed_generators(input_seed)
        return self._made("inputs", maker_name or self.source.inputs, "missing_inputs")

    def _made(self, kind: str, name: str, missing: str) -> object:
        maker = self._find(name, missing)
        with self.blame(kind):
            if name == _KERNEL_INPUTS and callable(maker):
                value = (_with_seed(maker),)  # all that a kernel gets is one argument
            else:
                value = maker() if callable(maker) else maker
            arguments = _as_arguments(value)
        try:
            # A list that is its own only item must be refused as it was given.
            flatten_inputs(value)
        except TreeError as error:
            made = f"{name}()" if callable(maker) else name
            fault = fault_at(kind, f"{made} gives what no program can take: {error}", maker, self.source)
            fault.hint = (
                "Inputs are dense tensors with values, numbers and strings, in tuples, lists and dicts."
            )
            raise fault from error
        return arguments

    def call(self, module: torch.nn.Module, arguments: object) -> object:
        """What forward returns, without gradients.

        Raises:
            ReferenceFault: the inputs do not fit forward, or forward raises.
        """
        with self.blame("forward", module, arguments), torch.no_grad():
            return call_with(module, arguments)

    def input_names(self, module: torch.nn.Module) -> tuple[str, ...]:
        """Names of the arguments that forward takes by position; empty where they are not known."""
        return parameter_names(self.forward_of(module))

    def forward_of(self, module: torch.nn.Module) -> Callable[..., object]:
        """The user's function that computes: the entry itself, or the module's forward."""
        return module.function if isinstance(module, FunctionModule) else module.forward

    @contextlib.contextmanager
    def blame(
        self, kind: str, module: torch.nn.Module | None = None, arguments: object = ()
    ) -> Generator[None]:
        """Turn what user code raises into a ReferenceFault with the user's file and line."""
        try:
            yield
        except _FROM_USERS as error:
            raise explain(error, kind, self.source, module, arguments) from error

    def _find(self, dotted: str, kind: str) -> object:
        try:
            return functools.reduce(getattr, dotted.split("."), self.namespace)
        except AttributeError:
            names = ", ".join(sorted(name for name in vars(self.namespace) if not name.startswith("_"))[:20])
            raise ReferenceFault(
                kind,
                f"{self.source.main} defines no {dotted!r}; it defines {names or 'nothing'}",
                file=self.source.main,
            ) from None

    def _refuse_needy(self, entry: type) -> None:
        """Raise a ReferenceFault where the constructor cannot be called without arguments."""
        try:
            parameters = inspect.signature(entry).parameters.values()
        except (TypeError, ValueError):  # a type that does not tell: its constructor will
            return
        collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        needed = [row for row in parameters if row.default is row.empty and row.kind not in collecting]
        if not needed:
            return
        names = ", ".join(row.name for row in needed)
        message = f"{self.source.entry}() needs arguments ({names})"
        fault = fault_at("constructor", message, entry.__init__, self.source)
        keyed = any(row.kind is row.KEYWORD_ONLY for row in needed)
        wanted = f"dict({', '.join(f'{row.name}=...' for row in needed)})" if keyed else f"[{names}]"
        fault.hint = f"Define get_init_inputs() returning {wanted}."
        raise fault

    def _reimport(self, weights_seed: int, scale: Scale | None) -> tuple[torch.nn.Module, bytes]:
        # A module made at import time gets other weights only by running the file again.
        seed_generators(weights_seed)
        state = pack_torch_state()
        with self._filling(state, scale):
            self.namespace = _execute(self.source, again=True)
        return self._finish(cast("torch.nn.Module", self._find(self.source.entry, "missing_entry"))), state

    @contextlib.contextmanager
    def _filling(self, state: bytes, scale: Scale | None) -> Generator[None]:
        self.filled = 0
        if scale is None:
            yield
            return
        with order_one_weights(state, scale) as mode:
            yield
        self.filled = mode.count

    def _finish(self, module: torch.nn.Module) -> torch.nn.Module:
        if self.source.mode == "eval" or (self.source.mode == "train" and not module.training):
            module.train(self.source.mode == "train")
        lazy = [name for name, value in module.state_dict(keep_vars=True).items() if is_lazy(value)]
        if lazy:
            message = f"{', '.join(lazy[:5])}: of no size before the first call, since the module is lazy"
            fault = fault_at("constructor", message, type(module).__init__, self.source)
            fault.hint = (
                "Name the sizes (Linear(96, 32), not LazyLinear(32)), or call it once in the constructor."
            )
            raise fault
        with self.blame("constructor"):
            return module.to(self.source.device)


def fault_at(kind: str, message: str, function: object, source: ReferenceSource) -> ReferenceFault:
    """A fault of what `function` gives, with the file and line where it is defined."""
    file, line, text = _definition(function, source)
    fault = ReferenceFault(kind, message, file=file, line=line)
    fault.source_line = text
    return fault


def explain(
    error: BaseException,
    kind: str,
    source: ReferenceSource,
    module: torch.nn.Module | None = None,
    arguments: object = (),
) -> ReferenceFault:
    """The fault that `error`, raised by user code, amounts to."""
    if isinstance(error, ReferenceFault):
        return error
    if isinstance(error, SyntaxError) and error.filename:
        fault = ReferenceFault(
            "syntax", f"syntax error: {error.msg}", file=_relative(error.filename, source), line=error.lineno
        )
        fault.source_line = (error.text or "").strip() or None
        return fault
    if isinstance(error, ImportError):
        kind = "missing_import"
    if is_out_of_memory(error):
        kind = "out_of_memory"
    file, line, text = _last_user_line(error, source)
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SystemExit):
        message = f"the reference ends the process (exit code {error.code})"
    if kind == "forward" and line is None and isinstance(error, TypeError) and module is not None:
        kind = "wrong_inputs"
        function = module.function if isinstance(module, FunctionModule) else type(module).forward
        file, line, text = _definition(function, source)
        count = len(cast("Sized", arguments))
        message = f"{error}; {source.inputs}() gave {count} input{'s' if count != 1 else ''}"
    hint = None
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        hint = (
            f"Install it into the target interpreter ({sys.executable} -m pip install {package});"
            f" if {package} is a file of yours, add its folder to search_path in a task.toml."
        )
    elif source.device == "cpu" and _ASKS_FOR_CUDA.search(str(error)):
        message = "the reference asks for a CUDA device, and is judged on the cpu"
        hint = "Make its tensors on the device of the inputs (device=x.device), or judge it on a GPU."
    fault = ReferenceFault(kind, message, file=file, line=line)
    fault.source_line, fault.hint = text, hint
    if kind == "wrong_inputs" and isinstance(module, FunctionModule) and inspect.isroutine(module.function):
        fault.hint = FACTORY_HINT
    return fault


def _execute(source: ReferenceSource, *, again: bool = False) -> types.ModuleType:
    folders = [
        str(source.file.parent),
        *([source.folder] if source.folder != str(source.file.parent) else []),
    ]
    for folder in reversed([*folders, *source.search_path]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    name = source.file.stem
    if (source.file.parent / "__init__.py").is_file():
        name = ".".join(Path(source.main).with_suffix("").parts)  # so that relative imports work
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(source.file):
        # The user's file is named like something that is loaded already (types.py, torch.py).
        name = f"stitch_reference_{name}"
    sys.dont_write_bytecode = True
    if parent := name.rpartition(".")[0]:
        # Its package first, as an import by name does: that may import the file itself, and finds it whole.
        try:
            importlib.import_module(parent)
        except _FROM_USERS as error:
            raise explain(error, "import", source) from error
        if name in sys.modules and not again:
            return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, source.file)
    if spec is None or spec.loader is None:
        raise ReferenceFault("missing_file", f"{source.main} is not a Python file")
    namespace = importlib.util.module_from_spec(spec)
    sys.modules[name] = namespace
    try:
        spec.loader.exec_module(namespace)
    except _FROM_USERS as error:
        raise explain(error, "import", source) from error
    return namespace


def _with_seed(maker: Callable[..., object]) -> object:
    """What GPU-MODE's input makers give: they take the seed of their own generators."""
    if "seed" not in inspect.signature(maker).parameters:
        return maker()
    return maker(seed=int(torch.randint(1 << 31, ())))


def _as_arguments(value: object) -> object:
    if isinstance(value, dict):
        return value
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _last_user_line(
    error: BaseException, source: ReferenceSource
) -> tuple[str | None, int | None, str | None]:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename, source):
            return _relative(frame.filename, source), frame.lineno, frame.line or None
    return None, None, None


def _is_users(filename: str, source: ReferenceSource) -> bool:
    path = Path(filename)
    roots = [Path(folder).resolve() for folder in (source.folder, *source.search_path)]
    return path.is_absolute() and any(root in path.resolve().parents for root in roots)


def _definition(function: object, source: ReferenceSource) -> tuple[str | None, int | None, str | None]:
    code = getattr(function, "__code__", None)
    if code is None or not _is_users(code.co_filename, source):  # built in, inherited or generated
        return source.main, None, None
    return (
        _relative(code.co_filename, source),
        code.co_firstlineno,
        linecache.getline(code.co_filename, code.co_firstlineno).strip() or None,
    )


def _relative(filename: str, source: ReferenceSource) -> str:
    path, root = Path(filename).resolve(), Path(source.folder).resolve()
    return str(path.relative_to(root)) if root in path.parents else filename

"""Functions of the judge, of torch or of Python that the program replaces."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.native import Function, NativeUnit, inside, text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import hit_in
from stitch_tools.judge.source.scopes import Scope
from stitch_tools.judge.source.values import Const, Known, Namespace
from stitch_tools.judge.source.words import listed
from stitch_tools.models import Severity

_TIMERS = listed("""
    time. timeit. torch.cuda.Event torch.cuda.synchronize torch.cuda.streams. torch.cuda.Stream.
    torch.cuda.current_stream torch.cuda._synchronize torch._C._cuda_synchronize torch._C._CudaEventBase
    torch._C._CudaStreamBase torch.Event torch.utils.benchmark torch.profiler torch.autograd.profiler
    triton.testing. datetime.datetime
""")
_COMPARERS = listed("""
    torch.allclose torch.isclose torch.equal torch.testing torch.Tensor.allclose torch.Tensor.isclose
    torch.Tensor.equal torch.Tensor.eq torch.Tensor.__eq__ torch.Tensor.__ne__ torch.Tensor.all
    torch.isfinite torch.isnan torch._assert numpy.allclose numpy.isclose numpy.array_equal numpy.testing
    math.isclose unittest. builtins.abs builtins.all builtins.max
""")
_GENERATORS = listed("""
    torch.manual_seed torch.seed torch.initial_seed torch.cuda.manual_seed torch.random. torch.rand
    torch.normal torch.Generator torch.default_generator torch.set_rng_state torch.get_rng_state
    torch.nn.init. random. numpy.random. os.urandom secrets.
""")
_SETTINGS = listed("torch.backends. torch._dynamo.config torch._inductor.config os.environ warnings.")
_JUDGED = (("timer", _TIMERS), ("comparison", _COMPARERS), ("random numbers", _GENERATORS))
_INTERPOSED = {
    "timer": "clock_gettime gettimeofday clock time times rdtsc cudaEventElapsedTime cudaEventRecord "
    "cudaEventSynchronize cudaEventQuery cuEventElapsedTime cuEventRecord cudaDeviceSynchronize "
    "cudaStreamSynchronize cuStreamSynchronize cuCtxSynchronize cudaEventElapsedTime_v2 nanosleep",
    "comparison": "memcmp bcmp",
    "random numbers": "getrandom rand random drand48 curandGenerateUniform curandGenerateNormal",
    "loader or memory": "dlopen dlsym mmap mprotect write read open close _exit exit abort waitpid",
}
_ARGUMENTS = {"clock": 0, "rand": 0, "random": 0, "drand48": 0, "time": 1, "times": 1}
"""How many arguments the system's functions take whose names are words that anybody may use."""
_BY_ADDRESS = ("time", "times")
_CLASSES = ("struct_specifier", "class_specifier", "union_specifier")


def what_is_judged(path: str) -> str | None:
    """`timer`, `comparison` or `random numbers`, where a judge relies on this name."""
    for kind, prefixes in _JUDGED:
        if path.startswith(prefixes):
            return kind
    return None


def replaced(scanned: Scanned) -> Iterator[tuple[Scope, ast.AST, str, ast.expr | None]]:
    """Names of other modules that are assigned, with what is assigned to them."""
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        yield from _targets(scanned, scope, node, target, value)
                case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
                    yield from _targets(scanned, scope, node, target, value)
                case ast.Delete(targets=targets):
                    for target in targets:
                        yield from _targets(scanned, scope, node, target, None)
                case ast.Call():
                    yield from _by_call(scanned, scope, node)
                case _:
                    pass


def _targets(
    scanned: Scanned, scope: Scope, node: ast.AST, target: ast.expr, value: ast.expr | None
) -> Iterator[tuple[Scope, ast.AST, str, ast.expr | None]]:
    resolver = scanned.host.resolver
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            given = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for place, part in enumerate(parts):
                inner = given[place] if len(given) == len(parts) else value
                yield from _targets(scanned, scope, node, part, inner)
        case ast.Attribute(value=base, attr=name):
            for path in resolver.paths(base, scope):
                yield scope, node, f"{path}.{name}", value
        case ast.Subscript(value=base, slice=key):
            text = resolver.text(key, scope)
            for owner in resolver.resolve(base, scope):
                if isinstance(owner, Namespace) and isinstance(owner.of, Known):
                    yield scope, node, f"{owner.of.path}.{text or '?'}", value
                elif isinstance(owner, Known) and owner.path == "sys.modules" and text:
                    yield scope, node, f"{text}.", value
        case _:
            pass


def _by_call(
    scanned: Scanned, scope: Scope, node: ast.Call
) -> Iterator[tuple[Scope, ast.AST, str, ast.expr | None]]:
    """setattr, mock.patch, `vars(module).update(name=...)`."""
    resolver, given = scanned.host.resolver, node.args
    called = resolver.paths(node.func, scope)
    if len(given) == 3 and any(path.endswith(("setattr", "__setattr__")) for path in called):
        name = resolver.text(given[1], scope)
        for path in resolver.paths(given[0], scope):
            yield scope, node, f"{path}.{name or '?'}", given[2]
    elif given and any(path in ("unittest.mock.patch", "mock.patch") for path in called):
        yield scope, node, resolver.text(given[0], scope) or "?", None
    elif len(given) >= 2 and any(path.endswith("mock.patch.object") for path in called):
        for path in resolver.paths(given[0], scope):
            yield scope, node, f"{path}.{resolver.text(given[1], scope) or '?'}", None
    elif isinstance(node.func, ast.Attribute) and node.func.attr in ("update", "__setitem__", "setdefault"):
        yield from _updates(scanned, scope, node, node.func.value)
    elif any(path == "ctypes.pythonapi.PyObject_SetAttrString" for path in called):
        yield scope, node, "?", None


def _updates(
    scanned: Scanned, scope: Scope, node: ast.Call, owner: ast.expr
) -> Iterator[tuple[Scope, ast.AST, str, ast.expr | None]]:
    resolver = scanned.host.resolver
    names = [row.arg for row in node.keywords if row.arg]
    for part in node.args[:1]:
        text = resolver.text(part, scope)
        names += [text] if text else []
        if isinstance(part, ast.Dict):
            names += [key for item in part.keys if (key := resolver.text(item, scope))]
    for value in resolver.resolve(owner, scope):
        if isinstance(value, Namespace) and isinstance(value.of, Known):
            for name in names:
                yield scope, node, f"{value.of.path}.{name}", None


def find_judge_patches(scanned: Scanned) -> Iterator[Hit]:
    """Timer, comparison or random numbers, replaced; in C++ by a function of the same name."""
    for scope, node, path, _ in replaced(scanned):
        kind = what_is_judged(path)
        if kind is not None:
            message = f"{path.rstrip('.')} is replaced: a judge's {kind} relies on it"
            yield hit_in(scanned, scope, node, message, "fatal")
    for unit in scanned.native:
        for function in unit.functions:
            if function.is_static or not _has_c_linkage(unit, function) or not _is_like_systems(function):
                continue
            for kind, names in _INTERPOSED.items():
                if function.name in names.split():
                    message = f"a function named {function.name} takes the place of the system's: {kind}"
                    severity: Severity = "suspicious" if kind == "loader or memory" else "fatal"
                    yield Hit(unit.file, unit.line(function.node), message, severity)


def _has_c_linkage(unit: NativeUnit, function: Function) -> bool:
    """Whether the function's symbol is its plain name, so that it can stand in for the system's."""
    node = function.node.parent
    while node is not None and node.type != "linkage_specification":
        # Members and what lies in a namespace without a name have other symbols, in such a block, too.
        is_unnamed = node.type == "namespace_definition" and node.child_by_field_name("name") is None
        if is_unnamed or node.type in _CLASSES:
            return False
        node = node.parent
    return node is not None or unit.file.endswith(".c")


def _is_like_systems(function: Function) -> bool:
    """Whether calls of the system's function could reach this one: kernels and other arguments cannot."""
    wanted = _ARGUMENTS.get(function.name)
    given = next(inside(function.node, "parameter_list"), None)
    if wanted is None or given is None:
        return True
    if function.is_kernel or function.is_device:
        return False
    rows = [text_of(row) for row in given.named_children if row.type.endswith("parameter_declaration")]
    rows = [] if rows == ["void"] else rows
    is_by_address = all("*" in row for row in rows) if function.name in _BY_ADDRESS else True
    return len(rows) == wanted and is_by_address


def find_library_patches(scanned: Scanned) -> Iterator[Hit]:
    """Anything else of torch, Python or numpy that is replaced."""
    for scope, node, path, value in replaced(scanned):
        if what_is_judged(path) is not None or path.startswith(_SETTINGS):
            continue
        if path.split(".")[0] in ("torch", "builtins", "numpy", "sys", "gc", "os", "ctypes", "typing", "?"):
            found = scanned.host.resolver.resolve(value, scope)
            is_flag = bool(found) and all(isinstance(item, Const) for item in found)
            yield hit_in(scanned, scope, node, f"{path} is replaced", "note" if is_flag else "suspicious")


def find_settings(scanned: Scanned) -> Iterator[Hit]:
    """Global settings of torch."""
    for scope, node, path, _ in replaced(scanned):
        if path.startswith("torch.backends."):
            yield hit_in(scanned, scope, node, f"{path} is set for the whole process", "note")
    names = (
        "torch.set_default_dtype",
        "torch.set_float32_matmul_precision",
        "torch.use_deterministic_algorithms",
    )
    for call in scanned.host.calls:
        for path in call.paths:
            if path in names:
                yield hit_in(scanned, call.scope, call.node, f"{path} holds for the whole process", "note")


def find_reseeding(scanned: Scanned) -> Iterator[Hit]:
    """Generators that the program seeds or sets."""
    seeds = ("manual_seed", "manual_seed_all", "set_rng_state", "seed", "set_rng_state_all")
    for call in scanned.host.calls:
        for path in call.paths:
            if path.startswith(("torch.", "random.", "numpy.random.")) and path.rpartition(".")[2] in seeds:
                yield hit_in(scanned, call.scope, call.node, f"{path} decides which random numbers come next")


RULES = (
    Rule(
        "judge_patched",
        "fatal",
        "A function that a judge times, compares or draws with is replaced: an attribute of time, "
        "torch.cuda.Event, torch.allclose, torch.randn and their kin, or a C function that hides the "
        "system's. "
        "Where nothing was seen to run the code, it is suspicious.",
        "Leave other modules' functions alone.",
        find_judge_patches,
    ),
    Rule(
        "library_patched",
        "suspicious",
        "Another function or class of torch, Python or numpy is replaced. A plain flag is a note.",
        "Call the program's own function instead.",
        find_library_patches,
    ),
    Rule(
        "global_setting",
        "note",
        "A setting of torch is changed for the whole process.",
        "State the precision in the contract instead.",
        find_settings,
    ),
    Rule(
        "generator_reseeded",
        "suspicious",
        "The program seeds or sets a random generator.",
        "Draw from the generator as the reference does, and leave its state alone.",
        find_reseeding,
    ),
)

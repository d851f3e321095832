"""Functions of the judge, of torch or of Python that the program replaces."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.cuda_source import CudaFunction, CudaSource
from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule, hit_in
from stitch_tools.judge.source.python_scopes import Scope
from stitch_tools.judge.source.words import prefixes, words

_JUDGED = {
    "timer": prefixes("""
        time. timeit. torch.cuda.Event torch.cuda.synchronize torch.cuda.streams. torch.cuda.Stream.
        torch.cuda.current_stream torch.cuda._synchronize torch._C._cuda_synchronize torch._C._CudaEventBase
        torch._C._CudaStreamBase torch.Event torch.utils.benchmark torch.profiler torch.autograd.profiler
        triton.testing. datetime.datetime
    """),
    "comparison": prefixes("""
        torch.allclose torch.isclose torch.equal torch.testing torch.Tensor.allclose torch.Tensor.isclose
        torch.Tensor.equal torch.Tensor.eq torch.Tensor.__eq__ torch.Tensor.__ne__ torch.Tensor.all
        torch.isfinite torch.isnan torch._assert numpy.allclose numpy.isclose numpy.array_equal numpy.testing
        math.isclose unittest. builtins.abs builtins.all builtins.max
    """),
    "random numbers": prefixes("""
        torch.manual_seed torch.seed torch.initial_seed torch.cuda.manual_seed torch.random. torch.rand
        torch.normal torch.Generator torch.default_generator torch.set_rng_state torch.get_rng_state
        random. numpy.random. os.urandom secrets.
    """),
}
"""Names that a judge times, compares or draws with."""
_LIBRARIES = words("torch builtins numpy sys gc os ctypes typing")
_SETTINGS = prefixes(
    "torch.backends. torch._dynamo.config torch._inductor.config os.environ warnings. sys.path sys.argv"
)
_GLOBAL = words("""
    torch.set_default_dtype torch.set_float32_matmul_precision torch.use_deterministic_algorithms
    torch.manual_seed torch.cuda.manual_seed torch.cuda.manual_seed_all torch.set_rng_state
    torch.cuda.set_rng_state random.seed numpy.random.seed
""")
_INTERPOSED = {
    "timer": words("""
        clock_gettime gettimeofday cudaEventElapsedTime cudaEventRecord
        cudaEventSynchronize cudaEventQuery cuEventElapsedTime cuEventRecord cudaDeviceSynchronize
        cudaStreamSynchronize cuStreamSynchronize cuCtxSynchronize cudaEventElapsedTime_v2 nanosleep
    """),
    "comparison": words("memcmp bcmp"),
    "random numbers": words("getrandom curandGenerateUniform curandGenerateNormal"),
    "loader or memory": words("dlopen dlsym mmap mprotect write read open close _exit exit abort waitpid"),
}
"""C functions of the system by what a judge uses them for, without names that anybody may use (`time`)."""
_CLASSES = ("struct_specifier", "class_specifier", "union_specifier")

Replaced = tuple[Scope, ast.AST, str, ast.expr | None]
"""Where, by which node, which dotted name, and with what."""


def replaced_names(program: ScannedProgram) -> Iterator[Replaced]:
    """Names of other modules that are assigned, set, patched or deleted."""
    kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.Call)
    for node, scope in (row for kind in kinds for row in program.python.of(kind)):
        for base, name, value in _targets(program, node, scope):
            for owner in program.python.names.paths(base, scope):
                path = f"{owner}.{name or '?'}"
                # An attribute of an object that a library made (`torch.cuda.Event().note`) is nobody else's.
                if "()" not in path and not path.startswith("."):
                    yield scope, node, path, value


def _targets(
    program: ScannedProgram, node: ast.AST, scope: Scope
) -> Iterator[tuple[ast.expr, str | None, ast.expr | None]]:
    """Owner, name and new value of what the node replaces."""
    if isinstance(node, ast.Call):
        yield from _by_call(program, node, scope)
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else targets
    value = None if isinstance(node, ast.Delete) else getattr(node, "value", None)
    for row in targets:
        for target in row.elts if isinstance(row, ast.Tuple | ast.List) else [row]:
            if isinstance(target, ast.Attribute):
                yield target.value, target.attr, value


def _by_call(
    program: ScannedProgram, node: ast.Call, scope: Scope
) -> Iterator[tuple[ast.expr, str | None, ast.expr | None]]:
    """`setattr(torch, name, value)`, `mock.patch.object(torch, name)`."""
    names, given = program.python.names, node.args
    for path in names.paths(node.func, scope):
        if path.endswith(("setattr", "mock.patch.object")) and len(given) > 1:
            yield given[0], names.text(given[1], scope), given[2] if len(given) > 2 else None


def find_judge_patches(program: ScannedProgram) -> Iterator[RuleHit]:
    """Timer, comparison or random numbers, replaced; in C++ by a function of the same name."""
    for scope, node, path, _ in replaced_names(program):
        kind = _what_is_judged(path)
        if kind is not None:
            message = f"{path.rstrip('.')} is replaced, and a judge's {kind} relies on it"
            yield hit_in(program, scope, node, message, "fatal")
    for source in program.cuda:
        for function in source.functions:
            kind = next((kind for kind, names in _INTERPOSED.items() if function.name in names), None)
            if kind is not None and _has_c_linkage(source, function):
                message = f"a function named {function.name} takes the place of the system's ({kind})"
                # A program may well have its own `read`; nobody needs its own `cuEventElapsedTime`.
                severity = "suspicious" if kind == "loader or memory" else "fatal"
                yield RuleHit(source.file, source.line(function.node), message, severity)


def _what_is_judged(path: str) -> str | None:
    return next((kind for kind, names in _JUDGED.items() if path.startswith(names)), None)


def _has_c_linkage(source: CudaSource, function: CudaFunction) -> bool:
    """Whether the function's symbol is its plain name, so that it can stand in for the system's."""
    node = function.node.parent
    while node is not None and node.type != "linkage_specification":
        # Members and what lies in a namespace without a name have other symbols, in such a block, too.
        is_unnamed = node.type == "namespace_definition" and node.child_by_field_name("name") is None
        if is_unnamed or node.type in _CLASSES:
            return False
        node = node.parent
    return not function.is_static and (node is not None or source.file.endswith(".c"))


def find_library_patches(program: ScannedProgram) -> Iterator[RuleHit]:
    """Anything else of torch, Python or numpy that is replaced."""
    for scope, node, path, value in replaced_names(program):
        is_other = _what_is_judged(path) is None and not path.startswith(_SETTINGS)
        if is_other and path.partition(".")[0] in _LIBRARIES:
            # Initialisers are left out where weights are loaded anyway; no judge calls them beside a program.
            harmless = isinstance(value, ast.Constant) or path.startswith("torch.nn.init.")
            severity = "note" if harmless else "suspicious"
            yield hit_in(program, scope, node, f"{path} is replaced", severity)


def find_settings(program: ScannedProgram) -> Iterator[RuleHit]:
    """Settings and random seeds that hold for the whole process."""
    for scope, node, path, _ in replaced_names(program):
        if path.startswith("torch.backends."):
            yield hit_in(program, scope, node, f"{path} is set for the whole process", "note")
    for call, path in program.calls_to(_GLOBAL):
        yield hit_in(program, call.scope, call.node, f"{path} holds for the whole process", "note")


RULES = (
    SourceRule("judge_patched", "fatal", find_judge_patches),
    SourceRule("library_patched", "suspicious", find_library_patches),
    SourceRule("global_setting", "note", find_settings),
)

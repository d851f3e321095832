"""The reference inside the program: its file, a copy of its code. The sandbox has no module to import."""

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule, hit_in
from stitch_tools.judge.source.python_scopes import FunctionNode, parse_python
from stitch_tools.judge.source.rules_pytorch import operation
from stitch_tools.judge.source.words import words

_OPENERS = words("""
    builtins.open io.open os.open codecs.open linecache.getlines linecache.getline pathlib.Path
    pathlib.PurePath runpy.run_path importlib.util.spec_from_file_location numpy.fromfile shutil.copy
    shutil.copyfile tokenize.open os.popen os.system
""")
_CUDA_OPENERS = words("fopen open open64 ifstream fopen64")


def find_reference_reads(program: ScannedProgram) -> Iterator[RuleHit]:
    """The reference's file, opened."""
    name = PurePosixPath(program.reference.path or "").name
    # A program may have a file of that name itself.
    if not name or any(PurePosixPath(file).name == name for file in program.files):
        return
    for call in program.python.calls:
        if set(call.paths) & _OPENERS or call.method == "joinpath":
            for part in call.node.args:
                text = program.python.names.text(part, call.scope)
                if text is not None and PurePosixPath(text).name == name:
                    yield hit_in(program, call.scope, call.node, f"{text} is the reference's file", "fatal")
    for source in program.cuda:
        for call in source.calls:
            if call.short in _CUDA_OPENERS and name in {text.rpartition("/")[2] for text in call.texts}:
                yield RuleHit(source.file, source.line(call.node), f"{name} is the reference's file")


def find_copies(program: ScannedProgram) -> Iterator[RuleHit]:
    """Functions on the hot path that are the reference's word for word and compute with PyTorch."""
    wanted = _bodies_of(program.reference.source)
    # A forward that only calls helpers may be the same honestly.
    computing = {call.scope for call in program.python.calls if operation(call) is not None}
    for scope in program.python.scopes if wanted else ():
        is_used = scope in program.python.hot and scope in computing
        if is_used and isinstance(scope.node, FunctionNode) and _body(scope.node) in wanted:
            yield hit_in(program, scope, scope.node, f"{scope.name} is the reference's code, word for word")


def _bodies_of(source: bytes | None) -> set[str]:
    try:
        tree = parse_python(source or b"")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {_body(node) for node in ast.walk(tree) if isinstance(node, FunctionNode)} - {""}


def _body(node: FunctionNode) -> str:
    """The statements as text, without docstrings and positions."""
    rows = [
        row for row in node.body if not isinstance(row, ast.Expr) or not isinstance(row.value, ast.Constant)
    ]
    try:
        return "\n".join(ast.dump(row) for row in rows)
    except RecursionError:
        return ""


RULES = (
    SourceRule(
        "reads_reference",
        "fatal",
        "Opens the reference's file.",
        "A program needs its own files only.",
        find_reference_reads,
    ),
    SourceRule(
        "reference_copied",
        "suspicious",
        "A function that forward reaches is the reference's, word for word, and computes with PyTorch.",
        "Compute with the program's own kernels.",
        find_copies,
    ),
)

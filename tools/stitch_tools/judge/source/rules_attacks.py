"""Attacks on the judge: forged verdicts, its modules, its frames, other processes' memory."""

import ast
import re
from collections.abc import Iterator

from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule, hit_in
from stitch_tools.judge.source.python_names import IMPORTERS, summands
from stitch_tools.judge.source.python_reach import PythonCall
from stitch_tools.judge.source.python_scopes import Scope
from stitch_tools.judge.source.words import prefixes, words

_PRINTERS = words("""
    builtins.print sys.stdout.write sys.stderr.write sys.__stdout__.write sys.stdout.buffer.write os.write
    os.fdopen builtins.open
""")
_CUDA_PRINTERS = words("printf fprintf puts fputs write dprintf std::printf std::puts std::fputs")
_VERDICT_KEYS = words("status correct correctness compiled speedup verdict accepted runtime_us score")
_PRINTED = "a verdict is printed as if a judge had"
_VERDICT = re.compile(
    r'\{[^{}%]*"(?:status|correct|correctness|compiled|verdict|accepted)"\s*:\s*'
    r'(?:true|"(?:accepted|correct|passed)")[^{}%]*\}'
)
"""A whole JSON object; one with a format's places is not made to be read as a verdict."""

_FRAMES = words("""
    sys._getframe sys._current_frames sys.settrace sys.setprofile inspect.stack inspect.currentframe
    inspect.getouterframes inspect.trace traceback.walk_stack traceback.extract_stack threading.settrace
    sys.addaudithook gc.get_objects gc.get_referrers gc.get_referents ctypes.string_at
""")
_FRAME_NAMES = words("f_back f_locals f_globals tb_frame gi_frame f_builtins tb_next pythonapi")
_JUDGE = words("stitch_tools stitch_mcp stitch_planner stitch_rag kernelbench __main__")
_LOOKUPS = {*IMPORTERS, "sys.modules.get"}
_OTHER_MEMORY = words("""
    ptrace process_vm_readv process_vm_writev pidfd_getfd pidfd_open kcmp perf_event_open userfaultfd
""")
_OF_THE_MACHINE = (
    "/proc/stat",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/sys/",
    "/proc/driver/",
)
_OWN_MEMORY = ("/proc/self/mem", "/proc/thread-self/mem")
_OF_A_PROCESS = prefixes("/mem /maps /environ /cmdline /fd /task /root /cwd /stat /status")


def find_forged(program: ScannedProgram) -> Iterator[RuleHit]:
    """Printed verdicts."""
    for call, _ in program.calls_to(_PRINTERS):
        texts = [program.python.names.text(part, call.scope) or "" for part in call.node.args]
        if any(map(_VERDICT.search, texts)) or _prints_verdict_dict(program, call):
            yield hit_in(program, call.scope, call.node, _PRINTED, "fatal")
    for source in program.cuda:
        for call in source.calls:
            is_printer = call.name.removeprefix("::") in _CUDA_PRINTERS and not call.is_method
            if is_printer and any(map(_VERDICT.search, call.texts)):
                yield RuleHit(source.file, source.line(call.node), _PRINTED)


def _prints_verdict_dict(program: ScannedProgram, call: PythonCall) -> bool:
    """Whether it is a dict display with a verdict's keys that is printed, as it is or through json.dumps."""
    names = program.python.names
    for part in call.node.args:
        is_dump = isinstance(part, ast.Call) and "json.dumps" in names.paths(part.func, call.scope)
        shown = part.args[0] if isinstance(part, ast.Call) and is_dump and part.args else part
        bound = names.bound_to(shown, call.scope)
        shown = bound[0] if bound is not None else shown
        if isinstance(shown, ast.Dict):
            keys = {key.value for key in shown.keys if isinstance(key, ast.Constant)}
            if len(keys & _VERDICT_KEYS) > 1:
                return True
    return False


def find_judge_modules(program: ScannedProgram) -> Iterator[RuleHit]:
    """Modules of the judge, imported or looked up."""
    wanted = _JUDGE - {file.partition("/")[0].removesuffix(".py") for file in program.files}
    python = program.python
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Subscript)
    for node, scope in (row for kind in kinds for row in python.of(kind)):
        for module in {name.partition(".")[0] for name in _imported(program, node, scope)} & wanted:
            # Programs of other harnesses look at `__main__` to see whether they are run as a script.
            severity = "suspicious" if module == "__main__" else "fatal"
            yield hit_in(program, scope, node, f"{module} belongs to the judge, not to a program", severity)


def _imported(program: ScannedProgram, node: ast.AST, scope: Scope) -> list[str]:
    names = program.python.names
    match node:
        case ast.Import(names=rows):
            return [row.name for row in rows]
        case ast.ImportFrom(module=str() as module, level=0):
            return [module]
        case ast.Call(func=function, args=[first, *_]) if _LOOKUPS & set(names.paths(function, scope)):
            return [names.text(first, scope) or ""]
        case ast.Subscript(value=base, slice=key) if "sys.modules" in names.paths(base, scope):
            return [names.text(key, scope) or ""]
        case _:
            return []


def find_frames(program: ScannedProgram) -> Iterator[RuleHit]:
    """Callers' frames, all living objects, and memory that is read by its address."""
    for call, path in program.calls_to(_FRAMES):
        message = f"{path} shows the caller or other objects of the process"
        yield hit_in(program, call.scope, call.node, message)
    for node, scope in program.python.of(ast.Attribute):
        if node.attr in _FRAME_NAMES:
            yield hit_in(program, scope, node, f"{node.attr} shows the caller's names or objects")


def find_other_memory(program: ScannedProgram) -> Iterator[RuleHit]:
    """Other processes' memory, environment and files."""
    for call in program.python.calls:
        for text in (_shown(program, part, call.scope) for part in call.node.args):
            if _is_proc(text):
                message = f"{text} shows another process, or this one's memory"
                yield hit_in(program, call.scope, call.node, message, "fatal")
        if {call.method, *(path.rpartition(".")[2] for path in call.paths)} & _OTHER_MEMORY:
            message = f"{call.method} reaches into other processes"
            yield hit_in(program, call.scope, call.node, message, "fatal")
    for source in program.cuda:
        for call in source.calls:
            if call.short in _OTHER_MEMORY and not call.is_method:
                # A function of the program's own may have such a name: `kcmp` compares keys as well.
                severity = "suspicious" if call.name in source.own_names else "fatal"
                message = f"{call.name} reaches into other processes"
                yield RuleHit(source.file, source.line(call.node), message, severity)
            elif any(map(_is_proc, call.texts)):
                message = "a path below /proc: memory or other processes"
                yield RuleHit(source.file, source.line(call.node), message)


def _shown(program: ScannedProgram, part: ast.expr, scope: Scope) -> str:
    """The argument's constant text, or the constant parts of an f-string or a sum."""
    names = program.python.names
    return names.text(part, scope) or "".join(names.text(row, scope) or "" for row in summands(part))


def _is_proc(text: str) -> bool:
    if not text.startswith("/proc/") or text.startswith(_OF_THE_MACHINE):
        return False
    is_others = not text.startswith("/proc/self/") and text.endswith(_OF_A_PROCESS)
    return is_others or text.startswith(_OWN_MEMORY)


RULES = (
    SourceRule("forged_result", "fatal", find_forged),
    SourceRule("judge_module", "fatal", find_judge_modules),
    SourceRule("other_process_memory", "fatal", find_other_memory),
    SourceRule("caller_inspected", "suspicious", find_frames),
)

"""Looking at the judge: its frames, its objects, its modules, its memory."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.host import HostCall
from stitch_tools.judge.source.native import text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import calls_to, hit_in, own_names
from stitch_tools.judge.source.scopes import Scope
from stitch_tools.judge.source.words import listed, words
from stitch_tools.models import Severity

_FRAMES = words("""
    sys._getframe sys._current_frames sys.settrace sys.setprofile sys.exc_info inspect.stack
    inspect.currentframe inspect.getouterframes inspect.trace traceback.walk_stack traceback.extract_stack
    traceback.format_stack threading.settrace sys.addaudithook gc.get_objects gc.get_referrers
    gc.get_referents inspect.getsource inspect.getsourcefile inspect.getfile inspect.getmodule
""")
_FRAME_NAMES = words("f_back f_locals f_globals tb_frame gi_frame f_builtins tb_next")
_MEMORY = words("ctypes.string_at ctypes.memmove ctypes.memset ctypes.wstring_at ctypes.pythonapi")
_JUDGE = listed("stitch_tools stitch_mcp stitch_planner stitch_rag kernelbench __main__")
_IMPORTERS = words("builtins.__import__ importlib.import_module importlib.__import__ sys.modules.get")
_OTHER_MEMORY = words("""
    ptrace process_vm_readv process_vm_writev pidfd_getfd pidfd_open kcmp perf_event_open userfaultfd
""")
_OF_THE_MACHINE = ("/proc/stat", "/proc/cmdline")
_PROC = listed("/mem /maps /environ /cmdline /fd /task /root /cwd /stat /status")


def find_frames(scanned: Scanned) -> Iterator[Hit]:
    """Callers' frames and all living objects."""
    for call, path in calls_to(scanned, _FRAMES):
        yield hit_in(
            scanned, call.scope, call.node, f"{path} shows the caller or other objects of the process"
        )
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            if isinstance(node, ast.Attribute) and node.attr in _FRAME_NAMES:
                yield hit_in(scanned, scope, node, f"{node.attr} shows the caller's names")


def find_raw_memory(scanned: Scanned) -> Iterator[Hit]:
    """Memory that is read or written by number."""
    resolver = scanned.host.resolver
    for call in scanned.host.calls:
        path = next(
            (row for row in call.paths if row in _MEMORY or row.startswith("ctypes.pythonapi.")), None
        )
        if path is not None:
            yield hit_in(scanned, call.scope, call.node, f"{path} reads or writes memory by its address")
        elif call.method in ("from_address", "from_buffer") and call.node.args:
            yield hit_in(
                scanned, call.scope, call.node, f"{call.method} reads or writes memory by its address"
            )
        elif "ctypes.cast" in call.paths:
            first = call.node.args[0] if call.node.args else None
            if isinstance(resolver.constant(first, call.scope), int):
                yield hit_in(scanned, call.scope, call.node, "a pointer is made of a number")


def find_judge_modules(scanned: Scanned) -> Iterator[Hit]:
    """Modules of the judge, imported or looked up."""
    wanted = set(_JUDGE) - {file.split("/")[0].removesuffix(".py") for file in scanned.files}
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            for name in _imported(scanned, node, scope):
                module = name.split(".")[0]
                if module in wanted:
                    message = f"{module} belongs to the judge, not to a program"
                    yield hit_in(
                        scanned, scope, node, message, "suspicious" if module == "__main__" else "fatal"
                    )


def _imported(scanned: Scanned, node: ast.AST, scope: Scope) -> list[str]:
    resolver = scanned.host.resolver
    match node:
        case ast.Import(names=names):
            return [row.name for row in names]
        case ast.ImportFrom(module=str() as module, level=0):
            return [module]
        case ast.Call(func=function, args=[first, *_]) if _IMPORTERS & set(resolver.paths(function, scope)):
            return [resolver.text(first, scope) or ""]
        case ast.Subscript(value=base, slice=key) if "sys.modules" in resolver.paths(base, scope):
            return [resolver.text(key, scope) or ""]
        case _:
            return []


def find_other_memory(scanned: Scanned) -> Iterator[Hit]:
    """Other processes' memory, environment and files."""
    for call in scanned.host.calls:
        path = _proc_path(scanned, call)
        if path is not None:
            message = f"{path} shows another process, or this one's memory"
            yield hit_in(scanned, call.scope, call.node, message, "fatal")
        name = next(
            (row for row in (call.method, *call.paths) if row.rpartition(".")[2] in _OTHER_MEMORY), None
        )
        if name is not None:
            yield hit_in(scanned, call.scope, call.node, f"{name} reaches into other processes", "fatal")
    for unit in scanned.native:
        own = own_names(unit)
        for call in unit.calls:
            texts = [text_of(part).strip('"') for part in call.arguments if part.type == "string_literal"]
            if call.short in _OTHER_MEMORY and not call.is_method:
                # A function of the program's own may have such a name: `kcmp` compares keys as well.
                severity: Severity | None = "suspicious" if call.name in own else None
                message = f"{call.name} reaches into other processes"
                yield Hit(unit.file, unit.line(call.node), message, severity)
            elif any(_is_proc(text) for text in texts):
                yield Hit(unit.file, unit.line(call.node), "a path below /proc: memory or other processes")


def _proc_path(scanned: Scanned, call: HostCall) -> str | None:
    for part in call.node.args:
        text = scanned.host.resolver.text(part, call.scope)
        joined = text if text is not None else "".join(_pieces(part))
        if _is_proc(joined):
            return joined
    return None


def _pieces(expr: ast.expr) -> list[str]:
    """Constant parts of an f-string or a sum."""
    return [
        node.value
        for node in ast.walk(expr)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _is_proc(text: str) -> bool:
    if not text.startswith("/proc/"):
        return False
    if text.startswith(("/proc/cpuinfo", "/proc/meminfo")) or text in _OF_THE_MACHINE:
        return False
    return text.startswith(("/proc/self/mem", "/proc/thread-self/mem")) or (
        not text.startswith(("/proc/self/", "/proc/sys/", "/proc/driver/")) and text.endswith(_PROC)
    )


RULES = (
    Rule(
        "caller_inspected",
        "suspicious",
        "Frames, tracebacks, sources or all living objects are looked at: what a program does must not "
        "depend on "
        "who calls it.",
        "Compute from the arguments alone.",
        find_frames,
    ),
    Rule(
        "raw_memory",
        "suspicious",
        "ctypes reads or writes memory at an address, or Python's own interface is called.",
        "Pass tensors' addresses to the program's own library, and leave the rest alone.",
        find_raw_memory,
    ),
    Rule(
        "judge_module",
        "fatal",
        "The program imports or looks up a module of the judge. `__main__` is suspicious.",
        "A program needs torch and its own files.",
        find_judge_modules,
    ),
    Rule(
        "other_process_memory",
        "fatal",
        "ptrace, process_vm_readv or a path such as /proc/PID/mem: other processes' memory, environment "
        "or files.",
        "A program computes from its inputs.",
        find_other_memory,
    ),
)

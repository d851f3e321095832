"""Files, network, other processes and the environment."""

import ast
import re
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.host import HostCall
from stitch_tools.judge.source.native import Call, text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import calls_to, hit_in, is_hot
from stitch_tools.judge.source.words import listed, words
from stitch_tools.models import Severity

_FILES = words("""
    builtins.open io.open os.open codecs.open numpy.load numpy.save numpy.fromfile numpy.memmap torch.load
    torch.save torch.from_file mmap.mmap shutil.copy shutil.copyfile os.listdir os.scandir os.walk glob.glob
    tempfile.NamedTemporaryFile tempfile.mkstemp linecache.getlines sqlite3.connect shelve.open
    safetensors.torch.load_file
""")
_PATH_METHODS = words("read_text read_bytes write_text write_bytes")
_NETWORK = listed("""
    socket. urllib. http. requests. httpx. ftplib. smtplib. aiohttp. websockets. paramiko.
    torch.distributed. xmlrpc. huggingface_hub. torch.hub.
""")
_PROCESSES = listed("""
    subprocess. os.system os.popen os.fork os.exec os.spawn os.posix_spawn pty. os.kill os.killpg signal.
    os._exit os.abort sys.exit builtins.exit builtins.quit
""")
_ENVIRONMENT = listed("os.environ os.getenv os.putenv os.environb os.unsetenv")
_NATIVE = {
    "reads or writes a file": "fopen open open64 openat creat mkstemp shm_open memfd_create opendir",
    "uses the network": "socket connect bind listen accept getaddrinfo sendto recvfrom",
    "starts or ends processes": "system popen fork vfork execv execve execvp execl posix_spawn clone kill "
    "signal syscall sigaction _exit exit quick_exit abort raise std::exit std::abort std::_Exit",
    "reads or writes the environment": "getenv setenv putenv secure_getenv unsetenv clearenv std::getenv",
    "loads another library": "dlopen dlmopen dlsym",
}
_VENDOR = re.compile(r'"lib(dnnl|cudnn|cublas|cublasLt|cufft|cusparse|cusolver)\.so(\.\d+)*"')
"""Libraries of operations that processors' makers give; who did the work is measured."""
_LOADER_NAMES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT")
_STREAM_TYPES = ("std::ifstream", "std::ofstream", "std::fstream")


def find_files(scanned: Scanned) -> Iterator[Hit]:
    """Files that are opened; outside forward the program's own are no matter."""
    for call in scanned.host.calls:
        path = next((row for row in call.paths if row in _FILES), None)
        if path is None and call.method not in _PATH_METHODS:
            continue
        severity: Severity = (
            "suspicious" if is_hot(scanned, call.scope) or not _is_own(scanned, call) else "note"
        )
        yield hit_in(
            scanned, call.scope, call.node, f"{path or call.method} reads or writes a file", severity
        )
    yield from _native(scanned, "reads or writes a file")
    for unit in scanned.native:
        for node in unit.of("declaration"):
            if text_of(node).startswith(_STREAM_TYPES):
                yield Hit(unit.file, unit.line(node), "the C++ code reads or writes a file")


def _is_own(scanned: Scanned, call: HostCall) -> bool:
    """Whether the path is relative to the program, or names one of its files."""
    names = {file.rpartition("/")[2] for file in scanned.files}
    for node in ast.walk(call.node):
        if isinstance(node, ast.Name) and node.id == "__file__":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.rpartition("/")[2] in names:
                return True
            if node.value.startswith("/"):
                return False
    return True


def find_network(scanned: Scanned) -> Iterator[Hit]:
    """Network modules that are called."""
    yield from _python(scanned, _NETWORK, "uses the network")
    yield from _native(scanned, "uses the network")


def find_processes(scanned: Scanned) -> Iterator[Hit]:
    """Processes and signals; a compiler that the constructor starts is a note."""
    yield from _python(scanned, _PROCESSES, "starts, ends or signals processes")
    yield from _native(scanned, "starts or ends processes")


def _python(scanned: Scanned, prefixes: tuple[str, ...], what: str) -> Iterator[Hit]:
    for call in scanned.host.calls:
        path = next((row for row in call.paths if row.startswith(prefixes)), None)
        if path is not None:
            is_build = path.startswith("subprocess.") and not is_hot(scanned, call.scope)
            yield hit_in(
                scanned, call.scope, call.node, f"{path} {what}", "note" if is_build else "suspicious"
            )


def _native(scanned: Scanned, what: str) -> Iterator[Hit]:
    names = _NATIVE[what].split()
    for unit in scanned.native:
        own = {function.name for function in unit.functions}
        for call in unit.calls:
            if call.is_method or call.name.removeprefix("::") not in names or call.name in own:
                continue
            severity: Severity = "note" if _is_usual(call, scanned.format) else "suspicious"
            yield Hit(unit.file, unit.line(call.node), f"the C++ code {what}: {call.name}", severity)


def _is_usual(call: Call, program_format: str) -> bool:
    """Whether an honest program does it: it ends on a broken invariant, or loads a vendor's library."""
    name = call.short
    # A segment beside Python does what a native program does; there only a name in the text can be believed.
    if name == "dlopen" and call.arguments and _VENDOR.fullmatch(text_of(call.arguments[0])):
        return True
    return name in ("abort", "exit", "getenv") or (name in ("dlopen", "dlsym") and program_format == "native")


def find_environment(scanned: Scanned) -> Iterator[Hit]:
    """The environment, read or written."""
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            if isinstance(node, ast.Attribute | ast.Name):
                paths = scanned.host.resolver.paths(node, scope)
                path = next((row for row in paths if row in _ENVIRONMENT), None)
                if path is not None:
                    severity: Severity = "suspicious" if is_hot(scanned, scope) else "note"
                    yield hit_in(scanned, scope, node, f"{path} is used", severity)
    yield from _native(scanned, "reads or writes the environment")


def find_libraries(scanned: Scanned) -> Iterator[Hit]:
    """Libraries that are loaded by name, and the environment that decides which."""
    yield from _native(scanned, "loads another library")
    for call, path in calls_to(scanned, ("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary")):
        text = scanned.host.resolver.text(call.node.args[0] if call.node.args else None, call.scope)
        if text is not None and text.startswith("lib"):
            yield hit_in(scanned, call.scope, call.node, f"{path} loads {text}", "note")
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            is_text = not isinstance(scope.unit.parents.get(node), ast.Expr)
            if is_text and isinstance(node, ast.Constant) and node.value in _LOADER_NAMES:
                yield hit_in(scanned, scope, node, f"{node.value} decides which libraries programs get")


RULES = (
    Rule(
        "file_access",
        "suspicious",
        "A file is opened in forward, or one that is not the program's own. The program's own files, read "
        "when it "
        "is constructed, are a note.",
        "Read what is needed in the constructor, from files beside the program.",
        find_files,
    ),
    Rule(
        "network_access",
        "suspicious",
        "A network module or function is called.",
        "A program has no network; leave it out.",
        find_network,
    ),
    Rule(
        "process_control",
        "suspicious",
        "A process is started, ended or signalled. A compiler that the constructor starts, or abort on a "
        "broken "
        "invariant, is a note.",
        "Report errors by status or exception, and start nothing in forward.",
        find_processes,
    ),
    Rule(
        "environment_access",
        "suspicious",
        "Forward looks at the environment: a program could tell a check from a measurement by it. "
        "Elsewhere a note.",
        "Read settings in the constructor, or do without.",
        find_environment,
    ),
    Rule(
        "library_loading",
        "suspicious",
        "A library is loaded by name, or the loader's environment is touched. Loading a "
        "vendor's library by its soname, and any that a native program loads, is a note.",
        "Load only vendor libraries, by soname, when the program is initialised.",
        find_libraries,
    ),
)

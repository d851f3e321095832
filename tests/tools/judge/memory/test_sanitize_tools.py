"""Finding compute-sanitizer, talking to its versions; the host's jobs; what a child under a tool may do."""

import socket
from pathlib import Path

import pytest

from stitch_tools.errors import EnvironmentMissingError, SandboxError, WorkerError
from stitch_tools.judge.memory.compute_sanitizer import ComputeSanitizer, find_compute_sanitizer
from stitch_tools.protocol.memory import PackEntry
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession
from stitch_tools.run.tool_process import execute
from tests.tools.judge.memory.cases import bare_case

# The options that matter here, as two versions print them.
OLDER = """
  --kernel-name arg    kernel_name, kne : the full mangled name
  --kernel-regex arg   kernel_substring, kns : a part of the mangled name
  --kernel-regex-exclude arg   kernel_substring, kns
  --padding arg (=0)   padding
  --strip-paths arg (=yes)  paths
"""
NEWER = """
  --kernel-name arg    kernel_name, kne; kernel_substring, kns
  --kernel-name-exclude arg    kernel_name, kne; kernel_substring, kns
  --padding arg (=0)   padding
  --report-api-errors arg  errors
  --show-backtrace arg  backtrace
"""


def fake(folder: Path, text: str) -> Path:
    """A script that answers like compute-sanitizer."""
    folder.mkdir(parents=True)
    path = folder / "compute-sanitizer"
    version = '[ "$1" = --version ] && echo "Version 2025.3.1.0 (build 1)" && exit'
    path.write_text(f'#!/bin/sh\n{version}\ncat <<"END"\n{text}\nEND\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_toolkit_comes_before_path_and_its_program_before_its_script(tmp_path: Path) -> None:
    toolkit = fake(tmp_path / "cuda" / "compute-sanitizer", OLDER)
    fake(tmp_path / "cuda" / "bin", OLDER)
    other = fake(tmp_path / "other", OLDER)
    env = {"CUDA_HOME": str(tmp_path / "cuda"), "PATH": f"{other.parent}:/usr/bin:/bin"}
    found = find_compute_sanitizer(env=env)
    assert (found.path, found.version) == (toolkit, "2025.3.1.0")
    assert find_compute_sanitizer(env={"PATH": env["PATH"]}).path == other


def test_the_wheel_of_the_target_interpreter_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "python3.12" / "site-packages" / "nvidia" / "cu13" / "compute-sanitizer"
    path = fake(folder, NEWER)
    if Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        pytest.skip("a toolkit with compute-sanitizer is installed here and comes first")
    assert find_compute_sanitizer((tmp_path,), env={"PATH": "/usr/bin:/bin"}).path == path


def test_one_that_does_not_run_is_none(tmp_path: Path) -> None:
    broken = fake(tmp_path / "cuda" / "compute-sanitizer", OLDER)
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    if Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        pytest.skip("a toolkit with compute-sanitizer is installed here")
    with pytest.raises(EnvironmentMissingError, match="was not found") as caught:
        find_compute_sanitizer(env={"CUDA_HOME": str(tmp_path / "cuda"), "PATH": "/usr/bin:/bin"})
    assert "nvidia-cuda-sanitizer-api" in caught.value.hint


@pytest.mark.parametrize(("text", "option"), [(OLDER, "--kernel-regex"), (NEWER, "--kernel-name")])
def test_own_kernels_are_named_by_the_option_that_the_version_has(text: str, option: str) -> None:
    tool = ComputeSanitizer(Path("/x/compute-sanitizer"), "1", text)
    words = tool.command("racecheck", "report.xml", ["scale", "reduce"])
    assert words[words.index("kns=scale") - 1] == option
    assert words[words.index("kns=reduce") - 1] == option
    assert ("--show-backtrace" in words) == ("show-backtrace" in text)


def test_initcheck_sees_every_kernel_and_memcheck_pads_allocations() -> None:
    tool = ComputeSanitizer(Path("/x/compute-sanitizer"), "1", NEWER)
    assert not any(word.startswith("kns=") for word in tool.command("initcheck", "report.xml", ["scale"]))
    words = tool.command("memcheck", "report.xml", ["scale"])
    assert words[words.index("--padding") + 1] == "512"


def entry(name: str) -> PackEntry:
    return {"name": name, "shape": [2, 3], "stride": [3, 1], "dtype": "bfloat16", "offset": 256, "nbytes": 12}


def test_a_job_is_one_fact_a_line_and_names_may_hold_spaces() -> None:
    case = bare_case(parameters=[entry("block 0.weight")], inputs=[entry("x")], updated=("block 0.weight",))
    job = case.host_job("/a b/program.so", ("/x/libdnnl.so.3",), poison=255, calls=2)
    assert "program /a b/program.so\n" in job
    assert "calls 2\n" in job
    assert "param 256 12 4 16 2 2 3 3 1 block 0.weight\n" in job
    assert "state 256 12 4 16 2 2 3 3 1 block 0.weight\n" in job
    evil = bare_case(parameters=[entry("a\nprogram /evil.so")])
    with pytest.raises(WorkerError, match="line break"):
        evil.host_job("/p.so", (), poison=255)


NETWORK = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), timeout=5)
print("loopback", client.getpeername()[0])
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0nv_target_process_7")
abstract.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("\\0nv_target_process_7")
print("abstract", client.getpeername().decode()[1:])
print("visible", os.path.exists(os.path.dirname(sys.argv[1])))
for family, address in ((socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_UNIX, sys.argv[1])):
    try:
        with socket.socket(family) as one:
            one.settimeout(5)
            one.connect(address)
        print("reached", address)
    except OSError as error:
        print("refused", family.name)
"""


def test_a_child_with_loopback_reaches_itself_and_nothing_else(tmp_path: Path) -> None:
    interpreter = find_interpreter(None, tmp_path)
    with TargetSession(interpreter, scratch_root=tmp_path / "scratch") as session:
        if session.sandbox_level != "full":
            pytest.skip(f"level full does not work here: {session.sandbox_reason}")
        daemon = str(tmp_path / "daemon" / "socket")
        Path(daemon).parent.mkdir()
        with socket.socket(socket.AF_UNIX) as others:
            others.bind(daemon)
            others.listen()
            ran = execute(
                session,
                (interpreter.path, "-c", NETWORK, daemon),
                files={},
                env={},
                fds=(),
                readable=(),
                limit_s=30,
                loopback=True,
            )
        assert ran.stdout.splitlines() == [
            "loopback 127.0.0.1",
            "abstract nv_target_process_7",
            "visible False",
            "refused AF_INET",
            "refused AF_UNIX",
        ], ran


# A grandchild names its thread as cuInit does; then everything in /proc that is no process' folder is asked.
PROC = """
import os, subprocess, sys
NAME = "import pathlib; next(pathlib.Path('/proc/self/task').iterdir()).joinpath('comm').write_text('named')"
print("named", subprocess.run([sys.executable, "-c", NAME], stderr=subprocess.DEVNULL).returncode == 0)
asked, writable = 0, []
for folder, folders, files in os.walk("/proc"):
    if folder == "/proc":
        folders[:] = [name for name in folders if not name.isdigit()]
    for path in (os.path.join(folder, name) for name in files):
        asked += 1
        if not os.path.islink(path) and os.access(path, os.W_OK):
            writable.append(path)
print("asked", asked > 50, "writable", writable[:3])
for path in ("/proc/sys/kernel/hostname", "/proc/1/mem", "/proc/sysrq-trigger"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("opened", path)
    except OSError:
        print("refused", path)
"""


@pytest.mark.parametrize("tool", [True, False])
def test_what_a_tool_starts_may_name_its_threads_and_write_nothing_else_in_proc(
    tmp_path: Path, tool: bool
) -> None:
    interpreter = find_interpreter(None, tmp_path)
    with TargetSession(interpreter, scratch_root=tmp_path / "scratch") as session:
        if session.sandbox_level != "full":
            pytest.skip(f"level full does not work here: {session.sandbox_reason}")
        words = (interpreter.path, "-c", PROC)
        ran = execute(session, words, files={}, env={}, fds=(), readable=(), limit_s=60, loopback=tool)
    lines = ran.stdout.splitlines()
    assert lines[0] == f"named {tool}", ran
    if tool:
        assert lines[1] == "asked True writable []", ran
    assert lines[2:] == [
        "refused /proc/sys/kernel/hostname",
        "refused /proc/1/mem",
        "refused /proc/sysrq-trigger",
    ]


def test_loopback_is_refused_below_level_full(tmp_path: Path) -> None:
    with (
        TargetSession(find_interpreter(None, tmp_path), at_most="process") as session,
        pytest.raises(SandboxError, match="level full only"),
    ):
        session.spawn("worker", loopback=True)


SLOW = """
import os, sys
print(open("job").read() + os.environ["GREETING"], flush=True)
open("report.txt", "w").write("seen")
os.write(int(sys.argv[1]), b"hello")
os.fork()
while True:
    os.sched_yield()
"""


def test_what_a_command_prints_and_writes_comes_back_and_its_limit_ends_it(tmp_path: Path) -> None:
    interpreter = find_interpreter(None, tmp_path)
    ours, theirs = socket.socketpair()
    with ours, theirs, TargetSession(interpreter, scratch_root=tmp_path / "scratch") as session:
        ran = execute(
            session,
            (interpreter.path, "-c", SLOW, "{0}"),
            files={"job": "a job, "},
            env={"GREETING": "good day"},
            fds=(theirs.fileno(),),
            readable=(),
            limit_s=2.0,
        )
        assert ran.stdout == "a job, good day\n", ran.stderr
        assert ran.reports == {"report.txt": "seen"}
        assert ran.timed_out
        assert ours.recv(16) == b"hello"
        assert ran.why_not_done(2.0) == "did not finish within 2 s"

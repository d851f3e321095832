"""What a child can reach, and what it cannot."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.errors import SandboxError
from stitch_tools.machine.isolation import probe_isolation
from stitch_tools.protocol.messages_session import ChildLimits
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession

HANDLERS = Path(__file__).with_name("processes_handlers.py")
MIB = 1 << 20


@pytest.fixture(scope="module", params=["full", "fs+net", "process"])
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TargetSession]:
    root = tmp_path_factory.mktemp("scratch")
    held = (root / "lock").open("w", encoding="utf-8")
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-secret")
        patch.setenv("HF_TOKEN", "hf-secret")
        patch.setenv("PYTHONPATH", str(root))
        patch.setenv("LANG", "C.UTF-8")
        with TargetSession(
            find_interpreter(None, root), at_most=request.param, scratch_root=root / "scratch", threads=1
        ) as session:
            if session.sandbox_level != request.param:
                pytest.skip(f"level {request.param} does not work here: {session.sandbox_reason}")
            yield session
    held.close()


@pytest.fixture
def worker(session: TargetSession) -> Iterator[Child]:
    with session.spawn("worker", serve_file=HANDLERS) as child:
        yield child


def needs_files(session: TargetSession) -> None:
    if session.sandbox_level == "process":
        pytest.skip("level process has no file rules")


def test_a_worker_reads_its_program_and_writes_its_scratch_only(
    session: TargetSession, tmp_path: Path
) -> None:
    needs_files(session)
    program, other = tmp_path / "program ä", tmp_path / "other"
    for folder in (program, other):
        folder.mkdir()
        (folder / "file").write_text("x", encoding="utf-8")
    with session.spawn("worker", serve_file=HANDLERS, readable=[program]) as child:
        asked = {
            str(program): "r",
            str(program / "file"): "r",
            child.scratch: "rw",
            str(other): "",
            str(other / "file"): "",
            str(Path.home()): "",
            str(Path(__file__).parent): "",
            "/etc/shadow": "",
            "/etc/hostname": "",
            "/tmp": "",
            "/proc/self/status": "r",
            "/dev/urandom": "r",
            "/dev/null": "rw",
        }
        answer = child.request({"op": "try_paths", "paths": list(asked)}).message
    assert {path: answer[path] for path in asked} == asked


def test_a_reference_may_write_where_it_was_allowed_to(session: TargetSession, tmp_path: Path) -> None:
    needs_files(session)
    with session.spawn("reference", serve_file=HANDLERS, writable=[tmp_path]) as child:
        assert child.request({"op": "try_paths", "paths": [str(tmp_path)]}).message[str(tmp_path)] == "rw"
    assert (tmp_path / "new").exists()


def test_system_calls_against_others_are_refused(
    session: TargetSession, worker: Child, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener, session.spawn("worker", serve_file=HANDLERS) as victim:
        path = str(tmp_path / "s")
        listener.bind(path)
        listener.listen()
        answer = worker.request({"op": "try_calls", "other_pid": victim.pid, "unix_path": path}).message
    results = {name: error for name, error in answer.items() if name not in ("ok", "seq")}
    memory = results.pop("open_memory")
    assert set(results.values()) == {"EPERM"}, results
    if session.sandbox_level != "process":
        assert memory in ("ENOENT", "EACCES", "EPERM")


def test_controller_and_reference_server_cannot_be_looked_into(session: TargetSession) -> None:
    with session.spawn("reference", serve_file=HANDLERS) as child:
        assert child.request({"op": "look"}).message["dumpable"] == 0


def test_a_child_holds_nothing_that_is_not_its_own(worker: Child) -> None:
    seen = worker.request({"op": "look"}).message
    # Standard streams, the channel, and the descriptor that lists them.
    assert len(seen["descriptors"]) == 5
    assert seen["capabilities"] == "0000000000000000"
    assert (seen["no_new_privs"], seen["seccomp"]) == ("1", "2")
    assert seen["folder"] == worker.scratch


def test_the_environment_is_an_allow_list(worker: Child) -> None:
    seen = worker.request({"op": "look"}).message["environment"]
    assert not {"OPENAI_API_KEY", "HF_TOKEN", "PYTHONPATH"} & set(seen)
    assert (seen["LANG"], seen["OMP_NUM_THREADS"], seen["HOME"]) == ("C.UTF-8", "1", worker.scratch)
    assert worker.request({"op": "matmul"}).message["threads"] == 1


def test_a_child_gets_variables_of_its_own(session: TargetSession) -> None:
    with session.spawn("worker", serve_file=HANDLERS, env={"PLAIN": "1"}) as child:
        assert child.request({"op": "look"}).message["environment"]["PLAIN"] == "1"


def test_our_package_stays_out_of_the_target_interpreter(worker: Child) -> None:
    seen = worker.request({"op": "look"}).message
    assert not seen["has_pydantic"]
    ours = ("stitch_tools.confine", "stitch_tools.protocol", "stitch_tools.worker", "stitch_serve")
    assert all(name.startswith(ours) for name in seen["own_modules"][1:])


def test_a_namespace_shows_nobody_else(session: TargetSession, worker: Child) -> None:
    if session.sandbox_level != "full":
        pytest.skip("only level full has a pid namespace")
    with session.spawn("worker", serve_file=HANDLERS):
        assert worker.request({"op": "look"}).message["processes"] == [1, 2]


def test_the_scratch_folder_is_bounded_and_goes_away(session: TargetSession) -> None:
    with session.spawn("worker", serve_file=HANDLERS, limits=ChildLimits(scratch_bytes=8 * MIB)) as child:
        folder = Path(child.scratch)
        assert folder.exists()
        if session.sandbox_level == "full":
            assert child.request({"op": "fill_scratch", "mib": 64}).message["error"] == "ENOSPC"
        else:
            with pytest.raises(ChildDied) as died:
                child.request({"op": "fill_scratch", "mib": 64}, timeout_s=20)
            assert died.value.outcome.kind == "scratch_full"
    assert not folder.exists()


def test_a_child_cannot_end_others(session: TargetSession, worker: Child) -> None:
    needs_files(session)
    with session.spawn("worker", serve_file=HANDLERS) as victim:
        pids = [0, os.getpid(), victim.pid]
        answer = worker.request({"op": "kill_each", "pids": pids}).message
        errors = [answer[str(pid)] for pid in pids]
        if session.sandbox_level == "full":  # its init ignores the signal; the others have no name inside
            assert errors in (["EPERM", "ESRCH", "ESRCH"], ["done", "ESRCH", "ESRCH"])
        else:
            assert errors == ["EPERM"] * 3
        assert victim.request({"op": "ping"}).message["ok"]
        assert worker.request({"op": "ping"}).message["ok"]


def test_a_child_that_ends_its_supervisor_ends_itself_and_what_it_started(session: TargetSession) -> None:
    if session.sandbox_level != "process":
        pytest.skip("the supervisor is out of reach at this level")
    with session.spawn("worker", serve_file=HANDLERS) as child:
        child.request({"op": "leave_grandchild"})
        with pytest.raises(ChildDied):
            child.request({"op": "kill_init_and_wait"}, timeout_s=10)
    with session.spawn("worker", serve_file=HANDLERS) as clean:  # the zygote has answered, so it has reaped
        assert clean.request({"op": "ping"}).message["ok"]
    assert not processes_in(child.scratch)


def processes_in(folder: str) -> list[Path]:
    """Processes whose working folder lies there."""
    found: list[Path] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if str((entry / "cwd").readlink()).startswith(folder):
                    found.append(entry)
    return found


def test_a_reference_runs_a_compiler(session: TargetSession, tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("#include <vector>\nint main() { return 7; }\n", encoding="utf-8")
    with session.spawn("reference", serve_file=HANDLERS, readable=[tmp_path]) as child:
        built = child.request(
            {"op": "run_program", "command": ["g++", str(tmp_path / "a.cpp"), "-o", "a"]}
        ).message
        assert built["code"] == 0, built["text"]
        assert child.request({"op": "run_program", "command": ["./a"]}).message["code"] == 7


@pytest.mark.exhaustive
def test_a_reference_compiles_with_torch_into_its_cache(session: TargetSession, tmp_path: Path) -> None:
    if session.sandbox_level != "full":
        pytest.skip("one level is enough for a minute of compilation")
    # Inductor keeps precompiled headers below the temporary folder, whatever its cache folder is.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    with session.spawn("reference", serve_file=HANDLERS, writable=[tmp_path], env=cache) as child:
        answer = child.request({"op": "compile_module"}, timeout_s=300).message
    assert answer["ok"], answer["error"]
    assert answer["error_max"] < 1e-4
    assert list(tmp_path.rglob("*.so"))


def test_the_probe_agrees_with_the_session(session: TargetSession) -> None:
    assert probe_isolation() == session.sandbox_level or session.sandbox_level != "full"


def test_a_level_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(SandboxError, match="level full is required"),
        TargetSession(find_interpreter(None, tmp_path), require_sandbox="full", at_most="fs+net"),
    ):
        pass

"""What a compiler reaches: its own installation and the build's two folders, wherever they lie."""

import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from stitch_tools.compile.build import compile_program, plan_build
from stitch_tools.compile.confinement import compiler_level, readable_paths, refuse_weaker, toolchain_paths
from stitch_tools.compile.runner import Completed, run_compiler
from stitch_tools.compile.toolchain import find_cpp_compiler, find_nvcc
from stitch_tools.confine.sandbox import LEVELS
from stitch_tools.errors import SandboxError
from stitch_tools.machine.isolation import probe_isolation
from stitch_tools.models.verdict import SandboxLevel
from stitch_tools.storage.store import Store
from tests.tools.compile_support import EMPTY_PROGRAM, store_program

Run = Callable[[str], Completed]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> SandboxLevel:
    if LEVELS.index(request.param) < LEVELS.index(probe_isolation()):
        pytest.skip(f"level {request.param} does not work here")
    return request.param


@pytest.fixture
def run(tmp_path: Path, level: SandboxLevel) -> Run:
    """Runs a shell as if it were a compiler of a build in `tmp_path`/build."""
    folder, scratch = tmp_path / "build", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()

    def run(script: str) -> Completed:
        return run_compiler(
            ["bash", "-c", script],
            folder=folder,
            scratch=scratch,
            time_limit_s=20,
            readable=readable_paths(()),
            level=level,
        )

    return run


def test_a_compiler_reads_no_file_of_the_user(tmp_path: Path, level: SandboxLevel, run: Run) -> None:
    (tmp_path / "victim").write_text("secret", encoding="utf-8")
    ended = run(f"cat {tmp_path}/victim /etc/passwd; ls {tmp_path}; echo end")
    assert ended.level == level
    assert ("secret" in ended.output) is (level == "process")
    assert ("root:" in ended.output) is (level == "process")
    assert ended.output.endswith("end\n")


def test_a_compiler_writes_its_two_folders_only(tmp_path: Path, level: SandboxLevel, run: Run) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("as it was", encoding="utf-8")
    (other / "file").chmod(0o640)
    run(f"echo 1 > here; echo 2 > $TMPDIR/there; echo 3 > {other}/new; echo 4 > {other}/file")
    assert (tmp_path / "build" / "here").read_text() == "1\n"
    assert (tmp_path / "scratch" / "there").read_text() == "2\n"
    assert (other / "new").exists() is (level == "process")
    assert ((other / "file").read_text() == "as it was") is (level != "process")
    run(f"chmod 0777 {other}/file")
    assert (oct((other / "file").stat().st_mode)[-3:] == "640") is (level == "full")


def test_a_compiler_reaches_no_network(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        assert run(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo through").output.endswith("through\n") is False
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_compiler_sees_no_process_but_its_own(level: SandboxLevel, run: Run) -> None:
    output = run(
        f"cat /proc/{os.getpid()}/cmdline | tr '\\0' ' '; echo; kill -0 {os.getpid()} && echo there"
    ).output
    if level == "full":
        assert "there" not in output
    if level != "process":
        assert "pytest" not in output


def test_what_a_compiler_leaves_running_ends_with_it(run: Run) -> None:
    ended = run("sleep 61.8034 & echo left")
    assert (ended.exit_code, ended.timed_out, ended.output) == (0, False, "left\n")
    names = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"61.8034" in name for name in names)


def test_a_compiler_that_was_killed_is_told_from_one_that_failed(run: Run) -> None:
    assert run("exit 3").exit_code == 3
    assert run("kill -ABRT $$").exit_code == -6


def test_a_compiler_that_is_not_there_is_an_os_error(tmp_path: Path, level: SandboxLevel) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-compiler"):
        run_compiler(
            ["no-such-compiler"],
            folder=tmp_path,
            scratch=tmp_path,
            time_limit_s=10,
            readable=readable_paths(()),
            level=level,
        )


def test_the_build_says_how_its_compiler_was_isolated(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    program = store_program(store, {"main.cpp": EMPTY_PROGRAM})
    made = compile_program(program, store, cache_dir=tmp_path / "cache")
    assert made.sandbox == compiler_level() == probe_isolation()
    again = compile_program(program, store, cache_dir=tmp_path / "cache")
    assert (again.cache_hit, again.sandbox) == (True, made.sandbox)


def test_a_level_that_is_required_is_part_of_the_key(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    program = store_program(store, {"main.cpp": EMPTY_PROGRAM})
    anyhow = compile_program(program, store, cache_dir=tmp_path / "cache")
    # What lies there may have been built under less.
    required = compile_program(
        program, store, cache_dir=tmp_path / "cache", require_sandbox=probe_isolation()
    )
    assert (anyhow.cache_hit, required.cache_hit) == (False, False)


@pytest.mark.parametrize(("here", "required"), [("fs+net", "full"), ("process", "fs+net"), (None, "process")])
def test_less_than_the_required_level_is_refused(here: SandboxLevel | None, required: SandboxLevel) -> None:
    with pytest.raises(SandboxError, match=re.escape(f"level {required} is required")):
        refuse_weaker(here, required)
    refuse_weaker(here, None)
    refuse_weaker("full", required)


def test_a_compiler_behind_a_script_in_a_strange_place_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "my tools" / "bin"
    place.mkdir(parents=True)
    script = place / "g++"
    script.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("STITCH_CXX", str(script))
    store = Store(tmp_path / "store")
    program = store_program(store, {"main.cpp": EMPTY_PROGRAM})
    made = compile_program(program, store, cache_dir=tmp_path / "cache")
    assert made.ok, made.diagnostics
    assert made.command[0] == str(script)


def test_a_compiler_in_the_home_folder_does_not_open_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "g++"
    script.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STITCH_CXX", str(script))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:")
    paths = readable_paths([find_cpp_compiler()])
    assert [path for path in paths if path.startswith(str(tmp_path))] == [str(script)]


@pytest.mark.nvcc
def test_a_toolkit_is_where_nvcc_says_that_it_is() -> None:
    paths = [str(path) for path in toolchain_paths(find_nvcc())]
    assert any(Path(path, "cuda_runtime.h").is_file() for path in paths)
    assert any(Path(path, "libdevice").is_dir() or Path(path, "libdevice.10.bc").is_file() for path in paths)


@pytest.mark.nvcc
def test_nvcc_takes_in_no_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "victim.h").write_text("int stolen;\n", encoding="utf-8")
    store = Store(tmp_path / "store")
    source = f'#include "{tmp_path}/victim.h"\n' + EMPTY_PROGRAM
    program = store_program(store, {"main.cu": source}, main="main.cu", target="cuda:sm_90")
    made = compile_program(program, store, cache_dir=tmp_path / "cache")
    assert made.artifact is None
    assert f"{tmp_path}/victim.h lies outside the program" in made.diagnostics[0].message
    assert plan_build(program, {"main.cu": source}).host == find_cpp_compiler()

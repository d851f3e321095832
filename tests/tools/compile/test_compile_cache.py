"""The build cache under bad luck: killed builders, races, damage, full disks, read-only folders."""

import multiprocessing
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from stitch_tools.compile.build import compile_program
from stitch_tools.compile.cache import BuildCache
from stitch_tools.errors import StoreError
from stitch_tools.models.program import Build
from stitch_tools.storage.store import Store
from tests.tools.compile_support import EMPTY_PROGRAM, store_program


def build_in(root: Path, source: str, cache: Path | None = None) -> Build:
    store = Store(root / "store")
    program = store_program(store, {"main.cpp": source})
    return compile_program(program, store, cache_dir=cache or root / "cache")


def variant(number: int) -> str:
    return EMPTY_PROGRAM + f"\nint variant{number}() {{ return {number}; }}\n"


def mount_tmpfs(folder: Path, size: str) -> None:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us mount a small file system")


def remount_read_only(folder: Path) -> None:
    command = ["mount", "-o", "remount,ro", str(folder)]
    # The kernel clears the mounts of a compiler's namespace away a moment after its last process has ended.
    tries = (subprocess.run(command, capture_output=True, check=False).returncode for _ in range(300))
    assert 0 in tries


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    folder = tmp_path / "small"
    mount_tmpfs(folder, "512k")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_eight_processes_build_the_same_and_different_programs(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    sources = [variant(number % 3) for number in range(8)]
    with ProcessPoolExecutor(8, mp_context=context) as pool:
        builds = list(pool.map(build_in, [tmp_path] * 8, sources))
    assert all(made.ok for made in builds)
    assert len({made.artifact for made in builds}) == 3
    # Equal builds waited for each other: each program was compiled once.
    assert sum(not made.cache_hit for made in builds) == 3
    assert BuildCache(tmp_path / "cache").summary().entries == 3


def test_a_damaged_library_is_noticed_and_rebuilt(tmp_path: Path) -> None:
    first = build_in(tmp_path, EMPTY_PROGRAM)
    assert first.artifact is not None
    artifact = Path(first.artifact)
    content = artifact.read_bytes()
    artifact.chmod(0o644)
    artifact.write_bytes(content[:5000] + b"\xff" + content[5001:])
    second = build_in(tmp_path, EMPTY_PROGRAM)
    assert not second.cache_hit
    assert artifact.read_bytes() == content
    assert build_in(tmp_path, EMPTY_PROGRAM).cache_hit


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"schema": 1, "sha256": "0", "build": {}}', b"\xff"])
def test_a_damaged_record_is_rebuilt(tmp_path: Path, damage: bytes) -> None:
    first = build_in(tmp_path, EMPTY_PROGRAM)
    assert first.artifact is not None
    Path(first.artifact).with_name("entry.json").write_bytes(damage)
    again = build_in(tmp_path, EMPTY_PROGRAM)
    assert again.ok
    assert not again.cache_hit
    assert build_in(tmp_path, EMPTY_PROGRAM).cache_hit


def test_a_builder_killed_in_the_middle_blocks_nobody_and_is_swept_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, fifo = tmp_path / "tools" / "bin" / "g++", tmp_path / "tools" / "lib" / "stuck"
    for path in (compiler, fifo):
        path.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    waiting = f'case "$*" in *" -o "*) cat "{fifo}";; esac'
    compiler.write_text(f'#!/bin/sh\n{waiting}\nexec {shutil.which("g++")} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("STITCH_CXX", str(compiler))
    script = (
        "import sys; from pathlib import Path\n"
        "from stitch_tools.compile.build import compile_program\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
        "from tests.tools.compile_support import store_program\n"
        "from stitch_tools.storage.store import Store\n"
        "root = Path(sys.argv[1]); store = Store(root / 'store')\n"
        "program = store_program(store, {'main.cpp': sys.argv[2]})\n"
        "compile_program(program, store, cache_dir=root / 'cache', time_limit_s=1)\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), EMPTY_PROGRAM])
    writer = os.open(fifo, os.O_WRONLY)  # returns when the compiler reads it: we are in the middle
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    work = tmp_path / "cache" / "programs" / "work"
    assert len(list(work.iterdir())) == 1
    gone = select.poll()
    gone.register(writer, 0)  # an error on the pipe: its reader has died with the builder
    assert gone.poll(10_000)
    os.close(writer)
    fifo.unlink()
    fifo.write_text("")
    made = build_in(tmp_path, EMPTY_PROGRAM)
    assert made.ok
    assert not made.cache_hit
    assert list(work.iterdir()) == []


def test_a_full_disk_is_our_error_with_a_hint_and_leaves_nothing_half_written(
    tmp_path: Path, small_disk: Path
) -> None:
    big = EMPTY_PROGRAM + "\nextern const char big[1 << 20]; const char big[1 << 20] = {1};\n"
    with pytest.raises(StoreError) as caught:
        build_in(tmp_path, big, cache=small_disk)
    assert "STITCH_CACHE_DIR" in caught.value.hint
    cache = BuildCache(small_disk)
    assert cache.summary().entries == 0
    assert list((cache.folder / "work").iterdir()) == []
    assert build_in(tmp_path, EMPTY_PROGRAM, cache=small_disk).ok


def test_a_read_only_cache_still_gives_hits_and_refuses_new_builds(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    mount_tmpfs(disk, "16m")
    try:
        built = build_in(tmp_path, EMPTY_PROGRAM, cache=disk)
        remount_read_only(disk)
        assert build_in(tmp_path, EMPTY_PROGRAM, cache=disk).cache_hit
        with pytest.raises(StoreError, match="Read-only") as caught:
            build_in(tmp_path, variant(1), cache=disk)
        assert "STITCH_CACHE_DIR" in caught.value.hint
        assert built.ok
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_longest_unused_builds_go_when_the_cache_is_over_its_cap(tmp_path: Path) -> None:
    builds = [build_in(tmp_path, variant(number)) for number in range(3)]
    folders = [Path(made.artifact or "").parent for made in builds]
    an_hour_ago = time.time() - 3600
    for age, folder in enumerate(folders):
        os.utime(folder, (an_hour_ago - 100 * age, an_hour_ago - 100 * age))
    size = sum(path.stat().st_size for path in folders[0].iterdir())
    cache = BuildCache(tmp_path / "cache", size_cap_bytes=int(size * 2.5))
    with cache.workspace() as workspace:
        artifact = workspace / "a.so"
        shutil.copy(folders[0] / "program.so", artifact)
        cache.publish("ab" * 32, builds[0], artifact, workspace)
    assert folders[0].exists()
    assert not folders[2].exists()
    assert not folders[1].exists()


def test_clearing_reports_what_was_there(tmp_path: Path) -> None:
    build_in(tmp_path, EMPTY_PROGRAM)
    cache = BuildCache(tmp_path / "cache")
    assert cache.clear().entries == 1
    assert cache.summary().size_bytes == 0
    assert not build_in(tmp_path, EMPTY_PROGRAM).cache_hit

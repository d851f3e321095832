"""What nsys can leave behind, by stand-ins for it: every end is a status, and the disk is clean."""

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.profile.nsys import Nsys, Recording, find_nsys, record_with_nsys
from stitch_tools.profile.profile_host import HostSetup, reference_setup
from stitch_tools.profile.recorded_trace import DamagedTraceError, read_trace
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import AFFINE, make_task
from tests.tools.profile_support import host_bound_recording

_OUTPUT = 'for word in "$@"; do case $word in --output=*) out=${word#--output=};; esac; done\n'


@pytest.fixture
def setup(one_thread: TargetSession, tmp_path: Path) -> Generator[HostSetup]:
    if one_thread.sandbox_level != "full":
        pytest.skip("nsys needs a network of its own, which isolation level full alone gives")
    store = Store(tmp_path / "store")
    with reference_setup(one_thread, make_task(store, AFFINE), store) as made:
        yield made
    assert not made.folder.exists()


def stand_in(folder: Path, script: str, *, importer: str | None = None, has_libdw: bool = True) -> Nsys:
    """An nsys that is this shell script."""
    path = folder / "host" / "target-linux-x64" / "nsys"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    path.chmod(0o755)
    if importer is not None:
        beside = folder / "host" / "host-linux-x64" / "QdstrmImporter"
        beside.parent.mkdir()
        beside.write_text(f"#!/bin/sh\n{importer}", encoding="utf-8")
        beside.chmod(0o755)
    return Nsys(path, "2025.3.1", has_libdw=has_libdw)


def recorded(setup: HostSetup, nsys: Nsys, **limits: float) -> Recording:
    given = {"limit_s": 30.0, **limits}
    return record_with_nsys(setup, nsys, **given)  # pyright: ignore[reportArgumentType]


def test_a_recording_that_stayed_raw_names_the_library_that_its_importer_needs(
    setup: HostSetup, tmp_path: Path
) -> None:
    nsys = stand_in(tmp_path, f'{_OUTPUT}echo raw > "$out.qdstrm"; echo done', has_libdw=False)
    recording = recorded(setup, nsys)
    assert recording.status == "not_converted"
    assert "libdw1" in recording.message
    assert recording.tables is None


def test_a_raw_recording_is_converted_where_the_importer_works(setup: HostSetup, tmp_path: Path) -> None:
    tables = host_bound_recording(tmp_path / "host.sqlite", kernels=3)
    kept = tmp_path / "host" / "tables"
    script = (
        f'{_OUTPUT}case $1 in export) cp "$(dirname "$0")/../tables" "$out";;'
        ' *) echo raw > "$out.qdstrm"; echo done;; esac'
    )
    nsys = stand_in(tmp_path, script, importer='cp "$2" "$4"')
    shutil.copy(tables, kept)
    recording = recorded(setup, nsys)
    assert recording.status == "profiled", recording.message
    assert recording.tables is not None
    assert len(read_trace(recording.tables).named("stitch:iteration")) == 3


def test_a_region_that_was_never_entered_leaves_nothing(setup: HostSetup, tmp_path: Path) -> None:
    assert recorded(setup, stand_in(tmp_path, "echo done")).status == "region_not_entered"


def test_a_second_profiler_is_told_from_a_crash(setup: HostSetup, tmp_path: Path) -> None:
    busy = stand_in(tmp_path / "a", "echo CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED >&2; exit 1")
    assert recorded(setup, busy).status == "profiler_busy"
    crashed = stand_in(tmp_path / "b", "kill -SEGV $$")
    assert recorded(setup, crashed).status == "crashed"
    refused = stand_in(tmp_path / "c", "echo 'failed forward out_of_memory no room'; exit 3")
    assert recorded(setup, refused).status == "out_of_memory"


def test_a_profiler_that_hangs_is_ended(setup: HostSetup, tmp_path: Path) -> None:
    assert recorded(setup, stand_in(tmp_path, "sleep 600"), limit_s=2.0).status == "timed_out"


def test_a_recording_that_is_too_large_is_removed(setup: HostSetup, tmp_path: Path) -> None:
    nsys = stand_in(tmp_path, f'{_OUTPUT}head -c 3000000 /dev/zero > "$out.sqlite"; echo done')
    recording = recorded(setup, nsys, most_bytes=2 << 20)
    assert recording.status == "too_large"
    assert list(setup.folder.iterdir()) == []


def test_a_truncated_export_is_damaged(setup: HostSetup, tmp_path: Path) -> None:
    whole = host_bound_recording(tmp_path / "whole.sqlite", kernels=200).read_bytes()
    nsys = stand_in(tmp_path, f'{_OUTPUT}cp "$(dirname "$0")/../tables" "$out.sqlite"; echo done')
    (tmp_path / "host" / "tables").write_bytes(whole[: len(whole) // 3])
    recording = recorded(setup, nsys)
    assert recording.tables is not None
    with pytest.raises(DamagedTraceError):
        read_trace(recording.tables)


def test_the_one_that_is_named_is_taken_and_one_that_does_not_answer_is_none(tmp_path: Path) -> None:
    named = stand_in(tmp_path / "a", "echo 'NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0'")
    environment = {"STITCH_NSYS": str(named.path), "PATH": os.defpath}
    found = find_nsys(environment)
    assert (found.path, found.version) == (named.path, "2025.3.1.90")
    silent = stand_in(tmp_path / "b", "exit 1")
    found_path = None
    with contextlib.suppress(EnvironmentMissingError):  # one that is installed for all would be taken instead
        found_path = find_nsys({"STITCH_NSYS": str(silent.path), "PATH": "/nonexistent"}).path
    assert found_path != silent.path

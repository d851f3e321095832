"""Ceilings are plausible, cached, and measured again only when asked."""

import contextlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.errors import EnvironmentMissingError, LockedError
from stitch_tools.machine.device_lock import DEVICE_FREE, DEVICE_WAIT, device_lock
from stitch_tools.machine.devices import cpu_info
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.graph import Ceilings, TransferRates
from stitch_tools.run.ceilings import cached_ceilings, measure_ceilings
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSession]:
    with TargetSession(find_interpreter(None, tmp_path_factory.mktemp("session"))) as session:
        yield session


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def measured(session: TargetSession, cache_dir: Path) -> Ceilings:
    return measure_ceilings("cpu", session=session, cache_dir=cache_dir)


@pytest.mark.slow
def test_figures_of_one_run_stand_in_a_plausible_order(measured: Ceilings) -> None:
    assert measured.cache_bytes_per_s is not None
    assert measured.write_bytes_per_s is not None
    assert measured.copy_bytes_per_s > 1e8
    if not measured.disturbed:
        assert measured.cache_bytes_per_s > 0.5 * measured.copy_bytes_per_s
        assert measured.write_bytes_per_s > 0.2 * measured.copy_bytes_per_s
        assert measured.launch_us < 1e4
    assert measured.launch_us >= 0.0
    assert list(measured.flops_per_s) == ["fp32"]
    assert measured.flops_per_s["fp32"] > 1e8
    assert measured.last_level_cache_bytes > 1 << 17
    assert measured.threads == len(os.sched_getaffinity(0))


@pytest.mark.slow
def test_a_second_call_measures_nothing(session: TargetSession, measured: Ceilings, cache_dir: Path) -> None:
    said: list[str] = []
    assert measure_ceilings("cpu", session=session, cache_dir=cache_dir, emit=said.append) == measured
    assert said == []


@pytest.mark.slow
def test_a_damaged_cache_is_measured_anew(
    session: TargetSession, measured: Ceilings, cache_dir: Path
) -> None:
    (entry,) = (cache_dir / "ceilings").glob("*.json")
    entry.write_text("{", encoding="utf-8")
    said: list[str] = []
    measure_ceilings("cpu", session=session, cache_dir=cache_dir, emit=said.append)
    assert said
    assert json.loads(entry.read_text(encoding="utf-8"))["schema"] == 5


@pytest.mark.slow
def test_disturbed_figures_serve_ten_minutes_and_are_then_measured_again(
    session: TargetSession, measured: Ceilings, cache_dir: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(cache_dir / "ceilings", tmp_path / "ceilings")
    (entry,) = folder.glob("*.json")
    body = json.loads(entry.read_text(encoding="utf-8"))
    body["ceilings"] |= {"disturbed": True, "copy_bytes_per_s": 1e15}
    entry.write_text(json.dumps(body), encoding="utf-8")
    said: list[str] = []
    assert measure_ceilings("cpu", session=session, cache_dir=tmp_path, emit=said.append).disturbed
    assert said == []
    os.utime(entry, (0, 0))
    again = measure_ceilings("cpu", session=session, cache_dir=tmp_path, emit=said.append, idle=lambda: True)
    assert said
    # Still disturbed: what was the better figure stays. Else all of it is new.
    assert (again.copy_bytes_per_s == 1e15) == again.disturbed
    assert again == measure_ceilings("cpu", session=session, cache_dir=tmp_path)


def keep_old_disturbed(cache_dir: Path) -> Ceilings:
    """Figures of this machine in `cache_dir` that wait to be replaced."""
    threads = len(os.sched_getaffinity(0))
    key = f"cpu/{cpu_info().model}/{threads} threads/{platform.release()}"
    kept = Ceilings(
        device="a CPU",
        target="cpu",
        copy_bytes_per_s=1e10,
        cache_bytes_per_s=1e11,
        last_level_cache_bytes=1 << 20,
        flops_per_s={"fp32": 1e11},
        launch_us=1.0,
        threads=threads,
        disturbed=True,
    )
    file = cache_dir / "ceilings" / f"{sha256_hex(key.encode())[:32]}.json"
    file.parent.mkdir()
    body = {"schema": 5, "ceilings": kept.model_dump(mode="json")}
    file.write_text(json.dumps(body), encoding="utf-8")
    os.utime(file, (0, 0))
    assert cached_ceilings("cpu", threads=threads, cache_dir=cache_dir) == kept
    return kept


def test_nobody_waits_for_the_device_to_replace_what_is_known(
    session: TargetSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    kept = keep_old_disturbed(tmp_path)
    said: list[str] = []
    with device_lock("cpu", wait_s=0):
        assert (
            measure_ceilings("cpu", session=session, cache_dir=tmp_path, emit=said.append, idle=lambda: True)
            == kept
        )
    assert said == []


def test_a_machine_that_is_still_busy_keeps_what_is_known_however_old(
    session: TargetSession, tmp_path: Path
) -> None:
    kept = keep_old_disturbed(tmp_path)
    said: list[str] = []
    again = measure_ceilings("cpu", session=session, cache_dir=tmp_path, emit=said.append, idle=lambda: False)
    assert (again, said) == (kept, [])
    assert kept.disturbed, "the mark stays"


def test_where_nothing_is_known_the_wait_for_the_device_has_an_end(
    session: TargetSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    with device_lock("cpu", wait_s=0), pytest.raises(LockedError):
        measure_ceilings("cpu", session=session, cache_dir=tmp_path, wait_s=0.0)


def test_what_another_run_measured_while_this_one_waited_is_taken(
    session: TargetSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    said: list[str] = []
    with contextlib.ExitStack() as other:
        other.enter_context(device_lock("cpu", wait_s=0))

        def finish_the_other(message: str) -> None:
            said.append(message)
            if message.startswith(DEVICE_WAIT):
                keep_old_disturbed(tmp_path)
                other.close()

        taken = measure_ceilings("cpu", session=session, cache_dir=tmp_path, emit=finish_the_other)
    assert taken == cached_ceilings("cpu", threads=session.threads, cache_dir=tmp_path)
    assert len(said) == 2
    assert said[1] == DEVICE_FREE


def test_transfers_have_a_rate_for_each_direction_and_kind_of_memory() -> None:
    from stitch_tools.worker.timed.rates import transfer_rates

    # To this process' own memory; without a GPU none can be pinned.
    rates = TransferRates(**transfer_rates("cpu"))
    assert rates.to_device_pageable is not None
    assert rates.to_host_pageable is not None
    assert min(rates.to_device_pageable, rates.to_host_pageable) > 1e8


def test_of_two_measurements_each_rate_is_the_higher_one() -> None:
    first = TransferRates(to_device_pinned=2.0, to_host_pinned=5.0, to_host_pageable=1.0)
    second = TransferRates(to_device_pinned=3.0, to_host_pinned=4.0, to_device_pageable=7.0)
    best = TransferRates(
        to_device_pinned=3.0, to_host_pinned=5.0, to_device_pageable=7.0, to_host_pageable=1.0
    )
    assert first.wider(second) == second.wider(first) == best
    assert first.wider(None) == first


def test_a_gpu_that_is_not_here_is_an_error_with_the_next_step(
    session: TargetSession, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentMissingError, match="cannot be measured here") as caught:
        measure_ceilings("cuda:sm_10", session=session, cache_dir=tmp_path)
    assert caught.value.hint

"""Ceilings are plausible, cached, and measured again only when asked."""

import json
import shutil
from pathlib import Path

import pytest

from stitch_tools.ceilings import measure_ceilings
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models import Ceilings
from stitch_tools.processes.interpreter import find_interpreter
from stitch_tools.processes.session import TargetSession

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def measured(cache_dir: Path) -> Ceilings:
    return measure_ceilings("cpu", cache_dir=cache_dir)


def need_quiet(cache_dir: Path) -> None:
    if not (cache_dir / "ceilings").exists():
        pytest.skip("this machine was too busy: its figures were not kept")


@pytest.mark.slow
def test_figures_of_one_run_stand_in_a_plausible_order(measured: Ceilings) -> None:
    assert measured.cache_bytes_per_s is not None
    assert measured.pointwise_flops_per_s is not None
    # Busy test machines blur them, never by this much.
    assert measured.cache_bytes_per_s > 0.5 * measured.copy_bytes_per_s > 0.0
    assert measured.pointwise_flops_per_s > 0.0
    assert measured.launch_us > 0.0
    assert measured.flops_per_s == {"fp32": measured.pointwise_flops_per_s}
    assert measured.last_level_cache_bytes > 1 << 17
    assert measured.device in measured.device_key


@pytest.mark.slow
def test_a_second_call_measures_nothing(measured: Ceilings, cache_dir: Path) -> None:
    need_quiet(cache_dir)
    said: list[str] = []
    assert measure_ceilings("cpu", cache_dir=cache_dir, emit=said.append) == measured
    assert said == []


@pytest.mark.slow
def test_a_session_adds_the_measured_rate_of_matrix_products(measured: Ceilings, cache_dir: Path) -> None:
    with TargetSession(find_interpreter(None, cache_dir), threads=measured.threads) as session:
        better = measure_ceilings("cpu", cache_dir=cache_dir, session=session)
        again = measure_ceilings("cpu", cache_dir=cache_dir, session=session)
    assert better.flops_per_s["fp32"] > 0.0
    need_quiet(cache_dir)
    assert again == better
    assert measure_ceilings("cpu", cache_dir=cache_dir) == better


@pytest.mark.slow
def test_a_damaged_cache_is_measured_anew(measured: Ceilings, cache_dir: Path) -> None:
    need_quiet(cache_dir)
    (entry,) = (cache_dir / "ceilings").glob("*.json")
    entry.write_text("{", encoding="utf-8")
    said: list[str] = []
    measure_ceilings("cpu", cache_dir=cache_dir, emit=said.append)
    if len(said) == 1:  # a second sentence says that the machine was busy
        assert json.loads(entry.read_text(encoding="utf-8"))["schema"] == 2
    assert said


def test_a_gpu_that_is_not_here_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissingError, match="cannot be measured here") as caught:
        measure_ceilings("cuda:sm_10", cache_dir=tmp_path)
    assert caught.value.hint

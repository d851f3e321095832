"""What `doctor` finds, and the fix that it names."""

import json
from pathlib import Path

import pytest

from stitch_mcp import doctor
from stitch_mcp.cli import main
from stitch_mcp.config import load_config
from stitch_tools.compile import headers
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.machine import devices
from stitch_tools.profile.permission import CounterAccess
from stitch_tools.run import interpreter as interpreters
from stitch_tools.run.interpreter import Interpreter


def statuses(items: list[doctor.Item]) -> dict[str, str]:
    return {item.name: item.status for item in items}


def test_this_machine_is_examined_in_full(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["doctor", "--json", "--workspace", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    items = {item["name"]: item for item in found["items"]}
    wanted = {"platform", "CPU", "our Python", "C++ compiler", "nvcc", "oneDNN", "cuBLASLt"}
    wanted |= {
        "target interpreter",
        "isolation",
        "GPU",
        "ncu",
        "nsys",
        "ceilings",
        "workspace",
        "cache",
        "temporary files",
    }
    assert wanted <= set(items)
    assert code == (0 if found["can_solve_cpu"] else 5)
    for item in items.values():
        assert item["status"] in {"ok", "warning", "optional", "missing", "failed"}
        assert item["detail"]
        assert item["fix"] or item["status"] == "ok", item


def test_an_interpreter_without_torch_fails_with_the_fix(tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    config = load_config(
        {"workspace": str(tmp_path), "python": str(tmp_path / "bare" / "bin" / "python")}, environ={}
    )
    seen = doctor.examine(config)
    item = next(item for item in seen.items if item.name == "target interpreter")
    assert (item.status, seen.can_solve_cpu) == ("failed", False)
    assert "torch" in item.fix


def test_libraries_are_looked_for_where_a_build_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own environment may lack what lies in that of the target interpreter."""
    other = Interpreter(str(tmp_path / "bin" / "python"), "3.12.0", "2.6.0", "option")
    for place in ("include/dnnl.h", "lib/libdnnl.so.3", "bin/python"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(b"")
    Path(other.path).write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    Path(other.path).chmod(0o755)
    cublas = tmp_path / "lib" / "python3.12" / "site-packages" / "nvidia" / "cublas" / "include"
    cublas.mkdir(parents=True)
    (cublas / "cublasLt.h").write_bytes(b"")

    def no_nvcc(env: object = None) -> None:
        raise EnvironmentMissingError("no CUDA compiler was found (nvcc)", hint="")

    def found(option: str | None, workspace: Path) -> Interpreter:
        del option, workspace
        return other

    # A toolkit would come before the wheels of an interpreter.
    monkeypatch.setattr(headers, "find_nvcc", no_nvcc)
    monkeypatch.setattr(interpreters, "find_interpreter", found)
    items = {item.name: item for item in doctor.examine(load_config({"workspace": str(tmp_path)})).items}
    assert items["oneDNN"].status == items["cuBLASLt"].status == "ok"
    assert str(tmp_path / "include") in items["oneDNN"].detail
    assert str(cublas) in items["cuBLASLt"].detail


NVCC = """#!/bin/sh
echo 'nvcc: NVIDIA (R) Cuda compiler driver'
echo 'Cuda compilation tools, release 13.0, V13.0.48'
"""


def test_nvcc_without_a_host_compiler_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(NVCC, encoding="utf-8")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/nope")
    monkeypatch.delenv("STITCH_CXX", raising=False)
    config = load_config({"workspace": str(tmp_path), "python": "/nope", "target": "cuda:sm_90"})
    seen = doctor.examine(config)
    items = {item.name: item for item in seen.items}
    assert (items["nvcc"].status, items["nvcc host compiler"].status) == ("ok", "failed")
    assert items["C++ compiler"].status == "failed"
    assert "CXX=/nope" in items["C++ compiler"].detail
    assert not seen.can_build_cuda


@pytest.mark.parametrize(("target", "status"), [("cpu", "optional"), ("cuda:sm_90", "missing")])
def test_what_only_a_gpu_needs_is_no_defect_for_a_cpu(
    target: str, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "find_gpus", lambda: devices.GpuSearch((), None, None, "no driver"))
    config = load_config({"workspace": str(tmp_path), "python": "/nope", "target": target})
    items = {item.name: item for item in doctor.examine(config).items}
    assert items["GPU"].status == status
    assert "only profiling needs it" not in items["ncu"].fix


def test_how_tensors_travel_is_named_with_the_reason() -> None:
    found = doctor.plane_item("device", "")
    assert (found.name, found.status) == ("data plane", "ok")
    found = doctor.plane_item("host", "cuMemCreate: CUDA error 801")
    assert found.status == "optional"
    assert "cuMemCreate" in found.detail
    assert found.fix


@pytest.mark.parametrize(
    ("driver", "torch", "status"),
    [("13.0", "13.0", "ok"), ("13.0", "12.8", "ok"), ("12.4", "13.0", "failed"), ("13.0", None, "warning")],
)
def test_torch_must_not_be_newer_than_the_driver(driver: str, torch: str | None, status: str) -> None:
    found = doctor.version_items(driver, torch, toolkit=None)
    assert statuses(found) == {"torch and driver": status}
    assert found[0].fix or status == "ok"


def test_the_toolkit_must_not_be_newer_than_the_driver() -> None:
    found = statuses(doctor.version_items("12.4", "12.4", toolkit="13.0"))
    assert found == {"torch and driver": "ok", "toolkit and driver": "failed"}


def test_nsys_without_libdw_is_a_warning_that_names_the_package() -> None:
    item = doctor.nsys_item("/opt/nsys", has_libdw=False)
    assert item.status == "warning"
    assert "libdw1" in item.fix
    assert doctor.nsys_item("/opt/nsys", has_libdw=True).status == "ok"
    assert doctor.nsys_item(None, has_libdw=True).status == "optional"


def test_counters_that_are_closed_are_a_warning_with_the_permission_that_opens_them() -> None:
    item = doctor.counter_item(CounterAccess(restricted=True, privileged=False))
    assert item.status == "warning"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in item.fix
    assert "CAP_PERFMON" in item.fix
    assert doctor.counter_item(CounterAccess(restricted=True, privileged=True)).status == "ok"
    assert doctor.counter_item(CounterAccess(restricted=False, privileged=False)).status == "ok"
    unknown = doctor.counter_item(CounterAccess(restricted=None, privileged=False))
    assert (unknown.status, bool(unknown.fix)) == ("optional", True)


def test_weaker_isolation_is_a_warning_with_its_reason() -> None:
    assert doctor.isolation_item("full", "").status == "ok"
    weaker = doctor.isolation_item("process", "user namespaces are switched off")
    assert (weaker.status, "switched off" in weaker.detail) == ("warning", True)
    assert "userns" in weaker.fix


def test_a_folder_that_is_not_there_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    item = doctor.folder_item("cache", tmp_path / "not" / "yet")
    assert item.status in {"ok", "warning"}
    assert "GB free" in item.detail


@pytest.mark.parametrize("place", ["/sys", "/proc/1", "file/below", "loop/below"])
def test_a_folder_that_takes_no_files_cannot_be_written_whatever_its_room(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    item = doctor.folder_item("workspace", tmp_path / place)
    assert item.status == "failed"
    assert "cannot be written" in item.detail
    assert "--workspace" in item.fix

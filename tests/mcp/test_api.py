"""The Python API: its page, its laziness, and programs loaded from certificates."""

import re
import subprocess
import sys
import venv
from datetime import UTC, datetime
from pathlib import Path

import pytest

import stitch_mcp
from stitch_mcp.api import capture_reference, plan_reference
from stitch_mcp.named_programs import read_program
from stitch_tools.errors import CertificateError, StitchError, UsageError
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.models.environment import Environment
from stitch_tools.models.task import Contract, ReferenceFacts, Task, TensorSpec
from stitch_tools.models.verdict import Check
from stitch_tools.storage.certificate import Certificate, seal_certificate, write_certificate
from stitch_tools.storage.store import Store

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "tools" / "programs"


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate of the program `linear_relu.cpp`, made by hand."""
    monkeypatch.setenv("STITCH_CACHE_DIR", str(tmp_path / "cache"))
    store = Store(tmp_path / "store")
    task = Task(
        name="reference",
        files=store.put_files({"linear_relu.py": (PROGRAMS / "linear_relu.py").read_bytes()}),
        main="linear_relu.py",
        contract=Contract(),
    )
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "linear_relu.cpp").write_bytes((PROGRAMS / "linear_relu.cpp").read_bytes())
    (folder / "fault.h").write_text("#define FAULT NONE\n", encoding="utf-8")
    program = read_program(folder, store, target="cpu")
    facts = ReferenceFacts(
        inputs=(TensorSpec(name="0", shape=(8, 16), dtype="float32"),),
        outputs=(TensorSpec(name="", shape=(8, 33), dtype="float32"),),
        output_structure='"leaf"',
        parameters=(
            TensorSpec(name="fc.weight", shape=(33, 16), dtype="float32"),
            TensorSpec(name="fc.bias", shape=(33,), dtype="float32"),
        ),
    )
    entries = {
        "task.json": task.canonical_json(),
        "facts.json": facts.canonical_json(),
        "program.json": program.canonical_json(),
        **{f"task/{file.path}": store.get(file.sha256) for file in task.files},
        **{f"program/{file.path}": store.get(file.sha256) for file in program.files},
    }
    draft = Certificate(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id="by-hand",
        task_id=task.task_id,
        program_id=program.program_id,
        target="cpu",
        check=Check(program_id=program.program_id, task_id=task.task_id, status="accepted"),
        bench=None,
        environment=Environment(stitch_version="test", platform="test"),
        files=(),
    )
    path = tmp_path / "by hand.stitch.zip"
    write_certificate(seal_certificate(draft, entries), path)
    return path


def test_the_public_names_are_these() -> None:
    assert sorted(stitch_mcp.__all__) == [
        "__version__",
        "benchmark_program",
        "check_program",
        "compile_program",
        "load_program",
        "load_task",
        "profile_program",
        "solve",
        "write_report",
    ]
    for name in stitch_mcp.__all__:
        assert getattr(stitch_mcp, name)
        assert name in dir(stitch_mcp)
    with pytest.raises(AttributeError, match="no attribute 'sovle'"):
        _ = stitch_mcp.sovle  # pyright: ignore[reportAttributeAccessIssue] # the point of the test


def test_the_page_names_every_function() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in stitch_mcp.__all__:
        assert name == "__version__" or f"stitch_mcp.{name}(" in text, name


@pytest.mark.exhaustive
def test_the_code_on_the_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the page loads programs, which needs torch in this interpreter")
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_loaded_program_computes_what_the_reference_computes(certificate: Path) -> None:
    torch = pytest.importorskip("torch")
    reference = torch.nn.Module()
    reference.fc = torch.nn.Linear(16, 33)
    fast = stitch_mcp.load_program(certificate, weights=reference)
    x = torch.randn(8, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), torch.relu(reference.fc(x)))
    assert list(fast.state_dict()) == ["fc.weight", "fc.bias"]


def test_other_weights_can_be_loaded_later(certificate: Path) -> None:
    torch = pytest.importorskip("torch")
    fast = stitch_mcp.load_program(certificate)
    other = torch.nn.Module()
    other.fc = torch.nn.Linear(16, 33)
    fast.load_state_dict(other.state_dict())
    x = torch.randn(8, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), torch.relu(other.fc(x)))


def test_without_weights_it_has_those_of_a_fresh_reference_and_disturbs_nothing(certificate: Path) -> None:
    torch = pytest.importorskip("torch")
    path, state = list(sys.path), torch.get_rng_state()
    fast = stitch_mcp.load_program(certificate)
    assert sys.path == path
    assert torch.equal(torch.get_rng_state(), state)
    assert "linear_relu" not in sys.modules
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = torch.nn.Linear(16, 33)
    x = torch.randn(8, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), torch.relu(fresh(x)))


def test_gradients_are_refused_in_words(certificate: Path) -> None:
    torch = pytest.importorskip("torch")
    fast = stitch_mcp.load_program(certificate)
    with pytest.raises(RuntimeError, match="no gradients"):
        fast(torch.randn(8, 16, requires_grad=True))


def test_weights_of_another_module_are_refused(certificate: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"the weights lack fc\.weight"):
        stitch_mcp.load_program(certificate, weights=torch.nn.Linear(16, 33))


@pytest.mark.parametrize("name", ["last", "program.cpp"])
def test_what_is_no_certificate_is_told_how_to_get_one(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.cpp").write_text("int main() {}\n", encoding="utf-8")
    with pytest.raises(StitchError) as caught:
        stitch_mcp.load_program(tmp_path / name)
    assert "certify RUN --output FILE" in caught.value.hint


def test_a_damaged_certificate_is_not_loaded(certificate: Path) -> None:
    pytest.importorskip("torch")
    data = bytearray(certificate.read_bytes())
    data[len(data) // 2] ^= 1
    certificate.write_bytes(data)
    with pytest.raises(CertificateError):
        stitch_mcp.load_program(certificate)


def test_a_certificate_is_a_program(certificate: Path, tmp_path: Path) -> None:
    build = stitch_mcp.compile_program(certificate, workspace=tmp_path)
    assert build.ok


def test_a_reference_is_shown_without_times_while_others_time_on_a_device_never_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    said: list[str] = []
    with device_lock("cpu", wait_s=0):
        seen = capture_reference(
            PROGRAMS / "linear_relu.py",
            workspace=tmp_path,
            cache_dir=tmp_path / "cache",
            emit=said.append,
        )
    assert seen.graph.nodes
    assert (seen.ceilings, plan_reference(seen).predicted_us) == (None, None)
    assert any(sentence.startswith("no times are predicted") for sentence in said)


def test_loading_a_task_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "raise SystemExit('it ran')\nclass Model: ...\ndef get_inputs(): return []\n", encoding="utf-8"
    )
    assert stitch_mcp.load_task(tmp_path / "model.py", workspace=tmp_path).name == "model"


def test_a_build_takes_onednn_from_the_target_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("STITCH_ONEDNN", raising=False)
    target = tmp_path / "target"
    venv.create(target, symlinks=True)
    (packages,) = target.glob("lib/python3*/site-packages")
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]), encoding="utf-8")
    (target / "include").mkdir(exist_ok=True)
    (target / "include" / "dnnl.h").write_text("#define ONLY_HERE 7\n", encoding="utf-8")
    (target / "lib" / "libdnnl.so.3").touch()
    program = tmp_path / "program"
    program.mkdir()
    source = (PROGRAMS / "linear_relu.cpp").read_text(encoding="utf-8")
    (program / "linear_relu.cpp").write_text(
        f"#include <dnnl.h>\nstatic_assert(ONLY_HERE == 7);\n{source}", encoding="utf-8"
    )
    (program / "fault.h").write_text("#define FAULT NONE\n", encoding="utf-8")
    build = stitch_mcp.compile_program(
        program, python=str(target), workspace=tmp_path, cache_dir=tmp_path / "cache"
    )
    assert build.ok, build.diagnostics
    assert build.libraries == (str(target / "lib" / "libdnnl.so.3"),)

"""compute-sanitizer on a GPU: one defect for each tool, an honest twin, and a ModelNew that builds itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.memory import SanitizeOptions, sanitize_program
from stitch_tools.judge.memory.compute_sanitizer import find_compute_sanitizer
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Program
from stitch_tools.models.sanitizer import SanitizerRun, SanitizerTool
from stitch_tools.models.task import Contract, Task
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import PROGRAMS, build, make_task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]
TARGET = "cuda:sm_90"


@dataclass
class GpuSanitizerSetup:
    """A warm session with the reference on the GPU."""

    session: TargetSession
    store: Store
    task: Task
    reference: ReferenceServer
    cache_dir: Path

    def __post_init__(self) -> None:
        self.facts = self.reference.observe()

    def run(self, files: dict[str, bytes], main: str, *tools: SanitizerTool) -> dict[str, SanitizerRun]:
        form = "native" if main.endswith(".cu") else "kernelbench"
        program = Program(format=form, target=TARGET, files=self.store.put_files(files), main=main)
        runs = sanitize_program(
            Trial(
                task=self.task,
                program=program,
                build=build(program, self.store) if form == "native" else None,
                session=self.session,
                store=self.store,
                facts=self.facts,
                reference=self.reference,
            ),
            SanitizeOptions(tools=tools, cache_dir=self.cache_dir),
        )
        return {run.tool: run for run in runs}

    def native(self, defect: str, *tools: SanitizerTool) -> dict[str, SanitizerRun]:
        files = {
            "doubled.cu": (PROGRAMS / "doubled.cu").read_bytes(),
            "defect.h": f"#define DEFECT {defect}\n".encode(),
        }
        return self.run(files, "doubled.cu", *tools)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuSanitizerSetup]:
    try:
        find_compute_sanitizer()
    except EnvironmentMissingError as error:
        pytest.skip(f"{error.message}: not measured")
    root = tmp_path_factory.mktemp("sanitize-gpu")
    store = Store(root / "store")
    task = make_task(
        store, (PROGRAMS / "doubled.py").read_bytes(), target=TARGET, contract=Contract(shape_policy="fixed")
    )
    with (
        TargetSession(find_interpreter(None, root), scratch_root=root / "scratch") as session,
        ReferenceServer(session, task, store) as reference,
    ):
        yield GpuSanitizerSetup(session, store, task, reference, root / "cache")


def test_an_honest_kernel_is_clean_under_every_tool(setup: GpuSanitizerSetup) -> None:
    runs = setup.native("NONE")
    assert set(runs) == {"memcheck", "racecheck", "initcheck", "synccheck"}
    assert {run.status for run in runs.values()} == {"clean"}, runs


@pytest.mark.parametrize(
    ("defect", "tool", "rule"),
    [
        ("READS_ONE_BEYOND", "memcheck", "invalid-read"),
        ("WRITES_ONE_BEYOND", "memcheck", "invalid-write"),
        ("RACES", "racecheck", "race"),
        ("READS_UNWRITTEN", "initcheck", "uninitialised-read"),
        ("DIVERGES", "synccheck", "invalid-barrier"),
    ],
)
def test_each_defect_is_found_by_its_tool_at_its_kernel(
    setup: GpuSanitizerSetup, defect: str, tool: SanitizerTool, rule: str
) -> None:
    run = setup.native(defect, tool)[tool]
    assert run.status == "findings", run
    finding = next(row for row in run.findings if row.rule == rule)
    assert "double_all" in (finding.kernel or "")
    assert finding.file == "doubled.cu"
    assert finding.line is not None


@pytest.mark.parametrize(("beyond", "status"), [("0", "clean"), ("1", "findings")])
def test_a_model_new_is_run_with_torch_s_pool_switched_off(
    setup: GpuSanitizerSetup, beyond: str, status: str
) -> None:
    source = (PROGRAMS / "doubled_new.py").read_bytes().replace(b"BEYOND 0", f"BEYOND {beyond}".encode())
    run = setup.run({"program.py": source}, "program.py", "memcheck")["memcheck"]
    assert run.status == status, run

"""The check on a GPU, on both planes that tensors can travel on: faults of kernels are told apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Program
from stitch_tools.models.verdict import Check
from stitch_tools.run.data_plane import SETTING
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import PROGRAMS, build, checked, linear_relu_task, make_task, model_new

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]
TARGET = "cuda:sm_90"


class CudaCheckSetup:
    """A warm session with the reference on the GPU."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store
        self.task = linear_relu_task(store, target=TARGET)
        self.reference = ReferenceServer(session, self.task, store)
        self.facts = self.reference.observe()

    def check(self, files: dict[str, bytes], main: str, options: CheckOptions | None = None) -> Check:
        form = "native" if main.endswith(".cu") else "kernelbench"
        program = Program(format=form, target=TARGET, files=self.store.put_files(files), main=main)
        return check_program(
            Trial(
                task=self.task,
                program=program,
                build=build(program, self.store) if form == "native" else None,
                session=self.session,
                store=self.store,
                facts=self.facts,
                reference=self.reference,
            ),
            options,
        )

    def check_native(self, fault: str, options: CheckOptions | None = None) -> Check:
        source = (PROGRAMS / "linear_relu.cu").read_bytes()
        files = {"linear_relu.cu": source, "fault.h": f"#define FAULT {fault}\n".encode()}
        return self.check(files, "linear_relu.cu", options)


@pytest.fixture(scope="module", params=["device", "host"])
def setup(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CudaCheckSetup]:
    root = tmp_path_factory.mktemp("cuda")
    with (
        pytest.MonkeyPatch.context() as patch,
        TargetSession(find_interpreter(None, root), scratch_root=root / "scratch") as session,
    ):
        patch.setenv(SETTING, request.param)
        setup = CudaCheckSetup(session, Store(root / "store"))
        with setup.reference:
            if setup.reference.plane != request.param:
                pytest.skip(f"no such plane here: {session.plane().reason}")
            yield setup


def test_a_right_kernel_is_accepted(setup: CudaCheckSetup) -> None:
    check = setup.check_native("NONE")
    assert check.status == "accepted", check.message
    assert check.oracle == "fp64"
    assert all(draw.ok for draw in check.draws)
    assert {"own-1", "own-2"} <= {draw.draw for draw in check.draws}
    assert check.plane == setup.session.plane().kind
    assert not any("shared memory" in row for row in check.not_checked), check.not_checked
    print(f"{check.sandbox}, {check.wall_s:.2f} s")


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("WRONG", "incorrect", "32]: expected"),
        ("NOTHING", "incorrect", "was never written"),
        ("ILLEGAL", "crashed", "illegal memory access"),
        ("BEYOND", "incorrect", "memory beside the outputs was overwritten"),
        ("BEFORE", "incorrect", "memory beside the outputs was overwritten"),
        ("UNWRITTEN", "incorrect", "expected"),
    ],
)
def test_faults_of_a_kernel_are_told_apart(
    setup: CudaCheckSetup, fault: str, status: str, words: str
) -> None:
    check = setup.check_native(fault)
    assert check.status == status, check.message
    assert words in check.message


def test_a_write_behind_the_outputs_is_a_finding(setup: CudaCheckSetup) -> None:
    check = setup.check_native("BEYOND")
    assert "out_of_bounds_write" in [row.rule for row in check.findings]


def test_a_kernel_that_never_ends_is_timed_out_and_the_next_check_is_clean(setup: CudaCheckSetup) -> None:
    check = setup.check_native("SPINS", CheckOptions(call_timeout_s=5))
    assert check.status == "timed_out", check.message
    assert setup.check_native("NONE").status == "accepted"


def test_a_model_new_runs_on_the_gpu(setup: CudaCheckSetup) -> None:
    source = (PROGRAMS / "linear_relu.py").read_bytes().replace(b"class Model(", b"class ModelNew(")
    check = setup.check({"program.py": source}, "program.py")
    assert check.status == "accepted", check.message
    assert check.flags == ("partial",)


def test_outputs_that_end_shortly_before_a_page_does_are_mapped(setup: CudaCheckSetup) -> None:
    # Behind 4,096,000 bytes a guard lies on the next page of 2 MiB, and memory is mapped whole or not at all.
    source = (
        "import torch\n\n\nclass {name}(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
        "\n\ndef get_inputs():\n    return [torch.rand(1024, 1000)]\n"
        "\n\ndef get_init_inputs():\n    return []\n"
    )
    task = make_task(setup.store, source.format(name="Model"), target=TARGET)
    program = model_new(setup.store, source.format(name="ModelNew"))
    program = program.model_copy(update={"target": TARGET})
    check = checked(setup.session, setup.store, task, program)
    assert check.status == "accepted", check.message

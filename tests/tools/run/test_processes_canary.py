"""A GPU that does not answer is found by a process that may hang for us, and is out of use from then on."""

import sys
import time
from pathlib import Path

import pytest

from stitch_tools.errors import EnvironmentMissingError, WorkerError
from stitch_tools.judge.correctness.check_record import End
from stitch_tools.judge.gpu_health import canary_for, sound_gpu, wedged
from stitch_tools.run.child_outcome import ChildTimeout
from stitch_tools.run.gpu_canary import GpuCanary
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession

HANDLERS = Path(__file__).with_name("processes_handlers.py")
CRASHED = End("crashed", "the process crashed with SIGSEGV")
# Counts how often it was asked; hangs, as deaf to signals as a process can be, where a file says so.
PROBE = """
import os, signal, sys, time
folder = sys.argv[1]
with open(folder + "/asked", "a") as file:
    file.write("x")
if os.path.exists(folder + "/hangs"):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(600)
if os.path.exists(folder + "/fails"):
    sys.exit("CUDA error 719")
"""


class Machine:
    """A GPU that hangs or fails when told to, and its canary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary = GpuCanary([sys.executable, "-S", "-c", PROBE, str(folder)], limit_s=1.0)

    def set(self, trouble: str) -> None:
        (self.folder / trouble).touch()

    @property
    def asked(self) -> int:
        file = self.folder / "asked"
        return file.stat().st_size if file.exists() else 0

    def processes(self) -> list[Path]:
        mark = str(self.folder).encode()
        return [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended while we looked
        return b""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_gpu_that_works_is_asked_once_and_again_after_a_doubt(machine: Machine) -> None:
    for _ in range(3):
        machine.canary.require()
    assert machine.asked == 1
    machine.canary.doubt()
    machine.canary.require()
    assert machine.asked == 2


def test_a_question_that_was_begun_is_the_one_that_is_answered(machine: Machine) -> None:
    machine.canary.begin()
    machine.canary.begin()
    machine.canary.require()
    machine.canary.begin()
    assert machine.asked == 1


def test_a_question_from_before_a_doubt_is_asked_anew(machine: Machine) -> None:
    machine.canary.begin()
    machine.canary.doubt()
    machine.set("fails")
    with pytest.raises(EnvironmentMissingError, match="719"):
        machine.canary.require()


def test_a_question_that_nobody_waited_for_is_ended(machine: Machine) -> None:
    machine.set("hangs")
    machine.canary.begin()
    machine.canary.close()
    assert machine.processes() == []


def test_a_gpu_that_hangs_is_out_of_use_and_not_asked_again(machine: Machine) -> None:
    machine.set("hangs")
    start = time.monotonic()
    with pytest.raises(EnvironmentMissingError, match=r"out of use: .* did not end within 1 s") as caught:
        machine.canary.require()
    assert "nvidia-smi --gpu-reset" in caught.value.hint
    machine.canary.doubt()
    with pytest.raises(EnvironmentMissingError, match="out of use"):
        machine.canary.require()
    assert machine.asked == 1
    assert time.monotonic() - start < 10.0
    assert machine.processes() == []


def test_what_the_driver_said_is_in_the_message(machine: Machine) -> None:
    machine.set("fails")
    with pytest.raises(EnvironmentMissingError, match="failed: CUDA error 719"):
        machine.canary.require()


def test_a_program_that_wedged_the_gpu_is_told_so_and_the_next_one_is_not_judged(machine: Machine) -> None:
    with sound_gpu(machine.canary):
        machine.set("hangs")
    (finding,) = wedged(machine.canary, CRASHED)
    assert (finding.rule, finding.severity) == ("gpu_wedged", "suspicious")
    assert "did not end within 1 s" in finding.message
    with pytest.raises(EnvironmentMissingError, match="out of use"), sound_gpu(machine.canary):
        pytest.fail("nothing may run on it")


def test_a_program_that_crashed_and_left_the_gpu_well_gets_no_finding(machine: Machine) -> None:
    with sound_gpu(machine.canary):
        pass
    assert wedged(machine.canary, CRASHED) == ()
    assert wedged(machine.canary, End("incorrect", "")) == wedged(machine.canary, None) == ()
    assert machine.asked == 2
    with sound_gpu(machine.canary):
        pass
    assert machine.asked == 2


def test_after_a_failure_of_ours_the_gpu_is_asked_again(machine: Machine) -> None:
    with pytest.raises(WorkerError), sound_gpu(machine.canary):
        raise WorkerError("process 17 does not end")
    machine.set("fails")
    with pytest.raises(EnvironmentMissingError, match="719"), sound_gpu(machine.canary):
        pytest.fail("nothing may run on it")


def test_programs_for_the_cpu_ask_no_gpu(tmp_path: Path, machine: Machine) -> None:
    session = TargetSession(find_interpreter(None, tmp_path), gpu=machine.canary)
    canary = canary_for(session, "cpu")
    assert canary is None
    with sound_gpu(canary):
        assert wedged(canary, CRASHED) == ()
    assert machine.asked == 0


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured")
def test_a_real_gpu_answers_also_after_a_kernel_that_never_ended(tmp_path: Path) -> None:
    with TargetSession(find_interpreter(None, tmp_path)) as session:
        start = time.monotonic()
        session.gpu.require()
        print(f"first answer after {time.monotonic() - start:.2f} s")
        with session.spawn("worker", serve_file=HANDLERS) as child, pytest.raises(ChildTimeout):
            child.request({"op": "spin_gpu"}, timeout_s=20.0)
        start = time.monotonic()
        assert wedged(canary_for(session, "cuda"), CRASHED) == ()
        print(f"answer after the kernel {time.monotonic() - start:.2f} s")

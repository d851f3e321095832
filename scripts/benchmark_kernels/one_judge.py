"""Checks and times scale.cpp in a process of its own, and prints as JSON what came out and when it timed.

    python one_judge.py FOLDER NUMBER     FOLDER holds store and cache, NUMBER makes the program a new one

Times are seconds of the system's monotonic clock, taken inside the timing slot: those of two processes on one
device must never overlap.
"""

import json
import sys
import time
from pathlib import Path

from stitch_tools.compile import compile_program
from stitch_tools.judge.check import check_program
from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

SOURCE = Path(__file__).with_name("scale.cpp")
TASK = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0


def get_inputs():
    return [torch.randn(1000)]


def get_init_inputs():
    return []
"""
# The others keep both cores busy: nobody would ever see an undisturbed block.
RULES = TimingRules(min_rounds=10, max_rounds=10, blocks_per_visit=1, ignore_others=True)


def main() -> None:
    """Judge once, with every probe."""
    folder, number = Path(sys.argv[1]), sys.argv[2]
    store, cache = Store(folder / "store"), folder / "cache"
    files = store.put_files({"scale.cpp": SOURCE.read_bytes() + f"// {number}\n".encode()})
    program = Program(format="native", target="cpu", files=files, main="scale.cpp")
    task = Task(name="scale", files=store.put_files({"scale.py": TASK.encode()}), main="scale.py")
    said: list[tuple[float, str]] = []
    began = time.monotonic()
    with (
        TargetSession(find_interpreter(None, folder), threads=1) as session,
        ReferenceServer(session, task, store) as reference,
    ):
        facts = reference.observe()
        build = compile_program(program, store, cache_dir=cache)
        check = check_program(
            Trial(
                task=task,
                program=program,
                build=build,
                session=session,
                store=store,
                facts=facts,
                reference=reference,
            )
        )
        bench = benchmark_program(
            Trial(
                task=task,
                program=program,
                build=build,
                session=session,
                store=store,
                facts=facts,
                emit=lambda sentence: said.append((time.monotonic(), sentence)),
            ),
            BenchOptions(baselines=("eager",), quick=True, rules=RULES, cache_dir=cache),
        )
    slots = [
        (start, next(at for at, end in said[index:] if end.startswith("comparing outputs")))
        for index, (start, sentence) in enumerate(said)
        if sentence.startswith("timing program")
    ]
    wall_s = time.monotonic() - began
    print(
        json.dumps(
            {
                "status": check.status,
                "check_s": check.wall_s,
                "outcome": bench.outcome,
                "message": bench.message,
                "slots": slots,
                "wall_s": wall_s,
            }
        )
    )


if __name__ == "__main__":
    main()

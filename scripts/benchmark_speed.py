"""How fast the judge judges, alone and eight at once, beside stock tools; what naive timers say of cheats."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import Queue
from typing import Any

from benchmark_table import Table, spread

ROOT = Path(__file__).resolve().parent.parent
KERNELS = Path(__file__).resolve().parent / "benchmark_kernels"
JUDGES = 8
STOCK_LIMIT_S = 600.0
LONGEST_S = 40.0
POINTWISE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
"""
EXAMPLES = {
    "cpu": ("mlp", "transformer_block", "unet_block"),
    "cuda": ("mlp", "transformer_block", "attention"),
}
TIMING_FAMILIES = (
    "timed_region_detected",
    "unfinished_work",
    "work_outside_forward",
    "more_resources",
    "patched_function",
    "work_put_off",
    "kept_results",
    "cached_",
)


@dataclass(frozen=True)
class WarmJudge:
    """A warm session with one reference loaded, and programs for it."""

    session: Any
    store: Any
    task: Any
    reference: Any
    facts: Any
    cache: Path

    def build(self, program: Any) -> Any:
        """The program's build."""
        from stitch_tools.compile import compile_program

        return compile_program(program, self.store, cache_dir=self.cache)

    def check(self, program: Any, build: Any, **switches: bool) -> Any:
        """A check of the program with all probes but those switched off."""
        from stitch_tools.judge.check import check_program
        from stitch_tools.judge.check_options import CheckOptions
        from stitch_tools.judge.trial import Trial

        return check_program(
            Trial(
                task=self.task,
                program=program,
                build=build,
                session=self.session,
                store=self.store,
                facts=self.facts,
                reference=self.reference,
            ),
            replace(CheckOptions(), **switches),
        )

    def scale(self, number: int = 0) -> Any:
        """scale.cpp, or scale.cu for a GPU; each number is another program."""
        from stitch_tools.models.program import Program

        name = "scale.cpp" if self.task.target == "cpu" else "scale.cu"
        source = (KERNELS / name).read_bytes() + f"// {number}\n".encode()
        files = self.store.put_files({name: source})
        return Program(format="native", target=self.task.target, files=files, main=name)

    def stitched(self) -> Any:
        """The stitcher's program for the reference."""
        from stitch_planner.planning import make_plan
        from stitch_planner.stitcher import stitch
        from stitch_tools.graph import capture_graph
        from stitch_tools.models.program import Program

        graph = capture_graph(self.reference.child, self.task, self.facts, None)
        plan = make_plan(graph, self.facts, self.task, None)
        sources = {file.path: self.store.get(file.sha256) for file in self.task.files}
        made = stitch(self.task, self.facts, graph, plan, sources)
        files = self.store.put_files(made.files)
        return Program(format=made.format, target=self.task.target, files=files, main=made.main)


@contextmanager
def warm(folder: Path, source: str | Path, target: str = "cpu") -> Generator[WarmJudge]:
    """A warm bench for a pointwise reference's source, or for an example's task file."""
    from stitch_mcp import load_task
    from stitch_tools.run.interpreter import find_interpreter
    from stitch_tools.run.reference_server import ReferenceServer
    from stitch_tools.run.session import TargetSession
    from stitch_tools.storage.store import Store

    path = folder / "reference.py"
    if isinstance(source, Path):
        path = source
    else:
        path.write_text(source, encoding="utf-8")
    task = load_task(path, workspace=folder, target=target)
    store = Store(folder / ".stitch" / "store")
    with ExitStack() as stack:
        session = stack.enter_context(TargetSession(find_interpreter(None, folder)))
        reference = stack.enter_context(ReferenceServer(session, task, store))
        yield WarmJudge(session, store, task, reference, reference.observe(), folder / "cache")


def check_speed(count: int = 5, target: str = "cpu") -> Table:
    """Wall seconds of warm checks, whole and without the dearest probes."""
    from stitch_tools.machine.devices import find_gpus

    columns = ("program", "status", "draws", "check", "half IQR", "n", "without tracing", "and sensitivity")
    where = "CPU" if target == "cpu" else "GPU"
    table = Table(f"One warm check on a {where}, all probes", columns)
    if target == "cuda":
        gpus = find_gpus().gpus
        if not gpus:
            table.notes.append("not measured: no GPU here")
            return table
        table.notes.append(f"on one {gpus[0].name}")
    cases: list[tuple[str, str | Path]] = [
        ("pointwise, 1,000 elements", POINTWISE.format(shape="1000")),
        ("pointwise, 16 x 16,384", POINTWISE.format(shape="16, 16384")),
        ("pointwise, 4,096 x 4,096", POINTWISE.format(shape="4096, 4096")),
        *((f"stitched `{name}`", ROOT / "examples" / f"{name}.task.toml") for name in EXAMPLES[target]),
    ]
    for name, source in cases:
        print(f"  {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder, warm(Path(folder), source, target) as bench:
            program = bench.stitched() if isinstance(source, Path) else bench.scale()
            build = bench.build(program)
            first = bench.check(program, build)
            check = partial(bench.check, program, build)
            walls = repeated(check, count)
            less = repeated(partial(check, trace=False), 3)
            least = repeated(partial(check, trace=False, sensitivity=False), 3)
        rest = (f"{statistics.median(values):.2f} s" for values in (less, least))
        table.rows.append([name, first.status, str(len(first.draws)), *spread(walls, "s", 2), *rest])
    table.notes.append(
        "session and reference server are warm, the program is built; one check before is not counted"
    )
    return table


def repeated(check: Callable[[], Any], count: int) -> list[float]:
    """Wall seconds of a check, at most `count` times and not much longer than a minute."""
    walls: list[float] = []
    while len(walls) < count and sum(walls) < LONGEST_S:
        walls.append(check().wall_s)
    return walls


def evaluations(count: int = 24, stock_count: int = 4) -> Table:
    """New candidates an hour, built and judged, beside fresh processes with torch's load_inline."""
    columns = ("harness", "at once", "a candidate", "half IQR", "n", "candidates an hour", "of stock")
    table = Table("Candidate evaluations an hour", columns)
    numbers = iter(range(1, 10**6))
    found: list[tuple[str, int, list[float], float]] = []
    with tempfile.TemporaryDirectory() as folder, warm(Path(folder), POINTWISE.format(shape="1000")) as bench:
        judge(bench, bench.reference, next(numbers))
        for at_once in (1, 2, 4):
            with reference_servers(bench, at_once) as servers:

                def one(servers: "Queue[Any]" = servers) -> None:
                    server = servers.get()
                    judge(bench, server, next(numbers))
                    servers.put(server)

                walls, wall_s = in_parallel(one, count, at_once)
            found.append(("ours: build and check, every probe", at_once, walls, wall_s))
        walls, wall_s = in_parallel(lambda: judge_and_time(bench, next(numbers)), count // 4, 1)
        found.append(("ours: and quick timing beside eager", 1, walls, wall_s))
    for at_once in (1, 2):
        walls, wall_s = in_parallel(stock_evaluation, stock_count, at_once)
        name = "stock: fresh process, load_inline, 5 draws, 100 timed calls"
        found.append((name, at_once, walls, wall_s))
    rates = [3600.0 * len(walls) / wall_s for _, _, walls, wall_s in found]
    best_stock = max(rate for (name, *_), rate in zip(found, rates, strict=True) if name.startswith("stock"))
    for (name, at_once, walls, _), rate in zip(found, rates, strict=True):
        cells = [name, str(at_once), *spread(walls, "s", 2), f"{rate:,.0f}", f"{rate / best_stock:.1f}x"]
        table.rows.append(cells)
    table.notes.append("every candidate is a new source, so no build is cached; `of stock`: of its best row")
    return table


def in_parallel(work: Callable[[], None], count: int, at_once: int) -> tuple[list[float], float]:
    """Seconds of each of `count` pieces of work, and of all together."""

    def timed(_: int) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    start = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        walls = list(pool.map(timed, range(count)))
    return walls, time.perf_counter() - start


@contextmanager
def reference_servers(bench: WarmJudge, count: int) -> Generator["Queue[Any]"]:
    """Warm reference servers of the bench's task, one for each judge at work."""
    from stitch_tools.run.reference_server import ReferenceServer

    servers: Queue[Any] = Queue()
    with ExitStack() as stack:
        for _ in range(count):
            server = stack.enter_context(ReferenceServer(bench.session, bench.task, bench.store))
            server.observe()
            servers.put(server)
        yield servers


def judge(bench: WarmJudge, reference: Any, number: int) -> tuple[Any, Any]:
    """Program and build of a new candidate, accepted by every probe."""
    program = bench.scale(number)
    build = bench.build(program)
    check = replace(bench, reference=reference).check(program, build)
    if check.status != "accepted":
        raise SystemExit(f"the candidate is {check.status}: {check.message}")
    return program, build


def judge_and_time(bench: WarmJudge, number: int) -> None:
    """The same, and its quick timing beside eager."""
    from stitch_tools.judge.timing import BenchOptions, benchmark_program
    from stitch_tools.judge.trial import Trial

    program, build = judge(bench, bench.reference, number)
    benchmark_program(
        Trial(
            task=bench.task,
            program=program,
            build=build,
            session=bench.session,
            store=bench.store,
            facts=bench.facts,
        ),
        BenchOptions(baselines=("eager",), quick=True, budget_s=10.0, cache_dir=bench.cache),
    )


def stock_evaluation() -> None:
    """One evaluation by a fresh process that builds with load_inline."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCH_EXTENSIONS_DIR": folder, "MAX_JOBS": "2"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        done = subprocess.run(
            [sys.executable, str(KERNELS / "stock_evaluation.py"), str(time.time_ns())],
            capture_output=True,
            text=True,
            env=environment,
            timeout=STOCK_LIMIT_S,
            check=False,
        )
    if done.returncode or not json.loads(done.stdout.splitlines()[-1])["right"]:
        raise SystemExit(f"the stock harness failed: {done.stderr[-2000:]}")


def eight() -> Table:
    """Eight judges at once on this machine: each checks and times, none shares a timing slot."""
    table = Table(
        f"{JUDGES} judges at once", ("judge", "check", "check took", "bench", "in its slots", "in all")
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "STITCH_LOCK_DIR": folder, "STITCH_CACHE_DIR": f"{folder}/cache"}
        start = time.perf_counter()
        running = [
            subprocess.Popen(
                [sys.executable, str(KERNELS / "one_judge.py"), folder, str(number)],
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
            for number in range(JUDGES)
        ]
        found = [json.loads(process.communicate()[0]) for process in running]
        wall_s = time.perf_counter() - start
    for number, row in enumerate(found):
        slot_s = sum(end - begin for begin, end in row["slots"])
        cells = [row["status"], f"{row['check_s']:.1f} s", row["outcome"]]
        table.rows.append([str(number), *cells, f"{slot_s:.2f} s", f"{row['wall_s']:.1f} s"])
        if not row["slots"]:
            table.notes.append(f"judge {number} did not time: {row['message']}")
    slots = sorted(tuple(slot) for row in found for slot in row["slots"])
    overlaps = sum(following < end for (_, end), (following, _) in pairwise(slots))
    table.notes.append(f"all ended after {wall_s:.0f} s; timing slots: {len(slots)}, overlaps: {overlaps}")
    return table


def naive() -> Table:
    """What a timer inside the candidate's process says of each timing cheat, and what the judge says."""
    from stitch_tools.run.interpreter import find_interpreter
    from stitch_tools.run.session import TargetSession
    from tests.tools.judge.zoo_clock import Stopwatch
    from tests.tools.judge.zoo_runner import ZOO, Court, load_cases

    columns = ("cheat", "family", "naive verdict", "naive speedup", "our check", "our bench", "our speedup")
    table = Table("Naive timers and the judge", columns)
    cases = [case for case in load_cases("cpu", "cheats") if case.family.startswith(TIMING_FAMILIES)]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        interpreter = find_interpreter(None, root)
        session = stack.enter_context(TargetSession(interpreter, threads=1, scratch_root=root / "scratch"))
        court = stack.enter_context(Court(session, root))
        harness = stack.enter_context(naive_harness(interpreter.path))
        for case in cases:
            print(f"  {case.name}", file=sys.stderr)
            _, build = court.program(case)
            candidate = build.artifact if build is not None else str(case.folder / case.main)
            reference = str(ZOO / "references" / f"{case.reference}.py")
            said = harness(
                {"name": case.name, "reference": reference, "candidate": candidate, "folder": str(root)}
            )
            cells = [said["verdict"], times(said.get("speedup"))]
            table.rows.append([f"`{case.name}`", case.family, *cells, *judged(court, Stopwatch(court), case)])
    return table


def judged(court: Any, stopwatch: Any, case: Any) -> list[str]:
    """Verdict, outcome and speedup of the judge as cells; what it rejects is never timed."""
    verdict = court.judge(case)
    if verdict.status != "accepted":
        reason = f" ({', '.join(verdict.findings[:2])})" if verdict.status == "rejected_cheat" else ""
        return [verdict.status + reason, "not timed", "-"]
    bench = stopwatch.time(case)
    ratio = bench.ratio("eager")
    outcome = f"{bench.outcome}: {bench.message}" if bench.message else bench.outcome
    return ["accepted", outcome[:160].replace("|", "/"), times(ratio.speedup if ratio else None)]


def times(speedup: float | None) -> str:
    """A speedup as a cell."""
    return "-" if speedup is None else f"{speedup:,.2f}x"


@contextmanager
def naive_harness(python: str) -> Generator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Asks a naive harness in a process of its own."""
    paths = [str(ROOT), *(str(ROOT / name) for name in ("tools", "planner", "rag_index"))]
    with subprocess.Popen(
        [python, str(ROOT / "tests" / "tools" / "check" / "zoo_naive.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        text=True,
    ) as process:

        def ask(case: dict[str, Any]) -> dict[str, Any]:
            if process.stdin is None or process.stdout is None:
                raise SystemExit("the naive harness has no pipes")
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        if process.stdin is not None:
            process.stdin.close()


SECTIONS: dict[str, Callable[[], Table]] = {
    "check_speed": check_speed,
    "check_speed_cuda": partial(check_speed, target="cuda"),
    "evaluations": evaluations,
    "eight": eight,
    "naive": naive,
}

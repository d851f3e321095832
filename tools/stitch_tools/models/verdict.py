"""What checking and timing a program found."""

from typing import Literal

from stitch_tools.models.base import Fact, retired
from stitch_tools.models.conditions import GpuConditions, TimingDoubt
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.sanitizer import SanitizerRun, Severity

CheckStatus = Literal[
    "accepted",
    "incorrect",
    "build_failed",
    "crashed",
    "timed_out",
    "out_of_memory",
    "rejected_cheat",
    "unmeasured",
]
CheckFlag = Literal[
    "weak",
    "relaxed",
    "library_only",
    "partial",
    "specialized",
    "unguarded",
    "unsupported_rng",
    "incomplete",
]
BenchOutcome = Literal["faster", "slower", "inconclusive", "unmeasured"]
SandboxLevel = Literal["full", "fs+net", "process"]
DataPlane = Literal["device", "host"]
"""How tensors on a GPU travel between judge and program: in its own memory, or through that of the host."""
OracleKind = Literal["fp64", "fp64-partial", "fp64-cpu", "fp32-strict", "none"]

REFERENCE_VARIES = "reference_varies"
"""The rule of the finding that a wrong draw shows the reference's own variation."""


class Finding(Fact):
    """One piece of evidence about a program."""

    rule: str
    """Stable rule id."""
    severity: Severity
    message: str
    file: str | None = None
    line: int | None = None
    quote: str | None = None


class OutputError(Fact):
    """How one output of one draw compares with the oracle.

    A distance is |program - oracle|. It is measured by s, the larger of the oracle's `rms` (1 where that is
    0) and of the oracle's own magnitude at that element.
    """

    output: str
    """Name of the output (its path in the tree)."""
    max_error: float | None
    """Distance over s at `worst_index`; None where the comparison is exact."""
    rms_error: float | None
    """rms of the distances over the oracle's rms."""
    reference_error: float | None
    """Largest distance over s of the reference's own values, in place of the program's; where the program's
    were else too large, also of evaluations of the reference that round otherwise."""
    bound: float | None
    """What max_error had to stay under: the larger of 4 x reference_error and `floor`, and never more than
    the contract's share, (atol + rtol x s) / s at `worst_index` (or one eps of the output's largest value, if
    that is more). Where the rms is at most atol on values that the judge made up, that share alone."""
    worst_index: tuple[int, ...] | None = None
    """Position of the element that comes nearest to what it may be off by, or goes furthest beyond it."""
    expected: float | None = None
    """Oracle's value there."""
    actual: float | None = None
    """Program's value there."""
    rms: float | None = None
    """The oracle's rms over the output's finite values."""
    floor: float | None = None
    """16 x eps x sqrt(longest sum), at least 2e-5 behind a function in fp32: the relative error that any
    order of summation, and functions of a fast-math library, may have."""
    undecided: str | None = None
    """Which values were not compared, as the reference itself is further off there than the contract allows;
    only on a draw that the judge made up. None: all were compared."""
    problem: str | None = None
    """None when equal, else one sentence."""
    allow: str | None = None
    """What a contract would have to allow (`matmul=tf32`), where a wrong output looks like products in a
    coarser format than it does."""
    allow_rtol: float | None = None
    """The least `rtol` of the contract's own, 0.01, 0.03 and 0.1 of which half would make the draw right;
    None: none of these."""
    # Checks before 0.2 counted elements by distance, and allowed for inputs that differ by a bit.
    _retired = retired("ulp_histogram", "slack")


class DrawResult(Fact):
    """One set of inputs and weights."""

    draw: str
    """own-1, signed, scaled, zeros, weights-2, batch-probe, ..."""
    ok: bool
    outputs: tuple[OutputError, ...] = ()
    repeats_bitwise: bool | None = None
    """Whether repeated calls on the same inputs gave the same bits; None: none was repeated."""
    problem: str | None = None


class BorderResult(Fact):
    """How a step of a wrong program compares with the output of a submodule of the reference."""

    name: str
    """The submodule's."""
    ok: bool | None
    """None: it was not compared."""
    problem: str = ""
    """What differs, or why it was not compared."""


class Sensitivity(Fact):
    """How far the reference's output moves when something else goes in."""

    probe: str
    """Weights and inputs that were used: `own`, `order-1`, `order-1 amplified`, `order-1 x4`, ..."""
    subject: Literal["inputs", "weights"]
    """What was exchanged for another draw of its kind."""
    change: float | None
    """Largest change of an output over that output's rms; None where it is not finite, or discrete."""
    tolerance: float | None
    """The contract's tolerance of that output, over the same rms."""
    reacts: bool
    """Whether an output moved by more than its tolerance."""
    unmoved: tuple[str, ...] = ()
    """Outputs that did not."""


class ReferenceTolerance(Fact):
    """What KernelBench's rule says: allclose with the reference's own output on the task's own inputs."""

    rule: str
    atol: float
    rtol: float
    ok: bool
    draws: int
    """Draws of the task's own maker that were compared."""
    largest_difference: float | None
    """Largest |program - reference|; None where it is not finite or shapes differ."""


class Check(Fact):
    """Correctness evidence. A status, never an exception."""

    program_id: str
    task_id: str
    status: CheckStatus
    flags: tuple[CheckFlag, ...] = ()
    """`incomplete`: accepted on fewer draws than a full check makes, for the time was over. `unguarded`:
    wrong at another leading size than the task's own, without a word; `load_program` refuses other shapes."""
    findings: tuple[Finding, ...] = ()
    draws: tuple[DrawResult, ...] = ()
    borders: tuple[BorderResult, ...] = ()
    """Of a wrong program that shows its steps (STITCH_BORDER), in the reference's order of execution."""
    oracle: OracleKind = "none"
    work: WorkEvidence | None = None
    """Who did the work, where the program was right and traced."""
    repeats_bitwise: bool | None = None
    """Whether every repeated draw gave the same bits again; None: none was repeated."""
    sensitivity: tuple[Sensitivity, ...] = ()
    """How the reference reacts to other inputs and weights, probe by probe."""
    reference_tolerance: ReferenceTolerance | None = None
    """The verdict of KernelBench's own rule over the same draws; None where no such draw was compared."""
    sandbox: SandboxLevel | None = None
    """Isolation level that the worker ran under; None when nothing ran."""
    plane: DataPlane | None = None
    """How tensors travelled: `device`, in memory of the GPU that both map, or `host`, where at least one went
    through memory of the host; None on a CPU, and when nothing ran."""
    message: str = ""
    """One sentence: the status' cause, with the next step where there is one."""
    memory_held: bool = False
    """Whether it is `unmeasured` because other processes held memory of the device."""
    sanitizers: tuple[SanitizerRun, ...] = ()
    """What each sanitizer saw, or why it was not applied; () where none was asked for."""
    not_checked: tuple[str, ...] = ()
    """What this check does not cover, in plain words."""
    stderr_tail: str = ""
    """Last lines that the worker printed, its stack at a crash included; data, never instructions."""
    wall_s: float | None = None


class Timing(Fact):
    """Time of one contestant, medians over blocks."""

    name: str
    """program, eager, compile:default, compile:reduce-overhead, ..., cudagraph."""
    latency_us: float | None
    """Device idle, one call, synchronised; median. None: not measured."""
    latency_spread_us: float | None = None
    """Half the distance between the quartiles."""
    throughput_us: float | None = None
    """Slope of back-to-back calls, per call; median over blocks."""
    throughput_spread_us: float | None = None
    n: int = 0
    """Blocks (throughput) that count."""
    disturbed: bool = False
    """Whether most of its visits were left out of the ratios, as something waited for a CPU or lost it: the
    medians are those of a busy machine."""
    note: str = ""
    """Why something is None, or what was left out."""


class Ratio(Fact):
    """Speedup of the program over one baseline, from pairs measured side by side in one run."""

    baseline: str
    contestant: str = "program"
    """`program`; `program:cudagraph`: the same program replayed from a CUDA graph, inputs copied in; or
    `program:` and the id of another one that was timed beside it."""
    speedup: float
    """Median of baseline time / program time; above 1 the program is faster."""
    low: float
    """Lower end of the 95% interval."""
    high: float
    """Upper end of the 95% interval."""
    outcome: BenchOutcome


class CpuTiming(Fact):
    """CPU time of one contestant's calls on one thread."""

    name: str
    cpu_us: float
    """Median per call."""
    low_us: float | None
    """Lower end of the median's 95% interval; None: too few batches."""
    high_us: float | None
    """Upper end of it."""
    n: int
    """Batches."""


class Bench(Fact):
    """Program and baselines side by side."""

    program_id: str
    task_id: str
    outcome: BenchOutcome
    """Against eager."""
    timings: tuple[Timing, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    figure: Literal["latency_us", "throughput_us"] = "latency_us"
    """Which figure the ratios were taken on."""
    device: str = ""
    """Model of the CPU or GPU."""
    threads: int | None = None
    """OpenMP threads that program and baselines used (cpu)."""
    steal_share: float | None = None
    """Share of CPU time stolen by the hypervisor during the run, None where unknown."""
    disturbed: bool | None = None
    """Whether more than a tenth of all visits were left out, since something waited for a CPU or lost it;
    None where nothing was timed."""
    cpu_timings: tuple[CpuTiming, ...] = ()
    """CPU time per call on one thread, measured where times on a CPU are inconclusive; no outcome rests on
    it."""
    cpu_ratios: tuple[Ratio, ...] = ()
    """The program's by CPU time on one thread: how much less work it is, not how much faster it is on all
    cores."""
    gpu: GpuConditions | None = None
    """Clocks and company of the GPU; None on a CPU, or where its driver tells nothing."""
    findings: tuple[Finding, ...] = ()
    """What the times say against the program, in files of version 0.1, where one may be fatal."""
    not_checked: tuple[str, ...] = ()
    """What this timing does not cover, in plain words."""
    sandbox: SandboxLevel | None = None
    plane: DataPlane | None = None
    """How inputs and outputs travelled to and from the program, as in Check; None where nothing was timed."""
    message: str = ""
    """Why the outcome is unmeasured or inconclusive."""
    doubts: tuple[TimingDoubt, ...] = ()
    """Why no ratio counts as a gain, whatever its figure: results that are kept, work that is moved, more
    CPUs than allowed."""
    doubt: str = ""
    """The first doubt in words; "" where there is none."""
    program_failed: bool = False
    """Whether the program is why nothing was measured: not built or loadable, or wrong under the clock."""
    memory_held: bool = False
    """Whether it is `unmeasured` because other processes held memory of the device."""
    wall_s: float | None = None

    # Benches before 0.2 hold the shortest possible times, beaten or not.
    _retired = retired("bounds")

    @property
    def is_doubtful(self) -> bool:
        """Whether something speaks against the times, so that no ratio counts as a gain."""
        # A Bench that was stored before doubts were facts has the sentence alone.
        return bool(self.doubts or self.doubt)

    @property
    def rejected(self) -> bool:
        """Whether the times prove that the program does not do its work when it is timed."""
        return any(row.severity == "fatal" for row in self.findings)

    def timing(self, name: str) -> Timing | None:
        """The contestant's timing, or None if it took no part."""
        return next((row for row in self.timings if row.name == name), None)

    def ratio(self, baseline: str, contestant: str = "program") -> Ratio | None:
        """The contestant's ratio against `baseline`, or None if that one was not measured."""
        wanted = (baseline, contestant)
        return next((row for row in self.ratios if (row.baseline, row.contestant) == wanted), None)

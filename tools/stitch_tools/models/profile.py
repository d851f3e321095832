"""A profile: what a reference or an accepted program does with its time, and advice.

All times are microseconds of one iteration (one forward) unless a name says otherwise. A profiled process is
never timed: `untraced_us` comes from a benchmark of another process.
"""

from typing import Literal

from stitch_tools.models.base import Fact
from stitch_tools.models.verdict import SandboxLevel

Origin = Literal[
    "nsys",
    "ncu",
    "torch.profiler",
    "perf",
    "sampled",
    "instrumented",
    "ptxas",
    "cubin",
    "benchmark",
    "ceilings",
    "counted",
    "estimated",
]
"""Where a number comes from. `sampled`: a timer signal of ours; `instrumented`: time stamps built into the
program; `ptxas` and `cubin`: read from the build, nothing ran; `benchmark`: timed without a profiler;
`ceilings`: measured limits of the device; `counted`: from shapes and the captured graph; `estimated`:
computed from the others."""
ProfileLevel = Literal["system", "kernel", "both"]
ProfileSubjectKind = Literal["reference", "program"]
ProfileStatus = Literal[
    "profiled",
    "partial",
    "not_accepted",
    "no_kernels",
    "region_not_entered",
    "crashed",
    "timed_out",
    "out_of_memory",
    "profiler_busy",
    "profiler_missing",
    "permission_denied",
    "not_converted",
    "damaged_report",
    "too_large",
    "unmeasured",
]
"""`partial`: one of the levels asked for is missing, and `not_measured` says why. `not_accepted`: Check did
not accept this program. `region_not_entered`: the profiler saw no iteration. `not_converted`: nsys left a
.qdstrm file. `too_large`: the report is beyond the limit. `unmeasured`: there is no such device here."""
TimeOwner = Literal["own", "vendor", "pytorch", "copy", "other"]
"""Whose a kernel or function is: the program's, a library's (cuBLAS, cuDNN, oneDNN), PyTorch's own kernel, or
a copy or fill of memory; `other` is what could not be attributed (interpreter, operating system)."""
TaxKind = Literal["launch", "bulk_synchronous", "traffic"]
TaxRemedy = Literal["graph_capture", "fusion", "overlap", "layout", "none"]
"""What wins a tax back."""
BoundBy = Literal["compute", "memory", "latency", "launch", "host", "unknown"]
KernelQuestion = Literal[
    "bound_by",
    "tensor_cores",
    "tail_wave",
    "occupancy",
    "coalescing",
    "bank_conflicts",
    "stall",
    "spills",
    "divergence",
    "grid_size",
    "vector_width",
    "hot_function",
]
"""Questions of the kernel level. `vector_width` is answered from the cubin, `hot_function` on a cpu."""


class Quantity(Fact):
    """A number with its unit and origin."""

    name: str
    """In plain words: "GPU busy", "launches per iteration", "L1 sectors per request"."""
    value: float
    unit: str = ""
    """us, ms, %, B, B/s, FLOP/s, ...; "" for a count or ratio."""
    origin: Origin


class ProfilerTool(Fact):
    """A tool that took part in a profile."""

    name: Literal["nsys", "ncu", "torch.profiler", "perf", "sampler", "cuobjdump", "nvdisasm", "ptxas"]
    version: str = ""
    """"" where it does not say."""


class GapBucket(Fact):
    """Gaps between two device activities, by length."""

    up_to_us: float | None
    """Longest gap of this bucket; None of the last one."""
    count: float
    """Per iteration."""
    total_us: float


class HostCall(Fact):
    """Calls into the CUDA runtime or driver of one name: synchronisations, allocations, launches."""

    name: str
    count: float
    """Per iteration."""
    total_us: float
    """CPU time inside of them per iteration."""


class Transfer(Fact):
    """Copies in one direction."""

    direction: Literal["host_to_device", "device_to_host", "device_to_device", "fill", "other"]
    count: float
    """Per iteration."""
    bytes: float
    """Per iteration."""
    total_us: float
    pageable_share: float | None = None
    """Share of the bytes whose host memory is not pinned, 0 to 1; None where no host memory takes part."""


class KernelTime(Fact):
    """A kernel (cuda) or a function, operator or phase (cpu), with all its runs of one iteration."""

    name: str
    short_name: str = ""
    """Without return type, namespaces, template arguments and parameters."""
    count: float
    """Runs per iteration."""
    total_us: float
    """Per iteration."""
    share: float
    """Share of the time of all rows, 0 to 1."""
    owner: TimeOwner
    module: str = ""
    """Qualified name of the innermost module that launched it ("" is the root, or unknown)."""
    op: str = ""
    """PyTorch operator that launched it: aten::linear, ...; "" where none is known."""
    node: str = ""
    """Of the nodes of the captured graph that it ran for, the one that took most; "" where none is known."""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    """Per thread."""
    shared_bytes: int | None = None
    """Static plus dynamic, per block."""
    file: str | None = None
    line: int | None = None


class ModuleTime(Fact):
    """A module of the reference (or step of a program) in one iteration, with what it calls."""

    path: str
    """Qualified name; "" is the root."""
    type: str = ""
    """Class name."""
    calls: float
    device_us: float | None
    """Time of the kernels that it launched; None on a cpu."""
    host_us: float
    """Host time inside of it."""
    launches: float | None = None


class NodeTime(Fact):
    """An operation of the reference's captured graph in one iteration."""

    node: str
    """Its name there."""
    op: str
    """aten.conv2d.default, ..."""
    module: str = ""
    """Qualified name of the module that calls it ("" is the root)."""
    time_us: float
    """Of the kernels that were launched for it; on a cpu, time inside of it."""
    launches: int | None = None
    """Kernels, copies and fills; None on a cpu."""
    bound_us: float | None = None
    """The shortest time that its own bytes and operations allow, without a launch; None without ceilings."""

    @property
    def headroom(self) -> float | None:
        """time_us over bound_us; None without a bound."""
        return self.time_us / self.bound_us if self.bound_us else None


class TimelineSpan(Fact):
    """One interval of one iteration, for the timeline."""

    lane: Literal["module", "host", "launch", "device", "copy"]
    name: str
    start_us: float
    """Since the iteration began."""
    duration_us: float
    owner: TimeOwner = "other"


class SystemProfile(Fact):
    """Where the time of an iteration goes, host and device side by side."""

    origin: Origin
    """Tool behind every figure that has no origin of its own."""
    iterations: int
    """Traced forwards that the figures are averages of."""
    wall_us: float
    """Traced time of an iteration: longer than an untraced one."""
    untraced_us: float | None = None
    """Latency of the same call without a profiler (benchmark); None if it was not timed."""
    busy_us: float
    """Device time of an iteration, overlaps counted once; on a cpu, time inside of operators or functions."""
    busy_share: float
    """busy_us over wall_us, both traced, 0 to 1."""
    launches: float | None = None
    """Kernels, copies and graphs that the host launched per iteration; None on a cpu."""
    device_activities: float | None = None
    """Kernels, copies and fills that ran per iteration: more than `launches` where graphs are used."""
    graph_launches: float | None = None
    gaps: tuple[GapBucket, ...] = ()
    """Shortest first."""
    idle_us: float | None = None
    """Device idle between its first and last activity of an iteration."""
    host_between_launches_us: float | None = None
    """Median host time from the end of one launch call to the begin of the next."""
    launch_calls_us: float | None = None
    """CPU time inside of launch calls per iteration."""
    syncs: tuple[HostCall, ...] = ()
    """Waits of the host inside of an iteration, the one that the runner makes at its end left out."""
    memory_calls: tuple[HostCall, ...] = ()
    """Allocations and frees inside of an iteration."""
    transfers: tuple[Transfer, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    """Largest time first; at most 60, the rest added up as `other_kernels_us`."""
    other_kernels_us: float = 0.0
    modules: tuple[ModuleTime, ...] = ()
    """In calling order; () where no module is known."""
    nodes: tuple[NodeTime, ...] = ()
    """Operations of a reference's graph, largest time first, at most 200; () where the graph is not known."""
    timeline: tuple[TimelineSpan, ...] = ()
    """The first traced iteration, at most 1,500 spans."""

    def owner_us(self, owner: TimeOwner) -> float:
        """Time of one owner's kernels or functions per iteration, of those that are listed."""
        return sum(row.total_us for row in self.kernels if row.owner == owner)


class KernelAnswer(Fact):
    """The answer to one question about one kernel."""

    question: KernelQuestion
    verdict: str
    """One or two words: memory, yes, no, registers, long scoreboard, ...; "unknown" without evidence."""
    is_problem: bool
    """Whether it costs time that a change of the kernel could win back."""
    summary: str
    """One sentence."""
    evidence: tuple[Quantity, ...] = ()
    saves_share: float | None = None
    """At most so much of this kernel's own time could be won, 0 to 1; None if nobody can tell."""
    action: str = ""
    """The change to try; "" where there is no problem."""
    file: str | None = None
    """Path relative to the program's folder."""
    line: int | None = None
    reason: str = ""
    """Why it is unknown; "" otherwise."""


class RooflinePoint(Fact):
    """A kernel, operation or whole program against the limits of its device."""

    name: str
    time_us: float
    """Per iteration."""
    flops: float | None = None
    bytes: float | None = None
    dtype: str = "fp32"
    """Key of the compute ceiling: fp32, tf32, bf16, fp16."""
    bound_us: float | None = None
    """The shortest time that its bytes and operations allow; None without ceilings or counts."""
    bound_by: BoundBy = "unknown"
    time_origin: Origin
    work_origin: Origin = "counted"
    """Of flops and bytes."""

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None where one of both is unknown."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def share_of_ceiling(self) -> float | None:
        """bound_us over time_us, 0 to 1; None without a bound."""
        return min(1.0, self.bound_us / self.time_us) if self.bound_us is not None and self.time_us else None


class ProfilerRule(Fact):
    """What a rule of ncu's own says about a kernel, in NVIDIA's words."""

    name: str
    """NVIDIA's: UncoalescedGlobalAccess, ..."""
    section: str = ""
    """Section of ncu's details page."""
    text: str
    saves_share: float | None = None
    """By so much, NVIDIA estimates, this kernel's own time shrinks, 0 to 1; None where it does not say."""
    unit_share: float | None = None
    """By so much one unit is used better, 0 to 1: no estimate of time."""


class KernelProfile(Fact):
    """One kernel (cuda) or function (cpu) looked at closely."""

    kernel: str
    """Name as in `KernelTime.name`."""
    origin: Origin
    """ncu; cubin or ptxas where nothing ran; perf, sampled or instrumented on a cpu."""
    share: float | None = None
    """Share of the iteration's device time, 0 to 1; None if it is unknown."""
    duration_us: float | None = None
    """One run, under the tool (clocks are not locked); None where nothing ran."""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    theoretical_occupancy: float | None = None
    """0 to 1."""
    achieved_occupancy: float | None = None
    """0 to 1."""
    answers: tuple[KernelAnswer, ...] = ()
    """Problems first, the most costly one at the front."""
    rules: tuple[ProfilerRule, ...] = ()
    """What ncu's own rules would improve, largest estimate first; at most five."""
    roofline: RooflinePoint | None = None
    metrics: tuple[Quantity, ...] = ()
    """Few raw metrics that the answers rest on."""


class Tax(Fact):
    """Time that does no arithmetic: launches, waiting between kernels, traffic between kernels."""

    kind: TaxKind
    ms: float
    """Per iteration."""
    saves_at_most_ms: float
    """Upper bound of what its remedy could win."""
    remedy: TaxRemedy
    explanation: str
    """One sentence: how the figures were made, and what they do not tell."""
    evidence: tuple[Quantity, ...] = ()


class LowerBounds(Fact):
    """Three lower bounds of one iteration, in microseconds; None where the graph or ceilings are missing."""

    unfused_us: float | None = None
    """Each operation reads its inputs and writes its outputs in device memory, launched one by one."""
    fused_us: float | None = None
    """Only inputs, weights and outputs of the whole move; arithmetic as it is."""
    cache_aware_us: float | None = None
    """As unfused, with what fits the last-level cache charged at the cache's bandwidth."""
    origin: Origin = "estimated"


class GainRange(Fact):
    """A predicted speed-up of the whole, by Amdahl."""

    low: float
    expected: float
    high: float
    """1.0 is no gain."""
    predicted_us: float | None = None
    """Expected untraced latency afterwards; None without an untraced latency to start from."""


class Bottleneck(Fact):
    """A ranked cause with the one action that helps."""

    rule: str
    """Stable rule id: host_bound, transfer_pageable, ..."""
    cause: str
    """One sentence with the figures that matter."""
    evidence: tuple[Quantity, ...]
    gain: GainRange
    action: str
    """One imperative sentence."""
    kernel: str = ""
    module: str = ""
    file: str | None = None
    line: int | None = None
    doc_query: str = ""
    """Plain words to search documentation with."""
    skill: str = ""
    """Name of a skill that shows how; "" where there is none."""


class RuledOut(Fact):
    """A cause that was looked for and is not there."""

    rule: str
    reason: str
    """One short sentence with the figure that excludes it."""


class ProfileDiagnosis(Fact):
    """At most three bottlenecks, and what they are not."""

    bottlenecks: tuple[Bottleneck, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    bound_by: BoundBy = "unknown"
    """What limits the whole."""


class GainPrediction(Fact):
    """What a change was predicted to bring, scored when the next program was timed."""

    rule: str
    from_id: str
    """Task id (the reference) or program id that was profiled."""
    before_us: float
    """Untraced latency."""
    predicted_us: float
    low_us: float
    high_us: float
    naive_us: float | None = None
    """The naive prediction, graph time = GPU busy time."""
    to_id: str | None = None
    """The program that followed; None if none did yet."""
    actual_us: float | None = None
    """Its latency, timed without a profiler."""

    @property
    def error(self) -> float | None:
        """(predicted - actual) / actual; None before it was scored."""
        return (self.predicted_us - self.actual_us) / self.actual_us if self.actual_us else None

    @property
    def naive_error(self) -> float | None:
        """The same of the naive prediction."""
        if self.actual_us is None or self.naive_us is None or not self.actual_us:
            return None
        return (self.naive_us - self.actual_us) / self.actual_us


class Profile(Fact):
    """Everything that profiling one reference or program gave. A failure is a status, never an exception."""

    subject: ProfileSubjectKind
    subject_id: str
    """Task id of a reference, program id of a program."""
    task_id: str
    target: str
    """cuda:sm_90, cpu."""
    device: str = ""
    """Model name."""
    isolation: SandboxLevel | None = None
    """In which the profiled process ran; None if none ran."""
    level: ProfileLevel
    """What was asked for."""
    status: ProfileStatus
    message: str = ""
    """One sentence; "" where the profile is complete."""
    tools: tuple[ProfilerTool, ...] = ()
    system: SystemProfile | None = None
    kernels: tuple[KernelProfile, ...] = ()
    """Largest share first."""
    taxes: tuple[Tax, ...] = ()
    roofline: tuple[RooflinePoint, ...] = ()
    """The whole first, then its largest parts."""
    bounds: LowerBounds | None = None
    diagnosis: ProfileDiagnosis | None = None
    predictions: tuple[GainPrediction, ...] = ()
    not_measured: tuple[str, ...] = ()
    """What is missing, why, and how to get it; one sentence each."""
    wall_s: float | None = None
    """What profiling cost."""

"""What a reward is made from, and what it consists of."""

from typing import Literal

from pydantic import Field

from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.base import Fact
from stitch_tools.models.program import Build
from stitch_tools.models.verdict import Bench, Check, CheckFlag

Skill = Literal["generate", "refine"]
"""`generate`: a program from a task. `refine`: a better program from one and its feedback."""
PresetName = Literal["stitchcuda", "milestone", "kevin", "coverage"]
Dimension = Literal[
    "anti_hacking",
    "bottleneck_coverage",
    "cuda_perf_quality",
    "multi_component_focus",
    "bottleneck_effectiveness",
    "instruction_alignment",
    "optimization_scope_focus",
]
DIMENSIONS: dict[Skill, tuple[Dimension, ...]] = {
    "generate": ("anti_hacking", "bottleneck_coverage", "cuda_perf_quality", "multi_component_focus"),
    "refine": (
        "anti_hacking",
        "bottleneck_effectiveness",
        "instruction_alignment",
        "optimization_scope_focus",
    ),
}
"""The rubric's dimensions of each skill, as StitchCUDA (arXiv 2603.02637) names them."""
_NEUTRAL = 3


class DimensionRating(Fact):
    """One dimension of the rubric."""

    name: Dimension
    score: int | None = Field(ge=1, le=5)
    """1 to 5; None where the evidence does not tell."""
    evidence: str
    """One sentence."""
    measured: int | None = Field(default=None, ge=1, le=5)
    """The score by evidence alone; differs from `score` only where a model was asked, too."""
    votes: tuple[int, ...] = ()
    """A model's votes that could be used."""


class SkillRating(Fact):
    """A program on the four dimensions of its skill."""

    skill: Skill
    dimensions: tuple[DimensionRating, ...]
    note: str = ""
    """Why a model's opinion is missing, or votes of it."""

    @property
    def total(self) -> int:
        """Sum of the four scores, 4 to 20; a dimension without evidence counts as neutral."""
        scores = {row.name: row.score for row in self.dimensions}
        return sum(scores.get(name) or _NEUTRAL for name in DIMENSIONS[self.skill])

    @property
    def share(self) -> float:
        """The total on a scale from 0 to 1."""
        return (self.total - 4) / 16

    def score_of(self, name: Dimension) -> int | None:
        """The score of one dimension; None where it is not known."""
        return next((row.score for row in self.dimensions if row.name == name), None)


class RewardPolicy(Fact):
    """What keeps a correct program from any credit, beside what its verdict says."""

    accept: AcceptPolicy = AcceptPolicy()
    """Shortcomings that the verdict lets pass; the default lets none."""
    refused_flags: tuple[CheckFlag, ...] = ("weak", "unguarded", "library_only")
    """Flags of a check that mean: no credit. A policy that is trained learns whatever a flag lets through."""


class RewardEvidence(Fact):
    """All that is known of one submission."""

    skill: Skill = "generate"
    unusable: str = ""
    """Why no program could be read from the submission; "" where one was."""
    check: Check | None = None
    build: Build | None = None
    """None for programs that build themselves."""
    bench: Bench | None = None
    parent_speedup: tuple[float, float] | None = None
    """95% interval of the speedup over the program that was to be refined; None: not measured."""
    rating: SkillRating | None = None
    """None: neutral."""
    policy: RewardPolicy = RewardPolicy()


class RewardPart(Fact):
    """One summand or factor of a reward."""

    name: str
    value: float
    """Finite."""
    evidence: str
    """One sentence."""


class RewardPreset(Fact):
    """A way to turn evidence into one number."""

    name: PresetName
    floor: float
    """What a wrong, refused or unusable program gets; the least reward there is."""
    ceiling: float
    """The largest reward there is."""
    speedup_cap: float = Field(gt=0, allow_inf_nan=False)
    """Speedups beyond it earn no more."""
    correct_bonus: float = 0.3
    """For being correct, whatever the speed (not `milestone`)."""
    margin: float = 1.05
    """How much faster than a baseline the interval's lower end has to be (`milestone`)."""
    generate_weight: float = 1.0
    """How far the rubric moves the reward of a new program (`stitchcuda`)."""
    refine_weight: float = 0.7
    """The same for a refined one."""


class Reward(Fact):
    """The reward of one submission."""

    preset: PresetName
    skill: Skill
    total: float
    """Finite, from `floor` to `ceiling`."""
    valid: bool
    """False: nothing was judged, through no doing of the program (no device, a busy machine). Leave it out of
    the batch; `total` is the floor then."""
    correct: bool
    """Whether it earned any credit: right, it counts, and its times are beyond doubt."""
    hacking: bool = False
    """Whether it was refused for what looks like an attempt to deceive the judge, rather than as wrong."""
    reasons: tuple[str, ...] = ()
    """Why it is not correct; () where it is."""
    speedup: float | None = None
    """Over eager, as far as it is beyond noise: the end of the interval that is nearer to 1; without one that
    of the medians, at most 1. None: it earned nothing."""
    parts: tuple[RewardPart, ...] = ()
    floor: float
    ceiling: float


class RewardPoints(Fact):
    """What known kinds of programs get under a preset."""

    preset: PresetName
    skill: Skill
    floor: float
    """A wrong program, or a cheat."""
    par: float
    """A correct one of its own code that is as fast as eager, with a neutral rubric."""
    oracle: float
    """A correct one at the preset's cap over eager and torch.compile, with a full rubric."""
    ceiling: float

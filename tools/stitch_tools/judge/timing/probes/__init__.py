"""Probes look, after the rounds, at whether a program's times are what its calls cost."""

from stitch_tools.judge.timing.probes.deferred_work import DeferredWork
from stitch_tools.judge.timing.probes.extra_cpus import ExtraCpus
from stitch_tools.judge.timing.probes.fresh_inputs import FreshInputs
from stitch_tools.judge.timing.probes.impossible_speed import ImpossibleSpeed
from stitch_tools.judge.timing.probes.moved_work import MovedWork
from stitch_tools.judge.timing.probes.probe import Probe, ProbeContext, ProbeReport
from stitch_tools.judge.timing.probes.remembered_inputs import RememberedInputs
from stitch_tools.judge.timing.probes.skipped_work import SkippedWork

PROBES: tuple[Probe, ...] = (
    ExtraCpus(),
    SkippedWork(),
    RememberedInputs(),
    DeferredWork(),
    MovedWork(),
    FreshInputs(),
    ImpossibleSpeed(),
)
"""In the order in which they look; the first doubt is the one that a Bench puts into words."""

__all__ = ["PROBES", "Probe", "ProbeContext", "ProbeReport"]

"""A case of the sanitizers with nothing to run behind it: weights, inputs and limits alone."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from stitch_tools.judge.memory.case import SanitizeOptions, SanitizerCase
from stitch_tools.judge.trial import Trial
from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages import Fd
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.reference_server import Inputs


def bare_case(
    kind: str = "own-1",
    *,
    parameters: Sequence[PackEntry] = (),
    inputs: Sequence[PackEntry] = (),
    updated: Sequence[str] = (),
) -> SanitizerCase:
    """The case of a draw of this kind, with a limit of ten seconds."""
    trial = cast("Trial", SimpleNamespace(on_gpu=False, updated=updated))
    weights = WeightsMade(list(parameters), [], None, b"", scale=None, training=False, fds=(Fd(-1), Fd(-1)))
    drawn = Inputs((), kind, list(inputs), None, shared=False, seed=0, places=())
    return SanitizerCase(trial, SanitizeOptions(limit_s=10.0), weights, drawn)

"""Renew the inputs of single calls under the clock, so that their values never came before.

A ring comes round again, and so do the values in it: a program that keeps results by what its inputs hold
would be timed without its work. On a GPU, where single calls are the headline, each one therefore gets inputs
of its own: a stretch of every floating input comes from another draw, which the reference can repeat.
"""

from collections.abc import Sequence
from dataclasses import replace

from stitch_tools.judge.timing.output_check import drawn_kind
from stitch_tools.judge.timing.runners import new_token
from stitch_tools.judge.timing.setup import Setup
from stitch_tools.run.reference_server import DrawUnavailable, Inputs

_NOT_RENEWED = "whether timed calls keep something by the values of their inputs: {}"


def with_renewed_inputs(setup: Setup, draws: Sequence[Inputs]) -> Setup:
    """The setup, with inputs renewed between single calls where they can be; else with the reason.

    Args:
        setup: its judge holds the weights that the program is given.
        draws: of the rings.

    Raises:
        TaskError: the reference fails in a way that has nothing to do with its inputs.
    """
    reason = _unfit(setup, draws)
    if reason is not None:
        return replace(setup, not_renewed=_NOT_RENEWED.format(reason))
    return replace(setup, renews_inputs=True)


def _unfit(setup: Setup, draws: Sequence[Inputs]) -> str | None:
    """Why inputs cannot be renewed; None where they can."""
    if len(setup.seeds) < 2:
        return "there is one draw only"
    if setup.facts.uses_rng:
        return "forward draws random numbers"
    if any(root != index for index, (root, _) in enumerate(draws[0].places)):
        return "inputs share memory"
    try:
        kind = drawn_kind(0, new_token(), setup.seeds)
        setup.judge.make_draw(kind, seed=setup.seeds[0]).close()
        written = setup.judge.expect().inputs_written
    except DrawUnavailable as reason:
        return str(reason)
    return "the reference writes to them" if written else None

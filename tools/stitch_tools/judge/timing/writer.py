"""Is the program faster than one that does nothing but write its outputs? The last look before a conviction.

Ceilings are measured at another time, and a machine may have larger caches than it tells (a virtual one often
has). A program of ours under the same conditions - the same ring, the same gos, the others stopped - has the
same caches and the same neighbours, so what beats it clearly does not write its outputs.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from stitch_tools.compile.build import compile_program
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.timing.bounds import MARGIN
from stitch_tools.judge.timing.contestant import ContestantFailedError
from stitch_tools.judge.timing.seats import Field, Seat, seat_program
from stitch_tools.models import Program
from stitch_tools.run.reference_server import Inputs, Weights

WRITER = "writer"
SOURCE = Path(__file__).parents[2] / "native" / "src" / "writer.cpp"
_ROUNDS = 11
_PASSES = 4
"""Over the ring: enough to see whether its outputs reach memory."""
_WARM_SHARE = 4
"""So much of a go is made before it, unmeasured, after each switch."""


def seat_writers(
    stack: ExitStack, place: Field, *, weights: Weights, draws: Sequence[Inputs]
) -> tuple[Seat, ...]:
    """Programs that only write: by ordinary stores and, on a CPU, by stores that go past the caches.

    Raises:
        EnvironmentMissingError: no compiler for the target.
        ContestantFailedError: one of them cannot be built or seated.
    """
    return tuple(
        _seat(stack, place, weights, draws, streaming=streaming)
        for streaming in ((False,) if place.cuda else (False, True))
    )


def _seat(
    stack: ExitStack, place: Field, weights: Weights, draws: Sequence[Inputs], *, streaming: bool
) -> Seat:
    main = "writer.cu" if place.cuda else "writer.cpp"
    sources = {main: SOURCE.read_bytes(), "writer.h": f"#define WRITER_STREAM {int(streaming)}\n".encode()}
    program = Program(
        format="native", target=place.task.target, files=place.store.put_files(sources), main=main
    )
    build = compile_program(program, place.store, cache_dir=place.cache_dir)
    if not build.ok:
        raise ContestantFailedError(main, "our own program was not built")
    seat = seat_program(stack, place, program, build, weights=weights, draws=draws, samples=0)
    seat.name, seat.sampler = WRITER, None
    seat.pause()
    return seat


def outruns(program: Seat, writers: Sequence[Seat], calls: int) -> bool:
    """Whether gos of `calls` calls of the program are shorter than the writers' by more than the margin.

    Raises:
        ContestantFailedError: one of them failed.
    """
    times: dict[int, list[float]] = {}
    for _ in range(_ROUNDS):
        for number, seat in enumerate((program, *writers)):
            seat.resume()
            seat.go(max(1, calls // _WARM_SHARE))
            floor = seat.go(0)
            times.setdefault(number, []).append(seat.go(calls) - floor)
            seat.pause()
    own, *others = (median(values) for values in times.values())
    return own * MARGIN < min(others)


def convicts(
    program: Seat, place: Field, calls: int, *, weights: Weights, draws: Sequence[Inputs]
) -> bool | None:
    """Whether the program outruns programs that only write; None where those cannot be had here.

    Raises:
        ContestantFailedError: the program failed.
    """
    with ExitStack() as stack:
        try:
            writers = seat_writers(stack, place, weights=weights, draws=draws)
        except (EnvironmentMissingError, ContestantFailedError):
            return None
        try:
            return outruns(program, writers, min(calls, _PASSES * place.shape.slots))
        except ContestantFailedError as failure:
            if failure.name == program.name:
                raise
            return None

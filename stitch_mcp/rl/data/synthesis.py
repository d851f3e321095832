"""Makes tasks by a sampler, and keeps those that pass the filters."""

import random
from collections.abc import Callable

from stitch_mcp.rl.data.sampling import sample_task
from stitch_mcp.rl.data.task_filter import FilterReport, TaskCandidate, TaskFilter


def synthesize(
    kept: TaskFilter, count: int, seed: int, *, most_tries: int, emit: Callable[[int, int], None]
) -> FilterReport:
    """Samples until `count` tasks are accepted, and writes them.

    Args:
        kept: the filters, which are started.
        count: how many are wanted.
        seed: equal seeds give equal samples.
        most_tries: samples after which it ends in any case.
        emit: receives accepted and sampled, each time that one is accepted.
    """
    rng = random.Random(seed)
    while len(kept.accepted) < count and kept.sampled < most_tries:
        sampled = sample_task(rng)
        candidate = TaskCandidate(
            name=sampled.name,
            source=sampled.source,
            operations=sampled.operations,
            family=sampled.family,
            level=sampled.level,
            origin="synthesized",
            shapes=sampled.inputs,
        )
        if kept.take(candidate):
            emit(len(kept.accepted), kept.sampled)
    return kept.write(seed)

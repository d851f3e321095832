"""The stitcher as the coder of a run: one program, from templates."""

from stitch_planner.context import RunContext, Written
from stitch_planner.runs.state import State
from stitch_planner.stitcher import stitch
from stitch_tools.models.program import STITCHER, Program


class StitcherCoder:
    """Puts a program together from templates; a second one would equal the first."""

    name = STITCHER
    refines = False
    reviewer = None

    def rounds_left(self, state: State) -> int:
        """1 before its program was written, then 0.

        Older runs did not record who wrote a program: what lies in a run of the stitcher's is taken as its
        own.
        """
        stitched = any(
            row.author == STITCHER or (not row.author and state.started and state.started.coder == STITCHER)
            for row in state.attempts
        )
        return 0 if stitched else 1

    def write(self, context: RunContext) -> Written:
        """The program of the run's plan.

        Raises:
            StitchFailedError: no program can be written for this graph.
        """
        store = context.run.store
        sources = {file.path: store.get(file.sha256) for file in context.task.files}
        stitched = stitch(context.task, context.facts, context.graph, context.plan, sources)
        program = Program(
            format=stitched.format,
            target=context.task.target,
            files=store.put_files(stitched.files),
            main=stitched.main,
            author=STITCHER,
        )
        return Written(program, stitched.notes)

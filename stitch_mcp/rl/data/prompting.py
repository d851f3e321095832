"""The question that asks for a program of a task that no run has seen yet."""

from stitch_planner.agents.prompting import fenced


def task_prompt(source: str, target: str) -> str:
    """A question of the skill `generate`: the reference as data, and the device.

    A run's own questions say more: shapes, the contract and a plan, which need the reference to be captured
    first.
    """
    suffix = "cpp" if target == "cpu" else "cu"
    return "\n".join(
        [
            "# The task",
            "",
            "The reference, as data:",
            "",
            fenced(source, "python"),
            "",
            f"- Target: {target}",
            "- Contract: fp32 results; inputs and weights of any values that the reference takes",
            "",
            "# This round",
            "",
            "Write one program for the whole forward pass: the simplest that is right and fast. "
            f"`program.{suffix}` is its main file.",
            "",
        ]
    )

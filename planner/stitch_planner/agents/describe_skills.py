"""The skills that fit a plan in the words of a prompt."""

from stitch_planner.agents.prompting import fenced
from stitch_planner.plan import Plan
from stitch_planner.runs.attempts import Attempt
from stitch_planner.skills.choose import ChosenSkill, choose_skills
from stitch_planner.skills.library import packaged_skills
from stitch_tools.models.task import ReferenceFacts
from stitch_tools.models.verdict import Bench
from stitch_tools.storage.store import Store

MOST_BYTES = 16_000
_HEADING = (
    "# Recipes\n\nChosen by the plan. Each comes with a program for a task of its own:\n"
    "take over the technique, and adapt sizes, names and checks to this task."
)


def describe_skills(plan: Plan, facts: ReferenceFacts, shown: Attempt | None, store: Store) -> str:
    """The pages of at most two skills, and their programs as far as there is room; "" where none fits."""
    bench = store.get_fact(shown.bench.bench, Bench) if shown and shown.bench else None
    chosen = choose_skills(packaged_skills(), plan, training=facts.training, bench=bench)
    parts = [_HEADING] if chosen else []
    programs: list[str] = []
    room = MOST_BYTES - len(_HEADING.encode())
    # Pages first: they are short, and say what to do; a program shows how.
    for row in chosen:
        if (size := len(_page(row).encode()) + 2) <= room:
            parts.append(_page(row))
            room -= size
    for row in chosen:
        text = f"## Program of {row.skill.name}\n\n" + fenced(row.skill.program.text, "cpp")
        if (size := len(text.encode()) + 2) <= room:
            programs.append(text)
            room -= size
    return "\n\n".join([*parts, *programs])


def _page(chosen: ChosenSkill) -> str:
    body = chosen.skill.body.strip().replace("\n## ", "\n### ").replace("## When", "### When", 1)
    return f"## {chosen.skill.name}\n\nBecause {chosen.reason}.\n\n{body}"

"""Writes samples as trainers read them: our own prompts, TRL, verl, and supervised fine-tuning."""

import json
import string
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

from stitch_mcp.rl.data.samples import SkillSample
from stitch_mcp.rl.training.policies import PromptRow
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import write_atomically

ExportFormat = Literal["prompts", "trl", "verl", "sft"]


class ExportResult(Fact):
    """What was written."""

    path: str
    rows: int
    left_out: int
    """Samples without a prompt's twin, or (`sft`) that do not count or are too slow."""


def export_samples(
    samples: Sequence[SkillSample], how: ExportFormat, path: Path, *, least_speedup: float = 1.05
) -> ExportResult:
    """Writes JSON lines for a trainer.

    Args:
        samples: what is exported. For `prompts`, `trl` and `verl` each question counts once; for `sft` the
            best answer to each question counts.
        how: `prompts`: for `stitch-mcp rl train`, with the references beside the file. `trl`: for the reward
            function of the TRL adapter. `verl`: for `compute_score`. `sft`: conversations.
        path: the file.
        least_speedup: of an answer in `sft`, by the lower end of its interval: rejection sampling.

    Raises:
        UsageError: nothing is left.
    """
    chosen = _best_answers(samples, least_speedup) if how == "sft" else _questions(samples)
    if not chosen:
        raise UsageError("no sample is left to export", hint="lower --least-speedup, or collect more runs")
    rows = [_row(sample, how, path) for sample in chosen]
    lines = b"".join(json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n" for row in rows)
    write_atomically(path, lines)
    return ExportResult(path=str(path), rows=len(rows), left_out=len(samples) - len(rows))


def _questions(samples: Sequence[SkillSample]) -> list[SkillSample]:
    return list({(row.system, row.prompt): row for row in samples}.values())


def _best_answers(samples: Sequence[SkillSample], least_speedup: float) -> list[SkillSample]:
    best: dict[tuple[str, str], SkillSample] = {}
    for row in samples:
        if not row.counts or not row.answer or (row.speedup or 0.0) < least_speedup:
            continue
        # A refinement that made its parent slower teaches the wrong thing, however fast it is beside eager.
        if row.skill == "refine" and (row.gain is None or row.gain <= 1.0):
            continue
        known = best.get((row.system, row.prompt))
        if known is None or (row.speedup or 0.0) > (known.speedup or 0.0):
            best[(row.system, row.prompt)] = row
    return list(best.values())


def _row(sample: SkillSample, how: ExportFormat, path: Path) -> dict[str, object]:
    if how == "sft":
        answer = {"role": "assistant", "content": sample.answer}
        return {"messages": [*sample.messages, answer], "skill": sample.skill, "speedup": sample.speedup}
    if how == "prompts":
        return _prompt_row(sample, path)
    task = {"files": sample.reference_files, "reference": sample.reference}
    # Columns have one type over all rows: objects travel as JSON text.
    parent = {
        "parent": json.dumps(sample.parent_files) if sample.parent_files else "",
        "parent_main": sample.parent_main,
    }
    if how == "trl":
        return {"prompt": list(sample.messages), "task": json.dumps(task), "skill": sample.skill, **parent}
    return {
        "data_source": "stitch-mcp",
        "prompt": list(sample.messages),
        "ability": sample.skill,
        "reward_model": {"style": "rule", "ground_truth": json.dumps(task)},
        "extra_info": {"index": sample.sample_id, **parent},
    }


def _prompt_row(sample: SkillSample, path: Path) -> dict[str, object]:
    folder = path.parent / "references" / sample.sample_id
    for name, text in sample.reference_files.items():
        write_atomically(folder / name, text.encode("utf-8"))
    row = PromptRow(
        skill=sample.skill,
        task=sample.task,
        reference=str((folder / sample.reference).resolve()),
        messages=sample.messages,
        parent_files=sample.parent_files,
        parent_main=sample.parent_main,
    )
    return row.model_dump(mode="json")


def dataset_card(samples: Sequence[SkillSample], license_name: str) -> str:
    """The README of a dataset folder, as Hugging Face reads it: its head and what the samples are."""
    text = files("stitch_mcp.rl.data").joinpath("card.md").read_text(encoding="utf-8")
    return string.Template(text).substitute(
        license=license_name,
        size=_size(len(samples)),
        samples=len(samples),
        generate=sum(row.skill == "generate" for row in samples),
        refine=sum(row.skill == "refine" for row in samples),
        counted=sum(row.counts for row in samples),
        families=len({row.family for row in samples}),
    )


def _size(count: int) -> str:
    for limit, name in ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K")):
        if count < limit:
            return name
    return "100K<n<1M"

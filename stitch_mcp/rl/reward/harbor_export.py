"""Writes a reference as a Harbor task, after its oracle was judged."""

from pathlib import Path
from typing import Unpack

from stitch_mcp.config import Settings, configure
from stitch_mcp.rl.reward.adapters.harbor_task import PROGRAM_FOLDER, export_harbor
from stitch_mcp.rl.reward.judging import RewardTask, judge_submission
from stitch_mcp.rl.reward.presets import find_preset
from stitch_mcp.rl.reward.scoring import score
from stitch_mcp.rl.reward.submission_files import submission_at
from stitch_mcp.rl.reward.submissions import read_submission
from stitch_mcp.workbench import target_name
from stitch_planner.workbench import Emit
from stitch_tools.errors import UsageError

_INSTRUCTION = """# Make a PyTorch module faster

`reference.py` below defines `Model`, `get_inputs` and `get_init_inputs`. Write a program that computes the
same outputs faster, and put its files into `{folder}`: a `.cu` or `.cpp` file with the C ABI of stitch-mcp,
or a `.py` file with a class `ModelNew`. It is judged on hidden inputs and weights on target `{target}`.

```python
{source}
```
"""


def write_harbor_task(
    reference: Path,
    oracle: Path,
    out: Path,
    *,
    preset: str,
    image: str,
    emit: Emit | None = None,
    **settings: Unpack[Settings],
) -> dict[str, float]:
    """The rewards of floor, oracle and ceiling, once the task's folder is written.

    Args:
        reference: a reference that needs no other file.
        oracle: folder or file of a program that is known to be right, or a completion.
        out: the folder.
        preset: name of the reward's preset.
        image: container image with Python.
        emit: receives progress sentences.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        UsageError: the oracle earns nothing.
        TaskError: the reference cannot be used.
    """
    chosen = find_preset(preset)
    source = reference.read_text(encoding="utf-8")
    task = RewardTask(reference="reference.py", files={"reference.py": source})
    submission = submission_at(oracle)
    reward = score(judge_submission(submission, task, emit=emit, **settings).evidence, chosen)
    if not reward.correct:
        raise UsageError(
            f"the oracle earns nothing: {'; '.join(reward.reasons)}", hint="name a right program"
        )
    rewards = {"floor": chosen.floor, "oracle": reward.total, "ceiling": chosen.ceiling}
    export_harbor(
        out,
        instruction=_INSTRUCTION.format(
            folder=PROGRAM_FOLDER, target=target_name(configure(settings)), source=source.strip()
        ),
        task=task.model_dump(mode="json"),
        oracle=read_submission(submission).files,
        rewards=rewards,
        preset=preset,
        image=image,
    )
    return rewards

"""Runs training and evaluation in processes of their own, so that this one never imports torch."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from stitch_mcp.rl.training.train_config import TrainConfig
from stitch_tools.errors import EnvironmentMissingError, StitchError, UsageError
from stitch_tools.models.base import Fact

_PROCESS = "stitch_mcp.rl.training.trainer.process"
_NEEDED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


class TrainerRequest(Fact):
    """What a trainer process is asked for."""

    action: Literal["train", "evaluate"]
    config: TrainConfig
    resume: bool = False
    checkpoint: str = "newest"
    samples: int = 4


def run_trainer(request: TrainerRequest, *, processes: int = 1) -> dict[str, object]:
    """The result of the process, as JSON values. Its progress goes to stderr.

    Args:
        request: what is asked for.
        processes: one a GPU that trains; more than one are started by torchrun.

    Raises:
        EnvironmentMissingError: the extra `rl` is not installed.
        UsageError: a setting does not fit.
        StitchError: the process ended without a result.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentMissingError(
            f"training needs {', '.join(missing)}", hint='install the extra: pip install "stitch-mcp[rl]"'
        )
    with tempfile.TemporaryDirectory(prefix="stitch-rl-") as folder:
        path = Path(folder) / "request.json"
        path.write_bytes(request.canonical_json())
        done = subprocess.run(_command(path, processes), stdout=sys.stderr, check=False)
        answer_path = path.with_suffix(".answer")
        if not answer_path.is_file():
            raise StitchError(f"the trainer ended with code {done.returncode} and no result")
        answer: dict[str, dict[str, str]] = json.loads(answer_path.read_bytes())
    if failure := answer.get("failure"):
        kind = _ERRORS.get(failure["code"], StitchError)
        raise kind(failure["message"], hint=failure["hint"])
    return dict(answer["result"])


def _command(path: Path, processes: int) -> list[str]:
    if processes == 1:
        return [sys.executable, "-m", _PROCESS, str(path)]
    # `accelerate launch` starts one process where it finds no GPU, and follows the user's own configuration.
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launch, f"--nproc_per_node={processes}", "-m", _PROCESS, str(path)]


_ERRORS: dict[str, type[StitchError]] = {
    "usage": UsageError,
    "task": UsageError,
    "environment": EnvironmentMissingError,
}

"""The process that trains or evaluates: `python -m stitch_mcp.rl.training.trainer.process REQUEST`.

REQUEST is a JSON file with the settings and what is asked for. The result, or the failure, is written
beside it: what libraries print is no part of it.
"""

import json
import sys
from pathlib import Path

from stitch_mcp.rl.training.backend_opening import open_backend
from stitch_mcp.rl.training.running import TrainerRequest
from stitch_tools.errors import StitchError
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import write_atomically


def main() -> int:
    """Do what the request asks for; 0, or 1 with the failure written."""
    path = Path(sys.argv[1])
    request = TrainerRequest.from_json_bytes(path.read_bytes())
    try:
        result = _done(request)
    except StitchError as error:
        # Of several processes the first one writes: what fails in another is seen here alone.
        print(f"error: {error.message}", file=sys.stderr)
        failure = {"code": error.code, "message": error.message, "hint": error.hint}
        _write(path, {"failure": failure})
        return 1
    _write(path, {"result": result.model_dump(mode="json")})
    return 0


def _done(request: TrainerRequest) -> Fact:
    config = request.config
    config.output.mkdir(parents=True, exist_ok=True)
    with open_backend(config.backend, config.output) as backend:
        if request.action == "train":
            from stitch_mcp.rl.training.trainer.grpo import train

            return train(config, backend, resume=request.resume)
        from stitch_mcp.rl.training.trainer.evaluate import evaluate

        return evaluate(config, backend, checkpoint=request.checkpoint, samples=request.samples)


def _write(request: Path, answer: dict[str, object]) -> None:
    from accelerate import PartialState

    if PartialState().is_main_process:
        write_atomically(request.with_suffix(".answer"), json.dumps(answer).encode("utf-8"))


if __name__ == "__main__":
    sys.exit(main())

"""Harbor: writes a task folder whose verifier asks the reward service, with oracle and floor.

The verifier runs in a container of its own with the program's folder alone, where nothing that an agent left
can write the reward. STITCH_RL_URL and STITCH_RL_TOKEN are those of whoever runs the task.
"""

import json
from collections.abc import Mapping
from importlib.resources import files as resources
from pathlib import Path

PROGRAM_FOLDER = "/workspace/program"
_SCRIPTS = ("client.py", "harbor_verify.py")
_TEST = "#!/bin/sh\nmkdir -p /logs/verifier\nexec python3 /tests/harbor_verify.py\n"
_SOLVE = f'#!/bin/sh\nmkdir -p {PROGRAM_FOLDER}\ncp -r "$(dirname "$0")/program/." {PROGRAM_FOLDER}/\n'
_FLOOR = f"#!/bin/sh\n# Submits nothing: the least reward there is.\nmkdir -p {PROGRAM_FOLDER}\n"
_TASK = """schema_version = "1.4"
artifacts = ["{program}"]

[metadata]
reward_preset = {preset}
reward_floor = {floor}
reward_oracle = {oracle}
reward_ceiling = {ceiling}

[environment]
docker_image = {image}

[verifier]
environment_mode = "separate"
timeout_sec = 1800.0

[verifier.env]
STITCH_RL_URL = "${{STITCH_RL_URL}}"
STITCH_RL_TOKEN = "${{STITCH_RL_TOKEN}}"

[verifier.environment]
docker_image = {image}
"""


def export_harbor(
    folder: Path,
    *,
    instruction: str,
    task: Mapping[str, object],
    oracle: Mapping[str, bytes],
    rewards: Mapping[str, float],
    preset: str = "stitchcuda",
    image: str = "python:3.12-slim",
) -> None:
    """Write the folder: task.toml, instruction.md, tests/, and solution/ with oracle and floor.

    Args:
        folder: made where it is missing.
        instruction: what the agent is asked.
        task: a `RewardTask` with its sources inline.
        oracle: files of a program that is known to be right.
        rewards: `floor`, `oracle` (as judged) and `ceiling`.
        preset: how evidence becomes a number.
        image: container image with Python.
    """
    asked = json.dumps({"task": task, "preset": preset}, indent=1)
    names = {"preset": f'"{preset}"', "image": f'"{image}"', "program": PROGRAM_FOLDER}
    written: dict[str, bytes] = {
        "task.toml": _TASK.format(**names, **rewards).encode(),
        "instruction.md": instruction.encode(),
        "tests/test.sh": _TEST.encode(),
        "tests/asked.json": asked.encode(),
        "solution/solve.sh": _SOLVE.encode(),
        "solution/floor.sh": _FLOOR.encode(),
        **{f"solution/program/{path}": data for path, data in oracle.items()},
    }
    for name in _SCRIPTS:
        written[f"tests/{name}"] = resources(__package__ or "").joinpath(name).read_bytes()
    for path, data in written.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        if path.endswith(".sh"):
            (folder / path).chmod(0o755)

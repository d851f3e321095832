"""The verifier of an exported Harbor task: sends the program to the reward service, and writes the reward.

It stands beside a copy of `client.py` in the task's `tests` folder, in a container without stitch-mcp.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from client import VerifyClient  # pyright: ignore[reportMissingImports, reportUnknownVariableType] # the copy

PROGRAM = Path(os.environ.get("STITCH_PROGRAM", "/workspace/program"))
MOST_BYTES = 1 << 20
"""As JSON a byte may take six, and the service reads 8 MiB: a program that it refuses would get no reward."""
REWARD = Path(os.environ.get("STITCH_REWARD", "/logs/verifier/reward.json"))


def main() -> int:
    """Write the reward of what lies in the program's folder; 1 where nothing could be judged, without one."""
    asked = json.loads((Path(__file__).parent / "asked.json").read_text(encoding="utf-8"))
    found = sorted(path for path in PROGRAM.rglob("*") if path.is_file() and not path.is_symlink())
    if sum(path.stat().st_size for path in found) > MOST_BYTES:
        found = []  # no program: it gets the floor
    files = {path.relative_to(PROGRAM).as_posix(): path.read_text("utf-8", "replace") for path in found}
    answer = VerifyClient().verify({"files": files}, asked["task"], asked["preset"])
    reward = answer["reward"]
    if not reward["valid"]:
        print(f"nothing was judged: {reward['reasons']}", file=sys.stderr)
        return 1
    figures = {
        "reward": float(reward["total"]),
        "correct": float(reward["correct"]),
        "speedup": float(reward["speedup"] or 0.0),
    }
    REWARD.write_text(json.dumps(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The reward function as verl's own loader loads and calls it. Prints the score."""

import json
import sys
from pathlib import Path

from verl.utils.import_utils import load_extern_object

import stitch_mcp.rl.reward.adapters as adapters


def main() -> None:
    row = json.load(sys.stdin)
    path = str(Path(adapters.__file__).parent / "verl_reward.py")
    compute_score = load_extern_object(module_path=path, object_name="compute_score")
    found = compute_score(
        data_source="stitch",
        solution_str=row["completion"],
        ground_truth=json.dumps(row["task"]),
        extra_info={"preset": row["preset"]},
    )
    print(json.dumps({"reward": found["score"], **found}))


main()

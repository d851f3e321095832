import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "roofline"


@pytest.mark.slow
def test_a_template_is_built_compared_with_eager_and_timed(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--target", "cpu", "--only", "silu", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    assert (row["name"], row["limit"], row["problem"]) == ("silu(a) * b", "copy bandwidth", "")
    # Two operands and the result, of 4 bytes each.
    assert row["bytes"] == 3 * 4 * int(row["size"])
    assert row["program_us"] > 0.0
    assert row["eager_us"] > 0.0
    assert 0.0 <= row["error"] < 1e-5
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert f"| pointwise | silu(a) * b [{row['size']}] |" in table

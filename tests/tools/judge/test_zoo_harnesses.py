"""The harnesses beside the judge: what a naive one believes, and that no candidate ends it."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.tools.judge import zoo_harness
from tests.tools.judge.zoo_runner import ZOO

ROOT = Path(__file__).resolve().parents[3]
PATHS = [str(ROOT), str(ROOT / "tools")]
REFERENCE = ZOO / "references" / "gelu.py"
HEAD = "import json, os, signal, sys, time\nfrom torch import nn\n\nclass ModelNew(nn.Module):\n"


@pytest.fixture(scope="module")
def naive() -> Iterator[zoo_harness.Harness]:
    with closing(zoo_harness.naive(sys.executable, PATHS)) as harness:
        yield harness


def ask(harness: zoo_harness.Harness, folder: Path, body: str) -> dict[str, object]:
    candidate = folder / "candidate.py"
    candidate.write_text(f"{HEAD}    def forward(self, x):\n        {body}\n", encoding="utf-8")
    said = harness.exchange(
        {
            "name": "case",
            "reference": str(REFERENCE),
            "candidate": str(candidate),
            "source": str(candidate),
            "folder": str(folder),
        }
    )
    assert said is not None
    return said


def test_a_naive_harness_accepts_what_is_right_and_times_it(
    naive: zoo_harness.Harness, tmp_path: Path
) -> None:
    said = ask(naive, tmp_path, "return nn.functional.gelu(x)")
    assert said["verdict"] == "accepted"
    assert said["speedup"] is not None
    assert ask(naive, tmp_path, "return x")["verdict"] == "incorrect"
    assert ask(naive, tmp_path, "raise KeyError")["verdict"] == "KeyError"


def test_a_naive_harness_believes_exit_codes_and_printed_verdicts(
    naive: zoo_harness.Harness, tmp_path: Path
) -> None:
    assert ask(naive, tmp_path, "os._exit(0)")["verdict"] == "accepted"
    assert ask(naive, tmp_path, "os._exit(3)")["verdict"] == "died (3)"
    forged = "print(json.dumps({'status': 'accepted', 'speedup': 9.0}), flush=True); os._exit(1)"
    assert ask(naive, tmp_path, forged) == {"name": "case", "verdict": "accepted", "speedup": 9.0}


def test_what_a_candidate_leaves_behind_is_ended(naive: zoo_harness.Harness, tmp_path: Path) -> None:
    left = tmp_path / "left"
    body = f"pid = os.fork(); pid or (os.setsid(), open({str(left)!r}, 'w').write(str(os.getpid())), "
    said = ask(naive, tmp_path, f"{body}time.sleep(600)); time.sleep(0.5); os._exit(3)")
    assert said["verdict"] == "died (3)"
    with pytest.raises(ProcessLookupError):
        os.kill(int(left.read_text(encoding="utf-8")), 0)


@pytest.mark.exhaustive
@pytest.mark.skipif("STITCH_KERNELBENCH" not in os.environ, reason="STITCH_KERNELBENCH names no checkout")
def test_kernelbench_itself_judges_the_same_candidates(tmp_path: Path) -> None:
    checkout = os.environ["STITCH_KERNELBENCH"]
    with closing(zoo_harness.kernelbench(sys.executable, PATHS, checkout)) as harness:
        assert ask(harness, tmp_path, "return nn.functional.gelu(x)")["trials"] == "correct"
        assert str(ask(harness, tmp_path, "return x")["trials"]).startswith("incorrect: Output mismatch")
        assert ask(harness, tmp_path, "os._exit(0)")["trials"] == "died (0)"
        said = ask(harness, tmp_path, "pass\n        try:\n            pass\n        except Exception: pass")
        assert str(said["static"]).startswith("refused")

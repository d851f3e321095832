"""A ModelNew whose own compiler is to take in a file of the user's; says BUILT where it did."""

import os
import subprocess
import sys
from pathlib import Path

import torch

VICTIM = Path(__file__).with_name("victim.txt").read_text(encoding="utf-8")
SOURCE = Path(os.environ["TMPDIR"], "taking.cpp")
SOURCE.write_text(f'asm(".data\\nstolen: .incbin \\"{VICTIM}\\"\\n.text");', encoding="utf-8")
DONE = subprocess.run(
    ["g++", "-shared", "-fPIC", str(SOURCE), "-o", str(SOURCE.with_suffix(".so"))],
    capture_output=True,
    text=True,
    check=False,
)
print("BUILT" if DONE.returncode == 0 else DONE.stderr, file=sys.stderr, flush=True)


class ModelNew(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0 + 1.0

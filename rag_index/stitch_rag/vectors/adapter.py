"""What all-MiniLM-L6-v2 lacks for CUDA: a low-rank change of its weights, learned from our ways to ask.

The change (LoRA, Hu et al. 2021, arXiv 2106.09685) brings texts of one entry together and those of others
apart. `scripts/fit-adapter` learns it from this package's phrases, notes and messages and from names: no
question set and no text of a header takes part. It fits one model's weights, and is left out for every other.
"""

import hashlib
import importlib
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

FILE = "minilm-cuda.safetensors"
"""Beside this module: for each layer that it changes, `NAME.up` and `NAME.down`."""
_WEIGHTS = "model.safetensors"
_FITS = "cd8d48183bcbcc480e84d3d523aaffcaf310ece322308ded2671854eb3b76d69"
"""`weights_hash` of the model that it was learned for."""
_END_BYTES = 65_536


def ends_of(path: Path) -> bytes:
    """A file's size and both its ends: other weights have others, and nobody reads 90 MB for it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(_END_BYTES)
        file.seek(max(0, size - _END_BYTES))
        return f"{size}\n".encode() + begin + file.read(_END_BYTES)


def adapter_for(folder: Path) -> bytes | None:
    """The adapter's file, where the model in a folder is the one that it was learned for.

    Raises:
        OSError: the folder cannot be read.
    """
    weights = folder / _WEIGHTS
    if not weights.is_file() or hashlib.sha256(ends_of(weights)).hexdigest() != _FITS:
        return None
    return (package_files("stitch_rag") / "vectors" / FILE).read_bytes()


def adapt(model: Any, adapter: bytes) -> None:
    """Changes the weights of a loaded sentence-transformers model in place."""
    layers = model[0].auto_model
    factors: Any = importlib.import_module("safetensors.torch").load(adapter)
    for name in sorted({key.rpartition(".")[0] for key in factors}):
        layers.get_submodule(name).weight.data += (
            factors[f"{name}.up"].float() @ factors[f"{name}.down"].float()
        )

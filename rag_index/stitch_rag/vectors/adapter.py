"""What all-MiniLM-L6-v2 lacks for CUDA: a low-rank change of its weights, learned from our ways to ask.

The change (LoRA, Hu et al. 2021, arXiv 2106.09685) brings texts of one entry together and those of others
apart. `scripts/fit-adapter` learns it from this package's phrases, notes and messages and from names; no
question of a set and no text of a header is among them (but some phrases were written with misses of the sets
A, B and C in view: their figures flatter). The file that ships also learned from phrases that were removed
later (docs/decisions/0024-phrases.md). It fits one model's weights, and is left out for every other.
"""

import hashlib
import importlib
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

_WEIGHTS = "model.safetensors"
_SAMPLES, _SAMPLE_BYTES = 512, 1024


@dataclass(frozen=True)
class WeightAdapter:
    """A file with a change of one model's weights."""

    file: str
    """Beside this module: for each layer that it changes, `NAME.up` and `NAME.down`."""
    fits: str
    """Hash over `sample_of` the weights that it was learned for."""
    sha256: str
    """Of the adapter's file."""


MINILM_CUDA = WeightAdapter(
    file="minilm-cuda.safetensors",
    fits="f8e70f645382c7ded53450d8e886fbde06f62a0c95ae32cb51c4798fa0be2fc4",
    sha256="d4c7f437af68b714bcc9f8d1204beb26adab7bc05aefc43e41d2e2a79e158be3",
)


def sample_of(path: Path) -> bytes:
    """A file's size and pieces from all over it: other weights have others, and nobody reads 90 MB for it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            return f"{size}\n".encode() + file.read()
        last = size - _SAMPLE_BYTES
        pieces = [f"{size}\n".encode()]
        for number in range(_SAMPLES):
            file.seek(last * number // (_SAMPLES - 1))
            pieces.append(file.read(_SAMPLE_BYTES))
    return b"".join(pieces)


def adapter_for(folder: Path, known: WeightAdapter = MINILM_CUDA) -> bytes | None:
    """The adapter's file, where it was learned for the model in a folder and is whole.

    Raises:
        OSError: the folder cannot be read.
    """
    weights = folder / _WEIGHTS
    if not weights.is_file() or hashlib.sha256(sample_of(weights)).hexdigest() != known.fits:
        return None
    try:
        adapter = (package_files("stitch_rag") / "vectors" / known.file).read_bytes()
    except OSError:  # a package without it: the model is as good as it was
        return None
    return adapter if hashlib.sha256(adapter).hexdigest() == known.sha256 else None


def adapt(model: Any, adapter: bytes) -> None:
    """Changes the weights of a loaded sentence-transformers model in place.

    Raises:
        RuntimeError: the library has other names for the layers than the one that it was learned with.
    """
    factors = importlib.import_module("safetensors.torch").load(adapter)
    changes: list[tuple[Any, Any]] = []
    try:
        layers = model[0].auto_model
        for name in sorted({key.rpartition(".")[0] for key in factors}):
            # All changes are computed before the first one is applied: a library with other layers leaves the
            # model as it was.
            change = factors[f"{name}.up"].float() @ factors[f"{name}.down"].float()
            changes.append((layers.get_submodule(name).weight.data.view_as(change), change))
    except (AttributeError, RuntimeError) as error:
        raise RuntimeError(
            f"this sentence-transformers has other layers than the adapter: {error}"
        ) from error
    for weight, change in changes:
        weight += change

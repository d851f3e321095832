"""What KernelBench's own checker says of one candidate, in a process that it may ruin.

    python zoo_kernelbench.py CHECKOUT REFERENCE CANDIDATE

The last line printed is the verdict: the static checker's, and on a GPU that of the evaluation. Nothing of
the checkout is copied; it is imported where it lies.
"""

import importlib
import importlib.util
import sys
from pathlib import Path


def main(checkout: str, reference: str, candidate: str) -> str:
    """Both verdicts in words."""
    sys.path[:0] = [str(Path(checkout) / "src"), checkout]
    source = Path(candidate).read_text(encoding="utf-8")
    said = [static(Path(checkout), source)]
    import torch

    if torch.cuda.is_available():
        said.append(evaluated(Path(reference).read_text(encoding="utf-8"), source))
    return "; ".join(said)


def static(checkout: Path, source: str) -> str:
    """The static checker's verdict, with its first complaint."""
    # By its path: the package around it needs more than this file does.
    found = sorted(checkout.glob("src/**/kernel_static_checker.py"))
    if not found:
        return "static: none"
    spec = importlib.util.spec_from_file_location("kernel_static_checker", found[-1])
    assert spec is not None
    assert spec.loader is not None
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    _, errors, _ = checker.validate_kernel_static(source, backend="cuda")
    if "__global__" not in source:
        # A candidate for a CPU has no kernels for a GPU: that alone is no verdict.
        errors = [row for row in errors if not str(row).startswith("Missing")]
    return f"static: {str(errors[0])[:80]}" if errors else "static: fine"


def evaluated(reference: str, source: str) -> str:
    """The evaluation's verdict over five trials, as it is used."""
    try:
        evaluation = importlib.import_module("kernelbench.eval")
    except ImportError as error:
        return f"evaluation: {error}"
    result = evaluation.eval_kernel_against_ref(reference, source, num_correct_trials=5)
    if result is None:
        return "evaluation: gave up"
    if result.correctness:
        return "evaluation: correct"
    return f"evaluation: {'incorrect' if result.compiled else 'not built'}"


if __name__ == "__main__":
    print(main(*sys.argv[1:4]))

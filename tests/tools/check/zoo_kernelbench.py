"""What KernelBench's own checker says of one candidate, in a process that it may ruin.

    python zoo_kernelbench.py CHECKOUT REFERENCE CANDIDATE

The last line printed is the verdict: the static checker's, and on a GPU that of the evaluation. Nothing of
the checkout is copied; it is imported where it lies.
"""

import importlib
import sys
from pathlib import Path


def main(checkout: str, reference: str, candidate: str) -> str:
    """Both verdicts in words."""
    sys.path[:0] = [str(Path(checkout) / "src"), checkout]
    source = Path(candidate).read_text(encoding="utf-8")
    said = [static(source)]
    import torch

    if torch.cuda.is_available():
        said.append(evaluated(Path(reference).read_text(encoding="utf-8"), source))
    return "; ".join(said)


def static(source: str) -> str:
    """The static checker's verdict, with its first complaint."""
    checker = importlib.import_module("kernelbench.kernel_static_checker")
    valid, errors, _ = checker.validate_kernel_static(source, backend="cuda")
    return "static: fine" if valid else f"static: {str(errors[0])[:80]}"


def evaluated(reference: str, source: str) -> str:
    """The evaluation's verdict over five trials, as it is used."""
    evaluation = importlib.import_module("kernelbench.eval")
    result = evaluation.eval_kernel_against_ref(reference, source, num_correct_trials=5)
    if result is None:
        return "evaluation: gave up"
    return (
        f"evaluation: {'correct' if result.correctness else 'incorrect' if result.compiled else 'not built'}"
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:4]))

"""KernelBench's own checker on the zoo's candidates, imported from a checkout of it; nothing of it is copied.

    python zoo_kernelbench.py CHECKOUT     one case a line in (JSON), both its verdicts a line out

`static` is its `validate_kernel_static` for fp32. `trials` on a GPU is its `eval_kernel_against_ref` for five
trials. That function wants CUDA; without, `trials` is its `run_and_check_correctness` on the device cpu: the
same seeds, five trials and tolerance, with `torch.cuda.synchronize` made to do nothing. A native program is
called by a `ModelNew` of ours around the built library, and read as the text that such a file would hold.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.tools.judge.zoo_naive import answer_in_fork, serve

SEED, TRIALS = 42, 5
_LIMIT_S = 120.0
_FOR_MODELS = ("dotenv", "litellm", "openai", "requests", "tqdm")
"""What the checkout imports to ask language models and to download: empty where it is not installed."""
_WRAPPER = """
class ModelNew(torch.nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        from tests.tools.judge.zoo_naive import NativeModel
        self.call = NativeModel({path!r}, Model(*arguments).state_dict())

    def forward(self, *inputs):
        outputs = self.call(list(inputs))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
"""
_TEXT = '''from torch.utils.cpp_extension import load_inline

source = r"""
{source}
"""
program = load_inline(name="program", cpp_sources=source, functions=["forward"])
{wrapper}'''


class _Absent(ModuleType):
    """A library that only serves what no check needs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: None


def add_checkout(checkout: Path) -> None:
    """Make the checkout's package importable."""
    sys.path.insert(0, str(checkout / "src"))
    for name in _FOR_MODELS:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = _Absent(name)


class Checker:
    """Both parts of KernelBench's checker."""

    def __init__(self, checkout: Path) -> None:
        add_checkout(checkout)
        self.checker = importlib.import_module("kernelbench.kernel_static_checker")
        if torch.version.cuda is None:
            # With CUDA only in the fork: it initialises the GPU.
            importlib.import_module("kernelbench.eval")

    def judge(self, case: dict[str, Any]) -> dict[str, Any]:
        """Both verdicts on one case; the trials run in a fork, which the candidate may ruin."""
        source = Path(case["source"]).read_text(encoding="utf-8")
        text = source
        if not case["source"].endswith(".py"):
            wrapper = _WRAPPER.format(path=case["candidate"])
            text, source = _TEXT.format(source=source, wrapper=wrapper), f"import torch\n{wrapper}"
        reference = Path(case["reference"]).read_text(encoding="utf-8")

        def tried() -> dict[str, Any]:
            os.chdir(case["folder"])
            # A candidate that forks finds no thread pool again.
            torch.set_num_threads(1)
            with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
                return {"trials": self.trials(reference, source, case)}

        said = answer_in_fork(tried, _LIMIT_S)
        ended = f"died ({said['died']})" if "died" in said else said.get("status", "did not end")
        return {"static": self.static(text), "trials": said.get("trials", ended)}

    def static(self, source: str) -> str:
        """`fine`, or the first complaint."""
        _, errors, _ = self.checker.validate_kernel_static(source, backend="cuda", precision="fp32")
        if "__global__" not in source:
            # A candidate for a CPU has no kernels for a GPU: that alone is no verdict.
            errors = [row for row in errors if not str(row).startswith("Missing")]
        return f"refused: {min(map(str, errors))}" if errors else "fine"

    def trials(self, reference: str, source: str, case: dict[str, Any]) -> str:
        """`correct`, or what the trials said."""
        evaluation = importlib.import_module("kernelbench.eval")
        if torch.cuda.is_available():
            result = evaluation.eval_kernel_against_ref(
                reference, source, seed_num=SEED, num_correct_trials=TRIALS
            )
        else:
            result = _on_a_cpu(evaluation, reference, source, case)
        if result is None or not result.compiled:
            return "not built"
        if result.correctness:
            return "correct"
        error = result.metadata.get("runtime_error_name") or result.metadata.get("correctness_issue")
        return f"incorrect: {error}, {result.metadata.get('correctness_trials', '')}".strip(" ,")


def _on_a_cpu(rule: ModuleType, reference: str, source: str, case: dict[str, Any]) -> Any:
    """The steps of its evaluation, function by function, without those that need CUDA."""
    torch.cuda.synchronize = lambda device=None: None
    context: dict[str, Any] = {"__file__": case["source"]}
    model_class, init_inputs, get_inputs = rule.load_original_model_and_inputs(reference, context)
    rule.set_seed(SEED)
    arguments = init_inputs()
    models: list[torch.nn.Module] = []
    with torch.no_grad():
        rule.set_seed(SEED)
        models.append(model_class(*arguments))
        try:
            new_class = rule.load_custom_model(source, context)
            rule.set_seed(SEED)
            models.append(new_class(*arguments))
        except Exception as error:  # a candidate may raise anything, as in the evaluation itself
            return rule.KernelExecResult(compiled=True, metadata={"runtime_error_name": _name(error)})
    try:
        return rule.run_and_check_correctness(
            *models, get_inputs, {}, TRIALS, seed=SEED, device=torch.device("cpu")
        )
    except Exception as error:  # as in the evaluation itself
        return rule.KernelExecResult(compiled=True, metadata={"runtime_error_name": _name(error)})


def _name(error: Exception) -> str:
    return type(error).__name__


if __name__ == "__main__":
    serve(Checker(Path(sys.argv[1])).judge)

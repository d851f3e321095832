"""Prompts: ways to begin, each a Markdown file in the package."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from stitch_tools.errors import UsageError


@dataclass(frozen=True)
class Argument:
    """A value that the user gives."""

    name: str
    description: str
    required: bool = True
    default: str = ""


@dataclass(frozen=True)
class Prompt:
    """A message to begin with; its text lies in `texts/<name>.md`."""

    name: str
    title: str
    description: str
    arguments: tuple[Argument, ...]


_REFERENCE = Argument("reference", "path.py, path.py:Object or task.toml in the workspace")
PROMPTS = (
    Prompt(
        "optimize_module",
        "Make a module faster",
        "From a PyTorch module to a certified, faster program",
        (_REFERENCE, Argument("goal", "What to reach, for example 2x eager", required=False)),
    ),
    Prompt(
        "port_reference",
        "Port a reference",
        "A correct native program for a PyTorch reference",
        (_REFERENCE, Argument("target", "cpu, cuda or cuda:sm_90", required=False, default="cpu")),
    ),
    Prompt(
        "fix_check",
        "Make a failing check pass",
        "Find out why a run's program is not accepted, and fix it",
        (Argument("run_id", "The run"),),
    ),
)
_MAX_VALUE_CHARS = 400


def prompt_text(name: str, given: Mapping[str, str]) -> tuple[Prompt, str]:
    """The prompt and its message with the arguments filled in.

    Raises:
        UsageError: no such prompt, or an argument is missing or unknown.
    """
    prompt = next((prompt for prompt in PROMPTS if prompt.name == name), None)
    if prompt is None:
        raise UsageError(f"there is no prompt {name[:60]!r}", hint=", ".join(item.name for item in PROMPTS))
    declared = {argument.name: argument for argument in prompt.arguments}
    missing = [
        argument.name for argument in prompt.arguments if argument.required and not given.get(argument.name)
    ]
    unknown = [key for key in given if key not in declared]
    if missing or unknown:
        raise UsageError(
            f"prompt {name}: {'missing ' + missing[0] if missing else 'unknown ' + unknown[0][:60]}",
            hint=f"arguments: {', '.join(declared)}",
        )
    values = {
        key: (given.get(key) or argument.default)[:_MAX_VALUE_CHARS] for key, argument in declared.items()
    }
    if values.get("goal"):
        values["goal"] = f"; the goal is: {values['goal']}"
    return prompt, template_of(name).format(**values)


def template_of(name: str) -> str:
    """A prompt's text before its arguments are filled in."""
    return files("stitch_mcp.server").joinpath("texts", f"{name}.md").read_text(encoding="utf-8")

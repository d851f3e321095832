"""What one question to a profile needs to be recorded, decided before anything runs."""

from dataclasses import replace
from typing import get_args

from stitch_tools.diagnose.rules import RULES
from stitch_tools.errors import UsageError
from stitch_tools.models.profile import KernelQuestion
from stitch_tools.profile.profile_text import NCU_RULES, question_id
from stitch_tools.profile.profile_work import ProfileOptions
from stitch_tools.profile.questions import question

_RULES = tuple(rule.name for rule in RULES)
QUESTIONS = (*_RULES, *get_args(KernelQuestion), NCU_RULES)
"""All that can be asked: rules of the diagnosis, questions about kernels, and ncu's own rules."""


def options_for(options: ProfileOptions, asked: str, target: str) -> ProfileOptions:
    """The options by which `asked` gets an answer; the same where it is "".

    Counters of kernels are collected for questions about kernels alone, and for one of them only its own.

    Raises:
        UsageError: there is no such question.
    """
    if not asked:
        return options
    name = question_id(asked)
    if name not in QUESTIONS:
        raise UsageError(f"there is no question {asked!r}", hint=f"ask one of: {', '.join(QUESTIONS)}")
    if not target.startswith("cuda"):
        return options
    if name in _RULES:
        return replace(options, level="both") if options.level == "kernel" else options
    about = question(name)
    if options.level == "both" or (about is None and name != NCU_RULES):
        return options
    return replace(options, level="kernel", questions=() if about is None else (about.id,))

"""All rules, in the order of the document. A new rule is a function and an entry in its file's `RULES`."""

from stitch_tools.judge.source.rule import Rule
from stitch_tools.judge.source.rules import (
    caches,
    concurrency,
    constants,
    dynamic,
    fallbacks,
    forging,
    gaps,
    introspection,
    kernels,
    native_caches,
    outside,
    patches,
    reference,
    reviewer,
    tensors,
    torch_ops,
)

RULES: tuple[Rule, ...] = (
    *patches.RULES,
    *forging.RULES,
    *introspection.RULES,
    *reference.RULES,
    *torch_ops.RULES,
    *dynamic.RULES,
    *fallbacks.RULES,
    *caches.RULES,
    *native_caches.RULES,
    *constants.RULES,
    *kernels.RULES,
    *concurrency.RULES,
    *tensors.RULES,
    *outside.RULES,
    *reviewer.RULES,
    *gaps.RULES,
)

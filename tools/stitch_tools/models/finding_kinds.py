"""What each finding's rule is evidence of: the kinds that a verdict's policy names."""

from collections.abc import Mapping
from typing import Literal

AcceptableKind = Literal[
    "reference_copied",
    "kernel_never_launched",
    "earlier_result_kept",
    "caller_inspected",
    "library_patched",
    "reviewer_addressed",
]
"""Kinds of which a suspicious finding keeps a program from counting, unless a policy accepts them."""
FindingKind = (
    AcceptableKind
    | Literal[
        "verdict_forged",
        "pytorch_used",
        "code_hidden",
        "work_unfinished",
        "setting_changed",
        "not_decided",
    ]
)
"""`work_unfinished`: work may go on after forward returned. `not_decided`: something was not read, could
not be judged, or weighs nothing in a verdict."""

STATIC_RULE_KINDS: Mapping[str, FindingKind] = {
    "judge_patched": "library_patched",
    "library_patched": "library_patched",
    "forged_result": "verdict_forged",
    "judge_module": "caller_inspected",
    "other_process_memory": "caller_inspected",
    "caller_inspected": "caller_inspected",
    "reference_copied": "reference_copied",
    "kernel_not_launched": "kernel_never_launched",
    "result_kept": "earlier_result_kept",
    "addresses_reviewer": "reviewer_addressed",
    "torch_op_in_forward": "pytorch_used",
    "torch_compiler": "pytorch_used",
    "hidden_code": "code_hidden",
    "work_not_joined": "work_unfinished",
    "global_setting": "setting_changed",
    "not_scanned": "not_decided",
}
"""Rules of the static evidence, by name. docs/rules.md says what each looks for."""

# What the check, the tracing and the timing write, and rules of version 0.1, which stored checks still carry.
# Only kinds that some verdict depends on are listed: any other rule decides nothing.
FINDING_KINDS: Mapping[str, FindingKind] = {
    **STATIC_RULE_KINDS,
    "cached_results": "earlier_result_kept",
    "unchanged_results": "earlier_result_kept",
    "never_launched": "kernel_never_launched",
    "pytorch_share": "pytorch_used",
    # Version 0.1.
    "ablation_survived": "kernel_never_launched",
    "extension_not_called": "kernel_never_launched",
    "kernel_without_effect": "kernel_never_launched",
    "fallback_in_handler": "pytorch_used",
    "other_library_in_forward": "pytorch_used",
    "native_early_return": "earlier_result_kept",
    "native_result_cache": "earlier_result_kept",
    "result_cached": "earlier_result_kept",
    "result_cached_by_count": "earlier_result_kept",
    "result_cached_by_pointer": "earlier_result_kept",
    "result_cached_by_shape": "earlier_result_kept",
    "result_cached_by_value": "earlier_result_kept",
    "result_memoised": "earlier_result_kept",
    "raw_memory": "caller_inspected",
    "reads_reference": "reference_copied",
    "reference_in_forward": "reference_copied",
}


def finding_kind(rule: str) -> FindingKind:
    """The kind of a finding's rule; `not_decided` for every rule on which no verdict depends."""
    return FINDING_KINDS.get(rule, "not_decided")

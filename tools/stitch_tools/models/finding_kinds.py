"""What each finding's rule is evidence of: the kinds that a verdict's policy names."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

FindingKind = Literal[
    "reference_copied",
    "kernel_never_launched",
    "earlier_result_kept",
    "caller_inspected",
    "library_patched",
    "reviewer_addressed",
    "verdict_forged",
    "pytorch_used",
    "code_hidden",
    "work_unfinished",
    "outside_accessed",
    "behaves_differently_when_watched",
    "impossible_speed",
    "memory_error",
    "wrong_result",
    "setting_changed",
    "not_decided",
]
"""`work_unfinished`: work may go on after forward returned. `outside_accessed`: files, network, processes (no
rule of today). `not_decided`: something was not read or could not be judged; it speaks for nobody."""

_STATIC: dict[str, FindingKind] = {
    "judge_patched": "library_patched",
    "library_patched": "library_patched",
    "forged_result": "verdict_forged",
    "judge_module": "caller_inspected",
    "other_process_memory": "caller_inspected",
    "caller_inspected": "caller_inspected",
    "reads_reference": "reference_copied",
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
"""Rules of the static evidence. docs/rules.md says what each looks for."""

_DYNAMIC: dict[str, FindingKind] = {
    # Correctness check.
    "cached_results": "earlier_result_kept",
    "unchanged_results": "earlier_result_kept",
    "wrong_at_other_size": "wrong_result",
    "not_deterministic": "wrong_result",
    "draws_random_numbers": "wrong_result",
    "inputs_modified": "wrong_result",
    "buffers_changed": "wrong_result",
    "output_in_input_memory": "wrong_result",
    "weights_not_reloadable": "wrong_result",
    "out_of_bounds_write": "memory_error",
    "reference_varies": "not_decided",
    "undecided": "not_decided",
    "gpu_wedged": "not_decided",
    # Who did the work.
    "never_launched": "kernel_never_launched",
    "ablation_survived": "kernel_never_launched",
    "pytorch_share": "pytorch_used",
    "traced_outputs_differ": "behaves_differently_when_watched",
    "launch_counts_differ": "behaves_differently_when_watched",
    "untraceable": "behaves_differently_when_watched",
    "library_launches_vary": "not_decided",
    # Timing.
    "faster_than_memory": "impossible_speed",
}

_RETIRED: dict[str, FindingKind] = {
    "result_cached_by_pointer": "earlier_result_kept",
    "result_cached_by_shape": "earlier_result_kept",
    "result_cached_by_value": "earlier_result_kept",
    "result_cached_by_count": "earlier_result_kept",
    "result_cached": "earlier_result_kept",
    "result_memoised": "earlier_result_kept",
    "native_result_cache": "earlier_result_kept",
    "native_early_return": "earlier_result_kept",
    "raw_memory": "caller_inspected",
    "fallback_in_handler": "pytorch_used",
    "tensor_subclass": "work_unfinished",
    "reference_used": "not_decided",
    "reference_in_forward": "reference_copied",
    "entry_not_found": "not_decided",
    "inputs_not_read": "impossible_speed",
    "fewer_operations": "impossible_speed",
    "extension_not_called": "kernel_never_launched",
    "kernel_without_effect": "kernel_never_launched",
    "other_library_in_forward": "pytorch_used",
    "hidden_torch_op": "code_hidden",
    "dynamic_code": "code_hidden",
    "dynamic_name": "code_hidden",
    "thread_not_joined": "work_unfinished",
    "stream_not_joined": "work_unfinished",
    "file_access": "outside_accessed",
    "network_access": "outside_accessed",
    "process_control": "outside_accessed",
    "environment_access": "outside_accessed",
    "library_loading": "outside_accessed",
    "generator_reseeded": "setting_changed",
    "large_constant": "not_decided",
    "data_file": "not_decided",
}
"""Rules of earlier versions. No code writes them any more, but stored checks and certificates carry them."""

FINDING_KINDS: Mapping[str, FindingKind] = MappingProxyType(_STATIC | _DYNAMIC | _RETIRED)
"""Rule name to kind. Rules of the sanitizers are not listed one by one; `finding_kind` knows them."""

STATIC_RULE_KINDS: Mapping[str, FindingKind] = MappingProxyType(_STATIC)
"""The part of `FINDING_KINDS` that the static evidence writes today."""

_SANITIZERS = ("asan.", "ubsan.", "tsan.", "init.", "memcheck.", "racecheck.", "initcheck.", "synccheck.")


def finding_kind(rule: str) -> FindingKind:
    """The kind of a finding's rule; `not_decided` for a rule that this version does not know.

    A sanitizer's rule carries the tool's name in front: `memcheck.invalid-read`.
    """
    # The sanitizers' own rule names come from other tools' reports, so no list of them is complete.
    if rule.startswith(_SANITIZERS):
        return "memory_error"
    return FINDING_KINDS.get(rule, "not_decided")

"""A profile as sections: findings first, then what they rest on."""

from stitch_mcp.views.table import ReportSection
from stitch_tools.models.profile import Profile
from stitch_tools.profile.profile_text import (
    answer_line,
    finding_lines,
    rule_lines,
    ruled_out_lines,
    system_lines,
    tax_lines,
)

_MOST_KERNELS = 12
_MOST_MODULES, _MOST_NODES = 10, 10


def profile_sections(profile: Profile) -> list[ReportSection]:
    """Status and findings, taxes, the iteration's figures, kernels, modules, answers about kernels."""
    tools = ", ".join(f"{tool.name} {tool.version}".strip() for tool in profile.tools) or "no profiler"
    title = f"Profile of the {profile.subject} on {profile.device or profile.target} ({tools})"
    if profile.status not in ("profiled", "partial"):
        notes = (f"{profile.status}: {profile.message}", *profile.not_measured)
        return [ReportSection(title=title, notes=notes), *_answers(profile)]
    findings = finding_lines(profile) or ("nothing was found that would win more than 2%",)
    sections = [ReportSection(title=title, notes=findings)]
    if profile.taxes:
        sections.append(ReportSection(title="Taxes", notes=tax_lines(profile)))
    if profile.system is not None:
        sections.append(ReportSection(title="One iteration", notes=system_lines(profile.system)))
        sections += _tables(profile)
    sections += _answers(profile)
    sections.append(ReportSection(title="Bounds", notes=_bound_lines(profile)))
    out = ruled_out_lines(profile)
    if out:
        sections.append(ReportSection(title="Ruled out", notes=out))
    if profile.not_measured:
        sections.append(ReportSection(title="Not measured", notes=profile.not_measured))
    return [section for section in sections if section.rows or section.notes]


def _answers(profile: Profile) -> list[ReportSection]:
    """Problems of kernels, with their evidence."""
    rows = [(kernel, answer) for kernel in profile.kernels for answer in kernel.answers if answer.is_problem]
    notes = tuple(answer_line(kernel, answer) for kernel, answer in rows[:_MOST_KERNELS])
    if profile.kernels and not notes:
        notes = (f"{len(profile.kernels)} kernels or functions, no problem found",)
    rules = rule_lines(profile)
    sections = (
        ReportSection(title="Kernels and functions looked at closely", notes=notes),
        ReportSection(title="What ncu's own rules say", notes=rules),
    )
    return [section for section in sections if section.notes]


def _tables(profile: Profile) -> list[ReportSection]:
    system = profile.system
    if system is None:
        return []
    rows = tuple(
        (
            f"{row.share:.1%}",
            f"{row.total_us:.1f}",
            f"{row.count:g}",
            row.owner,
            row.op or "-",
            row.module or "-",
            (row.short_name or row.name)[:60],
        )
        for row in system.kernels[:_MOST_KERNELS]
    )
    columns = ("share", "us", "runs", "owner", "operator", "module", "name")
    kernels = ReportSection(title="Kernels and operators", columns=columns, rows=rows, cut=True)
    nodes = ReportSection(
        title="Operations of the graph",
        columns=("us", "kernels", "bound us", "over bound", "operation", "module"),
        rows=tuple(
            (
                f"{row.time_us:.1f}",
                "-" if row.launches is None else str(row.launches),
                "-" if row.bound_us is None else f"{row.bound_us:.1f}",
                "-" if row.headroom is None else f"{row.headroom:.1f}x",
                row.node,
                row.module or "-",
            )
            for row in system.nodes[:_MOST_NODES]
        ),
        cut=True,
    )
    leaves = [row for row in system.modules if row.path]
    leaves.sort(key=lambda row: -(row.device_us if row.device_us is not None else row.host_us))
    modules = ReportSection(
        title="Modules",
        columns=("device us", "host us", "calls", "class", "module"),
        rows=tuple(
            (
                "-" if row.device_us is None else f"{row.device_us:.1f}",
                f"{row.host_us:.1f}",
                f"{row.calls:g}",
                row.type,
                row.path,
            )
            for row in leaves[:_MOST_MODULES]
        ),
        cut=True,
    )
    return [section for section in (kernels, nodes, modules) if section.rows]


def _bound_lines(profile: Profile) -> tuple[str, ...]:
    bounds = profile.bounds
    if bounds is None:
        return ()
    rows = (
        ("each operation alone, through device memory", bounds.unfused_us),
        ("the same with the last-level cache", bounds.cache_aware_us),
        ("all in one kernel", bounds.fused_us),
    )
    return tuple(f"{name}: {value:.1f} us" for name, value in rows if value is not None)

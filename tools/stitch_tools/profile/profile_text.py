"""A profile in words: a page of it, the answer to one question, and what changed between two."""

from stitch_tools.models.profile import (
    Bottleneck,
    HostCall,
    KernelAnswer,
    KernelProfile,
    KernelTime,
    NodeTime,
    Profile,
    ProfilerRule,
    SystemProfile,
)

MOST_COMPARED = 15
MOST_RULES = 8
NCU_RULES = "ncu_rules"
"""What to ask for, to be told what ncu's own rules say."""
_MOST_KERNELS = 10


def bottleneck_line(place: int, row: Bottleneck) -> str:
    """One finding: cause, gain with its range, action, and where to read on."""
    where = f" [{row.file}:{row.line}]" if row.file else f" [{row.module}]" if row.module else ""
    then = f", {row.gain.predicted_us:.0f} us" if row.gain.predicted_us is not None else ""
    more = f"; skill {row.skill}" if row.skill else ""
    return (
        f"{place}. {row.rule}{where}: {row.cause}. Gain {row.gain.expected:.2f}x "
        f"({row.gain.low:.2f} to {row.gain.high:.2f}{then}). Do: {row.action.rstrip('.')}{more}"
    )


def finding_lines(profile: Profile) -> tuple[str, ...]:
    """The diagnosis: at most three findings."""
    rows = profile.diagnosis.bottlenecks if profile.diagnosis is not None else ()
    return tuple(bottleneck_line(place, row) for place, row in enumerate(rows, 1))


def ruled_out_lines(profile: Profile) -> tuple[str, ...]:
    """What it is not."""
    rows = profile.diagnosis.ruled_out if profile.diagnosis is not None else ()
    return tuple(f"{row.rule}: {row.reason}" for row in rows)


def tax_lines(profile: Profile) -> tuple[str, ...]:
    """The three taxes with their upper bounds."""
    return tuple(
        f"{tax.kind.replace('_', ' ')}: {tax.ms:.3f} ms, at most {tax.saves_at_most_ms:.3f} ms to win by "
        f"{tax.remedy.replace('_', ' ')} ({tax.explanation})"
        for tax in profile.taxes
    )


def system_lines(system: SystemProfile) -> tuple[str, ...]:
    """The figures of one iteration, one line each, with their origin."""
    untraced = f", {system.untraced_us:.1f} us without a profiler" if system.untraced_us is not None else ""
    lines = [
        f"iteration: {system.wall_us:.1f} us under {system.origin}{untraced} ({system.iterations} recorded)",
        f"busy: {system.busy_us:.1f} us, {system.busy_share:.0%} of the recorded time",
    ]
    if system.launches is not None and system.device_activities is not None:
        between = system.host_between_launches_us
        median = f", {between:.1f} us of host time between two (median)" if between is not None else ""
        graphs = f", {system.graph_launches:g} of them graphs" if system.graph_launches else ""
        lines.append(
            f"launches: {system.launches:.0f} by the host{graphs} for {system.device_activities:.0f} kernels "
            f"and copies{median}"
        )
    if system.idle_us is not None:
        longest = max(system.gaps, key=lambda row: row.total_us, default=None)
        bucket = ""
        if longest is not None and longest.total_us:
            bound = f"under {longest.up_to_us:g} us" if longest.up_to_us is not None else "the longest"
            bucket = f", most of it in {longest.count:.0f} gaps ({bound})"
        lines.append(f"device idle between kernels: {system.idle_us:.1f} us{bucket}")
    lines += [
        f"wait in the forward: {row.name} x{row.count:g}, {row.total_us:.1f} us" for row in system.syncs
    ]
    lines += [
        f"memory call in the forward: {row.name} x{row.count:g}, {row.total_us:.1f} us"
        for row in system.memory_calls
    ]
    for row in system.transfers:
        kind = f", {row.pageable_share:.0%} pageable" if row.pageable_share is not None else ""
        lines.append(
            f"{row.direction.replace('_', ' ')}: {row.count:g} x, {row.bytes / 1e6:.3f} MB, "
            f"{row.total_us:.1f} us{kind}"
        )
    return tuple(lines)


def kernel_line(row: KernelTime) -> str:
    """One kernel or function."""
    place = ", ".join(part for part in (row.op, row.module) if part)
    return (
        f"{row.share:6.1%} {row.total_us:9.1f} us {row.count:7.1f} x {row.owner:8} "
        f"{row.short_name or row.name[:60]}{f' ({place})' if place else ''}"
    )


def kernel_lines(system: SystemProfile, most: int = _MOST_KERNELS) -> tuple[str, ...]:
    """The kernels or functions that take most."""
    return tuple(kernel_line(row) for row in system.kernels[:most])


def node_line(row: NodeTime, busy_us: float) -> str:
    """One operation of the graph with its lower bound."""
    bound = ""
    if row.bound_us is not None and row.headroom is not None:
        bound = f", bound {row.bound_us:.1f} us ({row.headroom:.1f}x)"
    kernels = f" in {row.launches} kernels" if row.launches is not None and row.launches != 1 else ""
    where = f" ({row.module})" if row.module else ""
    share = f"{row.time_us / busy_us:6.1%} " if busy_us else ""
    return f"{share}{row.time_us:9.1f} us{kernels}{bound}: {row.node}{where}"


def node_lines(system: SystemProfile, most: int = _MOST_KERNELS) -> tuple[str, ...]:
    """The operations of the graph that take most."""
    return tuple(node_line(row, system.busy_us) for row in system.nodes[:most])


def answer_line(kernel: KernelProfile, answer: KernelAnswer) -> str:
    """The answer to one question about a kernel."""
    where = f" [{answer.file}:{answer.line}]" if answer.file else ""
    evidence = "; ".join(f"{row.name} {row.value:.4g} {row.unit} ({row.origin})" for row in answer.evidence)
    why = f" unknown: {answer.reason}" if answer.reason else ""
    action = f" Do: {answer.action}" if answer.action else ""
    return (
        f"{kernel.kernel[:60]}{where}: {answer.question} = {answer.verdict}. {answer.summary}{why} "
        f"[{evidence}]{action}"
    ).strip()


def rule_lines(profile: Profile, most: int = MOST_RULES) -> tuple[str, ...]:
    """What ncu's own rules say, by what they would win of an iteration at most."""
    rows = [(kernel, rule) for kernel in profile.kernels for rule in kernel.rules]
    rows.sort(key=lambda row: -(row[1].saves_share or 0.0) * (row[0].share or 0.0))
    return tuple(_rule_line(kernel, rule) for kernel, rule in rows[:most])


def _rule_line(kernel: KernelProfile, rule: ProfilerRule) -> str:
    estimate = ""
    if rule.saves_share is not None:
        whole = f", {rule.saves_share * kernel.share:.1%} of all kernels'" if kernel.share is not None else ""
        estimate = f" NVIDIA's estimate: {rule.saves_share:.1%} of this kernel's time{whole}."
    elif rule.unit_share is not None:
        estimate = f" NVIDIA's estimate: one unit is used {rule.unit_share:.1%} better, which is no time."
    return f"{kernel.kernel[:60]}: {rule.name}: {rule.text.rstrip('.')}.{estimate}"


def questions_of(profile: Profile) -> tuple[str, ...]:
    """What can be asked of this profile: rules of its diagnosis, and questions about its kernels."""
    diagnosis = profile.diagnosis
    rules = (
        [*(row.rule for row in diagnosis.bottlenecks), *(row.rule for row in diagnosis.ruled_out)]
        if diagnosis is not None
        else []
    )
    asked = [answer.question for kernel in profile.kernels for answer in kernel.answers]
    own = [NCU_RULES] if any(kernel.rules for kernel in profile.kernels) else []
    return tuple(dict.fromkeys([*rules, *asked, *own]))


def question_id(question: str) -> str:
    """A question's name as people write it ("Bank conflicts?") in its own spelling."""
    return question.strip().lower().replace("-", "_").replace(" ", "_").rstrip("?")


def answer_question(profile: Profile, question: str) -> tuple[str, ...]:
    """What the profile says to one question: a rule's name or a question about kernels; () if nothing."""
    wanted = question_id(question)
    lines: list[str] = list(rule_lines(profile)) if wanted == NCU_RULES else []
    if profile.diagnosis is not None:
        for place, row in enumerate(profile.diagnosis.bottlenecks, 1):
            if row.rule == wanted:
                lines.append(bottleneck_line(place, row))
                lines += [
                    f"   {fact.name}: {fact.value:.6g} {fact.unit} ({fact.origin})" for fact in row.evidence
                ]
        lines += [f"no: {row.reason}" for row in profile.diagnosis.ruled_out if row.rule == wanted]
    lines += [
        answer_line(kernel, answer)
        for kernel in profile.kernels
        for answer in kernel.answers
        if answer.question == wanted
    ]
    return tuple(lines)


def compare_profiles(before: Profile, after: Profile) -> tuple[str, ...]:
    """What changed from one profile to the next, in at most 15 lines."""
    old, new = before.system, after.system
    if old is None or new is None:
        lacking = "first" if old is None else "second"
        return (f"the {lacking} profile has no system level: {(before if old is None else after).status}",)
    alike = old.origin == new.origin
    lines = [
        _change("latency without a profiler", old.untraced_us, new.untraced_us, "us"),
        # One counts operators, the other functions: their sums say nothing of each other.
        _change("device or operator time", old.busy_us, new.busy_us, "us")
        if alike
        else f"recorded by {old.origin}, then by {new.origin}: only latencies compare",
        _change("launches by the host", old.launches, new.launches),
        _change("kernels and copies", old.device_activities, new.device_activities),
        _change("waits in the forward", _count(old.syncs), _count(new.syncs)),
        _change("bytes copied", _bytes(old), _bytes(new), "B"),
    ]
    lines += _kernel_changes(old, new)
    lines += _answer_changes(before, after)
    return tuple([line for line in lines if line][:MOST_COMPARED])


def _count(rows: tuple[HostCall, ...]) -> float:
    return sum(row.count for row in rows)


def _bytes(system: SystemProfile) -> float:
    return sum(row.bytes for row in system.transfers)


def _change(name: str, old: float | None, new: float | None, unit: str = "") -> str:
    if old is None or new is None or (not old and not new):
        return ""
    ratio = f" ({old / new:.2f}x less)" if new and old > new else f" ({new / old:.2f}x more)" if old else ""
    if abs(old - new) <= 0.005 * max(old, new):
        ratio = " (the same)"
    return f"{name}: {old:.4g} -> {new:.4g} {unit}".rstrip() + ratio


def _kernel_changes(old: SystemProfile, new: SystemProfile) -> list[str]:
    """Kernels that are gone, new, or moved most, in microseconds."""
    before = {row.name: row for row in old.kernels}
    after = {row.name: row for row in new.kernels}
    changes: list[tuple[float, str]] = []
    for name in {**before, **after}:
        first, second = before.get(name), after.get(name)
        row = first or second
        if row is None:
            continue
        label = row.short_name or name[:60]
        was, now = (first.total_us if first else 0.0), (second.total_us if second else 0.0)
        if first is None:
            changes.append((now, f"new: {label}, {now:.1f} us"))
        elif second is None:
            changes.append((was, f"gone: {label}, {was:.1f} us"))
        elif abs(was - now) > 0.03 * max(was, now):
            runs = f"{first.count:g} -> {second.count:g} runs"
            changes.append((abs(was - now), f"changed: {label}, {was:.1f} -> {now:.1f} us, {runs}"))
    changes.sort(key=lambda item: -item[0])
    return [text for _, text in changes[:7]]


def _answer_changes(before: Profile, after: Profile) -> list[str]:
    """Questions about kernels whose answer is another one now."""
    old = {(row.kernel, answer.question): answer for row in before.kernels for answer in row.answers}
    lines: list[str] = []
    for row in after.kernels:
        for answer in row.answers:
            known = old.get((row.kernel, answer.question))
            if known is not None and known.verdict != answer.verdict:
                lines.append(f"{row.kernel[:40]}: {answer.question} {known.verdict} -> {answer.verdict}")
    return lines

"""The script that drives ncu, executed by a real shell with a stand-in for ncu; and what its outputs mean."""

import contextlib
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models.profile import KernelQuestion
from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.kernels import KernelReport, profile_kernels
from stitch_tools.profile.ncu import Ncu, NcuRequest, find_ncu, refusal, script, unknown_metrics
from stitch_tools.profile.permission import counter_access, is_refused
from stitch_tools.run.tool_process import Execution
from tests.tools.profile.ncu_tables import launch, raw_page, rules_page

REFUSED = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0."
)
# Collects where it is told to, prints the page where it imports, and writes down its words.
STAND_IN = """#!/bin/sh
folder=$(dirname "$0")
if [ "$1" = --version ]; then
  echo "NVIDIA (R) Nsight Compute Command Line Profiler"
  echo "Version 2025.3.1.0 (build 1) (public-release)"
  exit 0
fi
echo "$@" >> "$folder/words"
case " $* " in
  *" --page raw "*) cat "$folder/page.csv"; exit 0 ;;
  *" --page source "*) exit 0 ;;
  *" --page details "*) cat "$folder/details.csv"; exit 0 ;;
esac
{behaviour}
touch capture.ncu-rep
while [ "$1" != program ]; do shift; done
echo done
"""


DETAILS = rules_page(
    [
        ("0", "scale(int)", "UncoalescedGlobalAccess", "OPT", "Threads read far apart.", "global", "41.81"),
        ("0", "scale(int)", "SOLBottleneck", "INF", "Compute and memory are balanced.", "", ""),
    ]
)


def stand_in(folder: Path, behaviour: str = "") -> Path:
    path = folder / "ncu"
    path.write_text(STAND_IN.replace("{behaviour}", behaviour), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "page.csv").write_text(raw_page([launch(name="scale(int)")]), encoding="utf-8")
    (folder / "details.csv").write_text(DETAILS, encoding="utf-8")
    return path


def profiled(
    folder: Path, behaviour: str = "", questions: tuple[KernelQuestion, ...] | None = None
) -> KernelReport:
    """The report of a run whose ncu behaves like this."""
    ncu = Ncu(stand_in(folder, behaviour), "2025.3.1")

    def run(words: Sequence[str], *, readable: Sequence[Path], limit_s: float) -> Execution:
        assert ncu.folder in readable
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        for left in scratch.iterdir():
            left.unlink()
        done = subprocess.run(
            [*words, "program"], cwd=scratch, capture_output=True, text=True, check=False, timeout=limit_s
        )
        reports = {path.name: path.read_text() for path in scratch.glob("report*")}
        return Execution(done.returncode, stdout=done.stdout, stderr=done.stderr, reports=reports)

    return profile_kernels(ncu, run, questions=questions, limit_s=20.0)


def words_of(folder: Path) -> list[str]:
    return (folder / "words").read_text(encoding="utf-8").splitlines()


def test_one_run_collects_all_and_both_pages_are_printed_of_it(tmp_path: Path) -> None:
    report = profiled(tmp_path)
    assert (report.status, report.not_measured) == ("profiled", ())
    assert [kernel.kernel for kernel in report.kernels] == ["scale(int)"]
    collected, raw, source, details = words_of(tmp_path)
    assert "--profile-from-start off" in collected
    assert "--section SourceCounters" in collected
    assert "--clock-control none" in collected
    assert "--import capture.ncu-rep" in raw
    assert "--print-source cuda" in source
    assert "--page details" in details


def test_what_ncus_own_rules_would_improve_stands_at_its_kernel(tmp_path: Path) -> None:
    report = profiled(tmp_path)
    assert "--section MemoryWorkloadAnalysis_Tables" in words_of(tmp_path)[0]
    (kernel,) = report.kernels
    assert [(row.name, row.saves_share) for row in kernel.rules] == [("UncoalescedGlobalAccess", 0.4181)]


def test_a_single_question_collects_no_sections_for_rules(tmp_path: Path) -> None:
    profiled(tmp_path, questions=("divergence",))
    assert words_of(tmp_path)[0].count("--section") == 1
    assert not any("--page details" in words for words in words_of(tmp_path))


def test_metrics_that_this_ncu_does_not_know_are_left_out_and_named(tmp_path: Path) -> None:
    unknown = "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio"
    behaviour = f'case "$*" in *{unknown}*) echo "==ERROR== Failed to find metric {unknown}"; exit 1 ;; esac'
    report = profiled(tmp_path, behaviour)
    assert report.status == "profiled"
    assert report.not_measured == (f"this ncu or device does not know the metric {unknown}",)
    assert unknown not in words_of(tmp_path)[1]


def test_a_metric_that_an_older_ncu_calls_otherwise_is_collected_by_that_name(tmp_path: Path) -> None:
    behaviour = (
        f'case "$*" in *{m.ACTIVE_THREADS}*) echo "==ERROR== Failed to find metric {m.ACTIVE_THREADS}"; '
    )
    report = profiled(tmp_path, behaviour + "exit 1 ;; esac")
    assert (report.status, report.not_measured) == ("profiled", ())
    assert m.OLDER_NAMES[m.ACTIVE_THREADS] in words_of(tmp_path)[1]


def test_without_permission_the_report_says_which_and_how_to_get_it(tmp_path: Path) -> None:
    report = profiled(tmp_path, f"echo '{REFUSED}'; exit 1")
    assert report.status == "permission_denied"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in report.not_measured[0]
    assert "CAP_PERFMON" in report.not_measured[0]
    assert "sudo" not in report.not_measured[0]


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        ("echo '==WARNING== No kernels were profiled.'; exit 0", "no_kernels"),
        ("echo done; exit 0", "region_not_entered"),
        ("echo '==ERROR== The application returned an error code (11).'; exit 11", "crashed"),
        ("echo 'failed forward 1 illegal address'; exit 3", "crashed"),
        ("echo '==ERROR== The profiler is already in use by another process'; exit 1", "profiler_busy"),
    ],
)
def test_a_run_without_a_table_has_a_status_and_a_reason(tmp_path: Path, behaviour: str, status: str) -> None:
    report = profiled(tmp_path, behaviour)
    assert report.status == status
    assert report.message
    assert report.kernels == ()


def test_kernels_and_lines_are_options_of_the_request() -> None:
    text = script(
        Ncu(Path("/opt/n cu/ncu"), ""), NcuRequest(("a__b.sum",), kernels=("f.x", "g"), lines=False)
    )
    assert "'regex:^(f\\.x|g)$'" in text
    assert "SourceCounters" not in text
    assert "--page source" not in text
    assert "'/opt/n cu/ncu'" in text


def test_names_of_unknown_metrics_are_read_in_several_spellings() -> None:
    text = "==ERROR== Failed to find metrics: a__b.sum, c__d.avg\n"
    text += "==ERROR== Failed to find metric regex:e__f.pct\n"
    assert unknown_metrics(text) == ("a__b.sum", "c__d.avg", "e__f.pct")
    assert unknown_metrics("all is well") == ()
    assert refusal("all is well") is None


def test_ncu_is_found_on_the_path_and_asked_for_its_version(tmp_path: Path) -> None:
    path = stand_in(tmp_path)
    found = find_ncu({"PATH": str(tmp_path) + os.pathsep + "/usr/bin:/bin"})
    assert (found.path, found.version) == (path, "2025.3.1.0")


def test_a_file_that_is_no_ncu_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ncu"
    path.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    path.chmod(0o755)
    with contextlib.suppress(EnvironmentMissingError):  # where this machine has none in the usual folders
        assert find_ncu({"PATH": str(tmp_path)}).path != path


def machine(root: Path, *, restricted: str | None, capabilities: str) -> Path:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n", encoding="utf-8")
    if restricted is not None:
        (root / "proc" / "driver" / "nvidia").mkdir(parents=True)
        params = f"ModifyDeviceFiles: 1\nRmProfilingAdminOnly: {restricted}\n"
        (root / "proc" / "driver" / "nvidia" / "params").write_text(params, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("restricted", "capabilities", "likely"),
    [
        ("0", "0000000000000000", True),
        ("1", "0000000000000000", False),
        ("1", "0000004000000000", True),  # CAP_PERFMON
        ("1", "0000000000200000", True),  # CAP_SYS_ADMIN
        (None, "0000000000000000", None),
    ],
)
def test_who_may_read_counters_is_known_before_a_run(
    tmp_path: Path, restricted: str | None, capabilities: str, likely: bool | None
) -> None:
    access = counter_access(machine(tmp_path, restricted=restricted, capabilities=capabilities))
    assert access.likely is likely
    assert ("NVreg_RestrictProfilingToAdminUsers" in access.describe()) is (likely is False)


def test_the_driver_s_refusal_is_recognised() -> None:
    assert is_refused(REFUSED)
    assert not is_refused("==PROF== Connected to process 1")


def test_an_installation_is_preferred_to_a_script_that_looks_for_one(tmp_path: Path) -> None:
    wrapper, home = tmp_path / "bin", tmp_path / "cuda"
    wrapper.mkdir()
    stand_in(wrapper)
    assert find_ncu({"PATH": f"{wrapper}:/usr/bin:/bin"}).path == wrapper / "ncu"
    (home / "nsight-compute-2025.3.1" / "target").mkdir(parents=True)
    installed = stand_in(home / "nsight-compute-2025.3.1")
    assert find_ncu({"PATH": f"{wrapper}:/usr/bin:/bin", "CUDA_HOME": str(home)}).path == installed

"""Commands that need no torch: task, cache, runs, compile, config, certify's refusals, interrupts."""

import contextlib
import io
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import Buffer

from stitch_mcp.cli import main
from stitch_mcp.cli.failure import describe
from stitch_mcp.cli.interrupt import stop_on_interrupt
from stitch_mcp.cli.options import parse_overrides
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.named_programs import read_program
from stitch_planner.memory_file import MemoryFile, user_memory_file
from stitch_planner.runs.lessons import Lesson
from stitch_tools.errors import InterruptedRunError, RunInterrupt, UsageError
from stitch_tools.machine.isolation import probe_isolation
from stitch_tools.models.remedy import Remedy
from stitch_tools.storage.store import Store

PROGRAMS = Path(__file__).parents[1] / "tools" / "programs"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace with a cache of its own, as the current folder; its name is not ASCII."""
    folder = tmp_path / "my wörk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STITCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    for name in ("STITCH_WORKSPACE", "STITCH_TARGET", "STITCH_MIN_SPEEDUP"):
        monkeypatch.delenv(name, raising=False)
    return folder


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = main([*arguments, "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return code, found


def good_program(folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(PROGRAMS / "linear_relu.cpp", folder)
    (folder / "fault.h").write_text("#define FAULT NONE\n", encoding="utf-8")
    return folder


def test_config_show_names_the_origin_of_each_value(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "stitch.toml").write_text("threads = 1\n", encoding="utf-8")
    code, found = run_json(capsys, "config", "show", "--origin")
    assert code == 0
    settings, origins = found["settings"], found["origins"]
    assert isinstance(settings, dict)
    assert isinstance(origins, dict)
    assert settings["threads"] == 1
    assert origins["threads"] == str(workspace / "stitch.toml")
    assert origins["cache_dir"] == "STITCH_CACHE_DIR"
    assert main(["config", "show", "--origin"]) == 0
    assert "stitch.toml" in capsys.readouterr().out


def test_an_unknown_key_in_stitch_toml_stops_every_command(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "stitch.toml").write_text("thread = 3\n", encoding="utf-8")
    code, found = run_json(capsys, "runs", "list")
    assert code == 2
    assert found["error"] == {
        "code": "usage",
        "message": f"{workspace / 'stitch.toml'}: unknown setting `thread`",
        "hint": "did you mean `threads`?",
    }


def test_task_new_writes_a_file_that_loads_again(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stitch_mcp import load_task

    shutil.copy(PROGRAMS / "linear_relu.py", workspace / "model.py")
    code, found = run_json(capsys, "task", "new", "model.py")
    written = workspace / "model.task.toml"
    assert (code, found["path"]) == (0, str(written))
    assert load_task(written).main == load_task("model.py").main == "model.py"


def test_task_new_says_how_its_file_applies_and_where_else_it_can_go(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(PROGRAMS / "linear_relu.py", workspace / "model.py")
    assert main(["task", "new", "model.py"]) == 0
    assert "applies by itself to stitch-mcp solve model.py" in capsys.readouterr().out
    code, found = run_json(capsys, "task", "new", "model.py", "--output", "/proc/self/x.task.toml")
    assert code != 0
    assert "--output" in str(found["error"])
    assert "--workspace" not in str(found["error"])


def test_an_option_that_only_check_has_names_the_way_to_set_it(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["solve", "model.py", "--rtol", "1e-2"]) == 2
    assert "--set rtol=VALUE" in capsys.readouterr().err


def test_task_new_does_not_replace_a_file_unasked(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(PROGRAMS / "linear_relu.py", workspace / "model.py")
    (workspace / "model.task.toml").write_text("# mine\n", encoding="utf-8")
    assert run_json(capsys, "task", "new", "model.py")[0] == 2
    assert (workspace / "model.task.toml").read_text(encoding="utf-8") == "# mine\n"
    assert run_json(capsys, "task", "new", "model.py", "--force")[0] == 0


def test_task_new_wants_the_python_file_and_no_name_of_a_task_file(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run_json(capsys, "task", "new", "model.task.toml")
    assert code == 2
    assert "--output" in str(found["error"])
    assert not (workspace / "model.task.toml").exists()


def test_a_build_is_kept_shown_and_cleared(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = good_program(workspace / "program")
    code, first = run_json(capsys, "compile", str(program))
    assert (code, first["ok"], first["cache_hit"]) == (0, True, False)
    assert run_json(capsys, "compile", str(program))[1]["cache_hit"] is True
    kinds = run_json(capsys, "cache", "show")[1]["kinds"]
    assert isinstance(kinds, list)
    assert kinds[0]["entries"] == 1
    assert run_json(capsys, "cache", "clear")[0] == 0
    kinds = run_json(capsys, "cache", "show")[1]["kinds"]
    assert isinstance(kinds, list)
    assert [row["entries"] for row in kinds] == [0] * len(kinds)


def test_clearing_the_cache_touches_nothing_that_is_not_ours(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(os.environ["STITCH_CACHE_DIR"]) / "mine" / "file"
    other.parent.mkdir(parents=True)
    other.write_text("kept", encoding="utf-8")
    assert main(["cache", "clear"]) == 0
    assert other.exists()


def test_a_program_that_does_not_compile_is_a_result_with_diagnostics(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "bad.cpp").write_text("int f( {\n", encoding="utf-8")
    code, found = run_json(capsys, "compile", "bad.cpp")
    assert found["command"] == "compile"
    assert "-shared" in str(found["compiler_command"])
    assert (code, found["ok"]) == (3, False)
    diagnostics = found["diagnostics"]
    assert isinstance(diagnostics, list)
    assert (diagnostics[0]["severity"], diagnostics[0]["file"], diagnostics[0]["line"]) == (
        "error",
        "bad.cpp",
        1,
    )
    assert main(["compile", "bad.cpp"]) == 3
    out = capsys.readouterr().out
    assert "bad.cpp:1" in out
    assert "repeat in the program's folder:" in out


def test_a_gpu_architecture_for_cpp_is_a_usage_error(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good_program(workspace / "program")
    code, found = run_json(capsys, "compile", "program", "--arch", "sm_90")
    assert code == 2
    error = found["error"]
    assert isinstance(error, dict)
    assert "sm_90 names a GPU" in error["message"]
    assert "leave out --arch" in error["hint"]


def test_compile_says_how_its_compiler_was_isolated(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    level = probe_isolation()
    good_program(workspace / "program")
    code, found = run_json(capsys, "compile", "program", "--require-sandbox", level)
    assert (code, found["sandbox"]) == (0, level)


def test_an_empty_workspace_has_no_runs(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run_json(capsys, "runs", "list")
    assert (code, found["runs"]) == (0, [])
    assert run_json(capsys, "runs", "show")[0] == 2
    assert run_json(capsys, "solve", "--resume", "last")[0] == 2
    assert run_json(capsys, "certify")[0] == 2


def test_solve_without_a_reference_says_what_is_missing(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run_json(capsys, "solve")
    error = found["error"]
    assert isinstance(error, dict)
    assert (code, error["code"]) == (2, "usage")


def test_verifying_what_is_no_certificate_is_3(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace / "x.stitch.zip").write_bytes(b"PK\x03\x04 not really")
    assert run_json(capsys, "certify", "--verify", "x.stitch.zip")[0] == 3
    assert run_json(capsys, "certify", "--verify", "nowhere.zip")[0] == 2


def test_an_interpreter_without_torch_is_named_with_the_fix(
    workspace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    shutil.copy(PROGRAMS / "linear_relu.py", workspace / "model.py")
    code, found = run_json(capsys, "solve", "model.py", "--python", str(tmp_path / "bare" / "bin" / "python"))
    error = found["error"]
    assert isinstance(error, dict)
    assert (code, error["code"]) == (5, "environment")
    assert "torch" in error["hint"]


def test_a_relaxed_contract_can_be_forbidden(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(PROGRAMS / "linear_relu.py", workspace / "model.py")
    (workspace / "stitch.toml").write_text("forbid-relaxed = true\n", encoding="utf-8")
    code, found = run_json(capsys, "solve", "model.py", "--set", "rtol=0.5", "--allow-relaxed")
    error = found["error"]
    assert isinstance(error, dict)
    assert (code, "stitch.toml" in error["message"]) == (2, True)
    code, found = run_json(capsys, "solve", "model.py", "--set", "input_low=0")
    error = found["error"]
    assert isinstance(error, dict)
    assert (code, "input_low = 0.0 (caller), was None" in error["message"]) == (2, True)


def test_overrides_are_numbers_where_they_look_like_numbers() -> None:
    assert parse_overrides(["rtol=1e-4", "tolerance.atol=0", "mode = eval"]) == {
        "rtol": 1e-4,
        "atol": 0.0,
        "mode": "eval",
    }


def test_a_folder_with_two_programs_asks_which_one(tmp_path: Path) -> None:
    for name in ("a.cpp", "b.cu"):
        (tmp_path / name).write_text("", encoding="utf-8")
    store = Store(tmp_path / "store")
    with pytest.raises(UsageError, match="could mean"):
        read_program(tmp_path, store, target="cpu")
    assert read_program(tmp_path, store, target="cpu", main="b.cu").main == "b.cu"


def test_a_folder_program_has_all_files_but_hidden_ones_and_caches(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    for name in ("main.cpp", "stitch/cpu/x.h", ".git/config", "__pycache__/x.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")
    program = read_program(folder, Store(tmp_path / "store"), target="cpu")
    assert [file.path for file in program.files] == ["main.cpp", "stitch/cpu/x.h"]
    assert (program.format, program.main) == ("native", "main.cpp")


def test_a_python_file_is_a_kernelbench_program(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text("class ModelNew: ...\n", encoding="utf-8")
    assert read_program(tmp_path / "new.py", Store(tmp_path / "s"), target="cpu").format == "kernelbench"


@pytest.fixture
def signals() -> Iterator[None]:
    """Ctrl-C means afterwards what it meant before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_the_first_interrupt_asks_to_stop_and_the_second_stops_but_what_cleans_up(tmp_path: Path) -> None:
    cleaned_up = False

    def press_often() -> None:
        nonlocal cleaned_up
        with stop_on_interrupt() as stop:
            assert not stop.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(timeout=10)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                signal.pause()  # ended at once by the second signal, should it not have been delivered yet
            finally:
                try:
                    (tmp_path / "gone").unlink()
                except FileNotFoundError:
                    os.kill(os.getpid(), signal.SIGINT)
                cleaned_up = True

    with pytest.raises(InterruptedRunError, match="stopped at once") as caught:
        press_often()
    assert cleaned_up
    assert "run the same command again" in caught.value.hint
    os.kill(os.getpid(), signal.SIGINT)  # the command has nothing left to do but to tell, and to end


class InterruptedWriting(io.RawIOBase):
    """A stderr that meets Ctrl-C in the middle of a write."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("wb", buffering=0)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: Buffer, /) -> int:
        signal.raise_signal(signal.SIGINT)
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()
        super().close()


@pytest.mark.usefixtures("signals")
def test_an_interrupt_in_the_middle_of_a_progress_line_loses_neither(tmp_path: Path) -> None:
    written = tmp_path / "stderr"
    with io.TextIOWrapper(io.BufferedWriter(InterruptedWriting(written)), encoding="utf-8") as stream:
        with contextlib.redirect_stderr(stream), stop_on_interrupt() as stop:
            CommandOutput("solve", as_json=False).progress("capturing")
        assert stop.is_set()
    told = written.read_text(encoding="utf-8")
    assert "stopping after this step" in told
    assert "capturing" in told


@pytest.mark.usefixtures("signals")
def test_further_interrupts_leave_in_peace_what_ends_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []

    def end(number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        ended.append(number)

    def press_often() -> None:
        with stop_on_interrupt() as stop:
            stop.set()
            # The second one comes while all is well; an ExitStack forgets it before it goes on.
            with contextlib.ExitStack() as stack:
                for number in range(3):
                    stack.callback(end, number)

    with pytest.raises(InterruptedRunError):
        press_often()
    assert ended == [1, 0]

    def press_late() -> None:
        with stop_on_interrupt() as stop:
            stop.set()
            with contextlib.suppress(KeyboardInterrupt):  # as foreign code may
                os.kill(os.getpid(), signal.SIGINT)
                signal.pause()
            os.kill(os.getpid(), signal.SIGINT)
            clock = time.monotonic()
            monkeypatch.setattr(time, "monotonic", lambda: clock + 11.0)
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()

    with pytest.raises(InterruptedRunError):
        press_late()


@pytest.mark.usefixtures("signals")
def test_the_second_interrupt_names_the_run_that_it_stopped() -> None:
    remedy = Remedy(tool="solve", arguments={"run_id": "this-one"}, why="resume the run")

    def stopped() -> None:
        with stop_on_interrupt() as stop:
            stop.set()
            raise RunInterrupt(remedies=(remedy,))

    with pytest.raises(InterruptedRunError) as caught:
        stopped()
    assert caught.value.remedies == (remedy,)
    assert describe(caught.value).hint == "resume the run: stitch-mcp solve --resume this-one"


@pytest.mark.usefixtures("signals")
def test_without_an_interrupt_the_next_one_means_what_it_meant_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_option_before_the_command_is_told_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == "No such option '--json'."
    assert "options follow a command: stitch-mcp COMMAND --json" in error["hint"]


def test_a_misspelt_field_of_the_contract_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "model.py", "--set", "rtoll=1e-3"]) == 2
    told = capsys.readouterr().err
    assert "--set: unknown key `rtoll`" in told
    assert "did you mean `rtol`?" in told


def test_memory_shows_and_forgets_lessons(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(workspace.parent / "data"))
    lesson = Lesson(
        run_id="r",
        number=1,
        target="cpu",
        ops=("relu",),
        bound="",
        techniques=("SIMD",),
        outcome="gain",
        gain=2.0,
    )
    MemoryFile(user_memory_file()).remember("r", [lesson])
    code, shown = run_json(capsys, "memory", "show")
    assert (code, shown["lessons"]) == (0, [lesson.model_dump(mode="json")])
    assert main(["memory", "show"]) == 0
    assert "relu on cpu: SIMD gave 2.00 times the speed" in capsys.readouterr().out
    assert run_json(capsys, "memory", "clear")[0] == 0
    assert run_json(capsys, "memory", "show")[1]["lessons"] == []


def test_a_cache_that_is_not_there_is_not_cleared(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "clear", "--cache-dir", "absent"]) == 0
    assert capsys.readouterr().out.startswith(
        f"there is no folder {workspace / 'absent'}: nothing was removed"
    )
    assert not (workspace / "absent").exists()

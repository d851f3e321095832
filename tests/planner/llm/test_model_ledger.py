"""What a question costs, and that none is paid twice unknowingly."""

import threading
from pathlib import Path

import pytest

from stitch_planner.agents.model_ledger import ModelBudgetError, ModelLedger
from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatModel, ChatRequest, ModelBusyError, ModelError
from stitch_planner.llm.file_models import ManualModel, ReplayModel
from stitch_planner.llm.model_settings import ModelLimits, ModelSettings
from stitch_planner.runs.model_calls import spent_tokens, spent_usd
from stitch_planner.runs.run import Run, Workspace
from stitch_planner.runs.run_events import ModelAsked
from stitch_tools.errors import InterruptedRunError

PRICED = ModelSettings(model="m", usd_per_million_input=1.0, usd_per_million_output=10.0)
REQUEST = ChatRequest(system="s" * 300, prompt="p" * 600, max_output_tokens=1000)
MOST_TOKENS = REQUEST.most_input_tokens + 1000


class Script:
    """A model that answers what it is told to."""

    name = "script"
    may_bill = True

    def __init__(self, *entries: ChatAnswer | Exception) -> None:
        self.entries = list(entries)
        self.asked = 0

    def ask(self, request: ChatRequest, waiting: CallLimits) -> ChatAnswer:
        """The next entry."""
        self.asked += 1
        entry = self.entries.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry


def answer(
    *, input_tokens: int | None = None, cached_tokens: int | None = None, output_tokens: int | None = None
) -> ChatAnswer:
    return ChatAnswer(
        text="ok",
        model="script",
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
    )


def busy(*, was_sent: bool) -> ModelBusyError:
    return ModelBusyError("busy", was_sent=was_sent, retry_after_s=0.01)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    workspace = Workspace(tmp_path)
    return Run(workspace.runs_folder / "one", workspace.store)


def ledger(
    run: Run, model: ChatModel, limits: ModelLimits | None = None, settings: ModelSettings | None = PRICED
) -> ModelLedger:
    def wait(folder: Path) -> CallLimits:
        return CallLimits(folder, threading.Event())

    return ModelLedger(run, model, settings, limits or ModelLimits(), wait, print)


def test_an_answer_is_recorded_and_never_asked_for_again(run: Run) -> None:
    model = Script(answer(input_tokens=500, cached_tokens=100, output_tokens=50))
    for _ in range(2):
        assert ledger(run, model).ask(REQUEST).text == "ok"
    assert model.asked == 1
    assert spent_tokens(run.state.calls) == 550
    # All input at the same price, as the table names none for cached tokens.
    assert spent_usd(run.state.calls) == pytest.approx((500 * 1 + 50 * 10) / 1e6)
    assert (run.folder / "calls" / "000" / "answer.md").read_text() == "ok"
    assert (run.folder / "calls" / "000" / "prompt.md").read_text().endswith("p" * 600)


def test_usage_that_is_unknown_counts_with_its_upper_bound(run: Run) -> None:
    ledger(run, Script(answer())).ask(REQUEST)
    assert spent_tokens(run.state.calls) == MOST_TOKENS


def test_what_was_not_worked_on_is_one_sending(run: Run) -> None:
    model = Script(busy(was_sent=False), busy(was_sent=False), answer(input_tokens=1, output_tokens=1))
    ledger(run, model).ask(REQUEST)
    (call,) = run.state.calls
    assert (model.asked, call.sent, call.tokens) == (3, 1, 2)


def test_what_may_have_been_billed_is_sent_once_more_and_counted(run: Run) -> None:
    model = Script(busy(was_sent=True), busy(was_sent=True), answer())
    with pytest.raises(ModelError, match="was sent 2 times and never answered"):
        ledger(run, model).ask(REQUEST)
    (call,) = run.state.calls
    assert (model.asked, call.sent) == (2, 2)
    assert spent_tokens(run.state.calls) == 2 * MOST_TOKENS


def test_a_question_that_a_kill_left_open_is_sent_once_more(run: Run) -> None:
    asked = ModelAsked(
        call=0, request=run.store.put_fact(REQUEST), model="script", most_tokens=MOST_TOKENS, most_usd=0.5
    )
    run.record(asked)
    assert spent_usd(run.state.calls) == 0.5
    ledger(run, Script(answer(input_tokens=1, output_tokens=1))).ask(REQUEST)
    (call,) = run.state.calls
    assert call.sent == 2
    assert spent_tokens(run.state.calls) == MOST_TOKENS + 2, "the lost sending may have been billed"


def test_a_model_that_stays_busy_ends_the_call(run: Run) -> None:
    model = Script(*[busy(was_sent=False) for _ in range(9)])
    with pytest.raises(ModelBusyError):
        ledger(run, model).ask(REQUEST)
    assert model.asked == 5


@pytest.mark.parametrize(
    ("limits", "settings", "said"),
    [
        (ModelLimits(tokens=MOST_TOKENS - 1), PRICED, "tokens"),
        (ModelLimits(usd=0.001), PRICED, "USD"),
        (ModelLimits(usd=1.0), ModelSettings(model="m"), "price of script is not known"),
    ],
)
def test_a_question_beyond_the_budget_is_not_sent(
    run: Run, limits: ModelLimits, settings: ModelSettings, said: str
) -> None:
    model = Script(answer())
    with pytest.raises(ModelBudgetError, match=said):
        ledger(run, model, limits, settings).ask(REQUEST)
    assert model.asked == 0
    assert not run.state.calls


def test_a_person_answers_by_a_file(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run.folder / "calls" / "000"
    stop = threading.Event()

    def type_slowly() -> None:
        while not (folder / "prompt.md").exists():
            stop.wait(0.02)
        with (folder / "answer.md").open("w") as file:
            for piece in ("first ", "second"):
                file.write(piece)
                file.flush()
                stop.wait(0.1)

    thread = threading.Thread(target=type_slowly)
    thread.start()
    got = ledger(run, ManualModel(), ModelLimits(tokens=1)).ask(REQUEST)
    thread.join()
    told = capsys.readouterr().out
    assert str(folder / "prompt.md") in told
    assert f"write the answer to {folder / 'answer.md'}" in told
    assert got.text == "first second"
    assert got.answered_by == "person"
    assert spent_tokens(run.state.calls) == 0


def test_nobody_answers_and_somebody_stops(run: Run) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedRunError):
        ManualModel().ask(REQUEST, CallLimits(run.folder, stop))


def test_recorded_answers_come_in_their_order(run: Run, tmp_path: Path) -> None:
    for place, text in enumerate(("one", "two")):
        folder = tmp_path / "recorded" / f"{place:03d}"
        folder.mkdir(parents=True)
        (folder / "answer.md").write_text(text)
    model = ReplayModel(tmp_path / "recorded")
    book = ledger(run, model)
    texts = [book.ask(REQUEST.model_copy(update={"prompt": name})).text for name in ("a", "b")]
    assert texts == ["one", "two"]
    with pytest.raises(ModelError, match="holds 2 answers"):
        book.ask(REQUEST.model_copy(update={"prompt": "c"}))


def test_a_folder_without_answers_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no recorded answers"):
        ReplayModel(tmp_path)

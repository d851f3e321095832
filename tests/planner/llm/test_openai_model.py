"""The client of Chat Completions and Responses, against a server here that misbehaves as real ones do."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatRequest, ModelBusyError, ModelError
from stitch_planner.llm.model_settings import ModelSettings
from stitch_planner.llm.openai_model import OpenAIModel
from stitch_planner.llm.providers import open_model
from stitch_tools.errors import BudgetError, InterruptedRunError
from tests.planner.llm.fake_endpoint import Refusal, Reply, endpoint

REQUEST = ChatRequest(system="be brief", prompt="add", max_output_tokens=100)
SECRET = "sk-very-secret-0123456789"


def ask(url: str, request: ChatRequest = REQUEST, waiting: CallLimits | None = None) -> ChatAnswer:
    model = OpenAIModel("fake", base_url=url, key=lambda: SECRET)
    return model.ask(request, waiting or CallLimits(Path(), threading.Event()))


def test_a_streamed_answer_is_put_together_with_what_it_took() -> None:
    with endpoint(Reply("a short answer")) as seen:
        answer = ask(seen.url)
    assert answer.text == "a short answer"
    assert answer.finish == "complete"
    assert answer.model == "fake-1"
    assert (answer.input_tokens, answer.cached_tokens, answer.output_tokens) == (1000, 600, 200)
    assert seen.keys == [f"Bearer {SECRET}"]
    (asked,) = seen.requests
    assert [row["role"] for row in asked["messages"]] == ["system", "user"]
    assert asked["max_completion_tokens"] == 100


@pytest.mark.parametrize(
    ("refused", "absent", "present"),
    [
        ("Unrecognized argument: max_completion_tokens", "max_completion_tokens", "max_tokens"),
        ("stream_options is not supported", "stream_options", "stream"),
        ("this server cannot stream", "stream", "max_completion_tokens"),
        ("unknown field reasoning_effort", "reasoning_effort", "stream"),
    ],
)
def test_what_an_endpoint_refuses_is_left_out(refused: str, absent: str, present: str) -> None:
    with endpoint(Refusal(400, refused), Reply("ok")) as seen:
        answer = ask(seen.url, REQUEST.model_copy(update={"effort": "high"}))
    assert answer.text == "ok"
    first, second = seen.requests
    assert absent in first
    assert absent not in second
    assert present in second


def test_the_form_is_kept_for_the_next_question() -> None:
    with endpoint(Refusal(400, "no max_completion_tokens here"), Reply("ok")) as seen:
        model = OpenAIModel("fake", base_url=seen.url, key=lambda: "")
        for _ in range(2):
            model.ask(REQUEST, CallLimits(Path(), threading.Event()))
    assert len(seen.requests) == 3


@pytest.mark.parametrize(
    ("refusal", "hint"),
    [
        (Refusal(401, f"Incorrect API key provided: {SECRET}"), "check the key"),
        (Refusal(403, "not for you"), "check the key"),
        (Refusal(404, "The model `fake` does not exist"), "check the model's name"),
        (Refusal(429, "You exceeded your current quota", "insufficient_quota"), "no credit left"),
        (Refusal(400, "This model's maximum context length is 8192 tokens"), "refuses the question"),
        (Refusal(400, "temperature is a bad thing"), "refuses the question"),
    ],
)
def test_what_does_not_get_better_ends_at_once(refusal: Refusal, hint: str) -> None:
    with endpoint(refusal) as seen, pytest.raises(ModelError) as caught:
        ask(seen.url)
    assert len(seen.requests) == 1
    assert hint in caught.value.hint
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    ("entry", "was_sent"),
    [
        (Refusal(429, "slow down", headers={"retry-after": "7"}), False),
        (Refusal(503, "overloaded"), False),
        (Refusal(500, "oops"), True),
        (Reply("a longer text", breaks_after=1), True),
        (Reply("", finish=None), True),
    ],
)
def test_what_may_get_better_says_whether_it_was_worked_on(entry: Refusal | Reply, was_sent: bool) -> None:
    with endpoint(entry) as seen, pytest.raises(ModelBusyError) as caught:
        ask(seen.url)
    assert caught.value.was_sent is was_sent
    assert len(seen.requests) == 1, "the library must not ask again by itself"
    if isinstance(entry, Refusal) and entry.status == 429:
        assert caught.value.retry_after_s == 7.0


def test_an_endpoint_that_is_not_there_was_not_asked() -> None:
    with endpoint(Reply("x")) as seen:
        url = seen.url
    with pytest.raises(ModelBusyError) as caught:
        ask(url)
    assert not caught.value.was_sent
    assert url in caught.value.message


@pytest.mark.parametrize(
    ("finish", "expected"), [("length", "truncated"), (None, "truncated"), ("content_filter", "refused")]
)
def test_an_answer_that_is_not_whole_says_so(finish: str | None, expected: str) -> None:
    with endpoint(Reply("half", finish=finish)) as seen:
        assert ask(seen.url).finish == expected


def test_usage_that_is_not_said_stays_unknown() -> None:
    with endpoint(Reply("x", usage=False)) as seen:
        answer = ask(seen.url)
    assert answer.input_tokens is None
    assert answer.output_tokens is None


def test_a_stalled_stream_ends_when_somebody_stops_it() -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    with endpoint(Reply("late", stalls_s=30)) as seen, pytest.raises(InterruptedRunError):
        ask(seen.url, waiting=CallLimits(Path(), stop))
    assert time.monotonic() - began < 5


def test_a_stalled_stream_ends_at_the_time_limit() -> None:
    began = time.monotonic()
    with endpoint(Reply("late", stalls_s=30)) as seen, pytest.raises(BudgetError):
        ask(seen.url, waiting=CallLimits(Path(), threading.Event(), time.monotonic() + 0.3))
    assert time.monotonic() - began < 5


def respond(url: str, request: ChatRequest = REQUEST, waiting: CallLimits | None = None) -> ChatAnswer:
    model = OpenAIModel("fake", base_url=url, key=lambda: SECRET, api="responses")
    return model.ask(request, waiting or CallLimits(Path(), threading.Event()))


def test_responses_are_put_together_with_what_they_took() -> None:
    with endpoint(Reply("a short answer")) as seen:
        answer = respond(seen.url, REQUEST.model_copy(update={"effort": "high"}))
    assert (answer.text, answer.finish, answer.model) == ("a short answer", "complete", "fake-1")
    assert (answer.input_tokens, answer.cached_tokens, answer.output_tokens) == (1000, 600, 200)
    (asked,) = seen.requests
    assert (asked["instructions"], asked["input"], asked["store"]) == ("be brief", "add", False)
    assert (asked["max_output_tokens"], asked["reasoning"]) == (100, {"effort": "high"})


@pytest.mark.parametrize(
    ("refused", "absent"),
    [
        ("Unknown parameter: 'store'", "store"),
        ("reasoning.effort is not supported with this model", "reasoning"),
        ("this server cannot stream", "stream"),
    ],
)
def test_what_a_server_of_responses_refuses_is_left_out(refused: str, absent: str) -> None:
    with endpoint(Refusal(400, refused), Reply("ok")) as seen:
        answer = respond(seen.url, REQUEST.model_copy(update={"effort": "high"}))
    assert (answer.text, answer.finish, answer.output_tokens) == ("ok", "complete", 200)
    assert absent in seen.requests[0]
    assert absent not in seen.requests[1]


@pytest.mark.parametrize(
    ("finish", "expected"), [("length", "truncated"), (None, "truncated"), ("content_filter", "refused")]
)
def test_a_response_that_is_not_whole_says_so(finish: str | None, expected: str) -> None:
    with endpoint(Reply("half", finish=finish, usage=False)) as seen:
        answer = respond(seen.url)
    assert (answer.text, answer.finish, answer.output_tokens) == ("half", expected, None)


@pytest.mark.parametrize("entry", [Reply("half", finish="failed"), Reply("a longer text", breaks_after=1)])
def test_a_response_that_breaks_off_may_have_been_billed(entry: Reply) -> None:
    with endpoint(entry) as seen, pytest.raises(ModelBusyError) as caught:
        respond(seen.url)
    assert caught.value.was_sent


def test_the_endpoint_decides_what_is_spoken_where_nobody_says(tmp_path: Path) -> None:
    local = ModelSettings(model="fake", base_url="", api=None)
    with endpoint(Reply("ok")) as seen:
        for api, asked in ((None, "messages"), ("responses", "input")):
            settings = replace(local, base_url=seen.url, api=api)
            open_model("llm", settings, tmp_path).ask(REQUEST, CallLimits(tmp_path, threading.Event()))
            assert asked in seen.requests[-1]

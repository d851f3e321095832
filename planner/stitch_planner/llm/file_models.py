"""Models that answer by files: a person or an agent at the run's folder, and recorded answers."""

import time
from pathlib import Path

from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatRequest, ModelError
from stitch_tools.storage.small_file import read_small

PROMPT, ANSWER = "prompt.md", "answer.md"
_POLL_S = 0.2
LARGEST_ANSWER_BYTES = 4 << 20
"""A program has one to a few files; a longer text is a mistake."""


class ManualModel:
    """Whoever reads `prompt.md` in the call's folder and writes `answer.md` beside it."""

    name = "manual"
    may_bill = False

    def ask(self, request: ChatRequest, waiting: CallLimits) -> ChatAnswer:
        """The text of `answer.md`, once it is there and no longer grows."""
        path, began = waiting.folder / ANSWER, time.monotonic()
        size = -1
        while True:
            waiting.check()
            # Editors write in pieces: a file counts once two looks find the same size.
            now = path.stat().st_size if path.is_file() else -1
            if now > 0 and now == size:
                return ChatAnswer(
                    text=_read(path),
                    model=self.name,
                    answered_by="person",
                    latency_s=round(time.monotonic() - began, 3),
                )
            size = now
            waiting.stop.wait(_POLL_S)


class ReplayModel:
    """Recorded answers, in their order: a run's `calls` folder, or any folder of `NNN/answer.md`.

    Prompts hold figures that differ between machines, so they are not compared.
    """

    may_bill = False

    def __init__(self, folder: Path) -> None:
        """Find the answers.

        Raises:
            ModelError: there are none.
        """
        self.name = "replay"
        # A call that was never answered has no file, and is no part of the recording.
        self._answers = sorted(folder.glob(f"*/{ANSWER}"))
        if not self._answers:
            raise ModelError(
                f"{folder} holds no recorded answers",
                hint="name the `calls` folder of a run, or a folder with 000/answer.md, 001/answer.md, ...",
            )

    def ask(self, request: ChatRequest, waiting: CallLimits) -> ChatAnswer:
        """The answer with the number of the call.

        Raises:
            ModelError: the recording is shorter.
        """
        place = int(waiting.folder.name)
        if place >= len(self._answers):
            raise ModelError(
                f"the recording holds {len(self._answers)} answers, and this is call {place + 1}",
                hint="allow fewer rounds, or record a longer run",
            )
        text = _read(self._answers[place])
        return ChatAnswer(text=text, model=self.name, answered_by="recording", latency_s=0.0)


def _read(path: Path) -> str:
    try:
        return read_small(path, LARGEST_ANSWER_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", hint="save it as UTF-8 text") from error

"""One sample of a skill: what was asked, what was answered, and what the judge measured of the answer."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from stitch_mcp.rl.data.near_duplicates import fingerprint
from stitch_mcp.rl.data.sampling import family_of
from stitch_mcp.rl.reward.facts import Skill
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import write_atomically


class SkillSample(Fact):
    """One question with its answer, or without one where a policy is to give it."""

    sample_id: str
    """Equal samples have equal ids."""
    skill: Skill
    task: str
    """Name of the task."""
    target: str = "cpu"
    reference_files: dict[str, str]
    """Sources of the reference by path."""
    reference: str
    """Which of them is meant."""
    family: str
    """Hash of the reference's operations: a split keeps a family together."""
    system: str
    prompt: str
    parent_files: dict[str, str] = Field(default_factory=dict[str, str])
    """Program that was to be refined; {} for `generate`."""
    parent_main: str = ""
    answer: str = ""
    """What was answered; "" where nothing was."""
    author: str = ""
    status: str = ""
    """CheckStatus of the answer's program."""
    counts: bool = False
    speedup: float | None = None
    """Over eager: lower end of the 95% interval."""
    gain: float | None = None
    """Speed over the parent's, both as multiples of eager; None: not measured, or `generate`."""
    origin: str = ""
    """Run and program it comes from, or `synthesized`."""

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        """The question as chat messages."""
        return ({"role": "system", "content": self.system}, {"role": "user", "content": self.prompt})


def family_of_source(source: str, name: str) -> str:
    """The family of a reference.

    Raises:
        UsageError: it is not Python.
    """
    return family_of(fingerprint(source, name).calls)


def write_samples(path: Path, samples: Iterable[SkillSample]) -> None:
    """Writes samples, one JSON object a line."""
    write_atomically(path, b"".join(sample.canonical_json() + b"\n" for sample in samples))


def read_samples(path: Path) -> Sequence[SkillSample]:
    """The samples of a file.

    Raises:
        UsageError: it cannot be read, or a line misses a field; the message names it.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name a file of samples") from error
    samples: list[SkillSample] = []
    for number, line in enumerate(lines, 1):
        try:
            samples += [SkillSample.from_json_bytes(line)] if line.strip() else []
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "line"
            message = f"{path}, line {number}: {where}: {first['msg']}"
            raise UsageError(message, hint="write it with `stitch-mcp rl collect`") from error
    return samples

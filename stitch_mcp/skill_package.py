"""Copies the packaged skills to where an agent looks for its skills."""

from pathlib import Path

from stitch_planner.skills.library import packaged_skills
from stitch_tools.errors import StoreError, UsageError
from stitch_tools.models.base import Fact

_MOST_NAMED = 3


class InstalledSkills(Fact):
    """What an installation did."""

    folder: str
    skills: int
    written: tuple[str, ...]
    """Paths of new and overwritten files below the folder."""
    unchanged: int
    """Files that were there with the same content."""


def install_skills(folder: Path, *, force: bool = False) -> InstalledSkills:
    """Copy all skills, a folder each; what else lies in `folder` stays.

    Args:
        folder: made where it is missing.
        force: overwrite files that differ from ours.

    Raises:
        UsageError: files differ from ours; nothing was written.
        StoreError: a file cannot be read or written.
    """
    written: dict[str, bytes] = {}
    changed: list[str] = []
    unchanged = 0
    try:
        for skill in packaged_skills():
            for file in skill.files:
                path = folder / skill.name / file.path
                there = path.read_bytes() if path.exists() else None
                if there == file.content:
                    unchanged += 1
                    continue
                if there is not None:
                    changed.append(f"{skill.name}/{file.path}")
                written[f"{skill.name}/{file.path}"] = file.content
        if changed and not force:
            more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
            raise UsageError(
                f"files in {folder} differ from the packaged ones: {', '.join(changed[:_MOST_NAMED])}{more}",
                hint="nothing was written; --force overwrites them",
            )
        for name, content in written.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise StoreError(
            f"the skills cannot be installed in {folder}: {error.strerror or error}",
            hint="name a folder that can be written",
        ) from error
    return InstalledSkills(
        folder=str(folder), skills=len(packaged_skills()), written=tuple(written), unchanged=unchanged
    )

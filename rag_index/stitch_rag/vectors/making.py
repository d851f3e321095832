"""Makes the vectors of a build in a child process, whose faults cost the vectors and never the index."""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from stitch_rag.index_location import IndexLocation
from stitch_rag.store import IndexStore
from stitch_rag.vectors.client import VectorChild
from stitch_rag.vectors.embed import CollectionError, follow, wanted_vectors
from stitch_rag.vectors.meaning import MODEL_KEY
from stitch_rag.vectors.model import EmbeddingModel, find_model, why_no_model
from stitch_tools.machine.devices import usable_cpus
from stitch_tools.storage.store import storing

Progress = Callable[[str], None]


class _Outcome(NamedTuple):
    """What came of one try."""

    made: int | None
    """Vectors that were made; None where the child failed."""
    reason: str
    """Why, as far as it said."""
    readable: bool = True
    """Whether anything could be said of what is stored."""


def make_vectors(place: IndexLocation, store: IndexStore, progress: Progress) -> tuple[int | None, str]:
    """How many vectors were made, and what should be known of it; None where none could be."""
    wanted = list(wanted_vectors(store))
    # Without a model, too: entries have other numbers now, and a reader may have the model.
    store.put_vectors((name, number) for name, _, number in wanted)
    model = find_model()
    if model is None:
        return None, f"no vectors were made: {why_no_model()}"
    done = _followed(place, model, {name: text for name, text, _ in wanted}, progress)
    if done.made is None:
        reason = f" ({done.reason})" if done.reason else ""
        failed = f"the process of the embedding model failed{reason}"
        return None, f"no vectors were made: {failed}; searches use words alone"
    shutil.rmtree(_aside(place), ignore_errors=True)  # of a build that was killed
    store.put_meta(MODEL_KEY, model.fingerprint)
    return done.made, ""


def _followed(
    place: IndexLocation, model: EmbeddingModel, texts: Mapping[str, str], progress: Progress
) -> _Outcome:
    stored = place.vectors.is_dir() and any(place.vectors.iterdir())
    done = _follow(place, model, texts, progress)
    if done.readable:
        return done
    if stored:
        return _follow_anew(place, model, texts, progress)
    # Nothing lay there that could be damaged: a second try would end as this one. Without the empty folder no
    # later build tries, either, unless it is asked to.
    with contextlib.suppress(OSError):
        place.vectors.rmdir()
    return done


def _follow(
    place: IndexLocation, model: EmbeddingModel, texts: Mapping[str, str], progress: Progress
) -> _Outcome:
    try:
        child = VectorChild(model, place.vectors, threads=usable_cpus())
    except OSError as error:  # there is no room for a process, or for a folder
        return _Outcome(None, f"it cannot be started: {error}")
    try:
        made = follow(texts, child, progress)
        return _Outcome(made, child.reason)
    except CollectionError:
        return _Outcome(None, child.reason, readable=False)
    finally:
        child.close()


def _aside(place: IndexLocation) -> Path:
    """Where vectors lie that cannot be read, while others are made."""
    return place.folder / "vectors.damaged"


def _follow_anew(
    place: IndexLocation, model: EmbeddingModel, texts: Mapping[str, str], progress: Progress
) -> _Outcome:
    """The same in an empty folder: if that works, what was stored is damaged, and goes."""
    aside, done = _aside(place), _Outcome(None, "")
    # What an earlier attempt left aside is older than what lies in the folder now.
    shutil.rmtree(aside, ignore_errors=True)
    with storing(place.vectors, "STITCH_CACHE_DIR"):
        place.vectors.replace(aside)
        try:
            progress("the vectors cannot be read: trying to make them anew")
            done = _follow(place, model, texts, progress)
        finally:
            if done.made is None:
                shutil.rmtree(place.vectors, ignore_errors=True)
                aside.replace(place.vectors)
            else:
                shutil.rmtree(aside, ignore_errors=True)
    return done

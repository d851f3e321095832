"""Counts the stored vectors in chromadb's file without importing chromadb; notices on missing ones."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from stitch_rag.index_location import IndexLocation
from stitch_rag.store import IndexStore
from stitch_rag.vectors.meaning import MODEL_KEY, NO_MODEL, OTHER_MODEL, not_all
from stitch_rag.vectors.model import collection_name, find_model, why_no_model

_FILE = "chroma.sqlite3"
_COUNT = """
SELECT count(*) FROM collections c JOIN segments s ON s.collection = c.id
JOIN embeddings e ON e.segment_id = s.id WHERE c.name = ? AND s.scope = 'METADATA'
"""
_BUSY_S = 1.0


class VectorState(NamedTuple):
    """The vectors of an index."""

    there: int = 0
    wanted: int = 0
    """That its entries are to have; 0 where none were built."""
    notices: tuple[str, ...] = ()


def vector_state(place: IndexLocation, store: IndexStore) -> VectorState:
    """How many vectors an index has, and why they, or some of them, are not used."""
    wanted = store.count_vectors()
    # Without the folder nobody asked for vectors, or all attempts failed.
    if not wanted or not place.vectors.is_dir():
        return VectorState()
    model, built = find_model(), store.meta(MODEL_KEY)
    try:
        there = count_stored(place.vectors, built or (model.fingerprint if model else ""))
        notices = not_all(there, wanted)
    except sqlite3.OperationalError as error:  # a build holds the file, or another chromadb wrote it
        there, notices = wanted, (f"the number of stored vectors cannot be read now: {error}",)
    except sqlite3.DatabaseError as error:
        makes = "`stitch-mcp index build --vectors` makes them anew"
        there, notices = 0, (f"the vectors cannot be read: {error}; {makes}",)
    if model is None:
        notices = (*notices, f"{NO_MODEL}{why_no_model()}")
    elif built not in (None, model.fingerprint):
        notices = (*notices, OTHER_MODEL)
    return VectorState(there, wanted, notices)


def count_stored(folder: Path, fingerprint: str) -> int:
    """How many vectors of one model lie in a folder.

    Raises:
        sqlite3.DatabaseError: the file cannot be read; an OperationalError where it may be sound.
    """
    path = folder / _FILE
    if not path.is_file():
        return 0
    # Writable where it can be: what a killed build left half done is taken back before anything is read.
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)) as db:
        return int(db.execute(_COUNT, (collection_name(fingerprint),)).fetchone()[0])

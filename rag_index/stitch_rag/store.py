"""The index as one SQLite file: chunks, the files they come from, every name, and a full-text table."""

import json
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from stitch_rag.chunks import Chunk, ChunkKind
from stitch_rag.index_errors import telling_faults
from stitch_rag.rows import searchable, stored_fields

SCHEMA = 5
"""Raised when stored rows would be read or made differently; an index of another number is built anew."""

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE files (id INTEGER PRIMARY KEY, place TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES files(id), deprecated INTEGER NOT NULL,
    hidden INTEGER NOT NULL DEFAULT 0, chunk_id TEXT NOT NULL, symbol TEXT NOT NULL, kind TEXT NOT NULL,
    library TEXT NOT NULL, version TEXT, architectures TEXT NOT NULL, path TEXT NOT NULL, line INTEGER,
    parent TEXT NOT NULL, source TEXT NOT NULL, aliases TEXT NOT NULL, signature TEXT NOT NULL,
    brief TEXT NOT NULL, keywords TEXT NOT NULL, asked TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX chunks_shown ON chunks(library, version) WHERE NOT hidden;
CREATE INDEX chunks_of_errors ON chunks(id) WHERE kind = 'error';
CREATE INDEX chunks_by_file ON chunks(file);
CREATE INDEX chunks_by_chunk_id ON chunks(chunk_id);
CREATE INDEX chunks_by_symbol ON chunks(symbol);
CREATE TABLE names (low TEXT NOT NULL, name TEXT NOT NULL, chunk INTEGER NOT NULL);
CREATE INDEX names_by_low ON names(low);
CREATE INDEX names_by_chunk ON names(chunk);
CREATE VIRTUAL TABLE fulltext USING fts5(
    name, parts, brief, asked, body, context, tokenize="unicode61 remove_diacritics 2 tokenchars '_'"
);
CREATE TABLE vectors (name TEXT PRIMARY KEY, chunk INTEGER NOT NULL);
CREATE VIRTUAL TABLE vocabulary USING fts5vocab('fulltext', 'row');
CREATE TABLE terms (term TEXT PRIMARY KEY, chunks INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO fulltext(fulltext, rank) VALUES ('hashsize', 33554432);
"""
_LEFT_OUT = "left out: "
"""Begins the keys of `meta` under which inputs that break their readers stand, each with the reason."""
_FIELDS = (
    "chunk_id, symbol, kind, library, version, signature, brief, text, path, line, parent, source, aliases, "
    "architectures, keywords, asked"
)
_ChunkColumns: TypeAlias = tuple[
    str, str, ChunkKind, str, str | None, str, str, str, str, int | None, str, str, str, str, str, str
]
"""Types of `_FIELDS`."""
_OutlineColumns: TypeAlias = tuple[int, str, str, str, str, str | None, str, int, str, str, str, str]
"""Types of the columns that `_read_outlines` selects."""
_TO_CHUNKS = f"INSERT INTO chunks (id, file, {_FIELDS}, deprecated) VALUES (?{', ?' * 18})"
_TO_FULLTEXT = (
    "INSERT INTO fulltext (rowid, name, parts, brief, asked, body, context) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_TO_NAMES = "INSERT INTO names VALUES (?, ?, ?)"
_ECHOES = """
SELECT DISTINCT a.id FROM chunks a JOIN chunks b
ON a.symbol = b.symbol AND a.library = b.library AND a.version IS b.version AND a.id != b.id
WHERE a.kind = b.kind AND a.kind IN ('function', 'struct', 'class', 'enum', 'typedef', 'enumerator', 'macro')
AND length(a.text) < 200 AND length(b.text) > 2 * length(a.text) AND b.brief != ''
"""
"""Entries whose symbol another file documents better."""
_BUSY_MS = 200
"""A build writes into a file of its own: only a program that is not ours locks an index."""
_BEGINNING = 800
"""Characters of a text, as it is indexed, that the ranking looks at word by word."""
_MOST_OUTLINES = 4000
"""Some 30 MB of them are kept."""
_MAPPED = "PRAGMA mmap_size = 268435456;"
"""Each question would fill SQLite's own cache of 2 MB anew. A build never shortens a file that is read."""
# No sync at each file: a power cut may cost a half-built index, which is then built anew; the index itself is
# synced before it is swapped in.
_FAST = "PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;"


class Outline(NamedTuple):
    """What the ranking has to know of a chunk, without its text; words are stems in order."""

    number: int
    chunk_id: str
    symbol: str
    kind: str
    library: str
    version: str | None
    architectures: tuple[str, ...]
    deprecated: bool
    name_words: Sequence[str]
    brief_words: Sequence[str]
    """Of the first sentence."""
    asked: Sequence[Sequence[str]]
    """Of each way in which people ask for it."""
    text_words: Sequence[str]
    """Of the beginning of its text."""


@dataclass(frozen=True, slots=True)
class Row:
    """A chunk with its number in this store."""

    number: int
    chunk: Chunk


class IndexStore:
    """An open index file, or one in memory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._count: int | None = None
        self._messages: list[tuple[int, str]] | None = None
        self._outlines: dict[int, Outline] = {}
        """Those that were asked for lately: questions of one task share many candidates."""

    @classmethod
    def create(cls, path: Path | None = None) -> "IndexStore":
        """A new, empty index at `path`; None keeps it in memory.

        Raises:
            StoreError: the file cannot be written.
        """
        with telling_faults(path):
            db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
            with _closed_at_a_fault(db):
                db.executescript(f"{_FAST}{_TABLES}")
                store = cls(db)
                store.put_meta("schema", str(SCHEMA))
        return store

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> "IndexStore | None":
        """The index at `path`; None where there is none, or one of another schema.

        Raises:
            DamagedIndexError: the file is no index.
            StoreError: it cannot be read now: another process locks it, or the disk fails.
        """
        if not path.is_file():
            return None
        place = f"{path.absolute().as_uri()}?mode={'rw' if writable else 'ro'}"
        with telling_faults(path):
            db = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False)
            with _closed_at_a_fault(db):
                db.executescript(f"PRAGMA busy_timeout = {_BUSY_MS};{_FAST if writable else _MAPPED}")
                store = cls(db)
                if store.meta("schema") == str(SCHEMA):
                    return store
            db.close()
        return None

    def check(self, *, writable: bool = True) -> None:
        """Look through the file, in some tenths of a second; through its full text only where it is writable.

        Raises:
            DamagedIndexError: something in it cannot be read.
        """
        with telling_faults():
            # quick_check leaves out the comparison of indexes with tables, which takes most of
            # integrity_check's time.
            if (verdict := str(self._db.execute("PRAGMA quick_check(1)").fetchone()[0])) != "ok":
                raise sqlite3.DatabaseError(verdict)
            if writable:
                self._db.execute("INSERT INTO fulltext(fulltext) VALUES ('integrity-check')")

    def close(self) -> None:
        """Close the file; nothing may be asked afterwards."""
        self._db.close()

    def meta(self, key: str) -> str | None:
        """What was stored under `key`."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put_meta(self, key: str, value: str) -> None:
        """Store `value` under `key`."""
        with telling_faults():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def files(self) -> dict[str, str]:
        """Place to content hash of every file that is wholly in the index."""
        return dict(self._db.execute("SELECT place, sha256 FROM files"))

    def put_file(self, place: str, sha256: str, chunks: Iterable[Chunk]) -> None:
        """Store the chunks of one file, in the place of those it had before: all of them or none.

        Raises:
            StoreError: the disk is full, or the file cannot be written.
        """
        if not self._db.in_transaction:
            with self.together():
                self.put_file(place, sha256, chunks)
            return
        with telling_faults():
            self._remove(place)
            file = self._db.execute(
                "INSERT INTO files (place, sha256) VALUES (?, ?)", (place, sha256)
            ).lastrowid
            # Numbers are given here, since the full-text rows need the same ones.
            last = int(self._db.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()[0])
            rows = list(enumerate(chunks, last + 1))
            self._db.executemany(
                _TO_CHUNKS, ((number, file, *stored_fields(chunk)) for number, chunk in rows)
            )
            self._make_searchable(rows)

    def leave_out(self, place: str, sha256: str, reason: str) -> None:
        """Store that a file of this content breaks its reader, and what is to be said of that; no chunks."""
        with telling_faults():
            self.put_file(place, sha256, ())
            self.put_meta(f"{_LEFT_OUT}{place}", reason)

    def left_out(self) -> dict[str, str]:
        """Place to reason of the files that break their reader."""
        rows = self._db.execute(
            "SELECT substr(key, ?), value FROM meta WHERE substr(key, 1, ?) = ? ORDER BY key",
            (len(_LEFT_OUT) + 1, len(_LEFT_OUT), _LEFT_OUT),
        )
        return {str(place): str(reason) for place, reason in rows}

    @contextmanager
    def together(self) -> Generator[None]:
        """Makes one transaction of everything that is stored inside; a failure leaves nothing of it.

        Raises:
            StoreError: the disk is full, or the file cannot be written.
        """
        with telling_faults():
            self._count = self._messages = None
            self._db.execute("BEGIN")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:  # handed on: whatever ended it, half a file must not stay
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def remove_file(self, place: str) -> None:
        """Remove one file's chunks."""
        with telling_faults():
            self._count = self._messages = None
            self._remove(place)

    def _make_searchable(self, rows: Sequence[tuple[int, Chunk]]) -> None:
        self._outlines.clear()
        self._db.executemany(_TO_FULLTEXT, ((number, *searchable(chunk)) for number, chunk in rows))
        self._db.executemany(
            _TO_NAMES,
            (
                (name.lower(), name, number)
                for number, chunk in rows
                for name in dict.fromkeys((chunk.symbol, *chunk.aliases))
            ),
        )

    def _remove(self, place: str) -> None:
        self._outlines.clear()
        row = self._db.execute("SELECT id FROM files WHERE place = ?", (place,)).fetchone()
        if row is None:
            return
        for table, key in (("fulltext", "rowid"), ("names", "chunk")):
            gone = "SELECT id FROM chunks WHERE file = ?"
            self._db.execute(f"DELETE FROM {table} WHERE {key} IN ({gone})", row)
        self._db.execute("DELETE FROM chunks WHERE file = ?", row)
        self._db.execute("DELETE FROM files WHERE id = ?", row)
        self._db.execute("DELETE FROM meta WHERE key = ?", (f"{_LEFT_OUT}{place}",))

    def finish(self) -> None:
        """Make searching fast. Called once, after the last file.

        Raises:
            StoreError: the disk is full, or the file cannot be written.
        """
        with self.together():
            self._hide_echoes()
            # Merges the segments of all transactions into one: a search then reads one tree, not hundreds.
            self._db.execute("INSERT INTO fulltext(fulltext) VALUES ('optimize')")
            self._db.execute("DELETE FROM terms")
            # The vocabulary is a view that counts at each query; a table answers at once.
            self._db.execute("INSERT INTO terms SELECT term, doc FROM vocabulary")

    def _hide_echoes(self) -> None:
        """Leave out of the search what another header of the library declares with its documentation."""
        shown = self._db.execute(f"SELECT id, {_FIELDS} FROM chunks WHERE hidden").fetchall()
        self._make_searchable([(row[0], _chunk(row[1:])) for row in shown])
        self._db.execute("UPDATE chunks SET hidden = 0 WHERE hidden")
        rows = self._db.execute(_ECHOES).fetchall()
        for table, key in (("fulltext", "rowid"), ("names", "chunk")):
            self._db.executemany(f"DELETE FROM {table} WHERE {key} = ?", rows)
        self._db.executemany("UPDATE chunks SET hidden = 1 WHERE id = ?", rows)

    def rows(self) -> Iterator[Row]:
        """Every chunk, in the order in which it was stored."""
        for row in self._db.execute(f"SELECT id, {_FIELDS} FROM chunks WHERE NOT hidden ORDER BY id"):
            yield Row(row[0], _chunk(row[1:]))

    def outlines(self, numbers: Sequence[int]) -> list[Outline]:
        """What the ranking has to know of the chunks with these numbers."""
        if len(self._outlines) > _MOST_OUTLINES:
            self._outlines.clear()
        kept = self._outlines
        if missing := [number for number in numbers if number not in kept]:
            kept.update({row.number: row for row in self._read_outlines(missing)})
        return [kept[number] for number in numbers if number in kept]

    def _read_outlines(self, numbers: Sequence[int]) -> list[Outline]:
        marks = ", ".join("?" * len(numbers))
        rows = self._db.execute(
            "SELECT c.id, chunk_id, symbol, kind, library, version, architectures, "
            # The rows behind the full-text table: going through that would open it for each of them.
            f"deprecated, f.c1, f.c2, f.c3, substr(f.c4, 1, {_BEGINNING}) "
            f"FROM chunks c JOIN fulltext_content f ON f.id = c.id WHERE c.id IN ({marks})",
            tuple(numbers),
        )
        return [_outline(row) for row in rows]

    def get(self, numbers: Sequence[int]) -> dict[int, Chunk]:
        """The chunks with these numbers."""
        marks = ", ".join("?" * len(numbers))
        rows = self._db.execute(f"SELECT id, {_FIELDS} FROM chunks WHERE id IN ({marks})", tuple(numbers))
        return {row[0]: _chunk(row[1:]) for row in rows}

    def by_id(self, chunk_id: str) -> list[Row]:
        """The chunks with that id; without a version, those of every version."""
        rows = self._db.execute(
            f"SELECT id, {_FIELDS} FROM chunks "
            # 'A' follows '@': this range is every id with a version behind it, and can use the index on
            # chunk_id.
            "WHERE (chunk_id = :id OR (chunk_id > :id || '@' AND chunk_id < :id || 'A')) "
            "AND NOT hidden ORDER BY id",
            {"id": chunk_id},
        )
        return [Row(row[0], _chunk(row[1:])) for row in rows]

    def bearing(self, chunk_ids: Sequence[str]) -> dict[str, list[Chunk]]:
        """What bears each id, also what the search leaves out; what it shows comes first."""
        marks = ", ".join("?" * len(chunk_ids))
        chunks: dict[str, list[Chunk]] = {chunk_id: [] for chunk_id in chunk_ids}
        for fields in self._db.execute(
            f"SELECT {_FIELDS} FROM chunks WHERE chunk_id IN ({marks}) ORDER BY hidden, id", tuple(chunk_ids)
        ):
            chunks[str(fields[0])].append(_chunk(fields))
        return chunks

    def by_name(self, name: str) -> list[int]:
        """Numbers of the chunks that bear `name` in any case; those that spell it so come first."""
        rows = self._db.execute(
            "SELECT DISTINCT chunk, name = ? AS same FROM names WHERE low = ? ORDER BY same DESC, chunk",
            (name, name.lower()),
        )
        return list(dict.fromkeys(int(row[0]) for row in rows))

    def has_members(self, name: str) -> bool:
        """Whether names begin with this one, which then is a module's or a namespace's."""
        low = name.lower()
        # '/' follows '.', and ';' follows ':': ranges instead of LIKE, which would not use the index.
        ranges = ((f"{low}.", f"{low}/"), (f"{low}::", f"{low}:;"))
        query = "SELECT 1 FROM names WHERE low >= ? AND low < ? LIMIT 1"
        return any(self._db.execute(query, bounds).fetchone() for bounds in ranges)

    def messages(self) -> list[tuple[int, str]]:
        """Number and message of every error that a library tells of."""
        if self._messages is None:
            rows = self._db.execute("SELECT id, brief FROM chunks WHERE kind = 'error' AND NOT hidden")
            self._messages = [(int(number), str(message)) for number, message in rows]
        return self._messages

    def names_like(self, name: str, slack: int) -> list[str]:
        """Names in lower case that begin or end as `name` does, at most `slack` letters shorter or longer."""
        rows = self._db.execute(
            "SELECT DISTINCT low FROM names WHERE length(low) BETWEEN :length - :slack AND :length + :slack "
            "AND (substr(low, 1, 4) = substr(:name, 1, 4) OR substr(low, -4) = substr(:name, -4))",
            {"name": name, "length": len(name), "slack": slack},
        )
        return [row[0] for row in rows]

    def put_vectors(self, rows: Iterable[tuple[str, int]]) -> None:
        """Replace the table of vector ids and the chunks that they stand for."""
        with telling_faults():
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM vectors")
            self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
            self._db.execute("COMMIT")

    def by_vector(self, names: Sequence[str]) -> dict[str, int]:
        """Vector id to chunk number, for those that the index knows."""
        marks = ", ".join("?" * len(names))
        rows = self._db.execute(f"SELECT name, chunk FROM vectors WHERE name IN ({marks})", tuple(names))
        return {str(name): int(number) for name, number in rows}

    def count_vectors(self) -> int:
        """How many vectors stand for its chunks."""
        return int(self._db.execute("SELECT count(*) FROM vectors").fetchone()[0])

    def match(
        self,
        expression: str,
        weights: Sequence[float],
        limit: int,
        kinds: Sequence[str] = (),
        libraries: Sequence[str] = (),
    ) -> list[tuple[int, float]]:
        """Number and relevance (higher is better) of the best full-text matches of these kinds, libraries."""
        listed = ", ".join(f"{weight:g}" for weight in weights)
        # By `rowid IN` SQLite would ask the full text once for each number: `+` lets it ask once.
        only = "".join(
            f" AND +rowid IN (SELECT id FROM chunks WHERE {column} IN ({', '.join('?' * len(wanted))}))"
            for column, wanted in (("kind", kinds), ("library", libraries))
            if wanted
        )
        rows = self._db.execute(
            f"SELECT rowid, bm25(fulltext, {listed}) AS score FROM fulltext WHERE fulltext MATCH ?{only} "
            "ORDER BY score LIMIT ?",
            (expression, *kinds, *libraries, limit),
        )
        return [(int(number), -float(score)) for number, score in rows]

    def frequencies(self, words: Sequence[str]) -> dict[str, int]:
        """In how many chunks each word (as `index_words` writes it) occurs."""
        marks = ", ".join("?" * len(words))
        rows = self._db.execute(f"SELECT term, chunks FROM terms WHERE term IN ({marks})", tuple(words))
        return dict.fromkeys(words, 0) | {str(word): int(count) for word, count in rows}

    def count(self) -> int:
        """How many chunks there are."""
        if self._count is None:  # counting takes milliseconds, and each question asks
            self._count = int(self._db.execute("SELECT count(*) FROM chunks WHERE NOT hidden").fetchone()[0])
        return self._count

    def libraries(self) -> list[tuple[str, str | None, int]]:
        """Library, version and number of chunks."""
        rows = self._db.execute(
            "SELECT library, version, count(*) FROM chunks WHERE NOT hidden GROUP BY 1, 2 ORDER BY 1, 2"
        )
        return [(str(name), version, int(count)) for name, version, count in rows]

    def copy_to(self, path: Path) -> None:
        """Write a copy of the whole index to `path`.

        Raises:
            StoreError: the disk is full, or the file cannot be written.
        """
        with telling_faults(path), closing(sqlite3.connect(path)) as other:
            self._db.backup(other)


def _unlisted(text: str) -> tuple[str, ...]:
    try:
        return () if text == "[]" else tuple(json.loads(text))
    except ValueError as error:
        raise sqlite3.DatabaseError(f"{text[:40]!r} is no list") from error


def _outline(row: _OutlineColumns) -> Outline:
    number, chunk_id, symbol, kind, library, version, architectures = row[:7]
    deprecated, parts, brief, asked, text = row[7:]
    return Outline(
        number,
        chunk_id,
        symbol,
        kind,
        library,
        version,
        _unlisted(architectures),
        bool(deprecated),
        parts.split(),
        brief.split(),
        [line.split() for line in asked.split("\n")] if asked else (),
        text.split(),
    )


def _chunk(fields: _ChunkColumns) -> Chunk:
    """The chunk of a row of `_FIELDS`; its id is made from the others."""
    aliases, architectures, keywords, asked = fields[12:]
    return Chunk(
        *fields[1:12],
        _unlisted(aliases),
        _unlisted(architectures),
        keywords,
        _unlisted(asked),
    )


@contextmanager
def _closed_at_a_fault(db: sqlite3.Connection) -> Generator[None]:
    try:
        yield
    except BaseException:  # handed on: nobody else knows this connection
        db.close()
        raise

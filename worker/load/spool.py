"""Everything that was seen of a run, on disk until it is judged: memory does not grow with the run.

One SQLite file without a name in the file system's eyes of others: it lies in a folder of its own that goes
with it. Writes are collected and go in one transaction at a time, on a thread; the loop that measures
latencies never waits for the disk. Of bodies that come again only the number is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from worker.load.answers import fields_of
from worker.load.observations import Case, Letter, Seen, Sent
from worker.load.rewriting import Asked, RequestKey

_LEVEL: Final = 1
_DIGEST_BYTES: Final = 16
Where = Literal["reply", "usage", "earlier"]
"""On which topic it was seen; `earlier` is a reply from before the run."""

_TABLES: Final = """
CREATE TABLE sent (
    key BLOB, project_id TEXT, request_id TEXT, generation INTEGER, partition INTEGER, offset INTEGER,
    model TEXT, encoding TEXT, total_tokens INTEGER, overhead_tokens INTEGER,
    message_chars INTEGER, message_sha256 TEXT
);
CREATE TABLE seen (
    key BLOB, place TEXT, digest BLOB, project_id TEXT, request_id TEXT, generation INTEGER,
    kind TEXT, body BLOB, copies INTEGER, PRIMARY KEY (key, place, digest)
) WITHOUT ROWID;
CREATE TABLE letters (
    partition INTEGER, offset INTEGER, digest BLOB, code TEXT, copies INTEGER,
    PRIMARY KEY (partition, offset, digest)
) WITHOUT ROWID;
CREATE TABLE fetched (digest TEXT PRIMARY KEY, body BLOB, problem TEXT) WITHOUT ROWID;
"""
_INDEXES: Final = "CREATE INDEX IF NOT EXISTS sent_key ON sent (key)"
_KEYS: Final = """
SELECT key, MAX(project_id), MAX(request_id), MAX(generation) FROM (
    SELECT key, project_id, request_id, generation FROM sent
    UNION ALL SELECT key, project_id, request_id, generation FROM seen
) GROUP BY key ORDER BY MAX(project_id), MAX(request_id), MAX(generation), key
"""


def key_digest(key: RequestKey | None, *, otherwise: str) -> bytes:
    """16 bytes for what belongs together: the ids, or where there are none, whatever else joins."""
    text = f"\n{otherwise}" if key is None else f"{key.project_id}\n{key.generation}\n{key.request_id}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SentNote:
    """One acknowledged record, to be kept."""

    digest: bytes
    """Of its key; see `key_digest`."""
    key: RequestKey | None
    sent: Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNote:
    """One reply or usage event, to be kept."""

    digest: bytes
    key: RequestKey | None
    place: Where
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterNote:
    """One dead letter, to be kept."""

    letter: Letter
    content: bytes
    """What tells different letters of one record apart."""


Note = SentNote | SeenNote | LetterNote


class Spool:
    """Keeps notes and gives them back by case. A context manager; its file ends with it."""

    def __init__(self) -> None:
        """Opens the file."""
        self._folder = tempfile.TemporaryDirectory(prefix="context-replay-")
        self._database = sqlite3.connect(Path(self._folder.name) / "spool.db", check_same_thread=False)
        self._database.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16384; {_TABLES}"
        )
        self._waiting: deque[Note] = deque()
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.close()
        self._folder.cleanup()

    def note(self, note: Note) -> None:
        """Keep it at the next `flush`."""
        self._waiting.append(note)

    async def flush(self) -> None:
        """Write what waits, on a thread; when this returns, earlier flushes have ended, too."""
        await asyncio.to_thread(self._write)

    def _write(self) -> None:
        # Locked: whoever is cancelled while it waits for a flush leaves it running. Taken here alone:
        # a flush that is cancelled before a thread was free for it never runs.
        with self._writing, self._database:
            while self._waiting:
                note = self._waiting.popleft()
                match note:
                    case SentNote():
                        self._write_sent(note)
                    case SeenNote():
                        self._write_seen(note)
                    case LetterNote():
                        self._write_letter(note)

    def _write_sent(self, note: SentNote) -> None:
        sent, asked = note.sent, note.sent.asked
        self._database.execute(
            "INSERT INTO sent VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(note.digest, *_ids(note.key), sent.partition, sent.offset),
                *(asked.model, asked.encoding, _storable(asked.total_tokens)),
                *(_storable(asked.client_overhead_tokens), sent.message_chars, sent.message_sha256),
            ),
        )

    def _write_seen(self, note: SeenNote) -> None:
        content = hashlib.blake2b(note.body, key=note.kind.encode()[:64], digest_size=_DIGEST_BYTES).digest()
        again = self._database.execute(
            "UPDATE seen SET copies = copies + 1 WHERE key = ? AND place = ? AND digest = ?",
            (note.digest, note.place, content),
        )
        if not again.rowcount:
            self._database.execute(
                "INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)",
                (
                    *(note.digest, note.place, content, *_ids(note.key), note.kind),
                    zlib.compress(note.body, _LEVEL),
                ),
            )

    def _write_letter(self, note: LetterNote) -> None:
        letter = note.letter
        self._database.execute(
            "INSERT INTO letters VALUES (?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET copies = copies + 1",
            (
                *(letter.partition, letter.offset),
                hashlib.blake2b(note.content, digest_size=_DIGEST_BYTES).digest(),
                letter.code,
            ),
        )

    # --- Reading ---------------------------------------------------------------------------------

    def references(self) -> Iterator[bytes]:
        """The bodies of replies that stand for a bundle kept elsewhere, one for each such bundle."""
        rows = self._database.execute(
            "SELECT body FROM seen WHERE place = 'reply' AND kind = 'bundle_ref' ORDER BY key, digest"
        )
        for (body,) in rows:
            yield zlib.decompress(body)

    def add_fetched(self, digest: str, bundle: bytes | str) -> None:
        """Keep the bundle that a reference stands for, or in words why it could not be had."""
        body, problem = (None, bundle) if isinstance(bundle, str) else (zlib.compress(bundle, _LEVEL), None)
        with self._writing, self._database:
            self._database.execute("INSERT OR REPLACE INTO fetched VALUES (?, ?, ?)", (digest, body, problem))

    def cases(self) -> Generator[Case]:
        """Everything that was flushed, case by case, in the order of project, request and generation."""
        self._database.execute(_INDEXES)
        for digest, project_id, request_id, generation in self._database.execute(_KEYS):
            sent = tuple(self._sent_of(digest))
            replies = tuple(self._seen_of(digest, "reply"))
            key = (
                None
                if project_id is None
                else RequestKey(project_id=project_id, request_id=request_id, generation=generation)
            )
            yield Case(
                key=key,
                sent=sent,
                replies=replies,
                earlier=tuple(self._seen_of(digest, "earlier")),
                usages=tuple(self._seen_of(digest, "usage")),
                letters=tuple(letter for item in sent for letter in self._letters_of(item)),
                fetched=self._fetched_for(replies),
            )

    def _fetched_for(self, replies: Sequence[Seen]) -> dict[str, bytes | str]:
        found: dict[str, bytes | str] = {}
        for seen in replies:
            if seen.kind == "bundle_ref":
                digest = str(fields_of(seen.body).get("digest"))
                for body, problem in self._database.execute(
                    "SELECT body, problem FROM fetched WHERE digest = ?", (digest,)
                ):
                    found[digest] = problem if body is None else zlib.decompress(body)
        return found

    def _sent_of(self, digest: bytes) -> Iterator[Sent]:
        rows = self._database.execute(
            "SELECT partition, offset, model, encoding, total_tokens, overhead_tokens, message_chars,"
            " message_sha256 FROM sent WHERE key = ? ORDER BY partition, offset",
            (digest,),
        )
        for partition, offset, model, encoding, total, overhead, chars, sha256 in rows:
            yield Sent(
                partition=partition,
                offset=offset,
                asked=Asked(
                    model=model, encoding=encoding, total_tokens=total, client_overhead_tokens=overhead
                ),
                message_chars=chars,
                message_sha256=sha256,
            )

    def _seen_of(self, digest: bytes, place: Where) -> Iterator[Seen]:
        rows = self._database.execute(
            "SELECT body, copies, kind FROM seen WHERE key = ? AND place = ? ORDER BY digest", (digest, place)
        )
        for body, copies, kind in rows:
            yield Seen(body=zlib.decompress(body), copies=copies, kind=kind)

    def _letters_of(self, sent: Sent) -> Iterator[Letter]:
        rows = self._database.execute(
            "SELECT code, copies FROM letters WHERE partition = ? AND offset = ? ORDER BY digest",
            (sent.partition, sent.offset),
        )
        for code, copies in rows:
            yield Letter(partition=sent.partition, offset=sent.offset, code=code, copies=copies)


def _ids(key: RequestKey | None) -> tuple[str | None, str | None, int | None]:
    return (None, None, None) if key is None else (key.project_id, key.request_id, key.generation)


def _storable(number: int | None) -> int | None:
    """A number that the database holds; what a hostile request asks beyond that is refused anyway."""
    return None if number is None or abs(number) >= 2**63 else number

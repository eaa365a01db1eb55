"""What a repository's own past says: which files earlier commits touched, and in which words they spoke.

A commit's node has its message as text and its time in the property `committed_at` (RFC 3339, UTC). Times are
compared with one another only, never with now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.graph.adjacency import Adjacency, kind
from worker.graph.lexical import Field, LexicalIndex, Query, build_index, score
from worker.graph.model import Node

COMMITTED_AT: Final = "committed_at"
MAX_FILES_A_COMMIT: Final = 30
"""A commit that touches more says little of any of them."""
_MESSAGE_FIELDS: Final[Mapping[str, Field]] = {"message": Field(weight=1.0)}


@dataclass(frozen=True, slots=True)
class History:
    """Earlier commits, by the file that they touched."""

    messages: LexicalIndex
    starts: NDArray[np.int32]
    """Where each file's commits begin: `(n_files + 1,)`."""
    commits: NDArray[np.int32]
    """Numbers of messages, file by file."""
    recency: NDArray[np.int32]
    """By file: 0 where no commit is known, then the higher the later its last one was; ties are equal."""
    latest: tuple[int, ...]
    """Node numbers of the commits, the latest first."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return self.messages.size_bytes + self.starts.nbytes + self.commits.nbytes + self.recency.nbytes

    def file_scores(self, query: Query) -> NDArray[np.float64]:
        """By file: the best similarity of the request to a message of a commit that touched it, 0 to 1."""
        files = len(self.starts) - 1
        found = np.zeros(files)
        terms = self.messages.known(query)
        if not terms or not len(self.commits):
            return found
        scores = score(self.messages.together, terms, document_count=self.messages.document_count)
        touched = np.flatnonzero(np.diff(self.starts))
        found[touched] = np.maximum.reduceat(scores[self.commits], self.starts[touched])
        best = float(found.max())
        return found / best if best > 0 else found


def build_history(
    nodes: Sequence[Node],
    commits: Sequence[int],
    files: Mapping[int, int],
    edges: Adjacency,
    *,
    file_count: int,
) -> History:
    """The past of some files. `commits` and the keys of `files` are node numbers, its values file numbers."""
    touches = (kind("TOUCHES"),)
    touched = [[files[file] for file in edges.of(commit, touches) if file in files] for commit in commits]
    told = [n for n, known in enumerate(touched) if 0 < len(known) <= MAX_FILES_A_COMMIT]
    messages = build_index(
        [{"message": nodes[commits[n]].text} for n in told], fields=_MESSAGE_FIELDS, alone={}
    )
    pairs = sorted((file, number) for number, n in enumerate(told) for file in touched[n])
    counts = np.bincount(np.array([file for file, _ in pairs], dtype=np.int64), minlength=file_count)
    times = [nodes[commit].property(COMMITTED_AT) for commit in commits]
    last = [""] * file_count
    for n, known in enumerate(touched):
        for file in known:
            last[file] = max(last[file], times[n])
    places = {time: place for place, time in enumerate(sorted({"", *last}))}
    order = sorted(range(len(commits)), key=lambda n: nodes[commits[n]].id)
    order.sort(key=lambda n: times[n], reverse=True)
    return History(
        messages=messages,
        starts=np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(counts, dtype=np.int32)]),
        commits=np.array([number for _, number in pairs], dtype=np.int32),
        recency=np.array([places[time] for time in last], dtype=np.int32),
        latest=tuple(commits[n] for n in order),
    )

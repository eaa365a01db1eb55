"""Which of many ids of several words stand in a text, found in one pass.

Text and ids are cut into runs of letters and digits and single other characters. Over these pieces the
automaton of Aho and Corasick (1975) is walked, so that no text, and no ids that are nearly alike, cost more
than their length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

_PIECE: Final = re.compile(r"[^\W_]+|[\W_]")


def standing_in(text: str, ids: Iterable[str]) -> set[str]:
    """Of these ids, those that stand in the text, letter by letter, and not as a part of longer words.

    What ends in a mark, such as a bracket, has to be followed by another mark, a blank, or nothing. O(length
    of the text + length of the ids), whatever is in them.
    """
    wanted = {one: _PIECE.findall(one) for one in ids if one}
    if not wanted:
        return set()
    pieces = _PIECE.findall(text)
    held = frozenset(pieces)
    # Mostly none is left here, and the text need not be walked.
    wanted = {one: cut for one, cut in wanted.items() if held.issuperset(cut)}
    return _Automaton(wanted).found_in(pieces) if wanted else set()


class _Automaton:
    """A tree of the ids' pieces, where each state knows the longest other one that it ends with."""

    def __init__(self, wanted: Mapping[str, Sequence[str]]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._end_of = {own_id: self._add(pieces) for own_id, pieces in wanted.items()}
        self._falls = [0] * len(self._next)
        self._by_depth = [0]
        for state in self._by_depth:
            for piece, child in self._next[state].items():
                self._falls[child] = self._step(self._falls[state], piece) if state else 0
                self._by_depth.append(child)

    def _add(self, pieces: Sequence[str]) -> int:
        state = 0
        for piece in pieces:
            following = self._next[state].setdefault(piece, len(self._next))
            if following == len(self._next):
                self._next.append({})
            state = following
        return state

    def _step(self, state: int, piece: str) -> int:
        while state and piece not in self._next[state]:
            state = self._falls[state]
        return self._next[state].get(piece, 0)

    def found_in(self, pieces: Sequence[str]) -> set[str]:
        """The ids that these pieces hold."""
        seen = [False] * len(self._next)
        state, last = 0, len(pieces) - 1
        for place, piece in enumerate(pieces):
            state = self._step(state, piece)
            if state and not seen[state]:
                is_run_on = not piece.isalnum() and place < last and pieces[place + 1].isalnum()
                seen[state] = not is_run_on
        # What ends in a state ends in all that it falls to: told once, and not at each place.
        for state in reversed(self._by_depth):
            if seen[state]:
                seen[self._falls[state]] = True
        return {own_id for own_id, end in self._end_of.items() if seen[end]}

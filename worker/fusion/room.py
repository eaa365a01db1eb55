"""Tokens left in one layer while it is being filled.

Lines are counted with their newline, which is where encodings split, so the sum of parts differs from the
joined text by a few tokens at most; the join is recounted afterwards.
"""

from __future__ import annotations

from typing import Final

from worker.fusion.protocols import LayerSpace
from worker.fusion.sections import SECTION_GAP
from worker.ports import TokenCounter

MAX_CHARS_A_TOKEN: Final = 6
"""A text with more characters than this for each token of the room is taken not to fit, and is not counted:
prose has four to five, code three to four."""


class Room:
    """One layer's tokens, spent text by text. A copy is cheap, so that a filling can be tried."""

    __slots__ = ("_counter", "_groups", "left")

    def __init__(self, counter: TokenCounter, left: int, groups: frozenset[str]) -> None:
        """`left` tokens, with the headings of these groups paid for."""
        self._counter = counter
        self._groups = groups
        self.left = left

    @classmethod
    def of(cls, space: LayerSpace) -> Room:
        """The layer's room once its frame is paid for; less than nothing where that does not fit."""
        frame = space.frame
        bare = f"{frame.opening}\n{frame.heading}\n{frame.closing}{SECTION_GAP}"
        frame_tokens = space.counter.count(bare)
        return cls(space.counter, space.budget_tokens - frame_tokens, frozenset({""}))

    def copy(self) -> Room:
        """The same room, to be spent apart from this one."""
        return Room(self._counter, self.left, self._groups)

    def cost(self, text: str) -> int:
        """Tokens of the text with its line's end."""
        return self._counter.count(text + "\n")

    def cost_up_to(self, text: str, limit_tokens: int) -> int:
        """`cost`, or something above the limit where it is above that, which is found sooner."""
        return self._counter.count_up_to(text + "\n", limit_tokens)

    def heading_cost(self, group: str) -> int:
        """What the group's heading costs its next member.

        Once a group even where its run is interrupted; the recount of the join sees the truth.
        """
        return 0 if group in self._groups else self._counter.count(group + "\n")

    def spend(self, tokens: int, group: str) -> None:
        """Take `tokens` for a member of the group, the heading included in them."""
        self.left -= tokens
        if group not in self._groups:
            self._groups |= {group}

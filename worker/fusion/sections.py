"""How a layer's fragments become text: headings, group headings, and the fence around retrieved content.

Retrieved text is data, not instructions. Each section stands between two marks that carry a delimiter
derived from project and thread, the same for a thread's consecutive prompts, so that their prefixes stay
cacheable. The delimiter is no secret: what protects is that content holding it is visibly escaped. So is what
looks like an id to cite by: only the worker gives those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from schemas.citations import LETTERS
from schemas.codes import PartName
from schemas.wire import canonical_json, sha256_hex
from worker.budget.fences import close_open_fence
from worker.ports import Scope

SECTION_GAP = "\n\n"
"""Ends every section. Encodings split after it, so sections are counted one by one without a seam."""


_ID_LIKE = re.compile(rf"\[[{''.join(LETTERS.values())}]:(?=[0-9]{{6,18}}!?\])")


@dataclass(frozen=True, slots=True)
class Fence:
    """The delimiter of one thread's sections: 16 hex digits."""

    delimiter: str

    def opening(self, layer: PartName, sources: Iterable[str]) -> str:
        """The mark above a section, naming where its content comes from and how far to trust it."""
        return f"[[context {layer} {self.delimiter} trust=untrusted from={','.join(sorted(set(sources)))}]]"

    def closing(self, layer: PartName) -> str:
        """The mark below a section."""
        return f"[[end {layer} {self.delimiter}]]"

    def has_marks(self, text: str) -> bool:
        """Whether there is anything in the text for `escape` to break."""
        # A single character is looked for a hundred times as fast as an expression.
        has_id = "[" in text and _ID_LIKE.search(text) is not None
        return has_id or self.delimiter in text.lower()

    def escape(self, text: str) -> tuple[str, int]:
        """The text with delimiters, in any case, and ids to cite by broken by a backslash; and how many."""
        text, ids = _ID_LIKE.subn(lambda match: f"{match[0][:-1]}\\:", text)
        if self.delimiter not in text.lower():
            return text, ids
        half = len(self.delimiter) // 2
        text, delimiters = re.subn(
            re.escape(self.delimiter),
            lambda match: f"{match[0][:half]}\\{match[0][half:]}",
            text,
            flags=re.IGNORECASE,
        )
        return text, ids + delimiters


@lru_cache(maxsize=4_096)
def fence_for(scope: Scope) -> Fence:
    """The first 16 hex digits of the SHA-256 of canonical `[project_id, thread_id or ""]`."""
    return Fence(sha256_hex(canonical_json([scope.project_id, scope.thread_id or ""]))[:16])


def admit_text(text: str, fence: Fence) -> tuple[str, int]:
    """The text as a section may hold it, and how many delimiters and ids were escaped in it.

    No trailing newline, no open code fence that would swallow what follows, no delimiter, no id to cite by.
    """
    escaped, count = fence.escape(text.rstrip("\r\n"))
    return close_open_fence(escaped), count


def compose(heading: str, pieces: Iterable[tuple[str, str]]) -> str:
    """One text from `(group, text)` pairs in order: a group's heading stands once above a run of it."""
    lines = [heading] if heading else []
    previous = ""
    for group, text in pieces:
        if group and group != previous:
            lines.append(group)
        previous = group
        lines.append(text)
    return "\n".join(lines)

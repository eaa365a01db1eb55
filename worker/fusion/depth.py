"""At which depths a fragment can be shown."""

from __future__ import annotations

from collections.abc import Sequence

from worker.fusion.protocols import DetailLevels
from worker.fusion.sections import Fence, admit_text
from worker.ports import Fragment, Rendering


class AdmittingDepthResolver:
    """Makes each rendering fit to be shown: delimiter escaped, code fences closed, no trailing newline."""

    def __init__(self, fence: Fence) -> None:
        """Admit text into sections of this fence."""
        self._fence = fence

    def resolve(self, fragments: Sequence[Fragment], budget: int) -> tuple[DetailLevels, int]:
        """Deepest first, equal texts once. The budget rules out no depth: even the deepest may be cut."""
        del budget
        levels: dict[str, tuple[Rendering, ...]] = {}
        escapes = 0
        for fragment in fragments:
            shown: list[Rendering] = []
            for rendering in sorted(fragment.renderings, key=lambda r: -r.depth):
                text, escaped = admit_text(rendering.text, self._fence)
                # The same occurrence stands in the shallower renderings again: count it once.
                escapes += 0 if shown else escaped
                if not shown or shown[-1].text != text:
                    shown.append(Rendering(depth=rendering.depth, text=text))
            levels[fragment.key] = tuple(shown)
        return levels, escapes

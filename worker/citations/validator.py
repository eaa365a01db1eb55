"""Whether an answer used what it was given: a pure judgement, without clock or store.

What is a citation and what is a word, `worker.citations.answers` says. One of something that was not shown is
judged by what exists. What exists says that the prompt lacked something. Of what does not, short ids are
invented, and so are numbered ids whose family the manifest shows (`REQ-`); ids of code and paths are what the
answer is about to make, and anything else is a word. An own id that stands in the prompt's text, without
being an item of its manifest, is a word as well: the answer was told of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from schemas.citations import TEMPLATE_SECTIONS, Citations, VerdictCode
from worker.citations.answers import Reading, read_answer
from worker.citations.forms import families_of, family_of, is_short

MAX_UNKNOWN: Final = 1_000
"""Short ids beyond the manifest that are looked at, the smallest; an answer that has more made them up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is to be said of one answer. All tuples are sorted, or in the order of the manifest."""

    code: VerdictCode
    score: float
    """Coverage: the share of what had to be cited that was, 1.0 where nothing had to; six decimals."""
    cited: tuple[str, ...]
    """Short ids of what the answer cites, by either id, in the order of the prompt."""
    missing: tuple[str, ...]
    """Short ids of what it had to cite and did not."""
    invented: tuple[str, ...]
    """Short ids that are none of this bundle's, and numbered ids of families that it shows, where nothing has
    them; of very many the smallest."""
    not_injected: tuple[str, ...] = ()
    """What it cites that exists and was not shown."""
    uncalled: tuple[str, ...] = ()
    """Required tools of which no call is known."""
    sections: tuple[str, ...] = ()
    """Sections of the template that are not there, or name nothing and do not say that there is nothing."""

    @property
    def has_complied(self) -> bool:
        """Whether nothing is left to ask for."""
        return self.code == "complied"


def unknown_in(reading: Reading, citations: Citations, *, prompt: str = "") -> tuple[str, ...]:
    """What is cited and was not shown, sorted: short ids first, then own ids; at most so many of each.

    Own ids that stand in `prompt` are left out: as they are, but for zeros before numbers. O(short ids that
    were read + own ids times the prompt).
    """
    shorts = nsmallest(MAX_UNKNOWN, reading.shorts.difference(item.short for item in citations.items))
    return (*shorts, *(own_id for own_id in reading.foreign if not _stands_in(prompt, own_id)))


def _stands_in(prompt: str, own_id: str) -> bool:
    if own_id in prompt:
        # Searched again with what is around it: it may be a part of a longer one.
        return re.search(rf"(?<![\w-]){re.escape(own_id)}(?!\w)", prompt) is not None
    if family_of(own_id) is None:
        return False
    padded = re.sub(r"(?<!\d)0*(\d+)", r"0*\1", own_id.replace(".", r"\."))
    return re.search(rf"(?<![\w-]){padded}(?!\w)", prompt) is not None


def judge(
    content: str,
    citations: Citations,
    *,
    required_tools: Collection[str] = (),
    called_tools: Collection[str] = (),
    real: Collection[str] = (),
    prompt: str = "",
) -> Judgement:
    """The judgement of an answer to a bundle with these citations.

    `called_tools` are those that are known to have been called, whatever the answer says. `real` are ids that
    exist in the project, short or own. `prompt` is the text that was shown. An answer has to cite something,
    and to have the sections, only where its prompt said so. O(length of the answer).
    """
    reading = read_answer(content, [item.id for item in citations.items])
    unknown = unknown_in(reading, citations, prompt=prompt)
    return judge_reading(
        reading,
        citations,
        unknown=unknown,
        required_tools=required_tools,
        called_tools=called_tools,
        real=real,
    )


def judge_reading(
    reading: Reading,
    citations: Citations,
    *,
    unknown: Collection[str],
    required_tools: Collection[str] = (),
    called_tools: Collection[str] = (),
    real: Collection[str] = (),
) -> Judgement:
    """As `judge`, of an answer that was read with the ids of `citations`; `unknown` is its `unknown_in`."""
    cited = tuple(
        item.short for item in citations.items if item.short in reading.shorts or item.id in reading.ids
    )
    named = frozenset(cited)
    lacked = sorted(frozenset(unknown).intersection(real))
    invented = sorted(_invented(frozenset(unknown).difference(real), citations))
    missing = tuple(short for short in citations.must_cite if short not in named)
    uncalled = tuple(sorted(frozenset(required_tools) - frozenset(called_tools)))
    is_asked = citations.template is not None
    sections = tuple(name for name in TEMPLATE_SECTIONS if name not in reading.sections) if is_asked else ()
    return Judgement(
        code=_code(
            ("not_injected", bool(lacked)),
            ("invented_citations", bool(invented)),
            ("no_citations", is_asked and bool(citations.items) and not cited),
            ("missing_citations", bool(missing)),
            ("tools_not_called", bool(uncalled)),
            ("sections_missing", bool(sections)),
        ),
        score=_coverage(len(citations.must_cite), len(missing)),
        cited=cited,
        missing=missing,
        invented=tuple(invented),
        not_injected=tuple(lacked),
        uncalled=uncalled,
        sections=sections,
    )


def _invented(nowhere: Collection[str], citations: Citations) -> Iterator[str]:
    """Of what names nothing, that which could have been meant as nothing but a citation."""
    if not nowhere:
        return
    families = families_of(item.id for item in citations.items)
    for one in nowhere:
        if is_short(one) or family_of(one) in families:
            yield one


def _code(*found: tuple[VerdictCode, bool]) -> VerdictCode:
    codes: list[VerdictCode] = [code for code, holds in found if holds]
    return codes[0] if codes else "complied"


def _coverage(asked: int, missing: int) -> float:
    return round((asked - missing) / asked, 6) if asked else 1.0

"""Citations read out of an agent's answer: free text, Markdown, or JSON.

What counts as a citation is declared by what the prompt shows and by its template:

- a short id, wherever it stands in prose: in either case of its letter, in emphasis, before a colon or dash,
  behind a word with a colon or an equals sign (`cites=f:483921`), and beside another one
  (`f:483921/f:483922`); inside a longer token it is none;
- the own id of something that is shown, as it is;
- an id of code, `path::name`, also of something that is not shown;
- a numbered id such as `REQ-106-030` or `ADR-7`. Where ids of its family (`REQ-`) are shown it is a citation
  whatever it names; else only where it names something (`UTF-8` names nothing);
- of everything else, paths and ids without a form of their own, what stands where the template has ids stand:
  alone in square brackets, and, of paths, below one of its headings.

All other words are words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from schemas.citations import TemplateSection
from worker.citations.forms import SHORT, can_be_read, family_of, is_code_id, is_path
from worker.citations.prose import prose_of
from worker.citations.sections import bodies_in, says_none
from worker.citations.words import Wanted, Words, read_words

MAX_FOREIGN: Final = 50
"""Of each form of own ids beyond the manifest that are looked at; an answer that has more is a listing."""
_IN_BRACKETS: Final = re.compile(rf"\[(?!{SHORT}!?\])([^\s\[\](),;|`\"'*]{{4,200}})\](?![(\[:])")
"""What stands alone in them; no short id, no link, and no footnote."""
_NOT_BEFORE_BRACKET: Final = frozenset(")]_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an answer cites, in any order and each once."""

    shorts: frozenset[str]
    """Everything of the form of a short id."""
    ids: frozenset[str]
    """Of the ids that were asked for, those that stand in the answer."""
    foreign: tuple[str, ...]
    """Other own ids, sorted: of what may exist, of what the answer is about to make, or made up."""
    sections: frozenset[TemplateSection]
    """Of the template, those that are there and name something, or say that there is nothing to name."""


def read_answer(content: str, ids: Iterable[str]) -> Reading:
    """The citations in `content`; `ids` are the node ids to look for.

    An id of less than four characters that is not numbered (`D-7`), or of letters alone, is a word like
    others: it can be cited by its short id only. O(length of the answer and of the ids); 100 KB against 500
    ids take two to four milliseconds, and a few more where some ids have blanks or brackets in them.
    """
    text = prose_of(content)
    wanted = Wanted(ids)
    words = read_words(text, wanted)
    stated = {*_in_brackets(text)}
    sections: set[TemplateSection] = set()
    for section, body in bodies_in(text):
        below = read_words(body, wanted)
        paths = {word for word in below.others if is_path(word)}
        stated |= paths
        if paths or _names_something(below) or says_none(body):
            sections.add(section)
    stated = {word for word in stated if word not in wanted.ids and can_be_read(word)}
    return Reading(
        shorts=words.shorts,
        ids=words.found,
        foreign=tuple(sorted({*_first(_code_ids(words)), *_first(_numbered(words)), *_first(stated)})),
        sections=frozenset(sections),
    )


def _names_something(below: Words) -> bool:
    return bool(below.shorts or below.found or _code_ids(below) or _numbered(below))


def _code_ids(words: Words) -> list[str]:
    return [word for word in words.others if "::" in word and is_code_id(word)]


def _numbered(words: Words) -> list[str]:
    """Numbered ids, also such that stand in a row (`REQ-1/REQ-2`)."""
    chains = [word.split("/") for word in words.others if word[0].isupper()]
    return [part for parts in chains if all(map(family_of, parts)) for part in parts]


def _in_brackets(text: str) -> Iterator[str]:
    for found in _IN_BRACKETS.finditer(text):
        before = text[found.start() - 1 : found.start()]
        if not (before.isalnum() or before in _NOT_BEFORE_BRACKET):
            yield found[1].rstrip("!")


def _first(words: Collection[str]) -> list[str]:
    return nsmallest(MAX_FOREIGN, words)

"""What the next bundle is to be: the request that is asked again, its line of warning, and what it shows.

Pure. A retry is a request of its own, whose id is derived and never read again: which request it follows,
and by which steps, is kept beside its outcome as a `Lineage`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from pydantic import TypeAdapter

from schemas.citations import Citations, Step
from schemas.codes import CONTENT_LAYERS, PartName
from schemas.request import AssemblyRequest
from schemas.wire import canonical_json, sha256_hex
from worker.citations.labels import citable
from worker.citations.validator import Judgement
from worker.ports import Fragment, LayerContribution

_MAX_ID_CHARS: Final = 256
_NAMED: Final = 10
"""Ids that a warning spells out of each sort."""
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_./:<>#@+-]{1,200}")
"""What a warning may spell out: it stands in no fence, and ids of state are any text that somebody stored."""
_NO_OWN_IDS: Final[Mapping[str, str]] = {}
_GAP: Final = "\n\n"
_PREFERENCE: Final[tuple[PartName, ...]] = (
    *("graph", "semantic", "ast", "artifacts"),
    *(layer for layer in CONTENT_LAYERS if layer not in {"graph", "semantic", "ast", "artifacts"}),
)
"""Where the most relevant thing is looked for: relevances of different sources cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A step that was taken after an answer to this request's bundle."""

    request_id: str
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a retry comes from."""

    taken: tuple[Taken, ...]
    """The first is the request that all began with, the last the one that the retry follows."""
    warning: str
    """What the retry's message ends with, beside the caller's own."""

    @property
    def first_request_id(self) -> str:
        """Of the request that all began with."""
        return self.taken[0].request_id

    @property
    def parent_request_id(self) -> str:
        """Of the request that the retry follows."""
        return self.taken[-1].request_id

    @property
    def steps(self) -> tuple[Step, ...]:
        """Those taken so far, the first first."""
        return tuple(one.step for one in self.taken)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        taken = [[one.request_id, one.step] for one in self.taken]
        return canonical_json({"taken": taken, "warning": self.warning})

    @classmethod
    def from_bytes(cls, data: bytes) -> Lineage:
        """What `to_bytes` wrote. Raises ValueError."""
        read = _WRITTEN.validate_json(data)
        taken = tuple(Taken(request_id=own, step=step) for own, step in cast("_Pairs", read["taken"]))
        return cls(taken=taken, warning=cast("str", read["warning"]))


_Pairs = list[tuple[str, Step]]
_WRITTEN: Final = TypeAdapter(dict[str, _Pairs | str])


def retry_id(first_request_id: str, number: int) -> str:
    """The id of the bundle after the `number`th answer: `<request>~r<number>`.

    Of a request whose id leaves no room for that, a digest stands for it.
    """
    own = f"{first_request_id}~r{number}"
    return own if len(own) <= _MAX_ID_CHARS else f"{sha256_hex(first_request_id.encode())}~r{number}"


def callers_message(request: AssemblyRequest, lineage: Lineage | None) -> str:
    """The request's message without the warning behind it, where it is a retry itself."""
    message = request.user_message
    return message if lineage is None else message.removesuffix(_GAP + lineage.warning)


def retry_request(
    request: AssemblyRequest, *, request_id: str, message: str, warning: str
) -> AssemblyRequest:
    """The request asked again under its new id, with this warning behind the caller's message."""
    return request.model_copy(update={"request_id": request_id, "user_message": message + _GAP + warning})


def warning_of(judgement: Judgement, citations: Citations, *, shown: Iterable[str] | None = None) -> str:
    """One line that says what was wrong with the last answer, so that an agent can mend it.

    It names ids that are plain, without blanks, and of others only how many they are: no stored text, and
    none of the answer, comes to stand among the caller's words.

    `shown` are the own ids of what the next prompt shows, where that is less than the last one: what it lacks
    is not asked for.
    """
    own_id = {item.short: item.id for item in citations.items}
    left = own_id.values() if shown is None else frozenset(shown)
    missing = [short for short in judgement.missing if own_id[short] in left]
    wrongs = (
        ("it cites what exists and was not shown", _listed(judgement.not_injected)),
        ("it cites what does not exist", _listed(judgement.invented)),
        ("it cites nothing that was shown", None if judgement.code == "no_citations" else ""),
        ("it has to cite", _listed(missing, own_id)),
        ("these tools have to be called first", _listed(judgement.uncalled)),
        ("these headings need ids below them, or none", ", ".join(judgement.sections)),
    )
    said = [what if ids is None else f"{what}: {ids}" for what, ids in wrongs if ids is None or ids]
    if not said:
        said = ["it did not use what was shown"]
    return f"Your last answer was not accepted: {'; '.join(said)}. Answer again, in full."


def _listed(ids: Sequence[str], own_id: Mapping[str, str] = _NO_OWN_IDS) -> str:
    """The first of those that are plain, each with its own id where that is plain too, and how many more."""
    plain = [one for one in ids if _PLAIN_ID.fullmatch(one)][:_NAMED]
    named = ", ".join(
        f"{one} ({own_id[one]})" if _PLAIN_ID.fullmatch(own_id.get(one, "")) else one for one in plain
    )
    more = len(ids) - len(plain)
    if not more:
        return named
    return f"{named} and {more} more" if named else f"{more} without a plain id"


# --- Showing less ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What is left to be shown."""

    contributions: Mapping[PartName, LayerContribution]
    shown: frozenset[str]
    """The own ids of what can be cited in it."""


def shrink(contributions: Mapping[PartName, LayerContribution], citations: Citations) -> Shrunk:
    """The single most relevant thing that the prompt showed, whatever is pinned, and nothing else.

    What had to be cited comes before what had not, then the layers in order of preference, then relevance,
    rank and id. All fragments about that thing stay. A layer that loses all is off: nobody asked for it. Of
    others the loss counts as left out by the source. O(fragments).
    """
    best = _most_relevant(contributions, citations)
    shown: set[str] = set()
    left: dict[PartName, LayerContribution] = {}
    for layer, contribution in contributions.items():
        kept = tuple(one for one in contribution.fragments if one.is_pinned or _is_about(one, best))
        shown |= {identity[1] for one in kept if (identity := citable(one)) is not None}
        dropped = len(contribution.fragments) - len(kept)
        if dropped and not kept:
            left[layer] = LayerContribution(layer=layer, status="off", reason="not_requested")
        else:
            left[layer] = replace(contribution, fragments=kept, capped=contribution.capped + dropped)
    return Shrunk(contributions=left, shown=frozenset(shown))


def _most_relevant(contributions: Mapping[PartName, LayerContribution], citations: Citations) -> str:
    """The own id of it; empty where nothing can be cited that is not pinned."""
    was_shown = {item.id for item in citations.items}
    musts = frozenset(citations.must_cite)
    had_to_be_cited = {item.id for item in citations.items if item.short in musts}

    def order(own_id: str, fragment: Fragment) -> tuple[bool, bool, int, float, int, str]:
        place = _PREFERENCE.index(fragment.layer)
        is_must, is_shown = own_id in had_to_be_cited, own_id in was_shown
        return not is_must, not is_shown, place, -fragment.relevance, fragment.rank, own_id

    found = (
        order(identity[1], fragment)
        for contribution in contributions.values()
        for fragment in contribution.fragments
        if not fragment.is_pinned and (identity := citable(fragment)) is not None
    )
    best = min(found, default=None)
    return "" if best is None else best[-1]


def _is_about(fragment: Fragment, own_id: str) -> bool:
    if not own_id:
        return False
    identity = citable(fragment)
    return fragment.about == own_id or (identity is not None and identity[1] == own_id)

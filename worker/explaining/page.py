"""The same answers as one page for a browser: it asks for nothing else, so it can be kept and printed.

Whatever a request brought stands in the page as text: Jinja escapes it, characters that would reorder a line
are replaced, and the page's own policy lets the browser run and load nothing but what this module wrote.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from worker.explaining.difference import (
    CONTEXT_CHARS,
    Difference,
    FragmentChange,
)
from worker.explaining.replay import Verdict
from worker.explaining.supposing import Supposed, Supposition
from worker.explaining.view import SHOWN, Explanation, FragmentView, LayerView, RestView

MAX_OPEN_ROWS: Final = 60
"""A longer list begins closed: closed, a browser lays none of it out."""
MAX_TEXT_CHARS: Final = 4_000
"""Of one fragment."""
MAX_PAGE_TEXT_CHARS: Final = 2_000_000
"""Of all fragments; beyond it a page would open slowly."""

# Controls, and what reorders the text around it: a name must not look like another one.
_UNSEEN: Final = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Lengths in hundredths of a page's longest; `mark` is None where nothing is marked."""

    budget: float
    spent: float
    mark: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBar:
    """A layer's line among the budgets."""

    layer: LayerView
    bar: Bar | None
    """None where the bundle was read without its ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A fragment's line, with as much of its text as a page holds."""

    fragment: FragmentView
    text: str | None
    hidden_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows of one layer that share a heading."""

    layer: LayerView
    title: str
    is_shown: bool
    rows: tuple[Row, ...]
    rest: tuple[RestView, ...]
    """What is only counted."""
    is_open: bool

    @property
    def count(self) -> int:
        """How many there are, with a line or without."""
        return len(self.rows) + sum([rest.count for rest in self.rest])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One layer's budget and spending on both sides."""

    layer: str
    budget_before: int
    budget_after: int
    tokens_before: int
    tokens_after: int
    before: Bar
    after: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Fragments that changed in the same way."""

    title: str
    mark: str
    changes: tuple[FragmentChange, ...]
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """One side of where two prompts part."""

    name: str
    same: str
    other: str


def explanation_page(explanation: Explanation, *, verdict: Verdict | None = None) -> str:
    """What went in, what stayed out, which rule decided; `verdict` where the bundle was made again."""
    groups = _groups(explanation.layers)
    return render_page(
        "explanation",
        e=explanation,
        verdict=verdict,
        ledger=_layer_bars(explanation.layers),
        groups=groups,
        fates=list(dict.fromkeys([row.fragment.fate for group in groups for row in group.rows])),
    )


def difference_page(found: Difference, *, first: Explanation, second: Explanation) -> str:
    """Why two prompts differ; `first` and `second` are those that were compared."""
    tables = (("Inputs", found.inputs), ("Request", found.request), ("Sources", found.sources))
    return render_page(
        "difference",
        d=found,
        tables=[(title, changes) for title, changes in tables if changes],
        ledger=_both_ledgers(first.layers, second.layers),
        partings=_partings(found),
        changed=_changed(found.fragments),
        has_causes=bool(found.inputs or found.request or found.sources or found.request_note),
        sides=(first, second),
    )


def supposed_page(supposed: Supposed, supposition: Supposition, *, explanation: Explanation) -> str:
    """What another budget or strategy would change of the bundle that `explanation` is of."""
    rows = [
        (line.layer, line.budget_before, line.budget_after, line.tokens_before, line.tokens_after)
        for line in supposed.layers
    ]
    return render_page(
        "supposed",
        s=supposed,
        e=explanation,
        supposed=list(_supposed_words(supposition)),
        ledger=_ledgers(rows),
        changed=_changed(supposed.fragments),
    )


# --- What the templates show -------------------------------------------------------------------------


def _layer_bars(layers: Sequence[LayerView]) -> list[LayerBar]:
    """One scale for all, so that their lengths compare."""
    numbers = [n for line in layers for n in (line.budget_tokens, line.tokens, line.reserved_tokens) if n]
    longest = max(numbers, default=0)
    bars: list[LayerBar] = []
    for layer in layers:
        bar = None
        if layer.tokens is not None and layer.budget_tokens is not None:
            bar = Bar(
                budget=bar_length(layer.budget_tokens, longest),
                spent=bar_length(layer.tokens, longest),
                mark=None if layer.reserved_tokens is None else bar_length(layer.reserved_tokens, longest),
            )
        bars.append(LayerBar(layer=layer, bar=bar))
    return bars


def _both_ledgers(first: Iterable[LayerView], second: Iterable[LayerView]) -> list[Ledger]:
    return _ledgers(
        [
            (one.layer, one.budget_tokens, two.budget_tokens, one.tokens, two.tokens)
            for one, two in zip(first, second, strict=True)
            if one.budget_tokens is not None
            and two.budget_tokens is not None
            and one.tokens is not None
            and two.tokens is not None
        ]
    )


def _ledgers(rows: Sequence[tuple[str, int, int, int, int]]) -> list[Ledger]:
    longest = max((max(numbers) for _, *numbers in rows), default=0)
    return [
        Ledger(
            layer=layer,
            budget_before=budget_before,
            budget_after=budget_after,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            before=Bar(
                budget=bar_length(budget_before, longest), spent=bar_length(tokens_before, longest), mark=None
            ),
            after=Bar(
                budget=bar_length(budget_after, longest), spent=bar_length(tokens_after, longest), mark=None
            ),
        )
        for layer, budget_before, budget_after, tokens_before, tokens_after in rows
    ]


def bar_length(tokens: int, longest: int) -> float:
    """Of the longest, in hundredths; what is there at all stays visible."""
    if tokens <= 0 or longest <= 0:
        return 0.0
    return max(0.5, round(100 * tokens / longest, 2))


def _groups(layers: Iterable[LayerView]) -> list[Group]:
    """Of each layer what is in the prompt, then what is not."""
    texts = _Texts(MAX_PAGE_TEXT_CHARS)
    groups: list[Group] = []
    for layer in layers:
        for title, is_shown, fragments in (
            ("in the prompt", True, layer.shown),
            ("left out", False, layer.left_out),
        ):
            rest = tuple([rest for rest in layer.rest if (rest.fate in SHOWN) == is_shown])
            if fragments or rest:
                groups.append(
                    Group(
                        layer=layer,
                        title=title,
                        is_shown=is_shown,
                        rows=tuple([texts.row(fragment) for fragment in fragments]),
                        rest=rest,
                        is_open=len(fragments) <= MAX_OPEN_ROWS,
                    )
                )
    return groups


class _Texts:
    """Hands out what a page may hold of texts, the first ones first."""

    def __init__(self, max_chars: int) -> None:
        self._left_chars = max_chars

    def row(self, fragment: FragmentView) -> Row:
        whole = fragment.text
        if whole is None:
            return Row(fragment=fragment, text=None, hidden_chars=0)
        text = whole[: min(MAX_TEXT_CHARS, self._left_chars)]
        self._left_chars -= len(text)
        return Row(fragment=fragment, text=text, hidden_chars=len(whole) - len(text))


def _changed(changes: Sequence[FragmentChange]) -> list[Changed]:
    kinds: tuple[tuple[str, str, Callable[[FragmentChange], bool]], ...] = (
        ("Came in", "+", lambda c: c.is_shown_after and not c.is_shown_before),
        ("Went out", "−", lambda c: c.is_shown_before and not c.is_shown_after),
        ("Shown otherwise", "~", lambda c: c.is_shown_before and c.is_shown_after),
    )
    found: list[Changed] = []
    for title, mark, is_kind in kinds:
        mine = tuple([change for change in changes if is_kind(change)])
        if mine:
            found.append(Changed(title=title, mark=mark, changes=mine, is_open=len(mine) <= MAX_OPEN_ROWS))
    return found


def _partings(found: Difference) -> list[Parting]:
    """Both texts around the first differing byte, what they begin with apart."""
    first = found.first_byte
    if first is None:
        return []
    same_chars = min(CONTEXT_CHARS, first.same_chars)
    return [
        Parting(name=name, same=text[:same_chars], other=text[same_chars:])
        for name, text in ((found.first, first.before), (found.second, first.after))
    ]


def _supposed_words(supposition: Supposition) -> Iterator[str]:
    if supposition.total_tokens is not None:
        yield f"a total of {supposition.total_tokens:,} tokens"
    for layer, tokens in supposition.layers.items():
        yield f"{tokens:,} tokens reserved for {layer}"
    if supposition.strategy is not None:
        yield f"the strategy {supposition.strategy}"


# --- Rendering ---------------------------------------------------------------------------------------


_OWN: Final = PackageLoader("worker.explaining", "pages")


def render_page(page: str, *, loader: BaseLoader | None = None, **values: Any) -> str:
    """A whole page of this package's templates: style and script within, and nothing from elsewhere.

    A `loader` finds templates before this package does; those may extend this package's own.
    """
    style, script = _resource("page.css"), _resource("page.js")
    policy = (
        f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)};"
        " base-uri 'none'; form-action 'none'"
    )
    environment = _environment()
    if loader is not None:
        environment = environment.overlay(loader=ChoiceLoader([loader, _OWN]))
    return environment.get_template(f"{page}.html.j2").render(
        # Both are this package's own files, and a policy by digest needs them byte for byte.
        style=Markup(style),  # noqa: S704  # as above
        script=Markup(script),  # noqa: S704  # as above
        policy=policy,
        **values,
    )


def _allowed(source: str) -> str:
    return f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'"


@cache
def _resource(name: str) -> str:
    return files("worker.explaining").joinpath("pages", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=_OWN,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    return environment


def _plain(text: str) -> str:
    return _UNSEEN.sub("�", text)


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _percent(part: float, whole: float) -> str:
    if not whole:
        return "–"
    share = 100 * part / whole
    return f"{share:.0f}%" if share >= 1 or not part else "<1%"


def _milliseconds(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms"  # noqa: PLR2004 - two digits say enough


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


_FILTERS: Final[Mapping[str, Callable[..., str]]] = {
    "plain": _plain,
    "number": _number,
    "percent": _percent,
    "milliseconds": _milliseconds,
    "score": _score,
    "counted": _counted,
}

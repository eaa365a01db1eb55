"""What is fuzzed: a function a target, from any bytes to nothing, or an error where a promise was broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.support.plan_documents import PATHS, check_document
from tests.support.trimmed import check_trimmed
from worker.budget.tokens import counter_for
from worker.budget.trimming import trim_to_budget
from worker.decoding import check_request, decode_request, is_heavy, read_ids
from worker.errors import InvalidRequest, Rejected
from worker.graph.pack_file import PackFile, parse_pack
from worker.plans.hand_offs import read_hand_off
from worker.plans.reading import read_plan
from worker.plans.wire import to_handoff_data, to_plan

_PROJECT: Final = "shop"
_FRONT_MATTER: Final = f"---\nproject: {_PROJECT}\n---\n"
_FILES_END: Final = "\x1e"
_SIBLINGS: Final = (".planning/STATE.md", ".kiro/specs/f/requirements.md", "backlog/config.yml", "a.md")
_COUNTERS: Final = (
    counter_for("o200k_base"),
    counter_for("cl100k_base"),
    counter_for("o200k_base", safety_factor="1.15"),
    counter_for("bytes"),
)


def decode(data: bytes) -> None:
    """A body is refused by its code, or is a request that means the same when it is written again."""
    is_heavy(data)
    ids = read_ids(data)
    try:
        decoded = decode_request(data, max_bytes=65_536, max_depth=12, max_values=2_000)
    except Rejected as error:
        assert error.is_dead_letter, error  # noqa: PT017 - either outcome is right, each has its claim
        return
    request = decoded.request
    # Of an id that stands there twice neither is read.
    assert ids[0] in {None, request.request_id}
    assert ids[1] in {None, request.project_id}
    again = decode_request(
        request.model_dump_json(exclude_unset=True).encode(), max_bytes=10**6, max_depth=20, max_values=10**4
    )
    assert again.meaning == decoded.meaning
    try:
        check_request(request)
    except Rejected:
        return


def pack(data: bytes) -> None:
    """A pack is refused as one, or reads the same when written again, whole or without one section."""
    text = data.decode("utf-8", "replace")
    try:
        read = parse_pack(text, project_id=_PROJECT)
    except InvalidRequest as error:
        assert text.startswith("---")
        assert error.details["field"] == "pack"  # noqa: PT017 - as above
        return
    sections = list(read.sections)
    assert sum(len(section.text) for section in sections) <= len(text)
    assert _written(read).sections == read.sections
    if sections:
        left_out = len(data) % len(sections)
        assert _written(read, without=left_out).sections == (*sections[:left_out], *sections[left_out + 1 :])


def _written(pack: PackFile, *, without: int | None = None) -> PackFile:
    texts = [section.text for number, section in enumerate(pack.sections) if number != without]
    return parse_pack(_FRONT_MATTER + "\n\n".join(texts) + "\n", project_id=_PROJECT)


def plan(data: bytes) -> None:
    """Every file gives the same document each time, whose parts agree and which the wire carries."""
    path = PATHS[data[0] % len(PATHS)] if data else None
    text, *others = data[1:].decode("utf-8", "surrogateescape").split(_FILES_END)
    siblings: dict[str, str] = dict(zip(_SIBLINGS, others, strict=False))
    document = read_plan(path, text, siblings=siblings)
    check_document(document, is_named=any("current" in part.lower() for part in (text, *others)))
    assert read_plan(path, text, siblings=siblings) == document
    sent = to_plan(document, "p", path)
    assert sent.model_validate_json(sent.model_dump_json()) == sent
    handed = read_hand_off("HANDOFF.md", text)
    if handed is not None:
        noted = to_handoff_data(handed)
        assert noted.model_validate_json(noted.model_dump_json()) == noted


def trim(data: bytes) -> None:
    """A text is cut to a beginning that fits; cutting it again changes nothing."""
    counter = _COUNTERS[data[0] % len(_COUNTERS)] if data else _COUNTERS[0]
    budget = int.from_bytes(data[1:3], "little") % 1_000
    text = data[3:].decode("utf-8", "replace")
    result = trim_to_budget(text, budget, counter)
    check_trimmed(text, result, budget, counter)
    assert trim_to_budget(result, budget, counter) == result


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "decode": decode,
    "pack": pack,
    "plan": plan,
    "trim": trim,
}

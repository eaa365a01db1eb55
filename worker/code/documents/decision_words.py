"""Words of decisions: statuses in many wordings, who supersedes whom, and what code is spoken of."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from worker.code.documents.ids import ID, is_requirement_id, read_ids
from worker.code.documents.results import Reference
from worker.code.documents.wording import plain

STATUS_LABELS: Final = r"Status|State|Статус|状态|狀態|状態|ステータス|상태|Estado|Statut|Stato|Trạng thái"
DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")

_STATUSES: Final[dict[str, str]] = {
    word: status
    for status, words in {
        "proposed": "proposed|pending|предложено|提案|提议|propuesto|propuesta|proposé|vorgeschlagen|제안",
        "accepted": (
            "accepted|approved|adopted|implemented|принято|принят|已接受|接受|已采纳|承認|採用|aceptado|aceptada|"
            "accepté|akzeptiert|angenommen|승인|수락|aceito|chấp nhận"
        ),
        "rejected": "rejected|declined|отклонено|已拒绝|却下|rechazado|rejeté|abgelehnt|거부",
        "deprecated": "deprecated|obsolete|устарело|已废弃|非推奨|obsoleto|veraltet",
        "superseded": "superseded|superceded|replaced|заменено|заменён|已取代|置換|reemplazado|ersetzt",
        "active": "active",
        "draft": "draft|черновик|草稿|borrador|entwurf",
        "on hold": "on hold|on-hold|deferred|paused",
    }.items()
    for word in words.split("|")
}
_WORD: Final = re.compile(
    rf"(?<!\w)(?:{'|'.join(sorted(map(re.escape, _STATUSES), key=len, reverse=True))})(?!\w)"
)
_TEMPLATE: Final = re.compile(r"\s*[\[{<]?\s*\w[\w ]*\s*(?:\||/)\s*\w[\w ]*\s*(?:\||/)")
_NONE: Final = re.compile(
    r"[\s_*(\[`—–-]*+(?:none|n/a|no|nothing|keine|нет|无|なし)?[\s_*)\]`.—–-]*\Z", re.IGNORECASE
)
_SUPERSEDED_BY: Final = re.compile(
    r"(?:partly |partially )?(?:superseded|superceded|replaced)"
    r"(?:[ \t]+(?:in part[ \t]+)?by)\b[ \t]*[:：]?",
    re.IGNORECASE,
)
_PARTLY: Final = re.compile(
    r"(?:partly|partially)\s+superseded|superseded\s+(?:in part|partly|partially)", re.IGNORECASE
)
_LINK_TEXT: Final = re.compile(r"\[(?P<text>[^\[\]\n]{0,200})\]\((?P<target>[^()\s]{1,300})\)")
_SUPERSEDES: Final = re.compile(r"\b(?:supersedes|supercedes|replaces)\b[ \t]*[:：]?", re.IGNORECASE)
_TARGET: Final = re.compile(
    r"\[\]\((?P<link>[^()\s]{1,300})\)|(?P<issue>#\d{1,9})\b"
    r"|(?P<id>\b(?:ADR|MADR|DEC|AD|D|RFC|DR)[ -]?\d{1,6}(?!\w))|(?P<file>[\w./-]*\d[\w-]*\.md)\b"
    r"|(?P<number>(?<![\w.-])\d{1,6}(?![\w.-]*\w))",
    re.IGNORECASE,
)
_FIRST_NUMBER: Final = re.compile(r"\d{1,9}")

_CODE_SPAN: Final = re.compile(r"(?<!`)(?P<ticks>`{1,2})(?!`)(?P<code>[^`\n]{1,300})(?P=ticks)(?!`)")
_LINK: Final = re.compile(r"\]\((?P<target>[^()\s]{1,300})\)")
_SYMBOL: Final = re.compile(r"(?P<name>(?:[\w./-]+::)?[A-Za-z_][\w.]{0,200})\([^()]{0,100}\)\Z")
_BARE_NAME: Final = re.compile(r"(?:[\w./-]+::)?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")
_LINE_SUFFIX: Final = re.compile(
    # A part has one reading: `:1:1:1…` would else be cut in more ways than there is time to try.
    r"(?::\d{1,7}+(?:[-–]\d{1,7}+)?+|#L?\d{1,7}+(?:-L?\d{1,7}+)?+|\s*+\(lines? [\d-]++\))++\Z"
)
_PATH: Final = re.compile(r"\.{0,2}/?[\w@+.\[\]{}-]+(?:/[\w@+.\[\]{} -]+)*/?\Z")
_SUFFIX: Final = re.compile(r"\.[A-Za-z]\w{0,7}\Z")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)+\Z")
FILE_SUFFIXES: Final = frozenset(
    [
        "py",
        "pyi",
        "js",
        "jsx",
        "ts",
        "tsx",
        "go",
        "java",
        "rs",
        "c",
        "h",
        "cc",
        "cpp",
        "hpp",
        "cs",
        "rb",
        "php",
        "kt",
        "swift",
        "scala",
        "sh",
        "sql",
        "md",
        "rst",
        "yml",
        "yaml",
        "toml",
        "json",
        "ini",
        "cfg",
        "env",
        "tf",
        "proto",
        "html",
        "css",
        "scss",
        "vue",
        "svelte",
        "lock",
        "txt",
        "xml",
        "gradle",
        "mk",
        "pl",
        "ex",
        "exs",
        "erl",
        "hs",
        "lua",
        "r",
        "jl",
        "dart",
    ]
)
"""Of files that a decision or a plan may name without a folder."""
_ID: Final = re.compile(rf"(?<![\w.-]){ID}")


@dataclass(frozen=True, slots=True)
class StatusWords:
    """What a status line says."""

    status: str
    superseded_by: tuple[str, ...]
    supersedes: tuple[str, ...]


def read_status(raw: str) -> StatusWords:
    """The status, and who supersedes whom, from a status of one or more lines.

    "Accepted; storage part superseded by 0013" is accepted still, with the link. Template text, several
    values offered to choose from, is `unknown`, and so are other words.
    """
    text = plain_keeping_links(raw)
    if not text.strip():
        return StatusWords("", (), ())
    if _TEMPLATE.match(text) and len(_WORD.findall(text.lower())) > 2:  # noqa: PLR2004 (a choice of three)
        return StatusWords("unknown", (), ())
    status = _status_word(plain(text).lower())
    text = _LINK_TEXT.sub(_target_alone, text)
    by = [target for found in _SUPERSEDED_BY.finditer(text) for target in targets(_rest(text, found.end()))]
    own = [target for found in _SUPERSEDES.finditer(text) for target in targets(_rest(text, found.end()))]
    return StatusWords(status, tuple(dict.fromkeys(by)), tuple(dict.fromkeys(own)))


def _status_word(text: str) -> str:
    lines = [line.strip(" \t*_>`\"'-") for line in text.split("\n")]
    if any(_PARTLY.match(line) for line in lines):
        return "accepted"
    # One line for each fact: a record that was accepted and then superseded is superseded.
    if any(_SUPERSEDED_BY.match(line) for line in lines):
        return "superseded"
    match = _WORD.search(lines[0]) or _WORD.search(text)
    return _STATUSES[match[0]] if match else "unknown"


def _target_alone(match: re.Match[str]) -> str:
    """A link to a record without its text, which may be a sentence; of any other link the text."""
    is_record = match["target"].split("#", 1)[0].endswith(".md")
    return f"[]({match['target']})" if is_record else match["text"]


def targets(text: str) -> list[str]:
    """The decisions that a list names: ids, numbers, files, issues; else its words. "None" names none."""
    if "](" not in text and _NONE.match(plain(text)):
        return []
    found = [match["link"] or match[0] for match in _TARGET.finditer(_LINK_TEXT.sub(_target_alone, text))]
    if not found:
        words = " ".join(plain(text).split())[:200]
        return [words] if words else []
    return list(dict.fromkeys(target.strip() for target in found))


def number_of(target: str) -> str:
    """The number by which a target names a record, without leading zeros; empty where it names an issue."""
    if target.startswith(("#", "http:", "https:")):
        return ""
    match = _FIRST_NUMBER.search(posixpath.basename(target.split("#", 1)[0]))
    return match[0].lstrip("0") or "0" if match else ""


def plain_keeping_links(text: str) -> str:
    """Without emphasis and strike-through, links as written."""
    return re.sub(r"\*\*|__|~~", "", text)


def _rest(text: str, position: int) -> str:
    """What follows a position, up to the end of its sentence."""
    line = text[position : position + 400].split("\n", 1)[0]
    return re.split(r";|\.\s|(?i:\b(?:supersedes|superseded)\b)", line, maxsplit=1)[0]


def references(
    lines: Iterable[tuple[int, str]], *, folder: str, is_list: bool = False
) -> Iterator[tuple[Reference, str]]:
    """What code and requirements the lines speak of, and each range of ids that could not be expanded.

    Paths stand in back-ticks or are targets of links; symbols are `name()`; in a list of what is touched
    (`is_list`) bare names and paths count too. Suffixes of lines (`a.py:12`) are cut. A relative path that
    begins with a dot, and every link, is taken from `folder`. The second of each pair is empty but for
    ranges.
    """
    for number, line in lines:
        for match in _CODE_SPAN.finditer(line):
            found = _code_reference(match["code"].strip(), number, folder=folder, is_list=is_list)
            if found is not None:
                yield found, ""
        for match in _LINK.finditer(line):
            target = match["target"]
            if "://" not in target and not target.startswith(("#", "mailto:")):
                path = cut_lines(target.split("#", 1)[0])
                if path and not path.endswith(".md"):
                    yield Reference(kind="path", value=_normalised(f"./{path}", folder), line=number), ""
        if is_list:
            for word in re.split(r"[\s,;]+", _CODE_SPAN.sub(" ", _LINK.sub("]", line))):
                path = cut_lines(word.strip("()[].:*_"))
                if "/" in path and _is_path(path):
                    yield Reference(kind="path", value=_normalised(path, folder), line=number), ""
        if _ID.search(line):
            ids, unexpanded = read_ids(line)
            for literal in ids:
                if is_requirement_id(literal) and not literal[0].isdigit():
                    yield Reference(kind="requirement", value=literal, line=number), ""
            for text in unexpanded:
                yield Reference(kind="requirement", value="", line=number), text


def cut_lines(path: str) -> str:
    """A path without its suffix of lines: `a.py:12`, `a.py:3-9`, `a.py#L5`."""
    return _LINE_SUFFIX.sub("", path)


def _code_reference(code: str, line: int, *, folder: str, is_list: bool) -> Reference | None:
    symbol = _SYMBOL.match(code)
    if symbol:
        return Reference(kind="symbol", value=symbol["name"], line=line)
    path = cut_lines(code)
    if _is_path(path):
        return Reference(kind="path", value=_normalised(path, folder), line=line)
    if (is_list or "::" in path) and _BARE_NAME.match(path):
        return Reference(kind="symbol", value=path, line=line)
    return None


def _is_path(text: str) -> bool:
    if not _PATH.match(text) or _VERSION.match(text) or text.startswith("//"):
        return False
    suffix = _SUFFIX.search(text)
    if suffix:
        return "/" in text or suffix[0][1:].lower() in FILE_SUFFIXES
    return "/" in text.strip("/") and " " not in text


def _normalised(path: str, folder: str) -> str:
    """From the project's root, with `/`; a leading dot counts from `folder`."""
    if path.startswith(("./", "../")):
        return posixpath.normpath(posixpath.join(folder, path))
    return posixpath.normpath(path.lstrip("/")) if path.strip("/") else path

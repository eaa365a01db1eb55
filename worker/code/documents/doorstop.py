"""Doorstop: one requirement a file, in YAML or in Markdown with front matter, named by its file.

The folder is the specification; its `.doorstop.yml` says the prefix. Levels are text: 1.10 is not 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from worker.code.documents.results import DocumentFacts, FileLink, Note, Requirement
from worker.code.documents.text_yaml import load_mapping, mappings_of, text_of, texts_of
from worker.code.documents.wording import modality, one_line

_FIELDS: Final = frozenset(
    {"active", "derived", "header", "level", "links", "normative", "ref", "references", "reviewed", "text"}
)
_MIN_FIELDS: Final = 3
_HINT: Final = re.compile(r"^(?:active|level)\s*:", re.MULTILINE)
_SETTINGS: Final = ".doorstop.yml"


def read_doorstop(path: str, text: str) -> DocumentFacts | None:
    """What a YAML file of Doorstop says: an item, or the settings of a folder. None for other YAML."""
    folder, _, name = path.rpartition("/")
    lines = text.count("\n") + 1
    if name == _SETTINGS:
        settings = (load_mapping(text) or {}).get("settings")
        prefix = text_of(settings.get("prefix")) if isinstance(settings, Mapping) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] (values of YAML)
        return DocumentFacts(
            path=path, format="doorstop", spec_id=folder or ".", title=prefix, line_count=lines
        )
    if not _HINT.search(text):
        return None
    fields = load_mapping(text)
    if fields is None or len(_FIELDS & fields.keys()) < _MIN_FIELDS:
        return None
    return _item(path, fields, text_of(fields.get("text")), lines)


def read_doorstop_markdown(
    path: str, front_matter: Mapping[str, object], body: str, line_count: int
) -> DocumentFacts | None:
    """The same for an item kept as Markdown; None where the front matter is not Doorstop's."""
    keys = front_matter.keys()
    if len(_FIELDS & keys) < _MIN_FIELDS or not {"active", "level"} & keys:
        return None
    return _item(path, front_matter, body, line_count)


def _item(path: str, fields: Mapping[str, object], text: str, lines: int) -> DocumentFacts:
    folder, _, name = path.rpartition("/")
    item_id = name.rsplit(".", 1)[0]
    header = one_line(text_of(fields.get("header")))
    if not header:
        first, _, rest = text.partition("\n")
        if first.startswith("# "):
            header, text = one_line(first[2:]), rest.strip()
    links = tuple(link for link in texts_of(fields.get("links")) if link)
    level, negated = modality(text)
    extra = {
        "level": text_of(fields.get("level")),
        "links": ", ".join(links),
        "normative": text_of(fields.get("normative")),
        "derived": text_of(fields.get("derived")),
    }
    requirement = Requirement(
        id=item_id,
        title=header or one_line(text),
        text=text or header,
        parent=links[0] if links else "",
        status="withdrawn" if text_of(fields.get("active")).lower() == "false" else "",
        modality=level,
        negated=negated,
        start_line=1,
        end_line=lines,
        properties=tuple(sorted((key, value) for key, value in extra.items() if value)),
    )
    notes = () if text or header else (Note(code="unknown_format", line=1, detail="an item without text"),)
    return DocumentFacts(
        path=path,
        format="doorstop",
        spec_id=folder or ".",
        line_count=lines,
        requirements=(requirement,),
        links=tuple(FileLink(requirement_id=item_id, path=file, line=1) for file in _files(fields)),
        notes=notes,
    )


def _files(fields: Mapping[str, object]) -> list[str]:
    """The files that the item says implement it."""
    files = [text_of(fields.get("ref"))]
    files += [text_of(reference.get("path")) for reference in mappings_of(fields.get("references"))]
    return list(dict.fromkeys(file for file in files if "/" in file or "." in file))

"""Which files have to be linked again after a change: those in which a name stands that may now mean another.

What a file's links depend on outside itself is found by name: a definition, import or module whose name does
not stand in the file, and is no other name for one that does, cannot be reached from it. So it is enough to
gather the names whose meaning changed anywhere, add the names that they are imported under, and look for
them in each file. Where a change goes further than names can tell, everything is linked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from worker.code.facts import Class, Import, ModuleFacts
from worker.code.outlines import Outline
from worker.code.tests_of import tested_name

_WORD: Final = re.compile(r"[\w$]+")
_FOLDER_FILES: Final = frozenset({"__init__", "index", "mod"})
"""Files that stand for the folder that they are in."""


def affected_paths(
    old: Mapping[str, Outline], new: Mapping[str, Outline], *, changed: Iterable[str]
) -> frozenset[str] | None:
    """The paths in `new` whose links may differ from what they were in `old`; None means all of them.

    `changed` are the paths that were added, removed, or whose content differs. The outlines of all others are
    the same in both. O(names).
    """
    changed = frozenset(changed)
    names: set[str] = set()
    for path in sorted(changed):
        before, after = old.get(path), new.get(path)
        if before is None or after is None or before.status != after.status:
            for outline in (before, after):
                names |= _all_names(outline, path)
            continue
        difference = _changed_names(before.facts, after.facts)
        if difference is None:
            return None
        names |= difference
    if not names:
        return changed & new.keys()
    if not _follow_aliases(names, old, new, changed):
        return None
    return frozenset(
        path for path, outline in new.items() if path in changed or not names.isdisjoint(_names_in(outline))
    )


def _follow_aliases(
    names: set[str], old: Mapping[str, Outline], new: Mapping[str, Outline], changed: frozenset[str]
) -> bool:
    """Add the names that modules give to what is named so; False where that cannot be told."""
    modules = [outline.facts for outline in new.values() if outline.facts is not None]
    modules += [
        outline.facts for path, outline in old.items() if path in changed and outline.facts is not None
    ]
    parts = [
        (item, frozenset(_import_words(item, module.path))) for module in modules for item in module.imports
    ]
    size = -1
    while len(names) != size:
        size = len(names)
        for item, words in parts:
            if item.local_name not in names and not names.isdisjoint(words):
                if item.name == "*":
                    # The module that it takes all names from may now be another.
                    return False
                names.add(item.local_name)
    return not any(
        not names.isdisjoint(_WORD.findall(base))
        for module in modules
        for owner in module.classes
        for base in owner.bases
    )


def _import_words(item: Import, path: str) -> Iterator[str]:
    yield from _WORD.findall(item.module)
    if item.level:
        # What the dots stand for: the folders above.
        yield from path.split("/")[:-1]
    if item.name is not None and item.name != "*":
        yield item.name


def _all_names(outline: Outline | None, path: str) -> set[str]:
    """Every name by which something in the file, or the file itself, can be reached."""
    *folders, file = path.split("/")
    stem = file.split(".", 1)[0]
    names = set(_WORD.findall(stem))
    if stem in _FOLDER_FILES:
        names.update(folders[-1:])
    if outline is not None and outline.facts is not None:
        names |= {name for _, name in _interface(outline.facts)}
    return names


def _changed_names(before: ModuleFacts | None, after: ModuleFacts | None) -> set[str] | None:
    """The names that mean something else in one module than before; None where names do not tell."""
    if before is None or after is None:
        return set() if before is after else None
    old, new = _interface(before), _interface(after)
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    if any(name == "*" for _, name in changed):
        return None
    bases = {item.id: item.bases for item in before.classes}
    if any(bases.get(item.id, item.bases) != item.bases for item in after.classes):
        return None
    return {name for _, name in changed}


def _interface(module: ModuleFacts) -> dict[tuple[str, str], list[tuple[object, ...]]]:
    """What other files can see of a module: by scope and name, everything that the name is bound to."""
    found: dict[tuple[str, str], list[tuple[object, ...]]] = {}
    for item in (*module.functions, *module.classes):
        kind = "class" if isinstance(item, Class) else "function"
        entry = (kind, item.id, item.decorators, item.class_id)
        found.setdefault((item.scope_id, item.name), []).append(entry)
    for item in module.imports:
        entry = ("import", item.module, item.name, item.level)
        found.setdefault((item.scope_id, item.local_name), []).append(entry)
    for name in module.bound_names:
        found.setdefault((module.id, name), []).append(("bound",))
    for owner in module.classes:
        for name in owner.bound_names:
            found.setdefault((owner.id, name), []).append(("bound",))
    return found


def _names_in(outline: Outline) -> set[str]:
    """Every name that stands in the file where its links come from."""
    names: set[str] = set(_WORD.findall(outline.called))
    module = outline.facts
    if module is None:
        return names
    for item in module.imports:
        names.update(_import_words(item, module.path))
        names.add(item.local_name)
    for owner in module.classes:
        for base in owner.bases:
            names.update(_WORD.findall(base))
    for item in (*module.functions, *module.classes):
        if name := tested_name(item.name):
            names.add(name)
    return names

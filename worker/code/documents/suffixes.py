"""Which files may hold requirements or decisions, by their names alone, so that few have to be opened."""

from __future__ import annotations


def takes(path: str) -> bool:
    """Whether files of this name are read at all, by their suffix."""
    return path.lower().endswith((".md", ".markdown", ".mdx", ".yml", ".yaml", ".rst", ".sdoc"))

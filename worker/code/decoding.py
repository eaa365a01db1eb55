"""Bytes of a file to text that can be read, where what it says of its encoding is wrong or nothing."""

from __future__ import annotations

import codecs
from typing import Final

_MARKS: Final = (
    # The longer first: the mark of UTF-32 begins as that of UTF-16 does.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def decode_anyway(content: bytes) -> tuple[str, str]:
    """The text, its line ends newlines, and the name of the encoding that it was read by.

    Wide encodings by their byte order mark, else UTF-8, else Latin-1, in which every byte is a character. A
    NUL becomes a blank, so that lines and columns stay as they are. Gives a result for any bytes. O(n).
    """
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    try:
        # Half a character at the end of a wide encoding is no reason to lose the rest.
        text = content.decode(encoding, "strict" if encoding == "utf-8" else "replace")
    except UnicodeDecodeError:
        encoding, text = "latin-1", content.removeprefix(codecs.BOM_UTF8).decode("latin-1")
    text = text.removeprefix("\ufeff").replace("\0", " ")
    return text.replace("\r\n", "\n").replace("\r", "\n"), encoding

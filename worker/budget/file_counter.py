"""Counting with a Hugging Face `tokenizer.json` file (Llama, Qwen, Mistral and others)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from worker.budget.utf8 import byte_offsets, well_formed

_FIRST_WINDOW_CHARS: Final = 4_096


class FileCounter:
    """Counts as the file's tokenizer does, without the special tokens that frame a whole prompt.

    Text that spells a special token counts as ordinary text, as for tiktoken. Exact, but ten times
    slower than tiktoken: about 1 MB/s.
    """

    exact = True

    def __init__(self, path: str) -> None:
        """Load the file. Raises ValueError when it cannot be read or is no tokenizer."""
        self.name = f"file:{path}"
        try:
            self._tokenizer = Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
        except Exception as e:  # the library raises plain Exception on a file that it cannot parse
            raise ValueError(f"cannot load the tokenizer file {path!r}: {e}") from e
        # A file may ask to cut or fill up every text; a count must see the whole text and no more.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def is_exact(self, text: str) -> bool:  # noqa: ARG002  # the answer is the same for every text
        """Always true."""
        return True

    def scale(self, raw_tokens: int) -> int:
        """The tokens as they are."""
        return raw_tokens

    def raw_budget(self, budget_tokens: int) -> int:
        """The budget as it is."""
        return budget_tokens

    def count(self, text: str) -> int:
        """Tokens of `text`; the interpreter lock is released meanwhile."""
        # `encode` holds the interpreter lock; the batch calls do not, and "fast" leaves offsets out.
        return len(self._tokenizer.encode_batch_fast([well_formed(text)], add_special_tokens=False)[0])

    def count_up_to(self, text: str, limit_tokens: int) -> int:
        """`count(text)` if that is at most `limit_tokens`, else some number above the limit.

        Nothing is known about where such a tokenizer may be cut, so only a prefix with well over twice
        the limit is taken as proof: merges at its end reach a few tokens back, never that far.
        """
        window = _FIRST_WINDOW_CHARS
        while window < len(text):
            counted = self.count(text[:window])
            if counted > 2 * limit_tokens + 64:
                return counted
            window *= 4
        return self.count(text)

    def fits(self, text: str, budget_tokens: int) -> bool:
        """Whether `count(text) <= budget_tokens`."""
        return self.count_up_to(text, budget_tokens) <= budget_tokens

    def token_ends(self, text: str) -> NDArray[np.int64]:
        """UTF-8 byte offsets at which the tokens of `text` end: `(n_tokens,)`, not descending.

        The tokenizer reports characters, before or after normalising. A token ends where the next one
        begins, so bytes that no token reports belong to the token before them, and all tokens of one
        character end with it, the last one alone counted as reaching past its first byte.
        """
        text = well_formed(text)
        encoding = self._tokenizer.encode_batch([text], add_special_tokens=False)[0]
        starts = np.fromiter((start for start, _ in encoding.offsets), np.int64, len(encoding.offsets))
        offsets = byte_offsets(text)
        ends = offsets[np.maximum.accumulate(starts)]
        return np.append(ends[1:], offsets[-1:])[: len(ends)]

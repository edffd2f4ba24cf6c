"""The known word that somebody may have meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def folded(word: str) -> str:
    """Return a word without what people leave out: case, and the signs between its parts."""
    return "".join(filter(str.isalnum, word)).lower()


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is nearest to a word; empty when nothing is known."""
    words = {folded(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(folded(word), words, n=1, cutoff=0)
    return words[close[0]] if close else ""

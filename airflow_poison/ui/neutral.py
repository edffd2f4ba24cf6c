"""Texts of strangers, made harmless to look at: nothing in them moves a cursor, turns the direction of writing, or is invisible."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

_KEPT = "\n\t"
_BLANKS = "Zs"
_BYTE, _WORD = 0xFF, 0xFFFF


def neutral(value: object) -> object:
    """Return plain values whose texts show control and format characters as escapes; keys, too."""
    if isinstance(value, str):
        return neutral_text(value)
    if isinstance(value, Mapping):
        return {neutral_text(str(key)): neutral(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [neutral(each) for each in value]
    return value


def neutral_text(text: str) -> str:
    r"""Return a text with escapes (``\x1b``, ``\u202e``) for what cannot be seen; line ends, tabs and blanks stay."""
    return text if text.isprintable() else "".join(sign if _is_visible(sign) else _escape(ord(sign)) for sign in text)


def _is_visible(sign: str) -> bool:
    return sign.isprintable() or sign in _KEPT or unicodedata.category(sign) == _BLANKS


def _escape(number: int) -> str:
    return f"\\x{number:02x}" if number <= _BYTE else f"\\u{number:04x}" if number <= _WORD else f"\\U{number:08x}"

"""Hidden values in texts: found wherever they stand, as they are, as JSON and Python write them, and where a text was cut. Pure."""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from airflow_poison.values.json_text import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HIDDEN = "***"
"""What stands in the place of a value."""

_SHORT = 3
"""Values of so many characters and less are hidden only as whole words."""
_LEAST_CUT = 2
_MANY = 200
_CUT = re.compile(r"…|\.\.\.")
_FRAME = re.compile(r"""^[ \t]*File "[^"\n]*", line \d+(?:, in [^\n]*)?$""", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class HiddenValues:
    """What is hidden of a message, or of several, as it may stand in texts about them.

    :param values: texts, numbers as they are written, truth values.
    :param known: every hidden value is among them; else whole texts are hidden.
    """

    __slots__ = ("_forms", "_index", "_known")

    def __init__(self, values: Iterable[object], *, known: bool = True) -> None:
        self._known = known
        self._forms: dict[str, Callable[[str], Iterator[tuple[int, int]]]] = {}
        self._index: dict[str, list[str]] = {}
        for value in values:
            self._add(value)

    @classmethod
    def of_all(cls, several: Iterable[HiddenValues]) -> HiddenValues:
        """Return the hidden values of several messages."""
        found = cls(())
        for each in several:
            found._known = found._known and each._known  # noqa: SLF001  (its own)
            found._forms.update(each._forms)  # noqa: SLF001  (its own)
        return found

    def hide(self, text: str) -> str:
        """Return a text without the values."""
        if not self._known:
            return HIDDEN if text else text
        return _without(text, self._places(text))

    def hide_trace(self, trace: str) -> str:
        """Return a trace without the values. Lines that name a place of the code stay as they are: they have no value, and group failures."""
        frames = [found.span() for found in _FRAME.finditer(trace)]
        if not self._known:
            return "".join(f"{trace[start:end]}\n" for start, end in frames)
        spans = [span for span in self._places(trace) if not any(start < span[1] and span[0] < end for start, end in frames)]
        return _without(trace, spans)

    def _add(self, value: object) -> None:
        if isinstance(value, bool):
            forms, find = {str(value), json.dumps(value)}, _whole_words
        elif isinstance(value, Number):
            forms, find = _forms_of_number(value), _whole_numbers
        else:
            forms, find = _forms_of_text(str(value)), _anywhere
        for form in forms:
            if form and form != HIDDEN:
                self._forms.setdefault(form, (_whole_words if len(form) <= _SHORT else find)(form))

    def _places(self, text: str) -> list[tuple[int, int]]:
        forms = self._near(text)
        spans = [span for form in forms if form in text for span in self._forms[form](text)]
        for cut in _CUT.finditer(text):
            spans += self._around(text, *cut.span())
        return spans

    def _near(self, text: str) -> Iterable[str]:
        """Return forms that may be in a text: all, or of many those that begin as something in it does."""
        if len(self._forms) <= _MANY or _CUT.search(text):
            return self._forms
        if not self._index:
            for form in self._forms:
                self._index.setdefault(form[:_SHORT], []).append(form)
        beginnings = {text[place : place + size] for size in range(1, _SHORT + 1) for place in range(len(text) - size + 1)}
        return [form for beginning in beginnings & self._index.keys() for form in self._index[beginning]]

    def _around(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what stands of values before and behind a place where a text was cut."""
        for form in self._forms:
            if len(form) <= _SHORT:
                continue
            for size in range(min(len(form) - 1, start), _LEAST_CUT - 1, -1):
                if text.endswith(form[:size], 0, start):
                    yield start - size, start
                    break
            for size in range(min(len(form) - 1, len(text) - end), _LEAST_CUT - 1, -1):
                if text.startswith(form[-size:], end):
                    yield end, end + size
                    break


def _forms_of_text(value: str) -> set[str]:
    """Return how a text may stand in another: as it is, its lines, as JSON and Python write it, one in the other, as bytes, in an address."""
    forms = {value, value.strip(), *(line.strip() for line in value.splitlines()), _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", value)}
    forms.add(value.replace("\r\n", "\n"))
    written = {json.dumps(value)[1:-1], encode_basestring(value)[1:-1], repr(value)[1:-1]}
    forms |= written | {repr(form)[1:-1] for form in written}
    try:
        forms |= {repr(value.encode())[2:-1], quote(value, safe=""), quote_plus(value)}
    except UnicodeEncodeError:
        forms.add(value.encode("utf-8", "replace").decode())
    return forms


def _forms_of_number(value: str) -> set[str]:
    """Return how a number may stand in a text: with its digits, and as Python writes it."""
    forms = {str(value)}
    try:
        number = float(value)
        forms.add(repr(number))
        if number.is_integer():
            whole = int(value) if value.lstrip("-").isdigit() else int(number)
            forms |= {str(whole), f"{whole:,}"}
    except (ValueError, OverflowError):
        pass
    return forms


def _anywhere(form: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    def places(text: str) -> Iterator[tuple[int, int]]:
        start = text.find(form)
        while start >= 0:
            yield start, start + len(form)
            start = text.find(form, start + 1)

    return places


def _whole_words(form: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    return _bounded(form, r"\w")


def _whole_numbers(form: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    return _bounded(form, r"\d")


def _bounded(form: str, of: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    def places(text: str) -> Iterator[tuple[int, int]]:
        return (found.span() for found in re.finditer(f"(?<!{of}){re.escape(form)}(?!{of})", text))

    return places


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """Return a text with one mark in the place of spans that touch or overlap."""
    parts, end = list[str](), 0
    for start, stop in sorted(spans):
        if start > end or not parts:
            parts += [text[end:start], HIDDEN]
        end = max(end, stop)
    return "".join([*parts, text[end:]])

"""Documents of JSON: files whose values have several lines, one behind the other, or as the elements of arrays.

They are read block by block, and no more is in memory than the largest value. Values are as they are written. What is no JSON is one value, too: up
to where the next element of its array begins in a line of its own, else up to the end.
"""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, cast

from airflow_poison.values.json_text import encoding_of, syntax_error
from airflow_poison.values.schema import MAX_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BLANKS = " \t\n\r"
_SPACE = re.compile(rf"[{_BLANKS}]*")
_BLOCK = 128 << 10
_NEAR = 16
"""An error so near to the end of what was read may be none: a word or an escape goes on behind it."""
_BOUNDS = json.JSONDecoder(parse_int=lambda _digits: None, parse_float=lambda _digits: None, strict=False)
"""Finds where values end, also of such as are no JSON: NaN, and line ends within texts."""


def values_in(read: Callable[[int], str]) -> Iterator[str]:
    """Yield the values of documents, and the elements of those that are arrays.

    :param read: returns what comes next, so many signs about; nothing at the end. What is longer than a body may be is cut, one sign behind it.
    """
    text = _Text(read)
    while sign := text.next_sign():
        if sign == "[":
            yield from _elements(text)
        else:
            yield text.value() or text.until(None)


def documents(content: bytes) -> list[bytes]:
    """Return the values of a file that is in memory."""
    mark, codec = encoding_of(content)
    try:
        text = io.StringIO(content[len(mark) :].decode(codec, errors_of(codec)), newline="")
    except UnicodeDecodeError:
        return [content]
    return [value.encode(errors=errors_of(codec)) for value in values_in(text.read)]


def errors_of(codec: str) -> str:
    """Return how bytes that are not in an encoding are kept: values that have some are no UTF-8 afterwards."""
    return "surrogatepass" if codec.startswith(("utf-16", "utf-32")) else "surrogateescape"


def begins_document(begin: str, *, is_all: bool) -> bool | None:
    """Whether a text that begins so is a document, and not lines of JSON; None: more of it has to be known.

    The first line of a document is the beginning of a value alone, and its second line is no value; and it has a value.
    """
    given = begin.split("\n", _NEAR)
    lines = [line.strip(_BLANKS) for line in given[: None if is_all else -1] if line.strip(_BLANKS)][:2]
    if len(lines) < 2 and not is_all and len(given) <= _NEAR:  # noqa: PLR2004
        return None
    first = lines[0] if lines else ""
    are_values = [syntax_error(line.encode(errors="replace")) is None for line in lines]
    if first[:1] not in {"[", "{"} or (len(first) > 1 and (len(lines) == 1 or any(are_values))):
        return False
    if first == "[":
        return True
    place = _behind_space(begin, 0)
    end, is_cut = _scanned(begin, _behind_space(begin, place + 1) if first[0] == "[" else place)
    return None if not end and is_cut and not is_all else bool(end)


def _elements(text: _Text) -> Iterator[str]:
    """Yield the elements of the array that begins here."""
    text.place += 1
    text.next_sign()
    begins = text.beginning_of_lines()
    while (sign := text.next_sign()) != "]":
        if not sign:
            yield "["  # it is not closed: nothing says that no element is missing
            return
        value = text.value()
        behind = "" if value is None else text.next_sign()
        if value is not None and (behind in {",", "]", ""} or text.is_at(begins)):
            text.place += behind == ","
            yield value
        else:
            before = "" if value is None else value + text.gap
            yield before + text.until(begins)
            if not text.text:
                return
    text.place += 1


class _Text:
    """A text that is read as far as it is needed.

    :ivar text: what was read, without what was taken. ``place``: where the next sign is. ``gap``: the spaces before it.
    """

    def __init__(self, read: Callable[[int], str]) -> None:
        self.text, self.place, self.gap, self._read = "", 0, "", read

    def next_sign(self) -> str:
        """Go to the next sign that is no space, and return it; empty: there is none."""
        self.gap = ""
        while True:
            end = _behind_space(self.text, self.place)
            self.gap, self.place = self.gap + self.text[self.place : end], end
            if end < len(self.text) or not self._more():
                return self.text[self.place : self.place + 1]

    def value(self) -> str | None:
        """Take the value that begins here; None: there is none, or it is longer than a body may be."""
        while True:
            end, is_cut = _scanned(self.text, self.place)
            if is_cut and len(self.text) - self.place <= MAX_BODY_BYTES and self._more():
                continue
            found, self.place = self.text[self.place : end], max(end, self.place)
            return found or None

    def until(self, begins: re.Pattern[str] | None) -> str:
        """Take what is no JSON, up to where an element begins, else up to the end."""
        taken, size = list[str](), 0
        while True:
            found = None if begins is None else begins.search(self.text, self.place)
            stop = len(self.text) if found is None else found.start()
            if found is None and begins is not None and (line := self.text.rfind("\n", self.place)) > -1 and stop - line <= MAX_BODY_BYTES:
                stop = line  # an element may begin there, behind what was read
            if size <= MAX_BODY_BYTES:
                taken.append(self.text[self.place : stop])
            size, self.place = size + stop - self.place, stop
            if found is not None:
                self.place = found.end()
                break
            if not self._more():
                taken.append(self.text[self.place :])
                self.text, self.place = "", 0
                break
        wrong = "".join(taken)[: MAX_BODY_BYTES + 1]
        return wrong if found is None else wrong.rstrip(_BLANKS).removesuffix(",") or ","

    def beginning_of_lines(self) -> re.Pattern[str] | None:
        """Return what stands before an element that begins in a line of its own, as the one does that is next; None: it may stand within one, too.

        It does where lines are not indented, and elements have several.
        """
        _, line, indent = self.gap.rpartition("\n")
        if not line:
            return None
        if not indent:
            value = self.value()
            self.place -= len(value or "")  # it is only looked at
            if value is None or "\n" in value:
                return None
        sign = self.text[self.place : self.place + 1]
        of_all = re.escape(sign) if sign in {"[", "{"} else r"[^\s\]]"
        return re.compile(rf"\n{indent}(?={of_all})|\n[ \t]{{0,{max(len(indent) - 1, 0)}}}(?=\])")

    def is_at(self, begins: re.Pattern[str] | None) -> bool:
        """Whether the next sign begins an element in a line of its own."""
        line = self.gap[max(self.gap.rfind("\n"), 0) :]
        found = None if begins is None else begins.match(line + self.text[self.place : self.place + 1])
        return found is not None and found.end() == len(line)

    def _more(self) -> bool:
        """Read on; False at the end."""
        if not (more := self._read(max(_BLOCK, len(self.text) - self.place))):
            return False
        self.text, self.place = self.text[self.place :] + more, 0
        return True


def _behind_space(text: str, place: int) -> int:
    return cast("re.Match[str]", _SPACE.match(text, place)).end()


def _scanned(text: str, place: int) -> tuple[int, bool]:
    """Return where the value ends that begins at a place, 0 for none, and whether more text may change that."""
    try:
        end = _BOUNDS.raw_decode(text, place)[1]
    except json.JSONDecodeError as error:
        return 0, error.msg.startswith("Unterminated") or error.pos >= len(text) - _NEAR
    except RecursionError:
        return 0, False
    return end, text[end - 1].isalnum() and len(text) - end < _NEAR and not text[end:].strip("0123456789.eE+-")

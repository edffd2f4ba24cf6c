"""From an exception to the failure of a message. Nothing here may raise: texts that cannot be made are replaced, long ones are cut.

Where a queue hides values, texts of failures and the handler's output are written down without them.
"""

from __future__ import annotations

import codecs
import re
import traceback
from collections import deque
from dataclasses import replace
from datetime import timedelta
from types import CodeType, TracebackType
from typing import TYPE_CHECKING

from airflow_poison.rules.settings import LONGEST
from airflow_poison.values.failures import Failure, FailureKind, Postpone, Unprocessable
from airflow_poison.values.masking import HiddenValues, Masking

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_poison.delivery.settlement import Delivered


class PrivateBatch:
    """The hidden values of a batch's messages, each found when it is asked for first.

    :param batch: with ``body`` and ``properties``.
    """

    def __init__(self, masking: Masking, batch: pa.RecordBatch) -> None:
        self._masking, self._batch = masking, batch
        self._of: dict[int, HiddenValues] = {}
        self._all: HiddenValues | None = None

    def of(self, row: int) -> HiddenValues:
        """Return the values of one message; of all without one."""
        if not 0 <= row < self._batch.num_rows:
            return self.all()
        if row not in self._of:
            body, properties = (self._batch.column(name)[row].as_py() for name in ("body", "properties"))
            self._of[row] = self._masking.values(body or b"", dict(properties or ()))
        return self._of[row]

    def all(self) -> HiddenValues:
        """Return the values of all messages."""
        if self._all is None:
            self._all = HiddenValues.of_all(self.of(row) for row in range(self._batch.num_rows))
        return self._all

    def line(self, row: int, text: str) -> str:
        """Return what was printed while a message was with the handler; several, or none: -1."""
        return self.of(row).hide(text)

    def masked(self, text: str) -> str:
        """Return a text about no single message."""
        return self.all().hide(text)


def output_of(masking: Masking | None, batch: pa.RecordBatch) -> PrivateBatch | None:
    """Return the hidden values of a batch; None where nothing is hidden."""
    return None if masking is None else PrivateBatch(masking, batch)


def without_values(delivered: Delivered, masking: Masking, *, together: bool) -> Delivered:
    """Return what was delivered, with failures that have no hidden values. Which failures are alike does not depend on those.

    :param together: the handler has had several messages at once: what it says of one may have values of another.
    """
    batch, report = PrivateBatch(masking, delivered.batch), delivered.report
    failures = {row: hidden_failure(failure, batch.all() if together else batch.of(row)) for row, failure in report.failures.items()}
    unstable = tuple({**details, "error": batch.masked(details.get("error", ""))} for details in report.searched.unstable)
    return replace(delivered, report=replace(report, failures=failures, searched=replace(report.searched, unstable=unstable)))


def hidden_failure(failure: Failure, values: HiddenValues) -> Failure:
    """Return a failure without the values, its texts as long as they may be."""
    return replace(failure, text=cut(values.hide(failure.text), MAX_TEXT), trace=cut_front(values.hide_trace(failure.trace), MAX_TRACE))


MAX_TYPE = 500
MAX_TEXT = 4_096
MAX_TRACE = 8_192
_MAX_CHAIN = 5
_MAX_FRAMES = 25
_MAX_STACKS = 1_000
_LONGEST_CHARACTER = 4
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_stacks: dict[tuple[int, ...], tuple[str, list[CodeType]]] = {}
"""Ends of stacks that have been rendered, by the places they name (rendering reads and parses source: 0.2 ms; most failures share a stack).
The code objects are kept so that no later one can have the identity of an earlier."""


def failure_of(error: BaseException, unprocessable: tuple[type[BaseException], ...] = ()) -> Failure:
    """Describe what a handler raised.

    :param unprocessable: further types that mean what ``Unprocessable`` means.
    """
    return Failure(kind_of(error, unprocessable), type_name(error), _text_of(error), cut_front(_trace_of(error), MAX_TRACE), _delay_of(error))


def kind_of(error: BaseException, unprocessable: tuple[type[BaseException], ...] = ()) -> FailureKind:
    """Classify what a handler raised.

    ``SystemExit`` and ``KeyboardInterrupt`` are exceptions like any other: the process has not ended, one message is rolled back.
    """
    kind = type(error)  # ``isinstance`` would ask the exception itself, which may raise
    if issubclass(kind, Postpone):
        return FailureKind.POSTPONED
    return FailureKind.UNPROCESSABLE if issubclass(kind, (Unprocessable, *unprocessable)) else FailureKind.EXCEPTION


def type_name(error: BaseException) -> str:
    """Return an exception's qualified type, one line; builtins without their module."""
    try:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cut(" ".join(name.split()), MAX_TYPE)
    except BaseException:  # noqa: BLE001  (a metaclass that raises)
        return "(the exception's type cannot be named: its metaclass raises)"


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text as it is stored: something that UTF-8 can hold, without control characters."""
    text = str.__str__(text)  # a plain one: the methods of a subclass may do anything
    shown = _printable(text[: 2 * limit + 2])
    if len(shown) > limit:
        shown = f"{shown[: limit - 1]}…"
    return shown.encode("utf-8", "replace").decode()


def cut_front(text: str, limit: int) -> str:
    """Return the end of a text as it is stored: something that UTF-8 can hold, without control characters."""
    shown = _printable(text[-(2 * limit + 2) :])
    if len(shown) > limit:
        shown = f"…{shown[-(limit - 1) :]}"
    return shown.encode("utf-8", "replace").decode()


def decoded_end(end: bytes, *, is_cut: bool) -> str:
    """Return the end of what a process has printed as a text. A character that the cut has torn is left out, and so is one torn by a kill.

    :param is_cut: whether there was something before it.
    """
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(end[_torn(end) :] if is_cut else end)
    return f"…{text}" if is_cut else text


def _torn(end: bytes) -> int:
    """Return how many bytes at the beginning belong to a character that began before; 0 where it is no UTF-8 anyway."""
    continues = 0b10
    return next((place for place, byte in enumerate(end[:_LONGEST_CHARACTER]) if byte >> 6 != continues), 0)


def _printable(text: str) -> str:
    """Write control characters as escapes: a terminal would obey them. Tabs and line ends stay; no text becomes shorter than its half."""
    if text.isprintable():
        return text
    return _CONTROL.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]):02x}"


def _text_of(error: BaseException) -> str:
    for render in (str, repr):
        try:
            return cut(render(error), MAX_TEXT)
        except BaseException:  # noqa: BLE001, S112  (an exception whose text raises; any type, also SystemExit)
            continue
    return "(the exception's text cannot be made: its __str__ and __repr__ raise)"


def _delay_of(error: BaseException) -> timedelta:
    """Return how long a postponed message waits: zero for what is no duration, and not longer than the calendar goes on."""
    try:
        delay = error.delay if isinstance(error, Postpone) else timedelta(0)
        return min(max(delay, timedelta(0)), LONGEST)
    except BaseException:  # noqa: BLE001  (an exception whose delay raises, or is no duration)
        return timedelta(0)


def _trace_of(error: BaseException) -> str:
    """Return the stacks of the exception and of those behind it, oldest first, without the last line (type and text)."""
    try:
        parts: list[str] = []
        link: BaseException | None = error
        for _ in range(_MAX_CHAIN):
            if link is None:
                break
            stack = _stack_of(link.__traceback__)
            last = "" if link is error else f"{type_name(link)}: {cut(_text_of(link), 200)}\n\nthen:\n"
            parts.insert(0, stack + last)
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        return "".join(parts)
    except BaseException:  # noqa: BLE001  (a stack that cannot be shown must not cost the child its life)
        return ""


def _stack_of(trace: TracebackType | None) -> str:
    """Return the rendered end of a stack, from memory where the same one has been rendered before."""
    last: deque[TracebackType] = deque(maxlen=_MAX_FRAMES)
    link = trace
    while link is not None:
        last.append(link)
        link = link.tb_next
    codes = [link.tb_frame.f_code for link in last]
    key = tuple(number for link, code in zip(last, codes, strict=True) for number in (id(code), link.tb_lasti))
    known = _stacks.get(key)
    if known is None:
        if len(_stacks) >= _MAX_STACKS:
            _stacks.clear()
        rendered = "".join(traceback.format_tb(last[0])) if last else ""
        known = _stacks[key] = (cut_front(rendered, MAX_TRACE), codes)
    return known[0]

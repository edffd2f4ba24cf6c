"""From an exception to a failure. Nothing here may raise: texts that cannot be made are replaced, long ones are cut."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_poison.core.failures import Failure, FailureKind, Postpone, Unprocessable

if TYPE_CHECKING:
    from types import CodeType, TracebackType

MAX_TEXT = 4_096
MAX_TRACE = 8_192
_MAX_CHAIN = 5
_MAX_FRAMES = 25
_MAX_STACKS = 1_000
_stacks: dict[tuple[int, ...], tuple[str, list[CodeType]]] = {}
"""Stacks that have been rendered, by the places they name (rendering reads and parses source: 0.2 ms; most failures share a stack).
The code objects are kept so that no later one can have the identity of an earlier."""


def failure_of(error: BaseException, unprocessable: tuple[type[BaseException], ...] = ()) -> Failure:
    """Tell what a handler raised.

    :param unprocessable: further types that mean what ``Unprocessable`` means.
    """
    delay = error.delay if isinstance(error, Postpone) else timedelta(0)
    return Failure(kind_of(error, unprocessable), type_name(error), cut(_text_of(error), MAX_TEXT), cut_front(_trace_of(error), MAX_TRACE), delay)


def kind_of(error: BaseException, unprocessable: tuple[type[BaseException], ...] = ()) -> FailureKind:
    """Classify what a handler raised.

    ``SystemExit`` and ``KeyboardInterrupt`` are exceptions like any other: the process has not ended, one message is rolled back.
    """
    if isinstance(error, Postpone):
        return FailureKind.POSTPONED
    return FailureKind.UNPROCESSABLE if isinstance(error, (Unprocessable, *unprocessable)) else FailureKind.EXCEPTION


def type_name(error: BaseException) -> str:
    """Return an exception's qualified type; builtins without their module."""
    kind = type(error)
    module = str(kind.__module__)
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text, as something that UTF-8 can hold."""
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return text.encode("utf-8", "replace").decode()


def cut_front(text: str, limit: int) -> str:
    """Return the end of a text, as something that UTF-8 can hold."""
    if len(text) > limit:
        text = f"…{text[-(limit - 1) :]}"
    return text.encode("utf-8", "replace").decode()


def _text_of(error: BaseException) -> str:
    for render in (str, repr):
        try:
            return render(error)
        except BaseException:  # noqa: BLE001, S112  (an exception whose text raises; any type, also SystemExit)
            continue
    return "(the exception's text cannot be made: its __str__ and __repr__ raise)"


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
    """Return the rendered stack, from memory where the same one has been rendered before."""
    key: list[int] = []
    codes: list[CodeType] = []
    link = trace
    while link is not None:
        code = link.tb_frame.f_code
        codes.append(code)
        key += (id(code), link.tb_lasti)
        link = link.tb_next
    known = _stacks.get(tuple(key))
    if known is None:
        if len(_stacks) >= _MAX_STACKS:
            _stacks.clear()
        known = _stacks[tuple(key)] = ("".join(traceback.format_tb(trace, limit=-_MAX_FRAMES)), codes)
    return known[0]

"""Selections: which messages of one version of a queue are meant, in the same words for Python, DAGs, the shell and the page."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.rules.settings import instant, whole
from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import Plain, is_utf8, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

_COUNT = re.compile(r"\s*(abort_count|move_count|crash_count|priority)\s*(=|!=|<=|>=|<|>)\s*(\d{1,9})\s*")
_GROUP = re.compile(r"[0-9a-f]{12}")
_RANGE = re.compile(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18}))?\s*", re.ASCII)
_TEXTS = ("error", "error_type", "text", "group", "message_type", "message_id", "where")
_LARGEST = 2**63 - 1
_MOST_IDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Plain):
    """Messages that meet every condition that is given. Raises SettingError for what is none.

    :param sub_queue: where they wait; None: everywhere.
    :param error: the id of an error group: 12 hexadecimal digits.
    :param error_type: the type of their last failure, for example ``KeyError``.
    :param text: a part of the last failure's message or of the body, whatever its case.
    :param since: sent at this instant or later; ``until``: sent before this one.
    :param counts: conditions such as ``move_count>=3`` or ``crash_count>0``.
    :param properties: text values by name.
    :param where: a SQL condition on the columns and the JSON body, for example ``body.carrier = 'VX' and body.dep_delay > 60``.
    """

    sub_queue: SubQueue | None = SubQueue.POISON
    error: str = ""
    error_type: str = ""
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None
    counts: tuple[str, ...] = ()
    group: str = ""
    message_type: str = ""
    message_id: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    lookup_ids: tuple[int, ...] | None = None
    where: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no condition."""
        for name in _TEXTS:
            check_text(name, getattr(self, name))
        for part in chain.from_iterable(self.properties.items()):
            check_text("properties", part)
        if self.error and not _GROUP.fullmatch(self.error):
            raise SettingError("error", self.error, "the id of an error group, 12 hexadecimal digits, as 'groups' lists them")
        for each in self.counts:
            if not _COUNT.fullmatch(each):
                raise SettingError("counts", each, "conditions on abort_count, move_count, crash_count or priority such as 'move_count>=3'")
        for name in ("since", "until"):
            instant = getattr(self, name)
            if instant is not None and instant.tzinfo is None:
                raise SettingError(name, instant, "an instant with its time zone, for example 2026-11-25T10:00:00+00:00")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the selection that plain values describe, as JSON and DAG files give them; what is left out has its default."""
        known = {each.name for each in fields(cls)}
        for name in values:
            if name not in known:
                raise SettingError("selection", name, f"{', '.join(sorted(known))} (did you mean {nearest(str(name), known)!r}?)")
        return cls(**{name: _READ.get(name, _text)(name, value) for name, value in values.items()})  # type: ignore[arg-type]  # read by name

    @property
    def conditions(self) -> tuple[tuple[str, str, int], ...]:
        """The conditions on counts: column, operator, number."""
        found = [_COUNT.fullmatch(each) for each in self.counts]
        return tuple((match[1], match[2], int(match[3])) for match in found if match)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain values; ``sub_queue`` always."""
        ids = {} if self.lookup_ids is None else {"lookup_ids": list(self.lookup_ids)}  # no id at all selects nothing
        given = {name: value for name, value in Plain.to_dict(self).items() if value not in (None, "", [], {})}
        return given | ids | {"sub_queue": None if self.sub_queue is None else self.sub_queue.value}

    def __str__(self) -> str:
        """Say it in one line."""
        given = {name: value for name, value in self.to_dict().items() if name != "sub_queue"}
        place = "everywhere" if self.sub_queue is None else f"in {self.sub_queue.value}"
        return place if not given else f"{place}, {', '.join(f'{name}={value}' for name, value in given.items())}"


def check_text(name: str, text: object) -> None:
    """Refuse what is no text, or half of a surrogate pair. Raises SettingError."""
    if not (isinstance(text, str) and is_utf8(text)):
        raise SettingError(name, text, "a text that UTF-8 can hold (half of a surrogate pair is none)")


def _text(_name: str, value: object) -> object:
    return "" if value is None else value


def _place(name: str, value: object) -> SubQueue | None:
    if value is None or value == "":
        return None
    try:
        return SubQueue(str(value))
    except ValueError:
        raise SettingError(name, value, f"one of {', '.join(SubQueue)}, or nothing for everywhere") from None


def _instant(name: str, value: object) -> datetime | None:
    return None if value is None or value == "" else instant(name, value)


def _texts(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise SettingError(name, value, "a list of texts")
    return tuple(value)


def _properties(name: str, value: object) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise SettingError(name, value, "text values by name")
    return dict(value)


def _lookup_ids(name: str, value: object) -> tuple[int, ...] | None:
    """Return lookup ids of a list, or of text such as ``1,2,5-9``."""
    if value is None:
        return None
    given = _ranges(value) if isinstance(value, str) else value
    try:
        numbers = tuple(sorted({whole(each) for each in given}))  # type: ignore[attr-defined]  # what cannot be iterated is refused below
    except TypeError:
        raise SettingError(name, value, f"a list of whole numbers, for example [7, 8], or text such as 1,2,5-9, at most {_MOST_IDS:,}") from None
    return tuple(number for number in numbers if 0 <= number <= _LARGEST)


def _ranges(text: str) -> list[int] | None:
    """Return the numbers of ``1,2,5-9``; None for another text."""
    numbers: list[int] = []
    for part in text.strip().removeprefix("[").removesuffix("]").split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) - int(match[1]) + len(numbers) >= _MOST_IDS:
            return None
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


_READ = {
    "sub_queue": _place,
    "since": _instant,
    "until": _instant,
    "counts": _texts,
    "properties": _properties,
    "lookup_ids": _lookup_ids,
}

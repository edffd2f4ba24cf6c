"""QueueOperator, the base of operators on one queue, and how operators read what a DAG file or a template gives them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.core.errors import SettingError
from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class QueueOperator(BaseOperator):
    """Does something with one queue of a connection.

    :param queue_name: the queue's name (``queue`` is the executor's). (templated)
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "conn_id")

    def __init__(self, *, queue_name: str, conn_id: str = QueueHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.conn_id = conn_id


def lookup_ids_of(given: Sequence[int] | int | str) -> list[int]:
    """Return lookup ids from a list, a number, or their text: ``"7"``, ``"[7, 8]"``, ``"7, 8"``. Raises SettingError."""
    value: object = given
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text if text.startswith("[") else f"[{text}]")
        except ValueError:
            value = given
    numbers = [value] if isinstance(value, int) else value
    if not isinstance(numbers, list | tuple) or not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise SettingError("lookup_ids", given, "whole numbers: 7, [7, 8] or text of them")
    return list(numbers)


def one_lookup_id(given: int | str) -> int:
    """Return the one lookup id that is given. Raises SettingError."""
    numbers = lookup_ids_of(given)
    if len(numbers) != 1:
        raise SettingError("lookup_id", given, "one whole number")
    return numbers[0]


def name_of(thing: object) -> str:
    """Return ``module:name``."""
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def importable_types(kinds: Iterable[str | type[BaseException]]) -> tuple[str, ...]:
    """Return the names of exception types that server sessions can import. Raises SettingError for one of a DAG file."""
    if isinstance(kinds, str | type):
        raise SettingError("unprocessable", kinds, "a list of exception types, or of their names as 'module:Type'")
    return tuple(kind if isinstance(kind, str) else _importable(kind) for kind in kinds)


def whole(parameter: str, given: int | str) -> int:
    """Return a number that is given, or what a template leaves of one. Raises SettingError."""
    try:
        return int(given)
    except (TypeError, ValueError):
        raise SettingError(parameter, given, "a whole number, or text of one") from None


def _importable(kind: type[BaseException]) -> str:
    if not isinstance(kind, type):
        raise SettingError("unprocessable", kind, "exception types, not exceptions, or names as 'module:Type'")
    if kind.__module__.startswith(("unusual_prefix_", "__main__")):
        raise SettingError("unprocessable", kind.__qualname__, "exception types of importable modules; in a DAG file raise Unprocessable instead")
    return name_of(kind)

"""Selections, actions and canaries as Python, DAG files and rendered templates give them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_poison.desk.actions import PlanAction
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.declaration import Canary
from airflow_poison.values.errors import SettingError


def selection_of(given: object) -> Selection:
    """Return the selection of a dict, JSON text of one, or nothing: all poison. Raises SettingError."""
    if isinstance(given, Selection):
        return given
    return Selection.from_dict(_values("selection", given, "conditions by name, for example {'error_type': 'KeyError'}"))


def action_of(given: object) -> PlanAction:
    """Return the action of a verb, a dict, or JSON text of one. Raises SettingError."""
    if isinstance(given, PlanAction):
        return given
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        return PlanAction.from_dict({"verb": given.strip().replace("-", "_")})
    return PlanAction.from_dict(_values("action", given, "a verb, or a dict such as {'verb': 'move', 'target': 'main'}"))


def canary_of(given: object) -> Canary | None:
    """Return the canary of a number, a dict, or text of one; None for nothing. Raises SettingError."""
    expected = "a number of messages, or a dict such as {'messages': 100, 'share': 0.95}"
    if given is None or given == "" or isinstance(given, Canary):
        return given or None  # type: ignore[return-value]  # a canary, or nothing
    value = _json("canary", given, expected) if isinstance(given, str) else given
    values: Mapping[str, Any] = value if isinstance(value, Mapping) else {"messages": value}
    number, share = values.get("messages"), values.get("share", 1.0)
    if set(values) - {"messages", "share"} or not isinstance(number, int) or isinstance(number, bool) or not isinstance(share, int | float):
        raise SettingError("canary", given, expected)
    return Canary(number, float(share))


def _values(name: str, given: object, expected: str) -> Mapping[str, Any]:
    value = _json(name, given, expected) if isinstance(given, str) and given.strip() else given
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise SettingError(name, given, expected)
    return value


def _json(name: str, given: str, expected: str) -> object:
    try:
        found: object = json.loads(given)
    except ValueError:
        raise SettingError(name, given, f"{expected}, or JSON text of that") from None
    return found

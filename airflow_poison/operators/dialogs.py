"""Dialogs and their messages as operators are given them: values of a DAG file, or what templates and other tasks make of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison.core.clock import EXAMPLES, read_duration
from airflow_poison.core.errors import InputError, SettingError
from airflow_poison.core.policies.recovery import REMOVAL, EndConversation
from airflow_poison.core.policies.settings import whole_number

if TYPE_CHECKING:
    from airflow_poison.core.conversations.acts import Dialog

REMOVAL_ERROR = REMOVAL.error or 0
"""The code with which people end the conversation of a poison message (spec SB-26)."""
_DIALOG = ("messages", "group_id", "priority", "lifetime", "timer")
_MESSAGE = ("message_type", "body")


def messages(given: object) -> list[tuple[str, bytes]]:
    """Return types and bodies of messages. Raises InputError.

    :param given: pairs of type and body, or dicts with ``message_type`` and ``body``. A body is text, bytes, or a JSON value; none is empty.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InputError(f"messages: {given!r}; expected a list of (message type, body). Nothing was sent.")
    return [_message(each) for each in given]


def dialogs(given: object, **common: Any) -> list[Dialog]:
    """Return dialogs. Raises InputError and SettingError.

    :param given: dicts with ``messages`` and, when wanted, ``group_id``, ``priority``, ``lifetime`` and ``timer``.
    :param common: these settings for dialogs that have none of their own.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InputError(f"dialogs: {given!r}; expected a list of dicts with {', '.join(_DIALOG)}. Nothing was sent.")
    return [_dialog(each, common) for each in given]


def span(name: str, given: timedelta | str | float | None) -> timedelta | None:
    """Return a duration: a timedelta, seconds, or text of either (``1h30m``); empty text is none. Raises SettingError."""
    if given is None or isinstance(given, timedelta) or not str(given).strip():
        return given if isinstance(given, timedelta) else None
    found = read_duration(str(given))
    if found is None:
        raise SettingError(name, given, f"a duration such as {EXAMPLES}")
    return found


def number(name: str, given: int | str | None) -> int | None:
    """Return a whole number, also from its text; empty text is none. Raises SettingError."""
    if given is None or isinstance(given, int) or not given.strip():
        return given if isinstance(given, int) else None
    try:
        return int(given)
    except ValueError:
        raise SettingError(name, given, "a whole number") from None


def ended_with_error(error: int | str, description: str) -> EndConversation:
    """Return what the partner of a conversation is told that people end. Raises SettingError for a code that is none."""
    return EndConversation(whole_number("error", number("error", error), least=1), description)


def _dialog(given: object, common: Mapping[str, Any]) -> Dialog:
    from airflow_poison.core.conversations.acts import Dialog

    if isinstance(given, Dialog):
        return given
    if not isinstance(given, Mapping) or "messages" not in given or set(given) - set(_DIALOG):
        raise InputError(f"dialogs: {given!r}; expected a dict with {', '.join(_DIALOG)}, of which messages must be there. Nothing was sent.")
    settings = {**common, **{name: value for name, value in given.items() if value is not None}}
    priority = number("priority", settings.get("priority"))
    return Dialog(
        messages=messages(settings["messages"]),
        group_id=settings.get("group_id"),
        lifetime=span("lifetime", settings.get("lifetime")),
        timer=span("timer", settings.get("timer")),
        **({} if priority is None else {"priority": priority}),
    )


def _message(given: object) -> tuple[str, bytes]:
    parts = [given.get(name) for name in _MESSAGE] if isinstance(given, Mapping) and not set(given) - set(_MESSAGE) else given
    if not isinstance(parts, list | tuple) or len(parts) != len(_MESSAGE) or not isinstance(parts[0], str):
        raise InputError(f"messages: {given!r}; expected (message type, body), or a dict with {' and '.join(_MESSAGE)}. Nothing was sent.")
    return parts[0], _body(parts[1])


def _body(given: object) -> bytes:
    if given is None or isinstance(given, bytes):
        return given or b""
    return (given if isinstance(given, str) else json.dumps(given)).encode()

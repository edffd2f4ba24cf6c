"""Values of arguments as people type them, in commands on queues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_poison.cli.arguments import duration
from airflow_poison.core.clock import EXAMPLES, read_duration
from airflow_poison.core.errors import InputError
from airflow_poison.core.policies.settings import LARGEST, LONGEST
from airflow_poison.core.texts import folded, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DIGITS = 18


def lookup_ids(given: Iterable[str]) -> list[int]:
    """Return the numbers of ``7 8`` or ``7,8``. Raises InputError, also for a text without any: an empty variable of the shell means no message."""
    return [whole("lookup id", part) for text in given for part in text.rstrip(", ").split(",")]


def listed(text: str | None, default: Sequence[str]) -> Sequence[str]:
    """Return the words between commas."""
    return default if text is None else [part.strip() for part in text.split(",")]


def whole(what: str, text: str, least: int = 0, most: int | None = None) -> int:
    """Return a whole number. Raises InputError."""
    plain = text.strip()
    if plain.isascii() and plain.isdigit() and len(plain) <= _DIGITS and least <= int(plain) <= (int(plain) if most is None else most):
        return int(plain)
    raise InputError(f"{what} {_shown(text)}: expected a whole number from {least} {'on' if most is None else f'to {most}'}.")


def limit(text: str, least: int = 0) -> int | None:
    """Return how many are wanted at most; None: all. Raises InputError."""
    if folded(text) == "all":
        return None
    try:
        return whole("--limit", text, least)
    except InputError as error:
        raise InputError(f"{str(error).rstrip('.')}, or all.") from None


def named(option: str, key: str | None) -> None:
    """Raise InputError for a key that is empty: two runs whose variable is not set would be one."""
    if key is not None and not key.strip():
        raise InputError(f"{option} {key!r}: expected a name for what is done once; it is empty.")


def error_code(text: str) -> int:
    """Return the code that ends a conversation. Raises InputError."""
    return whole("--error", text, 1, LARGEST)


def lasting(what: str, text: str) -> timedelta:
    """Return a duration that is more than none. Raises InputError."""
    span = duration(what, text)
    if not timedelta(0) < span <= LONGEST:
        raise InputError(f"{what} {text}: expected a duration above 0 and up to {LONGEST.days} days.")
    return span


def one_of(what: str, text: str, known: Sequence[str]) -> str:
    """Return the known word that a text means, in any case and with any sign between its parts. Raises InputError."""
    words = {folded(word): word for word in known}
    if folded(text) in words:
        return words[folded(text)]
    raise InputError(f"{what} {_shown(text)}: expected one of {', '.join(known)}; the nearest is {nearest(text, known)}.")


def since(text: str, now: datetime) -> datetime:
    """Return the instant of ``2h`` (before now) or ``2013-01-01T12:00``, in UTC when it does not say. Raises InputError."""
    span = read_duration(text)
    try:
        at = now - span if span is not None else datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InputError(f"--since {_shown(text)}: expected an instant such as 2013-01-01T12:00Z, or a duration such as {EXAMPLES}.") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _shown(text: str) -> str:
    """Return a text that was typed so that it can be seen."""
    return text if text.strip() else repr(text)

"""Ages, instants, sizes and numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_poison.core.texts import counted

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_STEP = 1024
_SIZES = ("KiB", "MiB", "GiB", "TiB")


def about(span: timedelta) -> str:
    """Return a duration with its two largest units: ``2 d 3 h``, ``4 min 5 s``, ``0 s``."""
    left = max(0, round(span.total_seconds()))
    words = list[str]()
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count or words:
            words.append(f"{count} {unit}" if count else "")
    return " ".join(word for word in words[:2] if word) or "0 s"


def age(at: datetime | None, now: datetime) -> str:
    """Return how long ago something was; empty for never."""
    return "" if at is None else about(now - at)


def due(at: datetime | None, now: datetime) -> str:
    """Return when something falls due; empty for never."""
    return "" if at is None else "now" if at <= now else f"in {about(at - now)}"


def instant(at: datetime) -> str:
    """Return an instant in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: int) -> str:
    """Return a number of bytes: ``12 bytes``, ``1.5 KiB``."""
    if count < _STEP:
        return f"{count} byte" if count == 1 else f"{count} bytes"
    unit = min((count.bit_length() - 1) // 10, len(_SIZES))
    return f"{count / _STEP**unit:.1f} {_SIZES[unit - 1]}"


def messages(count: int) -> str:
    """Return a number of messages."""
    return counted(count, "message")

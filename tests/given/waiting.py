"""Waits for what other threads and processes do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def happened(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until a condition is true, so many seconds at most; return whether it is."""
    latest = time.monotonic() + seconds
    while not (found := bool(condition())) and time.monotonic() < latest:
        time.sleep(0.01)
    return found


def until(condition: Callable[[], object], what: object = "", seconds: float = 120) -> None:
    """Wait until a condition is true; it is an error when it is not so in time."""
    assert happened(condition, seconds), what or condition

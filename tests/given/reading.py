"""Reports as the tests read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.delivery.journal import MessageState, attempts_of, crashes_of, state_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def told(words: Iterable[int]) -> list[tuple[MessageState, int, int]]:
    """Return state, attempts and crashes of each word."""
    return [(state_of(int(word)), attempts_of(int(word)), crashes_of(int(word))) for word in words]


COMMITTED = (MessageState.COMMITTED, 0, 0)
UNTOUCHED = (MessageState.UNTOUCHED, 0, 0)

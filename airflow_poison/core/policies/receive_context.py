"""Receive-context mode: the move count counts the attempts (spec WCF-44).

A receive moves the message to a lock sub-queue and an abandon moves it back, so one attempt is two moves and one cycle of
RRC + 1 attempts ends with ``attempts_end`` moves, the last of them the receive that finds the message poison.
"""

from __future__ import annotations


def attempts_end(receive_retry_count: int) -> int:
    """Return ``m``: the move count, within a cycle, of the receive that has no attempt left."""
    return 2 * (receive_retry_count + 1) + 1


def cycles_done(move_count: int, receive_retry_count: int) -> int:
    """Return how many cycles lie behind; each has two more moves, to the retry sub-queue and back."""
    return move_count // (attempts_end(receive_retry_count) + 2)


def attempts_used(move_count: int, receive_retry_count: int) -> bool:
    """Tell whether the current cycle has no attempt left."""
    end = attempts_end(receive_retry_count)
    return move_count % (end + 2) >= end

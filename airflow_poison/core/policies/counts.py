"""How Message Queuing counts: what an abort and a move do to a message's counts (spec WCF-14)."""

from __future__ import annotations

from airflow_poison.core.policies.decisions import Counts
from airflow_poison.core.policies.settings import LARGEST


def aborted(counts: Counts) -> Counts:
    """Return the counts after an abort of a transaction that received the message; they stop at 2147483647."""
    return Counts(min(counts.abort_count + 1, LARGEST), counts.move_count)


def moved(counts: Counts) -> Counts:
    """Return the counts after a move to or from a sub-queue."""
    return Counts(0, min(counts.move_count + 1, LARGEST))

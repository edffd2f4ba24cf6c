"""What the receiving transaction sets: its timeout, and how a move waits for a locked message (spec WCF-19, WCF-35, WCF-42)."""

from __future__ import annotations

from datetime import timedelta

MACHINE_TRANSACTION_TIMEOUT = timedelta(minutes=1)
MACHINE_MAXIMUM_TRANSACTION_TIMEOUT = timedelta(minutes=10)
MOVE_ATTEMPTS = 50
MOVE_INTERVAL = timedelta(milliseconds=100)
BATCH_SHARE = 0.8
"""A batch commits when more than this share of the transaction timeout has passed."""


def effective_timeout(service: timedelta, machine: timedelta, maximum: timedelta) -> timedelta:
    """Return the timeout that holds: the service's or, when that is 0, the machine's; never above the machine's maximum."""
    return min(service or machine, maximum)

"""When a count of failures ends receiving (spec WMQ-7, WMQ-28, LP-2; section 11, items 18 and 23)."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never


class StopRule(StrEnum):
    """How a count is compared with its limit."""

    REACHES = "reaches"  # count >= max(limit, 1)
    MORE_THAN = "more_than"  # count > limit
    EQUALS = "equals"  # count = limit


def stops(rule: StopRule, count: int, limit: int) -> bool:
    """Return whether receiving ends after a failure that made the count what it is."""
    match rule:
        case StopRule.REACHES:
            return count >= max(limit, 1)
        case StopRule.MORE_THAN:
            return count > limit
        case StopRule.EQUALS:
            return count == limit
        case _:
            assert_never(rule)


def first_stop(rule: StopRule, limit: int) -> int | None:
    """Return the smallest count that ends receiving; None when none does, for every failure makes the count at least 1."""
    match rule:
        case StopRule.REACHES:
            return max(limit, 1)
        case StopRule.MORE_THAN:
            return limit + 1
        case StopRule.EQUALS:
            return limit or None
        case _:
            assert_never(rule)

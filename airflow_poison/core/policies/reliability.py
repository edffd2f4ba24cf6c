"""Reliability of messages on a service integration bus, from the lowest to the highest (spec DMP-16)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PROPERTY: Final = "reliability"
"""The property of a message that names its reliability."""


class Reliability(StrEnum):
    """The five levels; the order of the members is theirs."""

    BEST_EFFORT_NONPERSISTENT = "best_effort_nonpersistent"
    EXPRESS_NONPERSISTENT = "express_nonpersistent"
    RELIABLE_NONPERSISTENT = "reliable_nonpersistent"
    RELIABLE_PERSISTENT = "reliable_persistent"
    ASSURED_PERSISTENT = "assured_persistent"

    def is_at_most(self, limit: Reliability) -> bool:
        """Return whether this level is at or below another."""
        levels = list(Reliability)
        return levels.index(self) <= levels.index(limit)


def named(text: str) -> Reliability | None:
    """Return the level of a name in any spelling of the product (``BestEffortNonPersistent``, ``BEST_EFFORT_NONPERSISTENT``)."""
    return _BY_LETTERS.get(_letters(text))


def of(properties: Mapping[str, str]) -> Reliability | None:
    """Return a message's reliability; None when it names none: such a message is never discarded for its reliability."""
    return named(properties.get(PROPERTY, ""))


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).lower()


_BY_LETTERS: Final = {_letters(level): level for level in Reliability}

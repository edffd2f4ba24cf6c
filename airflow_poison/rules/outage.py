"""Outage: when failures are no fault of the messages, and what a pass does then. A setting beside a queue's policy, for every messaging system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, Self

from airflow_poison.rules import settings
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from airflow_poison.rules.settings import Check

LEAST_MESSAGES = 3
"""So many messages at least must have failed alike: one bad message, however often it is tried, is no outage, nor are two."""


def _share(setting: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not 0 < value <= 1:
        raise SettingError(setting, value, "a number above 0, at most 1")
    return float(value)


_CHECKS: Mapping[str, Check] = {
    "share": _share,
    "at_least": partial(settings.whole_number, least=LEAST_MESSAGES),
    "probe": partial(settings.whole_number, least=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """When a pass treats failures as an outage of a system that its handler needs, and no longer as poison. Raises SettingError.

    Without it, the default, every failure is charged to its message, as the messaging systems do. With it a share of deliveries that fail alike,
    with one fingerprint, ends the pass; what failed so is given back with its counts as they were.

    :param share: of the deliveries of a task, the last ``at_least`` of them, above 0, at most 1.
    :param at_least: deliveries that a task makes before it judges, 3 or more; so many handler calls an outage costs each task of a pass at most.
    :param probe: messages that are delivered to see whether the outage is over, 1 or more; and that are tried before one is declared.
    :param every: the least time between two probes.
    """

    system: ClassVar[str] = "Outage"
    aliases: ClassVar[Mapping[str, str]] = {}

    share: float = 0.5
    at_least: int = 100
    probe: int = 20
    every: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        settings.check(self, _CHECKS)

    @property
    def tried_out_of_turn(self) -> int:
        """How many other messages are tried before an outage is declared; they count among ``at_least``."""
        return min(self.probe, self.at_least // 2)

    def to_dict(self) -> dict[str, object]:
        """Return the settings as JSON values: durations in seconds."""
        return settings.to_json(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> Self:
        """Return the settings of ``to_dict()``. Raises SettingError."""
        return cls(**settings.from_json(cls, stored))


def checked_outage(outage: object) -> Outage | None:
    """Return what was given for ``outage=``: None, an ``Outage``, or its JSON form. Raises SettingError."""
    if outage is None or isinstance(outage, Outage):
        return outage
    if isinstance(outage, dict):
        return Outage.from_dict(outage)
    raise SettingError("outage", outage, "Outage(), with the settings that differ from its defaults in the brackets, or None")

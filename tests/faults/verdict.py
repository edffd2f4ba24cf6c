"""What the checker says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Verdict:
    """Violations by kind; each is one line for people.

    :param lost: messages that are nowhere, and for which no handler returned and nobody removed them.
    :param doubled: messages that are in two places, or were settled twice, or were called again after their success was recorded.
    :param changed: messages whose bytes or properties are others than were given, and that no edit of people explains.
    :param uncounted: calls that no count and no event knows.
    :param innocents_charged: attempts that were counted for messages which no handler was called with.
    :param alerts_missing: events that nobody was told of.
    :param events: events that are missing, or are there twice.
    :param fell: counts that fell.
    :param order: messages that were received before an earlier one.
    :param log: commits that break a rule of the protocol.
    :param stuck: what did not come to an end.
    """

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)
    innocents_charged: list[str] = field(default_factory=list)
    alerts_missing: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    fell: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not any(self.numbers().values())

    def numbers(self) -> dict[str, int]:
        return {each.name: len(getattr(self, each.name)) for each in fields(self)}

    def lines(self) -> list[str]:
        return [f"{each.name}: {line}" for each in fields(self) for line in getattr(self, each.name)]

    def add(self, other: Verdict) -> None:
        for each in fields(self):
            getattr(self, each.name).extend(getattr(other, each.name))

    def to_dict(self) -> dict[str, list[str]]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, list[str]]) -> Self:
        return cls(**values)

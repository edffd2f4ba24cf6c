"""Tally: what a task, and then a pass, counted. Adds up, and travels as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypedDict, cast

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_poison.core.policies.decisions import Halt

KEPT = ("parked", "poisoned", "postponed", "untouched", "blocked", "halted")
"""Ends after which the message is still in its queue."""
SENT_ON = ("rejected", "dead_lettered", "requeued", "exceptioned")
"""Ends after which it is in the outbox."""
LEFT = ("dropped", *SENT_ON)
"""Ends after which it has left its queue."""
_MOST_ERRORS = 20


class HaltRecord(TypedDict):
    """What halted an endpoint.

    ``lookup_id`` is None when no message is the cause; ``at`` is ISO 8601 in UTC; ``details`` are the facts of the endpoint's event.
    """

    lookup_id: int | None
    how: str
    error: str
    at: str
    abort_count: int
    move_count: int
    details: dict[str, str]


def halt_record(halt: Halt, lookup_id: int | None, error: str, at: datetime) -> HaltRecord:
    """Return the record of a policy's decision.

    :param error: what the last failure of its message said.
    """
    return HaltRecord(
        lookup_id=lookup_id,
        how=halt.how.value,
        error=error,
        at=at.isoformat(),
        abort_count=halt.counts.abort_count,
        move_count=halt.counts.move_count,
        details=dict(halt.details),
    )


class BlockRecord(TypedDict):
    """What blocks a queue: the message, and until when in ISO 8601, None: until the broker restarts or the message is removed."""

    lookup_id: int
    until: str | None


class TallyRecord(TypedDict):
    """A tally as JSON."""

    counts: dict[str, int]
    errors: dict[str, list[object]]
    halt: HaltRecord | None
    block: BlockRecord | None
    counters: dict[str, int]
    opened_with: dict[str, int] | None


@dataclass(slots=True)
class Tally:
    """Numbers by name, failures by fingerprint (text and number of messages), what halted the endpoint, and what it leaves behind.

    ``received = committed + parked + poisoned + postponed + untouched + blocked + halted + dropped + rejected + dead_lettered + requeued +
    exceptioned``. Of the dropped, ``discarded`` were discarded by the state of their conversations. Handlers have ``sent`` messages to
    partners; ``transmissions`` and ``conversations`` are the rows that tell of that and of the endpoints that have changed.
    """

    counts: Counter[str] = field(default_factory=Counter)
    errors: dict[str, tuple[str, int]] = field(default_factory=dict)
    halt: HaltRecord | None = None
    block: BlockRecord | None = None
    counters: dict[str, int] = field(default_factory=dict)
    opened_with: dict[str, int] | None = None

    def close(self, opened_with: Mapping[str, int], counters: Mapping[str, int]) -> None:
        """Note what an endpoint found when it opened, and what it leaves behind."""
        self.opened_with, self.counters = dict(opened_with), dict(counters)

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.counts.update(other.counts)
        for fingerprint, (text, number) in other.errors.items():
            self.add_error(fingerprint, text, number)
        self.halt = self.halt or other.halt
        self.block = self.block or other.block
        self._add_counters(other)

    def counters_over(self, present: Mapping[str, int]) -> dict[str, int]:
        """Return counters with what these endpoints have changed; somebody else may have changed others meanwhile."""
        opened_with = self.opened_with or {}
        changed = {name for name in opened_with.keys() | self.counters.keys() if self.counters.get(name) != opened_with.get(name)}
        return {name: number for name, number in present.items() if name not in changed} | {
            name: self.counters[name] for name in changed if name in self.counters
        }

    def _add_counters(self, other: Tally) -> None:
        """Take over the counters that the other endpoint has changed; endpoints of one queue open with the same ones."""
        if self.opened_with is None and other.opened_with is not None:
            self.close(other.opened_with, other.counters)
        elif other.opened_with is not None:
            self.counters = other.counters_over(self.counters)

    def add_error(self, fingerprint: str, text: str, messages: int = 1) -> None:
        """Count messages that ended with a failure."""
        first, before = self.errors.get(fingerprint, (text, 0))
        self.errors[fingerprint] = (first, before + messages)

    def commonest_errors(self, most: int) -> list[tuple[str, str, int]]:
        """Return fingerprint, text and number of the failures that most messages ended with."""
        ordered = sorted(self.errors.items(), key=lambda item: -item[1][1])
        return [(fingerprint, text, number) for fingerprint, (text, number) in ordered[:most]]

    def to_record(self) -> TallyRecord:
        """Return JSON values; of the failures the commonest."""
        errors: dict[str, list[object]] = {fingerprint: [text, number] for fingerprint, text, number in self.commonest_errors(_MOST_ERRORS)}
        return TallyRecord(
            counts=dict(self.counts), errors=errors, halt=self.halt, block=self.block, counters=self.counters, opened_with=self.opened_with
        )

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Self:
        """Return the tally of ``to_record()``; an empty record gives an empty tally."""
        counts = cast("Mapping[str, int]", record.get("counts") or {})
        errors = cast("Mapping[str, tuple[str, int]]", record.get("errors") or {})
        listed = {fingerprint: (str(text), int(number)) for fingerprint, (text, number) in errors.items()}
        return cls(
            Counter(counts),
            listed,
            cast("HaltRecord | None", record.get("halt")),
            cast("BlockRecord | None", record.get("block")),
            dict(cast("Mapping[str, int]", record.get("counters") or {})),
            cast("dict[str, int] | None", record.get("opened_with")),
        )

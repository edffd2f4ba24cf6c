"""What a receive pass did, and the sum of several."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.core.delivery.tally import HaltRecord


@dataclass(frozen=True, slots=True)
class ReceiveResult:
    """What a pass did. All numbers are messages unless they say otherwise.

    ``received = settled + parked + poisoned + postponed + dropped + rejected + dead_lettered + requeued + exceptioned + untouched + blocked +
    halted_messages``.

    :param discarded: of the dropped, those whose conversation had ended, or that could not be of it (spec SB-30, SB-55).
    :param sent: messages that partners get from this pass, EndDialog and Error messages among them.
    :param requeued: sent to the backout queue (spec WMQ-10); ``exceptioned``: to the exception destination (spec DMP-7).
    :param deliveries: calls of the handler.
    :param rollbacks: deliveries that were rolled back and counted; ``crashes`` and ``timeouts`` are among them.
    :param untouched: not reached before the endpoint halted; they are where they were.
    :param halted: what halted the endpoint: ``{"how", "lookup_id", "error", "details", ...}``, or None.
    :param blocked_until: the queue is blocked until then, ISO 8601 in UTC, or ``restart``: until the broker restarts or the message is removed.
    :param counters: what the endpoint leaves behind for the next one.
    :param sent_on: messages that have arrived in other queues, by queue; those of an earlier run that was killed before it could send them, too.
    :param errors: the commonest failures: ``{"error", "messages", "fingerprint"}``.
    :param passes: claims that this run finished; more than one when it also finished the claim of a dead run.
    """

    queue: str
    key: str
    received: int = 0
    settled: int = 0
    parked: int = 0
    poisoned: int = 0
    postponed: int = 0
    dropped: int = 0
    discarded: int = 0
    sent: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    requeued: int = 0
    exceptioned: int = 0
    untouched: int = 0
    blocked: int = 0
    halted_messages: int = 0
    deliveries: int = 0
    rollbacks: int = 0
    crashes: int = 0
    timeouts: int = 0
    halted: HaltRecord | None = None
    blocked_until: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    sent_on: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[Mapping[str, object], ...] = ()
    passes: int = 0
    seconds: float = 0.0

    @property
    def messages_per_second(self) -> float:
        """Received messages in each second of the pass."""
        return self.received / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self) | {"errors": [dict(error) for error in self.errors], "messages_per_second": round(self.messages_per_second, 1)}


def combined(queue: str, key: str, tallies: Sequence[Tally], sent_on: Mapping[str, int], seconds: float) -> ReceiveResult:
    """Return the sum of the claims that a run finished.

    :param sent_on: messages that have arrived in other queues, by queue.
    """
    total = Tally()
    for tally in tallies:
        total.add(tally)
    counts = total.counts
    return ReceiveResult(
        queue=queue,
        key=key,
        received=counts["received"],
        settled=counts["committed"],
        parked=counts["parked"],
        poisoned=counts["poisoned"],
        postponed=counts["postponed"],
        dropped=counts["dropped"],
        discarded=counts["discarded"],
        sent=counts["sent"],
        rejected=counts["rejected"],
        dead_lettered=counts["dead_lettered"],
        requeued=counts["requeued"],
        exceptioned=counts["exceptioned"],
        blocked=counts["blocked"],
        untouched=counts["untouched"],
        halted_messages=counts["halted"],
        deliveries=counts["deliveries"],
        rollbacks=counts["rollbacks"],
        crashes=counts["crashes"],
        timeouts=counts["timeouts"],
        halted=total.halt,
        blocked_until=None if total.block is None else total.block["until"] or "restart",
        counters=total.counters,
        sent_on=dict(sent_on),
        errors=tuple({"fingerprint": fingerprint, "error": text, "messages": number} for fingerprint, text, number in total.commonest_errors(5)),
        passes=len(tallies),
        seconds=seconds,
    )

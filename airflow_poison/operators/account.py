"""A pass's result in words, for the task's log and for the error of a halted queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.core.passes.receive import ReceiveResult

_ENDS = {
    "settled": "settled",
    "parked": "parked in retry",
    "poisoned": "moved to poison",
    "postponed": "postponed",
    "dropped": "dropped",
    "rejected": "rejected",
    "dead_lettered": "moved to the dead-letter queue",
    "untouched": "not reached",
    "halted_messages": "halted the queue",
}


def account(result: ReceiveResult) -> Iterator[str]:
    """Yield the lines that tell what a pass did."""
    if not result.received:
        yield f"Queue {result.queue!r}: nothing to receive."
        return
    ends = ", ".join(f"{number:,} {words}" for name, words in _ENDS.items() if (number := getattr(result, name)))
    yield f"Queue {result.queue!r}: {result.received:,} messages in {result.seconds:.1f} s ({result.messages_per_second:,.0f}/s): {ends}."
    yield (
        f"{result.deliveries:,} deliveries, {result.rollbacks:,} of them rolled back "
        f"({result.crashes:,} ended their process, {result.timeouts:,} timed out)."
    )
    for error in result.errors:
        yield f"{error['messages']} x {error['error']}"


def halted(result: ReceiveResult) -> str:
    """Return the error of a task whose pass halted the queue: which message, why, and what to do."""
    from airflow_poison.core.passes.alerts import halted_what_to_do

    assert result.halted is not None
    message, error = result.halted["lookup_id"], result.halted["error"] or "its delivery attempts are exhausted"
    return (
        f"Message {message} of queue {result.queue!r} halted it ({result.halted['how']}): {error}. "
        f"{result.settled:,} messages were settled before, {result.untouched:,} were not reached. {halted_what_to_do(result.queue, message)}"
    )

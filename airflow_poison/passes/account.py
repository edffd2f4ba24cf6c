"""What a pass did, in words: for the task's log and for the error of a halted queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.outputs.output import ONLY
from airflow_poison.values.texts import counted, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.passes.runs import ReceiveResult

_ENDS = {
    "settled": "settled",
    "parked": "parked in retry",
    "poisoned": "moved to poison",
    "postponed": "postponed",
    "dropped": "dropped",
    "rejected": "rejected",
    "dead_lettered": "moved to the dead-letter queue",
    "requeued": "moved to the backout queue",
    "exceptioned": "moved to the exception destination",
    "blocked": "blocked, waiting at their place",
    "halted_messages": "halted the queue",
}


def account(result: ReceiveResult) -> Iterator[str]:
    """Yield lines that describe what a pass did. Line ends in messages and errors are escaped."""
    return map(visible, _lines(result))


def _lines(result: ReceiveResult) -> Iterator[str]:
    if result.received:
        yield from _received(result)
    elif result.blocked_until is None and result.outage is None:
        yield f"Queue {result.queue!r}: nothing to receive."
    if result.behind:
        waiting = f"{counted(result.behind, 'message waits', 'messages wait')} behind earlier ones of {counted(result.behind_groups, 'group')}"
        yield f"Queue {result.queue!r}: {waiting}, which are in retry, poison or postponed (park_group)."
    if result.blocked_until is not None:
        restart = result.blocked_until == "restart"
        until = "until its broker is restarted or the message is removed" if restart else f"until {result.blocked_until}"
        by = f"by message {result.blocked_by} " if result.blocked_by is not None else ""
        yield f"Queue {result.queue!r} is blocked {by}{until}; nothing is received meanwhile."
    if result.obstacle:
        message = "message" if result.blocked_by is None else f"message {result.blocked_by}"
        yield f"Why messages are blocked: {result.obstacle}. To go on, change that and restart the broker, or remove the {message}."
    if (outage := result.outage) is not None:
        error = f": {outage['error'].rstrip('.')}" if outage["error"] else ""
        back = f" {counted(outage['given_back'], 'message')} that failed so are given back uncounted." if outage["given_back"] else ""
        yield f"Queue {result.queue!r}: outage since {outage['since']}, no poison{error}.{back} The next probe is due at {outage['next_probe_at']}."


def halted(result: ReceiveResult, system: str = "") -> str:
    """Return the error of a task whose pass halted the queue: which message, why, and what to do.

    :param system: the name of the messaging system.
    """
    from airflow_poison.passes.halts import what_halted, what_to_do_when_halted

    halt = result.halted
    assert halt is not None
    return (
        f"{what_halted(halt, result.queue)} "
        f"{counted(result.settled, 'message was', 'messages were')} settled before, {counted(result.untouched, 'was', 'were')} not reached. "
        f"{what_to_do_when_halted(halt, result.queue, system)}"
    )


def _received(result: ReceiveResult) -> Iterator[str]:
    ends = [f"{number:,} {words}" for name, words in _ENDS.items() if (number := getattr(result, name))]
    if result.untouched:
        ends.append(f"{result.untouched:,} not reached{_why_untouched(result)}")
    received, rate = counted(result.received, "message"), f"{result.messages_per_second:,.0f}/s"
    yield f"Queue {result.queue!r}: {received} in {result.seconds:.1f} s ({rate}): {', '.join(ends)}."
    yield (
        f"{counted(result.deliveries, 'delivery', 'deliveries')}, {result.rollbacks:,} of them rolled back "
        f"({result.crashes:,} ended their process, {result.timeouts:,} timed out)."
    )
    for name, rows in result.landed.items():
        yield f"{counted(rows, 'row')} landed in the output {name!r}." if name != ONLY else f"{counted(rows, 'row')} landed in the output."
    if result.rows_handed:
        yield f"In batches {counted(result.rows_handed, 'message was', 'messages were')} handed over; {counted(result.probes, 'probe')} for culprits."
    for error in result.errors:
        yield f"{error['messages']} x {error['error']}"


def _why_untouched(result: ReceiveResult) -> str:
    if result.halted is not None:
        return f" because the queue is {result.halted['how']}"
    if result.outage is not None:
        return " or given back because of an outage"
    if result.blocked_until is not None:
        return " because the queue is blocked"
    return ", behind failed ones of their groups" if result.behind else ""

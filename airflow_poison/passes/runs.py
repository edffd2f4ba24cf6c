"""Runs of passes: the key under which a run is remembered, so that running it again is safe; what it did; runs over many queues side by side.

It describes in words what a pass did: in the task's log, and in the error of a halted queue.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.delivery.stage import HaltRecord, OutageRecord, Tally
from airflow_poison.outputs.output import ONLY
from airflow_poison.passes.halts import what_halted, what_to_do_when_halted
from airflow_poison.values.clock import show_recorded
from airflow_poison.values.errors import QueueHaltedError, ReceiveStoppedError, SettingError
from airflow_poison.values.texts import Plain, counted, visible

if TYPE_CHECKING:
    from airflow_poison.passes.receive import ReceivePass
    from airflow_poison.store.queue_table import QueueTable


def run_key(*parts: object) -> str:
    """Return 32 hexadecimal digits for what identifies a run: store, queue, DAG, run, task, map index. Never the try number."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_key(key: str) -> str:
    """Return a key that the table's log can keep. Raises SettingError."""
    if not isinstance(key, str):
        raise SettingError("key", key, "text")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise SettingError("key", key, "text that UTF-8 can hold (no lone surrogate)") from error
    if not key.strip():
        raise SettingError("key", key, "a name for what is done once; it is blank")
    return key


def installed(installation: str, key: str) -> str:
    """Return a run key that says which Airflow installation it is of. Without one the key says of none."""
    return f"by-{installation}.{key}" if installation else key


def pass_key(key: str, ordinal: int) -> str:
    """Return the key of one pass of a run; a run that is started again after its pass has finished makes another one."""
    return f"{key}-{ordinal}"


def finished(table: QueueTable, key: str) -> int:
    """Return how many passes of a run key have finished."""
    ordinal = 0
    while table.result(pass_key(key, ordinal)) is not None:
        ordinal += 1
    return ordinal


def check_named_once(queues: Iterable[str]) -> None:
    """Raise SettingError for a queue of a task that is named twice: both passes would have the same run key."""
    seen: set[str] = set()
    for queue in queues:
        if queue in seen:
            raise SettingError("queues", queue, "every queue once; this one is named twice")
        seen.add(queue)


# What it did -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReceiveResult(Plain):
    """What a pass did. All numbers are messages unless they say otherwise.

    ``received = settled + parked + poisoned + postponed + dropped + rejected + dead_lettered + requeued + exceptioned + untouched + blocked +
    halted_messages``.

    :param discarded: of the dropped, those whose conversation had ended, or that could not be of it (spec SB-30, SB-55).
    :param sent: messages that partners get from this pass, EndDialog and Error messages among them.
    :param requeued: sent to the backout queue (spec WMQ-10); ``exceptioned``: to the exception destination (spec DMP-7).
    :param rollbacks: deliveries that were rolled back and counted; ``crashes`` and ``timeouts`` are among them.
    :param probes: calls of a handler of batches with parts of a batch that had failed, to find out which messages made it fail.
    :param rows_handed: messages in all its calls with a batch or a part of one; one that was handed over twice counts twice. Deliveries of a
        message alone are not among them.
    :param untouched: not reached before the endpoint halted, or behind a message of their group that failed in this pass; they are where they were.
    :param behind: messages that wait now behind earlier ones of their groups (``park_group``), whichever pass found them; ``behind_groups``: so many
        groups they are of.
    :param held: messages that other passes of the endpoint hold now, which run or have died; ``held_until``: when the last of them ends unless it is
        renewed, ISO 8601 in UTC, or None.
    :param halted: what halted the endpoint: ``{"how", "lookup_id", "error", "details", ...}``, or None.
    :param blocked_until: the queue is blocked until then, ISO 8601 in UTC, or ``restart``: until the broker restarts or the message is removed.
    :param blocked_by: the message that blocks it; ``obstacle``: why blocked messages stay, one line.
    :param outage: what ended the pass, or why it delivered nothing: ``{"error", "fingerprint", "since", "next_probe_at", "given_back", "at"}``.
    :param sent_on: messages that have arrived in other queues, by queue; also from an earlier run that was killed before it could send them.
    :param landed: returned rows that are in their outputs now, by output; also from an earlier run that was killed before that.
    :param in_place: rows of the source that the pass took: ``read = landed + filtered + messages``. Of a ``landed`` row some row is on its way to the
        output, a ``filtered`` one makes none (what ``mapInPandas`` drops counts as landed), and one that fails becomes a message. Empty: none.
    :param not_landed: deliveries that returned rows although no output is declared; they are dropped.
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
    probes: int = 0
    rows_handed: int = 0
    halted: HaltRecord | None = None
    blocked_until: str | None = None
    blocked_by: int | None = None
    obstacle: str = ""
    outage: OutageRecord | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    sent_on: Mapping[str, int] = field(default_factory=dict)
    landed: Mapping[str, int] = field(default_factory=dict)
    in_place: Mapping[str, int] = field(default_factory=dict)
    not_landed: int = 0
    errors: tuple[Mapping[str, object], ...] = ()
    passes: int = 0
    seconds: float = 0.0
    behind: int = 0
    behind_groups: int = 0
    held: int = 0
    held_until: str | None = None

    @property
    def messages_per_second(self) -> float:
        """Received messages in each second of the pass."""
        return self.received / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return Plain.to_dict(self) | {"messages_per_second": round(self.messages_per_second, 1)}


_NUMBERS = tuple(each.name for each in fields(ReceiveResult) if each.type == "int")
_COUNTED = {
    name: {"settled": "committed", "halted_messages": "halted"}.get(name, name)
    for name in _NUMBERS
    if name not in {"passes", "behind", "behind_groups", "held"}
}
"""The numbers of a result that a tally has, and under which name."""


def combined(queue: str, key: str, tallies: Sequence[Tally], sent_on: Mapping[str, int], seconds: float) -> ReceiveResult:
    """Return the sum of the claims that a run finished."""
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return ReceiveResult(
        queue=queue,
        key=key,
        **cast("dict[str, Any]", {name: total.counts[counted_as] for name, counted_as in _COUNTED.items()}),
        halted=total.halt,
        blocked_until=None if total.block is None else total.block["until"] or "restart",
        blocked_by=None if total.block is None else total.block["lookup_id"],
        obstacle=total.obstacle,
        outage=total.outage,
        counters=total.counters,
        sent_on=dict(sent_on),
        errors=tuple({"fingerprint": fingerprint, "error": text, "messages": number} for fingerprint, text, number in total.commonest_errors(5)),
        passes=len(tallies),
        seconds=seconds,
    )


# Of many queues side by side -------------------------------------------------------------------------------------------


class Stop:
    """Ends passes; any thread may ask for it, and a signal handler: it takes no lock."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked = False

    def ask(self) -> None:
        """End every pass that heeds this, soon; their claims stay."""
        self._asked = True

    def check(self) -> None:
        """Raise ReceiveStoppedError when a stop was asked for."""
        if self._asked:
            raise ReceiveStoppedError(
                "The pass was stopped, because its task ends. Its claim stays: run the task again, it goes on where this one stopped."
            )


@dataclass(frozen=True, slots=True)
class QueueRun:
    """One of the queues.

    :param queue: its name, which no other run has.
    :param open: opens the queue; returns its pass and its run key. Called once, on the thread that receives.
    """

    queue: str
    open: Callable[[], tuple[ReceivePass, str]]


@dataclass(frozen=True, slots=True)
class ReceiveManyResult:
    """What became of every queue, in the order in which they were given.

    :param results: of the passes that ended, also of those that halted their queue.
    :param errors: of the passes that did not; a queue that was halted before has a QueueHaltedError.
    """

    results: Mapping[str, ReceiveResult]
    errors: Mapping[str, Exception]
    seconds: float = 0.0

    @property
    def halted(self) -> list[str]:
        """The queues that are halted now."""
        refused = [queue for queue, error in self.errors.items() if isinstance(error, QueueHaltedError)]
        return [queue for queue, result in self.results.items() if result.halted is not None] + refused

    @property
    def failed(self) -> Mapping[str, Exception]:
        """The errors of the queues that are not halted."""
        return {queue: error for queue, error in self.errors.items() if not isinstance(error, QueueHaltedError)}

    def totals(self) -> dict[str, float]:
        """Return the sums over all queues, by the names of ``ReceiveResult``, and the messages in each second of the whole."""
        sums = {name: sum(getattr(result, name) for result in self.results.values()) for name in _NUMBERS}
        rate = sums["received"] / self.seconds if self.seconds else 0.0
        return {**sums, "seconds": self.seconds, "messages_per_second": round(rate, 1)}

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "queues": {queue: result.to_dict() for queue, result in self.results.items()},
            "errors": {queue: f"{type(error).__name__}: {error}" for queue, error in self.errors.items()},
            "halted": self.halted,
            "totals": self.totals(),
        }


def receive_many(
    runs: Sequence[QueueRun], *, parallelism: int, stop: Stop | None = None, ended: Callable[[str, ReceiveResult | Exception], None] | None = None
) -> ReceiveManyResult:
    """Run a pass over every queue, so many at the same time.

    A queue that is halted, blocked or missing, or whose pass raises, stops no other. An interrupt of the caller, or ``stop``, ends all of
    them; it is raised when they have ended.

    :param parallelism: how many queues are received from at the same time, at least 1; a halting policy keeps one core of Spark busy.
    :param ended: called for every queue when its pass has ended, on the caller's thread; what it raises ends the others.
    Raises SettingError for a queue that is named twice, before anything is claimed.
    """
    check_named_once(run.queue for run in runs)
    started, stop = time.monotonic(), stop or Stop()
    became: dict[str, ReceiveResult | Exception] = {}
    with ThreadPoolExecutor(max(1, min(parallelism, len(runs))), "poison-receive") as threads:
        passes = {threads.submit(copy_context().run, _receive, run, stop): run.queue for run in runs}
        try:
            for done in as_completed(passes):
                queue = passes[done]
                became[queue] = end = _end(done.exception()) or done.result()
                if ended is not None:
                    ended(queue, end)
        except BaseException:
            stop.ask()
            raise
    ends = [(run.queue, became[run.queue]) for run in runs]
    results = {queue: end for queue, end in ends if isinstance(end, ReceiveResult)}
    errors = {queue: end for queue, end in ends if isinstance(end, Exception)}
    return ReceiveManyResult(results, errors, time.monotonic() - started)


def stoppable(receive: ReceivePass, stop: Stop) -> ReceivePass:
    """Return the same pass, which can be asked to stop."""
    return replace(receive, check_stopped=stop.check)


def _receive(run: QueueRun, stop: Stop) -> ReceiveResult:
    stop.check()
    receive, key = run.open()
    return stoppable(receive, stop).run(key)


def _end(error: BaseException | None) -> Exception | None:
    """Return what a pass raised; what is no Exception, for example an interrupt, is raised here, too."""
    if error is not None and not isinstance(error, Exception):
        raise error
    return error


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
    if did := result.in_place:
        rows = f"{counted(did['read'], 'row')} read in place = {did['landed']:,} landed + {did['filtered']:,} filtered"
        yield f"Queue {result.queue!r}: {rows} + {did['messages']:,} became messages."
    if result.received:
        yield from _received(result)
    elif not did and result.blocked_until is None and result.outage is None:
        yield f"Queue {result.queue!r}: nothing to receive{_held(result)}."
    if result.behind:
        waiting = f"{counted(result.behind, 'message waits', 'messages wait')} behind earlier ones of {counted(result.behind_groups, 'group')}"
        yield f"Queue {result.queue!r}: {waiting}, which are in retry, poison or postponed (park_group)."
    if result.blocked_until is not None:
        restart = result.blocked_until == "restart"
        until = "until its broker is restarted or the message is removed" if restart else f"until {show_recorded(result.blocked_until)}"
        by = f"by message {result.blocked_by} " if result.blocked_by is not None else ""
        yield f"Queue {result.queue!r} is blocked {by}{until}; nothing is received meanwhile."
    if result.obstacle:
        message = "message" if result.blocked_by is None else f"message {result.blocked_by}"
        yield f"Why messages are blocked: {result.obstacle}. To go on, change that and restart the broker, or remove the {message}."
    if (outage := result.outage) is not None:
        error = f": {outage['error'].rstrip('.')}" if outage["error"] else ""
        back = f" {counted(outage['given_back'], 'message')} that failed so are given back uncounted." if outage["given_back"] else ""
        since, probe = show_recorded(outage["since"]), show_recorded(outage["next_probe_at"])
        yield f"Queue {result.queue!r}: outage since {since}, no poison{error}.{back} The next probe is due at {probe}."


def _held(result: ReceiveResult) -> str:
    if result.held_until is None:
        return ""
    held, until = counted(result.held, "message is", "messages are"), show_recorded(result.held_until)
    return f": {held} held by other passes, until {until} where a pass has died; a pass with its run key goes on with them at once"


def halted(result: ReceiveResult, system: str = "") -> str:
    """Return the error of a task whose pass halted the queue: which message, why, and what to do.

    :param system: the name of the messaging system.
    """
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

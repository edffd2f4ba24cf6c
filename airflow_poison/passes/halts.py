"""Halted endpoints: the texts about a disabled, stopped or faulted one; the events and the row that record it (spec SB-15).

An endpoint is what reads a sub-queue: ``main``, or ``poison`` where the system has a reader for it. What a pass or an inspection knows of a halt is a
``HaltRecord``; what a reader of the queue sees of it, and may decide about, is a ``HaltedEndpoint``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, assert_never

from airflow_poison.delivery.stage import HaltRecord
from airflow_poison.rules.decisions import HALT_EVENTS, HALTS, Halted
from airflow_poison.rules.queue_disabling import REMOVAL
from airflow_poison.rules.settings import choice
from airflow_poison.store.control import HALTED_BY, POISON_HALTED_BY, Control, QueueState
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import SubQueue, place_name
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store.files import Snapshot
    from airflow_poison.store.queue_table import QueueTable


ENDPOINTS = (SubQueue.MAIN, SubQueue.POISON)
"""The sub-queues that an endpoint can read."""
Endpoints = StrEnum("Endpoints", ["MAIN", "POISON", "ANY"])
"""An endpoint of a queue: ``main``, the reader of the poison sub-queue, or any of the two."""
SUSPECTS: Mapping[SubQueue, str] = {SubQueue.MAIN: HALTED_BY, SubQueue.POISON: POISON_HALTED_BY}
"""The counter of the control row that names an endpoint's suspect."""
STARTED: Mapping[QueueState, EventType] = {
    QueueState.DISABLED: EventType.QUEUE_ENABLED,
    QueueState.STOPPED: EventType.STARTED,
    QueueState.FAULTED: EventType.STARTED,
}
"""The event of an endpoint that receives again, by the state that it was in."""
STARTS = frozenset(STARTED.values())
LONGEST_REASON = 500
WHEN_ENABLED = (
    "The next run of its receive task receives what is left; clear the failed task only to have that at once, or to let later tasks of its run go on."
)
"""What the run that has failed over a halted queue needs when that is enabled: a pass is committed before its task fails."""
_EXHAUSTED = "its delivery attempts are exhausted"
_FORGETS = "Msmq3"
"""The system whose listener gives a message fresh attempts when it is opened again (spec M3-10)."""


# What records a halt ---------------------------------------------------------------------------------------------------


def halt_event(halt: HaltRecord, endpoint: str, system: str) -> Event:
    """Return the endpoint's own event, one for each halt, whatever the number of tasks that met it.

    :param endpoint: ``orders``, or ``orders;poison``.
    """
    facts = {"place": "", "endpoint": endpoint, "system": system} | ({"error": halt["error"]} if halt["error"] else {}) | halt["details"]
    at = datetime.fromisoformat(halt["at"])
    return Event(HALT_EVENTS[Halted(halt["how"])], at, halt["lookup_id"], halt["abort_count"], halt["move_count"], facts)


def halt_of(event: Event) -> HaltRecord:
    """Return the halt that an event of ``HALTS`` records."""
    return HaltRecord(
        lookup_id=event.lookup_id,
        how=HALTS[event.type].value,
        error=event.details.get("error", ""),
        at=event.at.isoformat(),
        abort_count=event.abort_count,
        move_count=event.move_count,
        details=dict(event.details),
    )


def halted_row(control: Control, reads: SubQueue, halt: HaltRecord, endpoint: str) -> Control:
    """Return the control row of a queue whose endpoint has halted."""
    cause = f"message {halt['lookup_id']} of queue {endpoint!r} halted it" if halt["lookup_id"] is not None else "it was halted"
    reason = f"{cause}: {halt['error'] or halt['details'].get('text') or _EXHAUSTED}"
    return control.halted(reads, QueueState(halt["how"]), reason[:LONGEST_REASON], halt["lookup_id"])


# What is seen of it ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HaltedEndpoint(Plain):
    """A halt, as it was read.

    :param sub_queue: what the endpoint reads: ``main`` or ``poison``.
    :param state: ``disabled``, ``stopped`` or ``faulted``.
    :param lookup_id: the suspect: the message that halted it; None: no single one.
    :param version: of the queue, when it was seen.
    """

    queue: str
    sub_queue: SubQueue
    state: QueueState
    reason: str
    lookup_id: int | None
    version: int = -1

    @property
    def name(self) -> str:
        """The endpoint, as people write it: ``orders`` or ``orders;poison``."""
        return place_name(self.queue, self.sub_queue)

    @property
    def identity(self) -> tuple[str, str, str, int | None]:
        """The identity of this halt, without the time when it was read."""
        return self.sub_queue.value, self.state.value, self.reason, self.lookup_id

    def holds(self, control: Control) -> bool:
        """Whether the endpoint is still halted in this way."""
        state, reason = control.endpoint(self.sub_queue)
        return (state, reason, control.counters.get(SUSPECTS[self.sub_queue])) == (self.state, self.reason, self.lookup_id)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Return the halt of its plain values."""
        number = record["lookup_id"]
        place, state = SubQueue(record["sub_queue"]), QueueState(record["state"])
        return cls(record["queue"], place, state, record["reason"], None if number is None else int(number), int(record["version"]))


def halted_endpoints(queue: str, snapshot: Snapshot, which: Endpoints = Endpoints.ANY) -> Iterator[HaltedEndpoint]:
    """Yield how the endpoints of a queue are halted, ``main`` first."""
    control = snapshot.control
    for place in ENDPOINTS if which is Endpoints.ANY else (SubQueue(which.value),):
        state, reason = control.endpoint(place)
        if state is not QueueState.ENABLED:
            yield HaltedEndpoint(queue, place, state, reason, control.counters.get(SUSPECTS[place]), snapshot.version)


def halted_endpoint(table: QueueTable, which: Endpoints | str = Endpoints.ANY) -> HaltedEndpoint | None:
    """Return how an endpoint is halted; None when it receives. Of both, the one that reads ``main`` comes first. Raises SettingError."""
    return next(halted_endpoints(table.name, table.snapshot(), choice("sub_queue", which, Endpoints)), None)


# Texts for people --------------------------------------------------------------------------------------------------


def what_halted(halt: HaltRecord, endpoint: str) -> str:
    """Say which message halted an endpoint and why, one line."""
    lookup_id, how = halt["lookup_id"], halt["how"]
    if lookup_id is None:
        happened = f"Queue {endpoint!r} was halted ({how}) after a commit."
        if leader := halt["details"].get("transaction"):
            happened = f"Queue {endpoint!r} was halted ({how}) with queue {leader!r}: a transaction received from both."
    else:
        happened = f"Message {lookup_id} of queue {endpoint!r} halted it ({how}): {(halt['error'] or _EXHAUSTED).rstrip('.')}."
    return " ".join([happened, *(f"{said.rstrip('.')}." for said in _facts_texts(halt["details"]))])


def what_to_do_when_halted(halt: HaltRecord, queue: str, system: str = "") -> str:
    """Say what to do about a halted endpoint, one line.

    :param system: the policy's, where it is known.
    """
    how, lookup_id = Halted(halt["how"]), halt["lookup_id"]
    enable = f"enable the queue with QueueHook().queue({queue!r}).enable()"
    out = f"take the message out with QueueHook().queue({queue!r}).remove({lookup_id})"
    steps: tuple[str, ...]
    if (handle := halt["details"].get("conversation")) and lookup_id is not None:
        out = f"end its conversation with {ending_of(queue, handle)}"
    match how:
        case Halted.DISABLED:
            steps = (f"look at it with QueueHook().queue({queue!r}).inspect(mode='browse')", f"mend the cause or {out}")
            then = "Until then nothing is received, and what is sent to the queue waits."
            if partner := halt["details"].get("partner"):
                then += f" Do not remove the message alone: service {partner!r} would wait for its answer for good."
        case Halted.STOPPED:
            steps, then = (f"mend the cause or {out}",), "It begins at the top of the queue; nothing is received until then."
        case Halted.FAULTED if system == _FORGETS:
            steps, then = (f"mend the cause or {out}",), "The message has fresh attempts then; nothing is received until then."
        case Halted.FAULTED:
            steps, then = (f"{out} (its attempts are used up, it would halt the queue again)",), "Nothing is received until then."
        case _:
            assert_never(how)
    return f"To go on, {', then '.join((*(steps if lookup_id is not None else ()), enable))}. {then} {WHEN_ENABLED}"


def ending_of(queue: str, handle: str) -> str:
    """Return the call, and the command, that end the conversation of a poison message as people do (spec SB-26)."""
    error = f"{REMOVAL.error}, description={REMOVAL.description!r}"
    return (
        f"QueueHook().queue({queue!r}).end_conversation({handle!r}, error={error}, key='poison'), or "
        f"airflow poison end-conversation {queue} {handle} --error {REMOVAL.error} --description '{REMOVAL.description}'"
    )


def _facts_texts(facts: Mapping[str, str]) -> list[str]:
    """Return what the facts say beyond the error, in sentences without their full stops."""
    texts = []
    if rollbacks := facts.get("rollbacks"):
        texts.append(f"{rollbacks} receives in a row were rolled back")
    if text := facts.get("text"):
        texts.append(f"{facts['code']}: {text}" if "code" in facts else text)
    return [*texts, *(facts[name] for name in ("reason", "warning") if facts.get(name))]

"""Drives a script through real passes on a queue table: a real store, a real handler in a server session, the real verbs, a virtual clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.delivery.handler_wrappers import sessiongram
from airflow_poison.passes.alter import declare
from airflow_poison.passes.due import return_due
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.policy import Access
from airflow_poison.rules.simulation.scripted_host import Action, Scripted, Verb, as_span
from airflow_poison.store.control import NOT_BEFORE_RESTART, QueueState
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.events import OWN
from airflow_poison.values.schema import SubQueue, message_schema
from tests.conformance import by_hand
from tests.conformance.found import Found, by_message, is_removal
from tests.conformance.played import QUEUE, Played, Told
from tests.conformance.scripted_handler import ScriptedHandler

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from pathlib import Path

    from airflow_poison.passes.engines import Engine
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from airflow_poison.store.files import Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.events import Event
    from tests.conformance.examples.shape import Calls, Example

MOST_PASSES = 1_000
_WAITING = {SubQueue.RETRY, SubQueue.POSTPONED}


class Player:
    """One script on one store with one engine.

    An endpoint that is open is one whose passes run whenever something is due; while it is closed by hand none does.
    """

    def __init__(self, example: Example, store: QueueStore, engine: Callable[[], Engine], folder: Path, isolation: str) -> None:
        self._example, self._store, self._engine, self._isolation = example, store, engine, isolation
        self._clock = VirtualClock()
        self._started = self._clock.now()
        self._names: dict[int, str] = {}
        self._calls_file = folder / "calls"
        self._handler = ScriptedHandler(
            str(self._calls_file),
            {message.name: message.outcomes for message in example.script.messages},
            {message.name: dict(message.items) for message in example.script.messages if message.items},
            self._clock,
        )
        self._passes = 0
        self._open = True
        self._events: list[Event] = []
        self._seen = -1
        self._table = self._declared()

    def play(self) -> Played:
        """Jump from instant to instant at which something happens, with a pass at each."""
        script = self._example.script
        for instant in sorted({as_span(at) for at in (*(message.at for message in script.messages), *(action.at for action in script.actions))}):
            self._until(instant)
            for message in script.messages:
                if as_span(message.at) == instant:
                    self._arrive(message)
            if self._example.policy.reads is SubQueue.POISON:
                self._to_poison()
            for action in script.actions:
                if as_span(action.at) == instant:
                    self._act(action)
            self._pass()
        self._until(None)
        self._note()
        return self._played()

    def _declared(self) -> QueueTable:
        """Make the queue, and those that its policy can send to."""
        policy, access = self._example.policy, self._example.access
        assert Access.DENIED not in access.values(), "no table denies access"
        for name in policy.destinations:
            if access.get(name, Access.GRANTED) is Access.GRANTED:
                declare(self._store, name, policy, self._clock)
        return declare(self._store, QUEUE, policy, self._clock)

    @property
    def _control(self) -> Control:
        return self._table.snapshot().control

    @property
    def _policy(self) -> Policy:
        """The settings as they are recorded now."""
        return policy_from_dict(self._control.policy)

    # Time ------------------------------------------------------------------------------------------------------------

    def _until(self, instant: timedelta | None) -> None:
        """Let everything happen that falls due before an instant."""
        while (due := self._next_due()) is not None:
            if instant is not None and due >= self._started + instant:
                break
            self._clock.at = max(due, self._clock.at)
            self._pass()
        if instant is not None:
            self._clock.at = max(self._clock.at, self._started + instant)

    def _next_due(self) -> datetime | None:
        """When the next message is due, or a block ends; None when nothing happens until people act."""
        if not self._receives():
            return None
        snapshot = self._table.snapshot()
        blocked = snapshot.control.blocked_until(self._clock.now())
        times = [blocked if blocked != NOT_BEFORE_RESTART else None, *self._dues(snapshot)]
        return min((time for time in times if time is not None), default=None)

    def _dues(self, snapshot: Snapshot) -> list[datetime | None]:
        """When files are due; a head timer waits for the head of retry alone (spec WCF-31)."""
        waiting = [file for file in snapshot.files if file.sub_queue in _WAITING]
        if self._policy.return_order == "head_timer":
            retry = sorted((file for file in waiting if file.sub_queue == SubQueue.RETRY), key=lambda file: (-file.max_priority, file.min_lookup_id))
            waiting = [file for file in waiting if file.sub_queue != SubQueue.RETRY] + retry[:1]
        return [file.max_due_at for file in waiting]

    def _receives(self) -> bool:
        return self._open and self._control.endpoint(self._example.policy.reads)[0] is QueueState.ENABLED

    def _pass(self) -> None:
        if not self._receives():
            return
        policy = self._policy
        return_due(self._table, self._clock, return_order=str(policy.return_order))
        self._passes += 1
        assert self._passes <= MOST_PASSES, "the script goes on for ever"
        ReceivePass(
            table=self._table,
            policy=policy,
            handler=self._handler,
            engine=self._engine,
            clock=self._clock,
            store=self._store,
            isolation=self._isolation,
            record_all=True,
        ).run(f"pass-{self._passes}")

    # What happens to the queue from outside --------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        by_hand.act(self._table, self._clock, action, self._number)
        self._open = action.verb in by_hand.OPENING or (self._open and action.verb != Verb.CLOSE)

    def _number(self, name: str) -> int:
        return next(number for number, message in self._names.items() if message == name)

    def _arrive(self, message: Scripted) -> None:
        now, types = self._clock.now(), message_schema()
        cells = {
            "body": sessiongram([name.encode() for name in message.items]) if message.items else b"x" * message.size,
            "priority": message.priority,
            "message_id": message.name,
            "group_id": message.group or None,
            "properties": list(message.properties.items()),
            "expires_at": now + as_span(message.ttl) if message.ttl is not None else None,
        }
        columns: dict[str, pa.Array[Any]] = {name: pa.array([cell], types.field(name).type) for name, cell in cells.items()}
        sent = send(self._table, [pa.record_batch(list(columns.values()), names=list(columns))], key=f"arrive:{message.name}", clock=self._clock)
        self._names[sent.first_lookup_id] = message.name

    def _to_poison(self) -> None:
        """Let what has arrived be in the poison sub-queue, without a word about how it came there."""
        self._note()
        now = self._clock.now()
        self._table.move_files(lambda s: [f for f in s.files if f.sub_queue == SubQueue.MAIN], SubQueue.POISON, now, count_move=False)
        self._seen = self._table.snapshot().version

    # What has come of it ---------------------------------------------------------------------------------------------

    def _note(self) -> None:
        newest = self._table.snapshot().version
        self._events += self._table.events(self._seen, until_version=newest)
        self._seen = newest

    def _played(self) -> Played:
        control = self._control
        state, _ = control.endpoint(self._example.policy.reads)
        found = Found(self._store, by_message(self._events, self._names))
        return Played(
            events=tuple(self._told(event) for event in self._events if not is_removal(event) and event.type not in OWN),
            calls=self._calls(),
            ends={message.name: found.end_of(message.name) for message in self._example.script.messages},
            halted=None if state is QueueState.ENABLED else Halted(state),
            counters=dict(control.endpoint_counters),
            reports=found.reports(),
        )

    def _told(self, event: Event) -> Told:
        at = (event.at - self._started).total_seconds()
        return Told(at, self._names.get(event.lookup_id or 0, ""), event.type, event.abort_count, event.move_count)

    def _calls(self) -> Calls:
        lines = self._calls_file.read_text().splitlines() if self._calls_file.exists() else []
        calls = [json.loads(line) for line in lines]
        return tuple((call["t"], call["name"], call["abort_count"], call["move_count"]) for call in calls)

"""Drives a worked example through real passes on a queue table: a real store, a real handler in a server session, a virtual clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.core.clock import VirtualClock
from airflow_poison.core.delivery.script import Scripted, Verb, as_span
from airflow_poison.core.delivery.sessiongram import sessiongram
from airflow_poison.core.events import ROUTINE, EventType
from airflow_poison.core.message import SubQueue, message_schema
from airflow_poison.core.passes.declare import declare
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.return_due import return_due
from airflow_poison.core.passes.send import send
from airflow_poison.core.store.seam import QueueState
from tests.conformance.scripted_handler import ScriptedHandler

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from pathlib import Path

    from airflow_poison.core.passes.engine import Engine
    from airflow_poison.core.store.seam import QueueStore, QueueTable
    from tests.conformance.examples.shape import Calls, Example, Story


@dataclass(frozen=True)
class Place:
    """Where a message is at the end, with its counts when it is in its queue."""

    place: str
    abort_count: int | None = None
    move_count: int | None = None


@dataclass(frozen=True)
class Played:
    """What passes made of an example, in the form of the examples."""

    story: Story
    calls: Calls
    ends: dict[str, Place]
    routine: dict[str, list[str]]


class Player:
    """One example on one store with one engine."""

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

    def play(self) -> Played:
        """Jump from instant to instant at which something happens, with a pass at each."""
        table = declare(self._store, "example", self._example.policy, self._clock)
        instants = sorted(
            {as_span(message.at) for message in self._example.script.messages} | {as_span(action.at) for action in self._example.script.actions}
        )
        after = table.snapshot().version
        for instant in instants:
            self._until(table, instant)
            for message in self._example.script.messages:
                if as_span(message.at) == instant:
                    self._arrive(table, message)
            if self._example.policy.reads is SubQueue.POISON:
                self._to_poison(table)
                after = table.snapshot().version
            self._act(instant)
            self._pass(table)
        self._until(table, None)
        events = list(table.events(after))
        return Played(
            story=tuple(
                (self._seconds(event.at), self._names[event.lookup_id or 0], event.type.value) for event in events if event.type not in ROUTINE
            ),
            calls=self._calls(),
            ends={message.name: self._end(table, message.name, {e.type for e in events}) for message in self._example.script.messages},
            routine={
                name: [event.type.value for event in events if event.type in ROUTINE and self._names[event.lookup_id or 0] == name]
                for name in self._names.values()
            },
        )

    def _until(self, table: QueueTable, instant: timedelta | None) -> None:
        """Let everything happen that falls due before an instant."""
        while self._open and (due := table.snapshot().depth(SubQueue.RETRY, self._clock.now()).next_due_at) is not None:
            if instant is not None and due >= self._started + instant:
                break
            self._clock.at = max(due, self._clock.at)
            self._pass(table)
        if instant is not None:
            self._clock.at = max(self._clock.at, self._started + instant)

    def _pass(self, table: QueueTable) -> None:
        if not self._open or table.snapshot().control.state is not QueueState.ENABLED:
            return
        return_due(table, self._clock)
        self._passes += 1
        ReceivePass(
            table=table,
            policy=self._example.policy,
            handler=self._handler,
            engine=self._engine,
            clock=self._clock,
            store=self._store,
            isolation=self._isolation,
            record_all=True,
        ).run(f"pass-{self._passes}")

    def _act(self, instant: timedelta) -> None:
        for action in self._example.script.actions:
            if as_span(action.at) == instant:
                assert action.verb in {Verb.CLOSE, Verb.OPEN}, "other actions need a host"
                self._open = action.verb == Verb.OPEN

    def _arrive(self, table: QueueTable, message: Scripted) -> None:
        now = self._clock.now()
        body = sessiongram([name.encode() for name in message.items]) if message.items else b"x" * message.size
        columns = {
            "body": pa.array([body], pa.binary()),
            "priority": pa.array([message.priority], pa.int32()),
            "message_id": pa.array([message.name]),
            "expires_at": pa.array([now + as_span(message.ttl) if message.ttl is not None else None], message_schema().field("expires_at").type),
        }
        sent = send(table, [pa.record_batch(list(columns.values()), names=list(columns))], key=f"arrive:{message.name}", clock=self._clock)
        self._names[sent.first_lookup_id] = message.name

    def _to_poison(self, table: QueueTable) -> None:
        now = self._clock.now()
        table.move_files(lambda s: [f for f in s.files if f.sub_queue == SubQueue.MAIN], SubQueue.POISON, now, count_move=False)

    def _calls(self) -> Calls:
        lines = self._calls_file.read_text().splitlines() if self._calls_file.exists() else []
        calls = [json.loads(line) for line in lines]
        return tuple((call["t"], call["name"], call["abort_count"], call["move_count"]) for call in calls)

    def _end(self, table: QueueTable, name: str, happened: set[EventType]) -> Place:
        for file in table.snapshot().files:
            for row in table.read(file).to_pylist():
                if row["message_id"] == name:
                    return Place(row["sub_queue"], row["abort_count"], row["move_count"])
        if "example.dead-letter" in self._store.names():
            letters = self._store.open("example.dead-letter")
            if any(row["message_id"] == name for file in letters.snapshot().files for row in letters.read(file).to_pylist()):
                return Place("dead_letter")
        dropped = [event.lookup_id for event in table.events() if event.type is EventType.DROPPED]
        return Place("dropped" if name in {self._names[number] for number in dropped if number} else "processed")

    def _seconds(self, at: object) -> float:
        return (at - self._started).total_seconds()  # type: ignore[operator, no-any-return]  # an aware datetime

"""Two services that exchange, end, time out, roll back and crash: whatever the order, the promises hold (spec SB-41 to SB-57)."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from airflow_poison import ServiceBroker
from airflow_poison.dialogs.acts import Dialog
from airflow_poison.dialogs.services import Contract, Service
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.conversations import ConversationRow, conversations, declare_services
from airflow_poison.passes.dialogs import begin_dialogs, end_conversation, send_on
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import LEASE, ReceivePass
from airflow_poison.passes.recovery import recover
from airflow_poison.passes.relay import transmit
from airflow_poison.store.control import QueueState
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values import fault_points
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ConversationError, ConversationLockedError
from tests.given.examples import examples
from tests.unit.properties.exchange import DEEDS, Log, begin_anew, handle

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable

TALK = Contract("talk", {"word": "ANY"})
POLICY = ServiceBroker(rollback_limit=3)
SIDES = {"orders": "Orders", "warehouse": "Warehouse"}
QUEUES = st.sampled_from(sorted(SIDES))
OVER = {"CD"}


class DiedError(BaseException):
    """The process has ended."""


class _DiesAt:
    """Ends the process at the n-th point of a kind that it reaches."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.left = kind, number

    def __call__(self, point: str) -> None:
        self.left -= point.startswith(self.kind)
        if not self.left:
            raise DiedError(point)


class Exchange(RuleBasedStateMachine):
    """Services in queues of their own, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.store = VirtualClock(), MemoryStore()
        self.tables: dict[str, QueueTable] = {}
        self.dialogs: list[tuple[str, str]] = []  # the initiator's queue, and its handle
        self.keys = 0
        self.log = Log()

    @initialize()
    def begin(self) -> None:
        self.log = begin_anew()
        for queue, service in SIDES.items():
            self.tables[queue] = declare(self.store, queue, POLICY, self.clock)
            declare_services(self.store, self.tables[queue], [Service(service, [TALK])])

    def key(self) -> str:
        self.keys += 1
        return f"key-{self.keys}"

    @rule(queue=QUEUES, deeds=st.lists(st.sampled_from(DEEDS), min_size=1, max_size=3), lifetime=st.sampled_from([None, 1, 90]))
    def begins(self, queue: str, deeds: list[str], lifetime: int | None) -> None:
        numbers, bodies = zip(*(self.log.body(deed) for deed in deeds), strict=True)
        [far] = SIDES.keys() - {queue}
        dialog = Dialog(messages=[("word", body) for body in bodies], lifetime=None if lifetime is None else timedelta(minutes=lifetime))
        done = begin_dialogs(
            self.tables[queue],
            service=SIDES[queue],
            far_service=SIDES[far],
            contract="talk",
            dialogs=[dialog],
            key=self.key(),
            clock=self.clock,
        )
        self.dialogs.append((queue, done.conversations[0]))
        self.log.said.setdefault((SIDES[queue], done.conversations[0]), []).extend(numbers)

    @precondition(lambda self: self.dialogs)
    @rule(data=st.data(), deed=st.sampled_from(DEEDS))
    def sends(self, data: st.DataObject, deed: str) -> None:
        queue, handle_ = data.draw(st.sampled_from(self.dialogs))
        number, body = self.log.body(deed)
        try:
            send_on(self.tables[queue], handle_, [("word", body)], key=self.key(), clock=self.clock)
        except ConversationError:
            return
        self.log.said.setdefault((SIDES[queue], handle_), []).append(number)

    @precondition(lambda self: self.dialogs)
    @rule(data=st.data(), error=st.sampled_from([None, 9]))
    def ends(self, data: st.DataObject, error: int | None) -> None:
        queue, handle_ = data.draw(st.sampled_from(self.dialogs))
        try:
            end_conversation(self.tables[queue], handle_, error=error, key=self.key(), clock=self.clock)
        except ConversationError:
            return

    @rule(queue=QUEUES)
    def receives(self, queue: str) -> None:
        self.receive(queue)

    @rule(queue=QUEUES, kind=st.sampled_from(["delivery.dialogs.", "delivery.stage.", "pass.", "store."]), number=st.integers(1, 9))
    def crashes(self, queue: str, kind: str, number: int) -> None:
        """Not where a journal is being opened: the file would stay locked, since this process goes on."""
        fault_points.install(_DiesAt(kind, number))
        try:
            self.receive(queue)
        except DiedError:
            self.clock.advance(2 * LEASE)
        finally:
            fault_points.install(None)
            gc.collect()  # what a process that has died held open is closed

    @rule(queue=QUEUES)
    def is_disabled(self, queue: str) -> None:
        disable(self.tables[queue], self.clock)

    @rule(queue=QUEUES)
    def is_enabled(self, queue: str) -> None:
        enable(self.tables[queue], self.clock)

    @rule(minutes=st.sampled_from([1, 60]))
    def time_goes_by(self, minutes: int) -> None:
        self.clock.advance(timedelta(minutes=minutes))

    def receive(self, queue: str) -> None:
        table = self.tables[queue]
        if table.snapshot().control.state is not QueueState.ENABLED:
            return
        receiving = ReceivePass(table=table, policy=POLICY, handler=handle, engine=LocalEngine, clock=self.clock, isolation="none", store=self.store)
        receiving.run(self.key())

    # Afterwards ----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.tables:
            self.clock.advance(timedelta(days=1))
            self.settle()
            self.check_messages()
            self.check_ends()

    def settle(self) -> None:
        """Go on until nothing waits, and nothing has come for a while; whoever halts a queue is ended."""
        idle = 0
        for _ in range(200):
            for queue, table in self.tables.items():
                control = table.snapshot().control
                if control.halted_by is not None:
                    try:
                        recover(table, self.clock, store=self.store)
                    except ConversationLockedError:
                        self.clock.advance(2 * LEASE)
                elif control.state is not QueueState.ENABLED:
                    enable(table, self.clock)
                self.receive(queue)
                transmit(self.store, table, self.clock)
            idle = idle + 1 if self.is_idle() else 0
            if idle > len(SIDES):
                return
        pytest.fail(f"it does not end: {[(name, table.snapshot()) for name, table in self.tables.items()]}")

    def is_idle(self) -> bool:
        snapshots = [table.snapshot() for table in self.tables.values()]
        return not any(snapshot.files or snapshot.claims or snapshot.transmissions or snapshot.outbox for snapshot in snapshots)

    def check_messages(self) -> None:
        """Nothing lost but for an end, in order, no ghosts."""
        seen = {number for numbers in self.log.heard.values() for number in numbers}
        assert not seen & self.log.ghosts
        for (service, conversation), numbers in self.log.said.items():
            [partner] = set(SIDES.values()) - {service}
            heard = self.log.heard.get((partner, conversation), [])
            assert heard == [number for number in numbers if number in set(heard)], "in the order in which they were sent"
            if set(heard) < set(numbers):
                assert self.has_ended(conversation), f"{service} said {numbers}, {partner} heard {heard}, and nobody has ended {conversation}"

    def has_ended(self, conversation: str) -> bool:
        return any(row.state in OVER for row in self.rows() if row.conversation_id == conversation)

    def check_ends(self) -> None:
        """Both sides agree: they converse, or both have ended; a side that cleaned up has told nobody."""
        for _, conversation in self.dialogs:
            states = sorted(row.state for row in self.rows() if row.conversation_id == conversation)
            assert states in (["CO", "CO"], ["CD", "CD"], ["CD"], ["CD", "CO"], ["CD", "DO"]), states
            if states in (["CD", "CO"], ["CD", "DO"]):
                assert any(row.cleaned for row in self.rows() if row.conversation_id == conversation)

    def rows(self) -> list[ConversationRow]:
        return [row for table in self.tables.values() for row in conversations(table, ended=True)]


Exchange.TestCase.settings = settings(
    max_examples=examples(25), stateful_step_count=25, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
"""The same examples each time: a death in this process cannot be replayed as exactly as Hypothesis wants it when it shrinks."""
test_exchanges = Exchange.TestCase

"""What people decide about a halted queue is done in the safe order, once, about what they were shown, and loses no message (spec SB-24 to SB-34)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from airflow_poison.fsck.check import check as check_table
from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.decide import Decision, decide, suspect
from airflow_poison.passes.halts import HaltedEndpoint, halted_endpoint
from airflow_poison.passes.move import remove_messages
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values import fault_points
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import DecisionOutdatedError, MessageClaimedError, MessageNotFoundError, QueueNotFoundError, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.given.passes import LEASE, NO_RETRY, DiedError, a_queue, rows_of
from tests.unit.passes.test_inspect import sent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.passes.alerts import Alert
    from airflow_poison.passes.decide import DecideResult
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

FAULT = Msmq4(receive_retry_count=1, max_retry_cycles=1)
KINDS = [
    pytest.param(ServiceBroker(), QueueState.DISABLED, id="SB-24 disabled"),
    pytest.param(ActivationSpecification(max_server_sessions=1), QueueState.STOPPED, id="WMQ-3 stopped"),
    pytest.param(ListenerPort(), QueueState.STOPPED, id="LP-2 stopped"),
    pytest.param(Msmq4(receive_retry_count=1, max_retry_cycles=0), QueueState.FAULTED, id="WCF-21 faulted"),
    pytest.param(Msmq3(receive_retry_count=1, receive_error_handling="Fault"), QueueState.FAULTED, id="M3-6 faulted"),
]


@pytest.fixture(autouse=True)
def nothing_is_lost(store: QueueStore) -> Iterator[None]:
    yield
    if isinstance(store, DeltaStore):
        for name in store.names():
            findings = check_table(store.open(name), SystemClock(), safe_age=LEASE).findings
            assert [finding for finding in findings if finding.severity != "note"] == []


def halted(store: QueueStore, folder: Path, policy: Policy, state: QueueState | None = None) -> Queue:
    """A queue that message 1 has halted; message 2 is behind it."""
    queue = a_queue(store, folder, policy).sent("bad", "good")
    queue.receive()
    assert state is None or queue.table.snapshot().control.state is state
    return queue


def shown(queue: Queue, which: str = "any") -> HaltedEndpoint:
    halt = halted_endpoint(queue.table, which)
    assert halt is not None
    return HaltedEndpoint.from_dict(halt.to_dict())


def decided(queue: Queue, decision: str, halt: HaltedEndpoint | None = None, *, run: str = "decision", to_queue: str | None = None) -> DecideResult:
    return decide(queue.table, queue.store, queue.clock, decision, halt or shown(queue), run=run, to_queue=to_queue)


def places(queue: Queue) -> dict[int, str]:
    return {number: str(row["sub_queue"]) for number, row in sorted(queue.rows().items())}


@dataclass
class DiesAt:
    """Dies at the n-th point that is reached, whichever it is."""

    left: int

    def __call__(self, point: str) -> None:
        if not self.left:
            fault_points.install(None)
            raise DiedError
        self.left -= 1


# Each kind of halt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "state"), KINDS)
def test_sb_15_a_removed_suspect_is_kept_in_poison_and_the_queue_goes_on_behind_it(
    store: QueueStore, tmp_path: Path, policy: Policy, state: QueueState
) -> None:
    queue = halted(store, tmp_path, policy, state)

    result = decided(queue, "remove")

    assert (result.messages, result.to, result.repeated) == (1, "orders;poison", False)
    assert places(queue) == {1: "poison", 2: "main"}
    assert queue.table.snapshot().control.state is QueueState.ENABLED
    assert queue.receive("next").settled == 1


@pytest.mark.parametrize(("policy", "state"), KINDS)
def test_a_returned_suspect_has_fresh_attempts(store: QueueStore, tmp_path: Path, policy: Policy, state: QueueState) -> None:
    queue = halted(store, tmp_path, policy, state)
    moves = queue.counts(1)[1]

    result = decided(queue, "return")

    assert (result.messages, result.to) == (1, "orders")
    assert places(queue) == {1: "main", 2: "main"}
    assert (queue.rows()[1]["abort_count"] or 0, queue.counts(1)[1]) == (0, moves + 1)  # type: ignore[operator]
    assert queue.receive("next").deliveries


@pytest.mark.parametrize(("policy", "state"), KINDS)
def test_sb_24_enabling_alone_leaves_the_suspect_with_its_counts(store: QueueStore, tmp_path: Path, policy: Policy, state: QueueState) -> None:
    queue = halted(store, tmp_path, policy, state)
    counts = queue.counts(1)

    result = decided(queue, "enable")

    assert (result.messages, result.to) == (0, "")
    assert (queue.counts(1), queue.table.snapshot().control.state) == (counts, QueueState.ENABLED)
    assert queue.table.snapshot().control.halted_by is None


@pytest.mark.parametrize(("policy", "state"), KINDS)
def test_leaving_changes_nothing(store: QueueStore, tmp_path: Path, policy: Policy, state: QueueState) -> None:
    queue = halted(store, tmp_path, policy, state)
    version = queue.table.snapshot().version

    decided(queue, "leave")

    assert queue.table.snapshot().version == version


def test_wcf_21_a_faulted_message_that_is_returned_is_delivered_as_often_as_a_new_one(store: QueueStore, tmp_path: Path) -> None:
    queue = halted(store, tmp_path, Msmq4(receive_retry_count=1, max_retry_cycles=0))
    assert queue.counts(1) == (3, 0)

    decided(queue, "return")

    assert queue.receive("next").deliveries == 2  # receive_retry_count + 1
    decided(queue, "enable", run="another decision")
    assert queue.receive("last").deliveries == 0  # its attempts are used up


def test_the_events_say_what_people_did_and_alert_nobody(store: QueueStore, tmp_path: Path) -> None:
    queue = halted(store, tmp_path, ServiceBroker())
    told: list[Alert] = []
    send_alerts(queue.table, "people", {"notes": told.append}, queue.clock)

    decided(queue, "remove")

    [removed, started] = list(queue.table.events())[-2:]
    assert (removed.type, removed.lookup_id, removed.details) == (EventType.MOVED_POISON, 1, {"place": "poison", "by": "hand", "run": "decision"})
    assert (started.type, started.details) == (EventType.QUEUE_ENABLED, {"run": "decision"})
    send_alerts(queue.table, "people", {"notes": told.append}, queue.clock)
    assert [alert.event for alert in told] == ["QUEUE_DISABLED"]


# Where it is kept ------------------------------------------------------------------------------------------------------


def test_a_removed_suspect_is_kept_in_the_queue_that_is_named(store: QueueStore, tmp_path: Path) -> None:
    queue = halted(store, tmp_path, ServiceBroker())
    museum = declare(store, "museum", NO_RETRY, queue.clock)

    result = decided(queue, "remove", to_queue="museum")

    assert (result.to, result.messages, places(queue)) == ("museum", 1, {2: "main"})
    [kept] = rows_of(museum).values()
    assert (kept["body"], dict(kept["properties"])["poison.origin_lookup_id"]) == (b"bad", "1")  # type: ignore[call-overload]


@pytest.mark.parametrize(("name", "error"), [("nowhere", QueueNotFoundError), ("orders", SettingError)])
def test_a_wrong_name_of_that_queue_is_refused(store: QueueStore, tmp_path: Path, name: str, error: type[Exception]) -> None:
    queue = halted(store, tmp_path, ServiceBroker())
    with pytest.raises(error):
        decided(queue, "remove", to_queue=name)
    assert (places(queue), shown(queue).lookup_id) == ({1: "main", 2: "main"}, 1)


def test_sb_30_the_conversation_goes_with_the_suspect_also_what_waits_for_the_queue(store: QueueStore, tmp_path: Path) -> None:
    queue = sent(a_queue(store, tmp_path, ServiceBroker()), ("d1", b"bad"), ("d2", b"good"), ("d1", b"good"))
    queue.receive()
    sent(queue, ("d1", b"later"), ("d2", b"later"))
    halt = shown(queue)
    message, others = suspect(queue.table, queue.clock, halt)
    assert (message and message.lookup_id, others) == (1, 2)

    result = decided(queue, "remove", halt)

    assert result.messages == 3
    assert places(queue) == {1: "poison", 2: "main", 3: "poison", 4: "poison", 5: "main"}


def test_a_suspect_that_somebody_has_taken_out_already_is_out_of_the_way(store: QueueStore, tmp_path: Path) -> None:
    queue = halted(store, tmp_path, ServiceBroker())
    remove_messages(queue.table, queue.clock, [1])
    assert suspect(queue.table, queue.clock, shown(queue)) == (None, 0)

    with pytest.raises(MessageNotFoundError):
        decided(queue, "return")
    assert decided(queue, "remove").messages == 0
    assert queue.table.snapshot().control.state is QueueState.ENABLED


# The reader of the poison sub-queue ------------------------------------------------------------------------------------


@pytest.fixture
def reader(store: QueueStore, tmp_path: Path) -> Queue:
    """Both endpoints are halted: the reader by message 1, which is in poison, the application queue by message 2."""
    queue = a_queue(store, tmp_path, FAULT).sent("bad", "bad")
    queue.receive("to poison", policy=NO_RETRY, max_messages=1)
    queue.receive("reader", policy=PoisonSubQueue(receive_retry_count=0))
    queue.receive("application", policy=Msmq4(receive_retry_count=0, max_retry_cycles=0))
    assert places(queue) == {1: "poison", 2: "main"}
    return queue


def test_each_endpoint_has_its_own_suspect_and_is_enabled_alone(reader: Queue) -> None:
    assert (shown(reader).lookup_id, shown(reader, "poison").lookup_id, shown(reader, "main").name) == (2, 1, "orders")

    decided(reader, "enable", shown(reader, "poison"))

    control = reader.table.snapshot().control
    assert (control.state, control.poison_state, control.halted_by) == (QueueState.FAULTED, QueueState.ENABLED, 2)
    assert halted_endpoint(reader.table, "poison") is None


def test_the_suspect_of_the_reader_is_kept_in_the_dead_letter_queue(reader: Queue) -> None:
    result = decided(reader, "remove", shown(reader, "poison"))

    assert (result.to, places(reader)) == ("orders.dead-letter", {2: "main"})
    assert [row["body"] for row in rows_of(reader.store.open("orders.dead-letter")).values()] == [b"bad"]


def test_the_suspect_of_the_reader_is_returned_to_main(reader: Queue) -> None:
    decided(reader, "return", shown(reader, "poison"))

    assert places(reader) == {1: "main", 2: "main"}
    assert [event.details["origin"] for event in reader.table.events(types={EventType.RETURNED})] == ["poison"]


# What was decided about must still be so -------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["remove", "return", "enable"])
def test_another_suspect_is_not_touched(store: QueueStore, tmp_path: Path, decision: str) -> None:
    queue = halted(store, tmp_path, ServiceBroker())
    queue.sent("bad")
    halt = shown(queue)
    decided(queue, "remove", run="somebody else's")
    queue.receive("next")
    assert shown(queue).lookup_id == 3
    before = places(queue)

    with pytest.raises(DecisionOutdatedError, match=r"was disabled by message 1 when people were asked, and is disabled \(message 3"):
        decided(queue, decision, halt)
    assert (places(queue), shown(queue).lookup_id) == (before, 3)


@pytest.mark.parametrize("decision", ["remove", "return", "enable"])
def test_a_queue_that_receives_again_is_not_touched(store: QueueStore, tmp_path: Path, decision: str) -> None:
    queue = halted(store, tmp_path, ServiceBroker())
    halt = shown(queue)
    enable(queue.table, queue.clock)

    with pytest.raises(DecisionOutdatedError, match="is enabled now"):
        decided(queue, decision, halt)
    assert places(queue) == {1: "main", 2: "main"}


def test_a_queue_that_somebody_has_switched_off_meanwhile_stays_off(store: QueueStore, tmp_path: Path) -> None:
    queue = halted(store, tmp_path, Msmq4(receive_retry_count=0, max_retry_cycles=0))
    halt = shown(queue)
    disable(queue.table, queue.clock, "the shop is closed")

    with pytest.raises(DecisionOutdatedError, match="the shop is closed"):
        decided(queue, "enable", halt)
    assert queue.table.snapshot().control.state is QueueState.DISABLED


def test_between_a_look_and_the_commit_another_suspect_is_not_touched(store: QueueStore, tmp_path: Path, at_point: AtPoint) -> None:
    queue = halted(store, tmp_path, ServiceBroker())
    at_point.do("store.replace.after_files", lambda: enable(queue.table, queue.clock))

    with pytest.raises(DecisionOutdatedError):
        decided(queue, "remove")
    assert places(queue) == {1: "main", 2: "main"}


def test_a_queue_that_no_message_halted_can_only_be_enabled_or_left(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path, ServiceBroker()).sent("good")
    disable(queue.table, queue.clock, "the shop is closed")
    halt = shown(queue)
    assert (halt.lookup_id, suspect(queue.table, queue.clock, halt)) == (None, (None, 0))

    for decision in ("remove", "return"):
        with pytest.raises(SettingError, match="no single message halted"):
            decided(queue, decision, halt)
    decided(queue, "enable", halt)
    assert halted_endpoint(queue.table) is None


def test_while_a_pass_has_the_suspect_nothing_changes(reader: Queue) -> None:
    halt = shown(reader, "poison")
    enable(reader.table, reader.clock)
    claim = reader.table.claim("pass", lease=LEASE, now=reader.clock.now(), max_messages=1, sub_queue=SubQueue.POISON)
    reader.table.alter(lambda control: control.halted(SubQueue.POISON, halt.state, halt.reason, halt.lookup_id))
    with pytest.raises(MessageClaimedError):
        decided(reader, "remove", halt)
    assert halted_endpoint(reader.table, "poison") is not None
    assert claim is not None
    reader.table.release(claim)


# Killed and tried again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["end_then_enable", "enable_then_end"])
@pytest.mark.parametrize("decision", ["remove", "return", "enable"])
def test_sb_34_both_orders_end_in_the_same_state(store: QueueStore, tmp_path: Path, decision: str, order: str, at_point: AtPoint) -> None:
    queue = halted(store, tmp_path, ServiceBroker(recovery_order=order))
    states: list[QueueState] = []
    at_point.do("store.replace.after_files", lambda: states.append(queue.table.snapshot().control.state))

    decided(queue, decision)

    assert places(queue) == {1: "poison" if decision == "remove" else "main", 2: "main"}
    assert queue.table.snapshot().control.state is QueueState.ENABLED
    assert states == ([] if decision == "enable" else [QueueState.DISABLED if order == "end_then_enable" else QueueState.ENABLED])


@pytest.mark.parametrize("order", ["end_then_enable", "enable_then_end"])
@pytest.mark.parametrize("to_queue", ["", "museum"])
@pytest.mark.parametrize("decision", ["remove", "return", "enable"])
def test_killed_anywhere_and_run_again_it_has_done_everything_once(
    store: QueueStore, tmp_path: Path, decision: str, order: str, to_queue: str
) -> None:
    queue = halted(store, tmp_path, ServiceBroker(recovery_order=order))
    museum = declare(store, "museum", NO_RETRY, queue.clock)
    halt = shown(queue)
    more = {"to_queue": to_queue} if to_queue else {}
    killed = 0
    while killed < 40:
        fault_points.install(DiesAt(killed))
        try:
            decided(queue, decision, halt, **more)
        except DiedError:
            killed += 1
            continue
        break
    fault_points.install(None)

    assert killed >= 2
    kept = {} if to_queue and decision == "remove" else {1: "poison" if decision == "remove" else "main"}
    assert places(queue) == kept | {2: "main"}
    assert len(rows_of(museum)) == (1 if to_queue and decision == "remove" else 0)
    assert queue.table.snapshot().control.state is QueueState.ENABLED
    counted = [event.type for event in queue.table.events() if event.details.get("run") == "decision"]
    assert len(counted) == len(set(counted)) == (1 if decision == "enable" else 2)
    if decision == "return":
        assert queue.counts(1)[1] == 1


def test_a_decision_that_was_done_is_not_done_again_to_the_same_message(store: QueueStore, tmp_path: Path) -> None:
    """Enabled, and halted by the same message in the same words before the killed task runs again."""
    queue = halted(store, tmp_path, ServiceBroker())
    halt = shown(queue)
    decided(queue, "enable", halt)
    queue.receive("next")
    assert halt.holds(queue.table.snapshot().control)

    again = decided(queue, "enable", halt)

    assert again.repeated
    assert queue.table.snapshot().control.state is QueueState.DISABLED


def test_every_decision_has_a_test() -> None:
    assert {decision.value for decision in Decision} == {"end", "remove", "return", "enable", "leave"}  # end: with the recovery of conversations

"""Dialogs over whole passes: both sides receive, reply and end, in both stores; the order of a dialog's messages is that of Service Broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison import ServiceBroker
from airflow_poison.delivery import settlement
from airflow_poison.dialogs.acts import Dialog
from airflow_poison.dialogs.as_rows import messages_to_table
from airflow_poison.dialogs.services import Contract, Service
from airflow_poison.dialogs.system_messages import END_DIALOG, ErrorDocument
from airflow_poison.passes.alerts import Alert, send_alerts
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.conversations import conversations, declare_services, drop_service
from airflow_poison.passes.dialogs import begin_dialogs, end_conversation, send_on, set_timer
from airflow_poison.passes.due import ended_times
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.maintain import REMEMBER, maintain
from airflow_poison.passes.move import move, put_back
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.recovery import recover
from airflow_poison.passes.relay import tick, transmit
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ConservationError, ConversationSendError
from airflow_poison.values.failures import Postpone, Unprocessable

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

PARTS = Contract("parts", {"order": "INITIATOR", "shipped": "TARGET", "question": "ANY"})


class Sides:
    """Two services with a queue each, and what their handlers saw."""

    def __init__(self, store: QueueStore) -> None:
        self.store, self.clock = store, VirtualClock()
        self.policy: Policy = ServiceBroker()
        self.orders, self.warehouse = (declare(store, name, self.policy, self.clock) for name in ("orders", "warehouse"))
        declare_services(store, self.orders, [Service("Orders", [PARTS])])
        declare_services(store, self.warehouse, [Service("Warehouse", [PARTS])])
        self.seen: list[tuple[str, str]] = []
        self._runs = 0

    def begin(self, *bodies: bytes, **given: object) -> str:
        dialog = Dialog(messages=[("order", body) for body in bodies], **given)  # type: ignore[arg-type]
        self._runs += 1
        key = f"begin-{self._runs}"
        begun = begin_dialogs(self.orders, service="Orders", far_service="Warehouse", contract="parts", dialogs=[dialog], key=key, clock=self.clock)
        transmit(self.store, self.orders, self.clock)
        return begun.conversations[0]

    def receive(self, table: QueueTable, handler: Callable[[Message], object]) -> ReceiveResult:
        def noting(message: Message) -> None:
            self.seen.append((message.message_type.rsplit("/", 1)[-1] if message.message_type else "", message.text))
            handler(message)

        self._runs += 1
        receiving = ReceivePass(
            table=table, policy=self.policy, handler=_lent(noting), engine=LocalEngine, clock=self.clock, isolation="none", store=self.store
        )
        return receiving.run(f"run-{self._runs}")

    def states(self, table: QueueTable) -> list[str]:
        return [row.state for row in conversations(table, ended=True)]


def _lent(handler: Callable[[Message], object]) -> str:
    """Name a handler, so that it is called itself, not a copy."""
    _LENT["handler"] = handler
    return f"{__name__}:lent"


_LENT: dict[str, Callable[[Message], object]] = {}


def lent(message: Message) -> None:
    _LENT["handler"](message)


def ship(message: Message) -> None:
    """What the warehouse does: ship, and end; a message that asks for it fails."""
    assert message.conversation is not None
    if message.is_system:
        message.conversation.end()
        return
    if message.body == b"broken":
        message.conversation.reply("never", "shipped")
        raise ValueError("broken")
    message.conversation.reply(message.body, "shipped")
    if message.body == b"last":
        message.conversation.end()


def close(message: Message) -> None:
    """What the orders' side does: end when the partner has."""
    assert message.conversation is not None
    if message.is_end_dialog or message.is_error:
        message.conversation.end()


@pytest.fixture
def sides(store: QueueStore) -> Sides:
    return Sides(store)


def test_a_dialog_from_its_begin_to_its_end(sides: Sides) -> None:
    sides.begin(b"bolt", b"last", b"late")

    received = sides.receive(sides.warehouse, ship)

    assert (received.received, received.settled, received.dropped, received.discarded, received.sent) == (3, 2, 1, 1, 3)
    assert sides.seen == [("order", "bolt"), ("order", "last")], "SB-30: what waits when the conversation ends is gone"
    answered = sides.receive(sides.orders, close)
    assert (answered.received, answered.settled, answered.sent) == (3, 3, 0)
    assert sides.seen[2:] == [("shipped", "bolt"), ("shipped", "last"), ("EndDialog", "")]
    assert sides.states(sides.orders) == ["CD"]
    assert sides.receive(sides.warehouse, ship).settled == 0
    for table in (sides.orders, sides.warehouse):
        alerted: list[Alert] = []
        send_alerts(table, "people", {"notes": alerted.append}, sides.clock)
        assert alerted == [], "how every dialog ends is no news"


def test_sb_23_sb_42_a_queue_that_nothing_receives_from_keeps_what_arrives_and_its_side_of_each_dialog(sides: Sides) -> None:
    handle = sides.begin(b"bolt", b"last")
    sides.receive(sides.warehouse, ship)
    sides.clock.advance(timedelta(days=40))
    maintain(sides.orders, sides.clock)
    [row] = conversations(sides.orders)
    assert (row.state, row.waiting) == ("DI", {"shipped": 2, END_DIALOG: 1})
    assert sides.states(sides.warehouse) == ["DO"], "it waits until the partner has ended, too"
    with pytest.raises(ConversationSendError, match="8429"):
        send_on(sides.orders, handle, [("question", b"?")], key="q", clock=sides.clock)
    sides.receive(sides.orders, close)
    assert sides.seen[2:] == [("shipped", "bolt"), ("shipped", "last"), ("EndDialog", "")]
    assert (sides.states(sides.orders), sides.states(sides.warehouse)) == (["CD"], ["CD"])


def test_nothing_of_a_failed_delivery_leaves(sides: Sides) -> None:
    sides.begin(b"broken")
    received = sides.receive(sides.warehouse, ship)
    assert received.settled == received.sent == 0
    assert sides.receive(sides.orders, close).received == 0


def test_sb_38_43_an_error_is_received_before_older_messages(sides: Sides) -> None:
    handle = sides.begin(b"one", b"two")
    end_conversation(sides.orders, handle, error=9, description="no", key="end", clock=sides.clock)
    transmit(sides.store, sides.orders, sides.clock)

    def keep(message: Message) -> None:
        assert message.conversation is not None
        if message.error is not None:
            assert message.error == ErrorDocument(9, "no")
            assert message.conversation.state.value == "ER"

    sides.receive(sides.warehouse, keep)

    assert [kind for kind, _ in sides.seen] == ["Error", "order", "order"], "SB-43: still receivable, also after the Error message"


def test_sb_e6_timer_first_then_error_then_the_rest(sides: Sides) -> None:
    handle = sides.begin(b"begin")
    sides.receive(sides.warehouse, lambda message: message.conversation.set_timer(60))  # type: ignore[union-attr]
    sides.seen.clear()
    other = sides.begin(b"z")  # an older message of another group
    send_on(sides.orders, handle, [("order", b"a"), ("order", b"b")], key="ab", clock=sides.clock)
    transmit(sides.store, sides.orders, sides.clock)
    end_conversation(sides.orders, handle, error=9, key="end", clock=sides.clock)
    transmit(sides.store, sides.orders, sides.clock)
    sides.clock.advance(timedelta(minutes=2))

    sides.receive(sides.warehouse, lambda _message: None)

    assert [kind if kind != "order" else text for kind, text in sides.seen] == ["z", "DialogTimer", "Error", "a", "b"]
    assert other != handle


def test_sb_e10_failures_that_are_tracked_are_deliveries_and_no_rollbacks(sides: Sides) -> None:
    def fail(message: Message) -> None:
        assert message.conversation is not None
        message.conversation.roll_back_to_savepoint()
        message.conversation.track_failure()

    sides.begin(b"bolt")
    received = sides.receive(sides.warehouse, fail)

    assert (received.deliveries, received.rollbacks, received.discarded, received.sent, received.counters) == (4, 0, 1, 1, {})
    sides.receive(sides.orders, lambda message: message.conversation.end())  # type: ignore[union-attr]
    assert [kind for kind, _ in sides.seen] == ["order"] * 4 + ["Error"]


def test_rows_of_conversations_that_are_missing_are_noticed(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent is held against what the tasks say that they have sent, before anything is committed."""
    sides.begin(b"bolt")
    monkeypatch.setattr(settlement, "messages_to_table", lambda messages, now: messages_to_table(messages, now).slice(1))
    with pytest.raises(ConservationError, match="'_transmission': 0"):
        sides.receive(sides.warehouse, ship)
    assert sides.states(sides.warehouse) == ["SI"], "it has arrived, and nobody has received it"


def test_sb_37_error_end_dialog_and_its_own_timer_come_to_every_application_and_fail_it_where_it_does_not_handle_them(sides: Sides) -> None:
    sides.begin(b"refused", timer=timedelta(minutes=1))
    sides.begin(b"done")
    sides.clock.advance(timedelta(minutes=1))

    def answer(message: Message) -> None:
        assert message.conversation is not None
        message.conversation.end(error=7, description="no") if message.body == b"refused" else message.conversation.end()

    sides.receive(sides.warehouse, answer)
    kinds: list[tuple[str, bool, bool, bool]] = []

    def knows_them(message: Message) -> None:
        kinds.append(((message.message_type or "").rsplit("/", 1)[-1], message.is_timer, message.is_error, message.is_end_dialog))

    def knows_none(message: Message) -> None:
        raise ValueError(message.json())

    halted = sides.receive(sides.orders, knows_none).halted
    assert halted is not None
    enable(sides.orders, sides.clock)
    sides.receive(sides.orders, knows_them)
    assert kinds == [("DialogTimer", True, False, False), ("Error", False, True, False), ("EndDialog", False, False, True)]
    assert [kind for kind, _ in sides.seen if kind == "DialogTimer"] == ["DialogTimer"] * 6, "only the orders' side has set one"


@pytest.mark.parametrize("why", ["partner", "lifetime"])
def test_sb_38_43_an_error_is_received_when_it_overtakes_the_first_message_of_its_dialog_into_another_batch(sides: Sides, why: str) -> None:
    a_batch_but_one = 4_096 - 1
    bodies = pa.RecordBatch.from_pydict({"body": pa.array([b"plain"] * a_batch_but_one, pa.binary())})
    send(sides.warehouse, [bodies], key="plain", clock=sides.clock)
    handle = sides.begin(b"one", lifetime=timedelta(minutes=1) if why == "lifetime" else None)
    if why == "lifetime":
        sides.clock.advance(timedelta(minutes=1))
    else:
        end_conversation(sides.orders, handle, error=9, key="end", clock=sides.clock)
        transmit(sides.store, sides.orders, sides.clock)

    sides.receive(sides.warehouse, lambda _message: None)

    assert [kind for kind, _ in sides.seen[a_batch_but_one:]] == ["Error", "order"]
    assert sides.states(sides.warehouse) == ["ER"]


def test_sb_47_a_pass_holds_all_groups_whatever_rules_the_queue_was_given_since(sides: Sides) -> None:
    """Two passes at once would number their replies alike, and the partner would take one of two for a repetition."""
    handle = sides.begin(b"one")
    send_on(sides.orders, handle, [("order", b"two")], key="two", clock=sides.clock)
    transmit(sides.store, sides.orders, sides.clock)
    sides.policy = Msmq4(receive_error_handling="Drop")
    assert not sides.policy.halting
    rules = sides.policy.to_dict()  # as an earlier release let a run declare them: today that is refused
    sides.warehouse.alter(lambda control: replace(control, policy=rules))
    assert sides.warehouse.claim("other", lease=timedelta(minutes=2), now=sides.clock.now(), max_messages=1) is not None

    assert sides.receive(sides.warehouse, ship).received == 0
    assert sides.seen == []


def test_sb_57_what_waits_for_a_dropped_service_is_no_plain_message_also_when_it_was_the_queues_only_one(sides: Sides) -> None:
    sides.begin(b"bolt")
    drop_service(sides.warehouse, "Warehouse")

    assert sides.receive(sides.warehouse, ship).discarded == 1
    assert sides.seen == []
    told: list[int | None] = []
    sides.receive(sides.orders, lambda message: told.append(message.error.code if message.error else None))
    assert told == [-8470]


def test_sb_57_each_dialog_of_a_commit_hears_of_its_missing_partner_also_when_another_one_was_missed_before(sides: Sides) -> None:
    """A disabled partner has a commit carried in parts; what comes of its later parts goes to queues that have earlier ones."""
    garage = declare(sides.store, "garage", sides.policy, sides.clock)
    declare_services(sides.store, garage, [Service("Garage", [PARTS])])
    dialog = Dialog(messages=[("order", b"wheel")])
    begin_dialogs(garage, service="Garage", far_service="Warehouse", contract="parts", dialogs=[dialog], key="garage", clock=sides.clock)
    transmit(sides.store, garage, sides.clock)
    sides.begin(b"bolt")
    drop_service(sides.orders, "Orders")
    disable(garage, sides.clock)
    assert sides.receive(sides.warehouse, ship).sent == 2
    assert sorted(sides.states(sides.warehouse)) == ["CO", "ER"]

    drop_service(garage, "Garage")
    transmit(sides.store, sides.warehouse, sides.clock)

    assert sides.states(sides.warehouse) == ["ER", "ER"]
    assert sides.warehouse.snapshot().transmissions == ()


def test_maintenance_forgets_what_a_pass_has_ended_long_ago_and_nothing_before(sides: Sides) -> None:
    sides.begin(b"last")
    sides.begin(b"bolt")
    sides.receive(sides.warehouse, ship)
    sides.receive(sides.orders, close)
    sides.receive(sides.warehouse, ship)
    tables = (sides.orders, sides.warehouse)
    still = [row.handle for table in tables for row in conversations(table)]
    for since, states in ((REMEMBER, ["CD", "CO"]), (timedelta(seconds=1), ["CO"])):
        sides.clock.advance(since)
        for table, handle in zip(tables, still, strict=True):
            send_on(table, handle, [("question", b"?")], key=f"{since}", clock=sides.clock)  # files are joined, a single one is left alone
            maintain(table, sides.clock, min_files=2)
            assert sorted(sides.states(table)) == states


def test_a_timer_that_was_postponed_is_not_made_again_beside_another_one(sides: Sides) -> None:
    for body in (b"a", b"b"):
        sides.begin(body)
    minutes = iter([1, 10])
    sides.receive(sides.warehouse, lambda message: message.conversation.set_timer(timedelta(minutes=next(minutes))))  # type: ignore[union-attr]
    sides.clock.advance(timedelta(minutes=1))

    def later(_message: Message) -> None:
        raise Postpone(timedelta(hours=1))

    sides.receive(sides.warehouse, later)
    assert ended_times(sides.warehouse.snapshot(), sides.clock.now()) == [], "what watches the queue waits for the postponed message"
    fired = list[object]()
    for wait in (timedelta(minutes=9), timedelta(hours=1)):
        sides.clock.advance(wait)
        fired.append(sides.receive(sides.warehouse, lambda message: message.conversation.handle).settled)  # type: ignore[union-attr]
    assert fired == [1, 1]


@pytest.mark.parametrize("is_there", [False, True], ids=["nobody has looked", "its message is in the queue"])
def test_sb_22_sb_56_a_timer_that_had_expired_when_it_was_set_again_is_received(sides: Sides, is_there: bool) -> None:  # noqa: FBT001  (a case)
    """Timer of 10 s at 0, of 20 s at 15: receives at 20 and 35."""
    handle = sides.begin(b"one")
    set_timer(sides.orders, handle, timedelta(seconds=10), key="first", clock=sides.clock)
    sides.clock.advance(timedelta(seconds=15))
    if is_there:
        tick(sides.orders, sides.clock)
    set_timer(sides.orders, handle, timedelta(seconds=20), key="again", clock=sides.clock)
    assert ended_times(sides.orders.snapshot(), sides.clock.now()), "what watches the queue starts a pass"

    settled = []
    for wait in (5, 14, 1, 60):
        sides.clock.advance(timedelta(seconds=wait))
        settled.append(sides.receive(sides.orders, close).settled)

    assert settled == [1, 0, 1, 0]
    assert [kind for kind, _ in sides.seen] == ["DialogTimer", "DialogTimer"]


def test_sb_22_sb_56_a_handler_that_sets_an_expired_timer_again_gets_both_messages(sides: Sides) -> None:
    sides.begin(b"one", b"two")
    timers = iter([(0, 10), (15, 20)])

    def set_it(message: Message) -> None:
        assert message.conversation is not None
        if not message.is_timer:
            wait, seconds = next(timers)
            sides.clock.advance(timedelta(seconds=wait))  # within one pass: nobody has put the first timer's message into the queue
            message.conversation.set_timer(seconds)

    settled = [sides.receive(sides.warehouse, set_it).settled]
    for wait in (5, 14, 1, 60):
        sides.clock.advance(timedelta(seconds=wait))
        settled.append(sides.receive(sides.warehouse, set_it).settled)

    assert settled == [2, 1, 0, 1, 0]


def test_a_dialog_goes_on_while_people_have_put_its_first_message_aside(sides: Sides) -> None:
    sides.begin(b"one", b"two")
    move(sides.warehouse, sides.clock, [1], "poison")
    sides.receive(sides.warehouse, ship)
    put_back(sides.warehouse, sides.clock)
    sides.receive(sides.warehouse, ship)
    sides.receive(sides.orders, close)
    assert sides.seen == [("order", "two"), ("order", "one"), ("shipped", "two"), ("shipped", "one")]


def test_a_dialog_is_where_its_service_is_and_not_in_the_queue_that_keeps_its_dead_letter(sides: Sides) -> None:
    sides.begin(b"bolt", lifetime=timedelta(minutes=1))

    def refuse(_message: Message) -> None:
        raise Unprocessable

    sides.receive(sides.warehouse, refuse)
    letters = sides.store.open("warehouse.dead-letter")
    sides.clock.advance(timedelta(hours=1))
    enable(letters, sides.clock)
    assert [file.rows for file in letters.snapshot().files] == [1], "no lifetime ends here"
    assert conversations(letters) == ()
    assert recover(letters, sides.clock, lookup_id=1, store=sides.store).ended is None
    assert sides.states(sides.warehouse) == ["SI"]
    assert [row.waiting for row in conversations(sides.orders)] == [{}]


def test_sb_57_who_has_ended_a_dialog_with_a_service_that_is_gone_waits_for_nobody(sides: Sides) -> None:
    handle = sides.begin(b"bolt")
    sides.receive(sides.warehouse, lambda _message: None)
    drop_service(sides.warehouse, "Warehouse")
    end_conversation(sides.orders, handle, key="end", clock=sides.clock)
    transmit(sides.store, sides.orders, sides.clock)
    assert sides.receive(sides.orders, close).discarded == 1
    assert sides.states(sides.orders) == ["CD"]

"""Acts on conversations outside a pass, and how their messages are carried (spec SB-18 to SB-22, SB-30, SB-53, SB-54), in both stores."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison import ServiceBroker
from airflow_poison.dialogs.acts import Dialog
from airflow_poison.dialogs.as_rows import MESSAGE_COLUMNS, table_to_messages
from airflow_poison.dialogs.services import Contract, Service
from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR, ErrorDocument
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.browse import overview_of
from airflow_poison.passes.conversations import conversations, declare_services, drop_service, found_queue
from airflow_poison.passes.dialogs import ActResult, begin_dialogs, end_conversation, send_on, set_timer
from airflow_poison.passes.move import move
from airflow_poison.passes.relay import MANY, pull, refresh, tick, transmit
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import (
    ConversationLockedError,
    ConversationNotFoundError,
    ConversationSendError,
    ConversationTimerError,
    InputError,
    ServiceNotFoundError,
    SettingError,
    TableChangedError,
)
from airflow_poison.values.mapping import ColumnMapping
from airflow_poison.values.schema import SubQueue
from airflow_poison.watching.conditions import MessagesAvailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

MINUTE = timedelta(minutes=1)
PARTS = Contract("parts", {"order": "INITIATOR", "shipped": "TARGET", "question": "ANY"})


@dataclass
class Two:
    """Two services, each with a queue of its own."""

    store: QueueStore
    orders: QueueTable
    warehouse: QueueTable
    clock: VirtualClock
    keys: int = 0

    def key(self) -> str:
        self.keys += 1
        return f"k{self.keys}"

    def begin(self, *bodies: bytes, **given: object) -> str:
        """Begin a dialog, and return its handle at the initiator."""
        dialog = Dialog(messages=[("order", body) for body in bodies or (b"bolt",)], **given)  # type: ignore[arg-type]
        return self.begun([dialog], self.key()).conversations[0]

    def begun(self, dialogs: list[Dialog], key: str, far_service: str = "Warehouse") -> ActResult:
        return begin_dialogs(self.orders, service="Orders", far_service=far_service, contract="parts", dialogs=dialogs, key=key, clock=self.clock)

    def send(self, handle: str, *bodies: bytes, key: str | None = None) -> ActResult:
        return send_on(self.orders, handle, [("order", body) for body in bodies], key=key or self.key(), clock=self.clock)

    def end(self, table: QueueTable, handle: str, **how: object) -> ActResult:
        return end_conversation(table, handle, key=self.key(), clock=self.clock, **how)  # type: ignore[arg-type]

    def recovered(self) -> None:
        for table in (self.orders, self.warehouse):
            transmit(self.store, table, self.clock)


@pytest.fixture
def two(store: QueueStore) -> Two:
    clock = VirtualClock()
    orders, warehouse = (declare(store, name, ServiceBroker(), clock) for name in ("orders", "warehouse"))
    declare_services(store, orders, [Service("Orders", [PARTS])])
    declare_services(store, warehouse, [Service("Warehouse", [PARTS])])
    return Two(store, orders, warehouse, clock)


def waiting(table: QueueTable, place: str = "main") -> list[tuple[str, bytes]]:
    """Return type and body of what waits, in order of arrival."""
    files = sorted((file for file in table.snapshot().files if file.sub_queue == place), key=lambda file: file.min_lookup_id)
    found = [message for file in files for message in table_to_messages(table.read(file, list(MESSAGE_COLUMNS)))]
    return [(message.message_type, message.body) for message in found if message is not None]


def errors(table: QueueTable) -> list[int]:
    return [ErrorDocument.from_xml(body).code for kind, body in waiting(table) if kind == ERROR]


def states(table: QueueTable) -> list[str]:
    return [row.state for row in conversations(table, ended=True)]


def test_a_dialog_goes_to_the_queue_of_its_service_in_order(two: Two) -> None:
    handle = two.begin(b"1", b"2")
    two.send(handle, b"3")
    assert waiting(two.warehouse) == []
    two.recovered()
    assert waiting(two.warehouse) == [("order", b"1"), ("order", b"2"), ("order", b"3")]
    assert two.orders.snapshot().transmissions == ()
    assert states(two.orders) == ["CO"]


@pytest.mark.parametrize(
    "pairs", [["order"], [b"1"], [("order",)], [("order", b"1", 5)], [5], [None], ("order", b"1"), [(5, b"1")], [{"a": 1, "b": 2}]]
)
def test_what_is_no_pair_of_a_type_and_a_body_is_refused_by_its_place(two: Two, pairs: Any) -> None:
    with pytest.raises(InputError, match=r"messages\[0\] is .*; expected \(message type, body\)"):
        two.begun([Dialog(messages=pairs)], "odd")
    assert states(two.orders) == []


@pytest.mark.parametrize(("body", "why"), [(None, "NoneType is no body"), ({"n": 1}, "dict is no body"), ("\ud800", "has a lone surrogate")])
def test_a_dialog_begins_with_bytes_or_text(two: Two, body: Any, why: str) -> None:
    with pytest.raises(InputError, match=rf"messages\[0\], a 'order': .*{why}"):
        two.begun([Dialog(messages=[("order", body)])], "odd")
    assert states(two.orders) == []


def test_what_is_done_again_under_its_key_is_done_once(two: Two) -> None:
    dialogs = [Dialog(messages=[("order", b"a")]), Dialog(messages=[("order", b"b")])]
    once, twice = two.begun(dialogs, "begin"), two.begun(dialogs, "begin")
    assert (once.conversations, once.repeated, twice.repeated) == (twice.conversations, False, True)
    assert [two.send(once.conversations[0], b"c", key="send").repeated for _ in range(2)] == [False, True]
    two.recovered()
    two.recovered()
    assert sorted(waiting(two.warehouse)) == [("order", b"a"), ("order", b"b"), ("order", b"c")]


def test_a_repetition_names_the_dialogs_that_were_begun_and_their_states_now(two: Two) -> None:
    """A task that is run again may be given other dialogs: what was never begun has no handle."""
    dialogs = [Dialog(messages=[("order", body)]) for body in (b"a", b"b", b"c")]
    first, _ = two.begun(dialogs[:2], "begin").conversations
    two.end(two.orders, first)
    more, less = two.begun(dialogs, "begin"), two.begun(dialogs[:1], "begin")
    assert (more.repeated, len(more.conversations), more.states) == (True, 2, ("DO", "CO"))
    assert (less.repeated, less.conversations, less.states) == (True, (first,), ("DO",))


def test_a_key_names_what_is_done_on_one_conversation(two: Two) -> None:
    """Whoever goes through several with one key ends, sends and sets timers on each of them."""
    handles = [two.begin(b"a"), two.begin(b"b")]
    done = [two.send(handle, b"c", key="same") for handle in handles]
    done += [set_timer(two.orders, handle, MINUTE, key="same", clock=two.clock) for handle in handles]
    done += [end_conversation(two.orders, handle, key="same", clock=two.clock) for handle in handles]
    assert [each.repeated for each in done] == [False] * 6
    assert [each.sent for each in done] == [1, 1, 0, 0, 1, 1]
    assert states(two.orders) == ["DO", "DO"]
    assert [end_conversation(two.orders, handle, key="same", clock=two.clock).repeated for handle in handles] == [True, True]


def test_sb_19_a_disabled_queue_leaves_messages_with_their_sender_and_gets_them_in_order(two: Two) -> None:
    handle = two.begin(b"1")
    two.recovered()
    disable(two.warehouse, two.clock)
    for body in (b"2", b"3"):
        two.send(handle, body)
        two.recovered()
    assert waiting(two.warehouse) == [("order", b"1")]
    assert waiting(two.warehouse, "transmission") == []
    assert len(two.orders.snapshot().transmissions) == 2
    enable(two.warehouse, two.clock)
    pull(two.store, two.warehouse, two.clock)
    assert [body for _, body in waiting(two.warehouse)] == [b"1", b"2", b"3"]
    assert two.orders.snapshot().transmissions == ()


def test_sb_19_another_queue_does_not_wait_for_a_disabled_one(two: Two) -> None:
    other = declare(two.store, "garage", ServiceBroker(), two.clock)
    declare_services(two.store, other, [Service("Garage", [PARTS])])
    disable(two.warehouse, two.clock)
    two.begin(b"held")
    two.begun([Dialog(messages=[("order", b"car")])], "garage", "Garage")
    two.recovered()
    assert waiting(other) == [("order", b"car")]
    assert waiting(two.warehouse) == []


def test_sb_20_sb_21_a_service_whose_own_queue_is_off_still_sends_and_ends(two: Two) -> None:
    handle = two.begin(b"1")
    disable(two.orders, two.clock)
    two.send(handle, b"2")
    two.end(two.orders, handle)
    two.recovered()
    assert [kind for kind, _ in waiting(two.warehouse)] == ["order", "order", END_DIALOG]


def test_sb_22_timers_and_lifetimes_keep_running_while_the_queue_is_off_and_enter_first_when_it_is_on(two: Two) -> None:
    handle = two.begin(b"1", lifetime=5 * MINUTE, timer=MINUTE)
    two.recovered()
    disable(two.orders, two.clock)
    assert [row.handle for row in conversations(two.orders)] == [handle]
    two.clock.advance(9 * MINUTE)
    tick(two.orders, two.clock)
    assert waiting(two.orders) == []
    enable(two.orders, two.clock)
    assert [kind for kind, _ in waiting(two.orders)] == [DIALOG_TIMER, ERROR]
    assert errors(two.orders) == [-8489]


def test_sb_20_sb_22_sb_43_a_service_whose_own_queue_is_off_sends_until_the_error_of_an_ended_lifetime_is_in_the_queue(two: Two) -> None:
    handle = two.begin(b"1", lifetime=MINUTE)
    two.recovered()
    disable(two.orders, two.clock)
    two.clock.advance(2 * MINUTE)
    two.send(handle, b"2")
    tick(two.orders, two.clock)
    two.send(handle, b"3")  # what the local broker holds back has not arrived
    two.recovered()
    assert [body for kind, body in waiting(two.warehouse) if kind == "order"] == [b"1", b"2", b"3"]
    enable(two.orders, two.clock)
    with pytest.raises(ConversationSendError, match=r"8429.*ER"):
        two.send(handle, b"4")
    assert errors(two.orders) == [-8489]


def test_sb_43_nothing_is_sent_after_a_lifetime_that_nobody_saw_end(two: Two) -> None:
    """The Error message is there from that instant on, whenever a pass puts it into the queue."""
    handle = two.begin(b"1", lifetime=MINUTE)
    two.recovered()
    two.clock.advance(MINUTE - timedelta(microseconds=1))
    two.send(handle, b"2")
    two.clock.advance(timedelta(microseconds=1))
    with pytest.raises(ConversationSendError, match=r"8429.*ER"):
        two.send(handle, b"3")
    with pytest.raises(ConversationTimerError, match=r"8458.*ER"):
        set_timer(two.orders, handle, MINUTE, key="late", clock=two.clock)
    two.recovered()
    assert [body for _, body in waiting(two.warehouse)] == [b"1", b"2"]
    tick(two.orders, two.clock)
    assert errors(two.orders) == [-8489]


def test_sb_56_a_due_timer_is_put_into_the_queue_once(two: Two) -> None:
    handle = two.begin()
    set_timer(two.orders, handle, MINUTE, key="t1", clock=two.clock)
    two.clock.advance(timedelta(seconds=30))
    set_timer(two.orders, handle, MINUTE, key="t2", clock=two.clock)
    two.clock.advance(timedelta(seconds=59))
    assert tick(two.orders, two.clock) == 0
    two.clock.advance(timedelta(seconds=1))
    assert [tick(two.orders, two.clock) for _ in range(3)] == [1, 0, 0]
    assert waiting(two.orders) == [(DIALOG_TIMER, b"")]
    assert waiting(two.warehouse) == []


def test_a_lifetime_that_ends_tells_a_target_that_has_not_received_anything_yet(two: Two) -> None:
    """Section 11.1: -8489 at both ends."""
    two.begin(b"1", lifetime=MINUTE)
    two.begin(b"2")
    two.recovered()
    two.clock.advance(MINUTE)
    assert [(tick(table, two.clock), tick(table, two.clock)) for table in (two.orders, two.warehouse)] == [(1, 0), (1, 0)]
    assert (errors(two.orders), errors(two.warehouse)) == ([-8489], [-8489])
    assert [row.state for row in conversations(two.warehouse) if row.lifetime] == ["ER"]


def test_sb_57_who_sends_to_a_service_that_does_not_exist_hears_8490_and_to_one_that_was_dropped_8470(two: Two) -> None:
    two.begun([Dialog(messages=[("order", b"1")])], "nobody", "Nobody")
    two.recovered()
    assert errors(two.orders) == [-8490]
    handle = two.begin(b"1")
    two.recovered()
    drop_service(two.warehouse, "Warehouse")
    two.send(handle, b"2")
    two.recovered()
    assert errors(two.orders) == [-8490, -8470]


def test_sb_57_a_first_reply_hears_8470_its_initiator_was_there(two: Two) -> None:
    two.begin(b"1")
    two.recovered()
    drop_service(two.orders, "Orders")
    [target] = conversations(two.warehouse)
    send_on(two.warehouse, target.handle, [("shipped", b"1")], key="reply", clock=two.clock)
    two.recovered()
    assert errors(two.warehouse) == [-8470]


def test_sb_30_ending_a_conversation_removes_its_messages_and_no_others(two: Two) -> None:
    """Also one of which no message has been received: a poison message is often the first of its dialog."""
    first, second = two.begin(b"a1", b"a2"), two.begin(b"b1")
    two.recovered()
    [target] = [row for row in conversations(two.warehouse) if row.conversation_id == first]
    assert (target.state, target.far_service, target.waiting) == ("SI", "Orders", {"order": 2})
    ended = two.end(two.warehouse, target.handle, error=127, description="Unable to process message.")
    assert (ended.removed, ended.sent, ended.states) == (2, 1, ("CD",))
    assert waiting(two.warehouse) == [("order", b"b1")]
    assert [event.details["by"] for event in two.warehouse.events()] == ["end conversation"] * 2
    two.recovered()
    assert errors(two.orders) == [127]
    assert [row.state for row in conversations(two.orders) if row.handle == first] == ["ER"]
    assert [row.state for row in conversations(two.orders) if row.handle == second] == ["CO"]


def test_sb_55_what_comes_later_for_an_ended_conversation_does_not_begin_it_anew(two: Two) -> None:
    handle = two.begin(b"a1")
    two.recovered()
    [target] = conversations(two.warehouse)
    two.end(two.warehouse, target.handle, error=127)
    two.send(handle, b"a2")  # the Error has not arrived yet
    transmit(two.store, two.orders, two.clock)
    assert [row.state for row in conversations(two.warehouse, ended=True)] == ["CD"]


def test_sb_e13_an_end_with_an_error_drops_what_has_not_left(two: Two) -> None:
    handle = two.begin(b"a1", b"a2")
    two.recovered()
    two.send(handle, b"a3")
    two.end(two.orders, handle, error=9, description="changed our mind")
    two.recovered()
    assert [kind for kind, _ in waiting(two.warehouse)] == ["order", "order", ERROR]
    assert errors(two.warehouse) == [9]


def test_sb_54_only_what_the_partner_gets_counts_as_sent(two: Two) -> None:
    cleaned, ended = two.begin(b"1"), two.begin(b"2")
    two.recovered()
    [target] = [row for row in conversations(two.warehouse) if row.conversation_id == ended]
    assert two.end(two.orders, cleaned, cleanup=True).sent == 0
    assert two.end(two.orders, ended).sent == 1
    two.recovered()
    assert two.end(two.warehouse, target.handle).sent == 0, "that both have ended it only the brokers tell each other"


def test_sb_e13_a_cleanup_tells_the_partner_nothing(two: Two) -> None:
    handle = two.begin(b"a1")
    two.recovered()
    two.send(handle, b"a2")
    two.end(two.orders, handle, cleanup=True)
    two.recovered()
    assert waiting(two.warehouse) == [("order", b"a1")]
    assert states(two.orders) == ["CD"]
    with pytest.raises(SettingError, match="cleanup"):
        two.end(two.orders, handle, cleanup=True, error=1)


def test_sb_43_sending_is_refused_from_the_arrival_of_an_error_on(two: Two) -> None:
    handle = two.begun([Dialog(messages=[("order", b"1")])], "nobody", "Nobody").conversations[0]
    two.recovered()
    with pytest.raises(ConversationSendError, match=r"8429(?s:.*)ER"):
        two.send(handle, b"2")
    assert two.orders.snapshot().transmissions == ()


def test_sb_43_an_error_and_a_first_message_that_people_have_put_aside_have_arrived(two: Two) -> None:
    """Where nobody receives them they still are what the partner has said."""
    handle = two.begun([Dialog(messages=[("order", b"1")])], "nobody", "Nobody").conversations[0]
    two.begin(b"2")
    two.recovered()
    for table in (two.orders, two.warehouse):
        move(table, two.clock, [1], SubQueue.POISON)
    with pytest.raises(ConversationSendError, match=r"8429(?s:.*)ER"):
        two.send(handle, b"2")
    [target] = conversations(two.warehouse)
    assert two.end(two.warehouse, target.handle, error=127).removed == 1
    two.recovered()
    assert errors(two.orders) == [127]


def test_sb_53_while_a_pass_holds_the_groups_only_new_dialogs_and_arrivals_go_on(two: Two) -> None:
    handle = two.begin(b"1")
    two.begun([Dialog(messages=[("order", b"x")])], "nobody", "Nobody")
    two.recovered()  # the Error of the second waits in orders
    claim = two.orders.claim("pass", lease=MINUTE, now=two.clock.now(), max_messages=10, exclusive=True)
    assert claim is not None
    locked: list[Callable[[], object]] = [
        lambda: two.send(handle, b"2"),
        lambda: two.end(two.orders, handle),
        lambda: set_timer(two.orders, handle, MINUTE, key=two.key(), clock=two.clock),
        lambda: two.begin(b"3", group_id=handle),
    ]
    for act in locked:
        with pytest.raises(ConversationLockedError, match="pass"):
            act()
    two.begin(b"3")
    two.begun([Dialog(messages=[("order", b"x")])], "nobody else", "Nobody")
    two.recovered()
    assert errors(two.orders) == [-8490, -8490]
    two.orders.release(claim)
    assert two.send(handle, b"2").sent == 1


def ended_by_both(two: Two) -> None:
    """A dialog that its initiator has ended first; what its partner's broker says of the end has not left."""
    handle = two.begin()
    two.recovered()
    two.end(two.orders, handle)
    two.recovered()
    two.end(two.warehouse, conversations(two.warehouse)[0].handle)
    assert states(two.orders) == ["DO"]


def test_sb_55_that_both_sides_have_ended_is_no_message_of_a_queue(two: Two) -> None:
    ended_by_both(two)
    told: list[tuple[str, int]] = []
    assert transmit(two.store, two.warehouse, two.clock, lambda *queue: told.append(queue)) == 0
    assert (states(two.orders), told) == (["CD"], [])
    found = two.orders.snapshot()
    assert (found.files, overview_of(two.orders, found, two.clock.now()).sub_queues[SubQueue.MAIN].messages) == ((), 0)
    assert not MessagesAvailable().met(found, two.clock.now()).met, "no run is made for it"


def test_sb_53_a_pass_that_holds_the_groups_hears_of_the_end_when_it_is_over(two: Two, at_point: AtPoint) -> None:
    ended_by_both(two)
    two.begun([Dialog(messages=[("order", b"x")])], "nobody", "Nobody")
    transmit(two.store, two.orders, two.clock)
    claims = []
    lease = {"lease": MINUTE, "now": two.clock.now(), "max_messages": 10, "exclusive": True}
    at_point.do("pass.transmit.before_acknowledgement", lambda: claims.append(two.orders.claim("pass", **lease)))  # type: ignore[arg-type]
    two.recovered()
    assert (sorted(states(two.orders)), two.warehouse.snapshot().transmissions != ()) == (["DO", "ER"], True)
    assert claims[0] is not None
    two.orders.release(claims[0])
    two.recovered()
    assert (sorted(states(two.orders)), two.warehouse.snapshot().transmissions) == (["CD", "ER"], ())


@pytest.mark.parametrize("point", ["pass.transmit.before_acknowledgement", "pass.transmit.before_removal"])
def test_an_end_whose_carrier_dies_is_told_by_the_next_one(two: Two, at_point: AtPoint, point: str) -> None:
    ended_by_both(two)

    def die() -> None:
        raise KeyboardInterrupt

    at_point.do(point, die)
    with pytest.raises(KeyboardInterrupt):
        two.recovered()
    two.recovered()
    assert (states(two.orders), two.warehouse.snapshot().transmissions) == (["CD"], ())


def test_sb_54_a_handle_that_nobody_knows_is_8426(two: Two) -> None:
    with pytest.raises(ConversationNotFoundError, match=r"8426(?s:.*)no such handle"):
        two.send("no such handle", b"")
    with pytest.raises(ConversationNotFoundError, match=r"8426(?s:.*)no such handle"):
        two.end(two.orders, "no such handle")


@pytest.mark.parametrize("point", ["pass.transmit.before_send", "pass.transmit.before_removal"])
def test_whoever_dies_while_messages_are_carried_neither_loses_nor_doubles_one(two: Two, at_point: AtPoint, point: str) -> None:
    two.begin(b"1")
    two.begin(b"2")

    def die() -> None:
        raise KeyboardInterrupt

    at_point.do(point, die)
    with pytest.raises(KeyboardInterrupt):
        two.recovered()
    two.recovered()
    assert sorted(waiting(two.warehouse)) == [("order", b"1"), ("order", b"2")]
    assert two.orders.snapshot().transmissions == ()


def test_two_that_carry_at_once_neither_lose_nor_double_one(two: Two, at_point: AtPoint) -> None:
    handle = two.begin(b"1")
    two.send(handle, b"2")
    at_point.do("pass.transmit.before_send", two.recovered)
    two.recovered()
    assert waiting(two.warehouse) == [("order", b"1"), ("order", b"2")]


@pytest.mark.parametrize("name", ["archive", "zoo"])
def test_a_damaged_queue_stops_no_dialog_of_others(two: Two, name: str, caplog: pytest.LogCaptureFixture) -> None:
    if not two.store.is_folder:
        pytest.skip("an opening sees only in a folder what is gone")
    other = declare(two.store, name, ServiceBroker(), two.clock)
    send(other, [pa.RecordBatch.from_pydict({"body": [b"lost"]})], key="lost", clock=two.clock)
    other.folder.remove(other.snapshot().files[0].path)
    two.begin(b"1")
    pull(two.store, two.warehouse, two.clock)
    assert waiting(two.warehouse) == [("order", b"1")]
    assert f"queue {name!r}" in caplog.text
    two.begun([Dialog(messages=[("order", b"2")])], "nobody", "Nobody")
    with pytest.raises(TableChangedError, match=name):
        two.recovered()  # the service may be there: it is not said to be missing
    assert len(two.orders.snapshot().transmissions) == 1


def test_services_have_one_queue_each_with_service_brokers_rules(two: Two) -> None:
    with pytest.raises(SettingError, match=r"Warehouse(?s:.*)warehouse"):
        declare_services(two.store, two.orders, [Service("Warehouse", [PARTS])])
    other = declare(two.store, "plain", Msmq4(), two.clock)
    with pytest.raises(SettingError, match="Service Broker"):
        declare_services(two.store, other, [Service("Plain", [PARTS])])
    found = found_queue(two.store, "Warehouse")
    assert found is not None
    assert found.name == "warehouse"
    assert found_queue(two.store, "Plain") is None
    with pytest.raises(ServiceNotFoundError, match="Nobody"):
        begin_dialogs(two.orders, service="Nobody", far_service="Warehouse", contract="parts", dialogs=[], key="k", clock=two.clock)


def test_a_plain_send_cannot_pretend_to_be_a_conversation(two: Two) -> None:
    two.begin(b"1")
    two.recovered()
    (file,) = two.warehouse.snapshot().files
    stolen = two.warehouse.read(file, ["body", "properties", "conversation_id"])
    with pytest.raises(InputError, match=r"poison\.dialog"):
        send(two.warehouse, stolen.to_batches(), key="again", clock=two.clock)
    with pytest.raises(InputError, match=r"poison\.dialog"):
        ColumnMapping(body="body", properties=("poison.dialog",)).check(["body", "poison.dialog"])
    assert len(waiting(two.warehouse)) == 1


def test_endpoint_files_do_not_become_many_where_nobody_maintains_the_queue(two: Two) -> None:
    handle = two.begin(b"0")
    for number in range(MANY):
        two.send(handle, b"%d" % number)
        refresh(two.orders, two.clock)
    assert len(two.orders.snapshot().conversations) < MANY
    assert [row.sent for row in conversations(two.orders)] == [1 + MANY]

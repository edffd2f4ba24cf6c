"""Overflow and dirt through the verbs: what is sent and said is kept, cut, or refused with an error that names it; a pass ends in any case."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.passes.alter import disable, enable
from airflow_poison.passes.due import return_due
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.inspect import inspect
from airflow_poison.passes.move import move, remove_messages
from airflow_poison.passes.relay import send_to
from airflow_poison.passes.runs import run_key
from airflow_poison.passes.send import SENT, messages_to_batches, send
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.rules.settings import LONGEST
from airflow_poison.values.errors import InputError, MessageNotFoundError, MessageTooLargeError, SettingError
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches
from airflow_poison.values.schema import MAX_BODY_BYTES, SubQueue, table_schema
from tests.given.passes import bodies, needs_processes, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import VirtualClock
    from airflow_poison.values.message import Message
    from tests.given.passes import Queue

ODD = "\x00\x1b[31m\u202eevil\u202c\U0001f4a9\r\n\x7f\ufeff"
INSTANT = pa.timestamp("us", tz="UTC")
TEXTS = pa.map_(pa.string(), pa.string())
BAD = pa.array([b"bad"], pa.binary())
NO_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("=2i", 0, 2)), pa.py_buffer(b"\xff\xfe"))
NO_UTF8_NAME = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), NO_UTF8, pa.array(["x"]))  # type: ignore[call-overload]  # the stubs want int64


def sent(queue: Queue, key: str = "k", **columns: Any) -> None:
    """Send one message as Arrow columns."""
    send(queue.table, [pa.RecordBatch.from_pydict({"body": BAD} | columns)], key=key, clock=queue.clock)


def the_poison(queue: Queue) -> dict[str, Any]:
    """Receive, and return the one message that became poison by it."""
    assert queue.receive().poisoned == 1
    (row,) = queue.rows(SubQueue.POISON).values()
    return row


def microseconds(number: int) -> pa.Array[Any]:
    return pa.array([number], pa.int64()).cast(INSTANT)


# What is sent -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"message_id": [ODD], "group_id": [ODD], "conversation_id": [ODD], "message_type": [ODD]}, id="control characters and marks"),
        pytest.param({"message_id": ["m" * 10_000_000]}, id="a message id of 10 MB"),
        pytest.param({"properties": pa.array([[(f"n{number}", ODD) for number in range(10_000)]], TEXTS)}, id="10,000 properties"),
        pytest.param({"properties": pa.array([[("n" * 1_000_000, "v")]], TEXTS)}, id="a property name of 1 MB"),
        pytest.param({"properties": pa.array([[(ODD, None)]], TEXTS)}, id="a property without a value"),
        pytest.param({"expires_at": pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)], INSTANT)}, id="expires with the calendar"),
        pytest.param({"priority": pa.array([0], pa.int32())}, id="the lowest priority"),
        pytest.param({"priority": pa.array([10], pa.int32())}, id="the highest priority"),
    ],
)
def test_what_a_message_may_hold_comes_through_send_and_pass_unchanged(queue: Queue, columns: dict[str, Any]) -> None:
    sent(queue, **columns)

    row = the_poison(queue)

    for name, column in columns.items():
        assert row[name] == (column[0].as_py() if isinstance(column, pa.Array) else column[0])


@pytest.mark.parametrize("body", [b"", b"bad \xff\xfe\x00\xed\xa0\x80", b"bad " + b"x" * (MAX_BODY_BYTES - 4)], ids=["empty", "no UTF-8", "64 MiB"])
def test_bodies_are_kept_as_they_are(queue: Queue, body: bytes) -> None:
    def handler(message: Message) -> None:
        raise ValueError(len(message.body))

    queue = queue.having(handler=handler)
    sent(queue, body=pa.array([body], pa.binary()))

    assert the_poison(queue)["body"] == body


def test_a_body_of_a_byte_more_than_64_mib_is_refused(queue: Queue) -> None:
    with pytest.raises(MessageTooLargeError, match="67108865 bytes; at most 67108864"):
        sent(queue, body=pa.array([bytes(MAX_BODY_BYTES + 1)], pa.binary()))

    assert queue.rows() == {}


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        pytest.param({"priority": pa.array([11], pa.int32())}, "priority.*11.*0 to 10", id="priority 11"),
        pytest.param({"priority": pa.array([-1], pa.int32())}, "priority.*-1.*0 to 10", id="priority -1"),
        pytest.param({"priority": [2**40]}, "priority", id="priority 2^40"),
        pytest.param({"expires_at": microseconds(253_402_300_800_000_000)}, "'expires_at'.*years 1 to 9999", id="expires in year 10000"),
        pytest.param({"expires_at": microseconds(-62_135_596_800_000_001)}, "'expires_at'.*years 1 to 9999", id="expires before year 1"),
        pytest.param({"message_id": NO_UTF8}, "'message_id'.*UTF8", id="a message id that is no UTF-8"),
        pytest.param({"group_id": pa.array([b"\xff"], pa.binary())}, "'group_id'.*UTF8", id="bytes as a group"),
        pytest.param({"properties": NO_UTF8_NAME}, "'properties'.*UTF8", id="a property name that is no UTF-8"),
    ],
)
def test_what_no_reader_could_read_is_refused_with_its_column(queue: Queue, columns: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        sent(queue, **columns)

    assert queue.rows() == {}


OF_THE_STORE: dict[str, Any] = {
    "lookup_id": [7],
    "enqueued_at": microseconds(0),
    "abort_count": [-1],
    "crash_count": [1],
    "due_at": microseconds(0),
    "last_error": pa.array([{"type": "ValueError"}], table_schema().field("last_error").type),
    "reason": ["because"],
}


@pytest.mark.parametrize("name", OF_THE_STORE)
def test_what_the_store_itself_writes_is_refused_of_a_sender(queue: Queue, name: str) -> None:
    with pytest.raises(InputError, match=rf"Column '{name}' has values in 1 of 1 rows, and the queue gives them itself.*A sender gives message_id"):
        sent(queue, **{name: OF_THE_STORE[name]})

    assert queue.rows() == {}


@pytest.mark.parametrize("name", ["sub_queue", "move_count"])
def test_the_place_of_a_message_is_no_column_of_it(queue: Queue, name: str) -> None:
    given: dict[str, Any] = {name: ["poison"]}
    with pytest.raises(InputError, match=rf"'{name}' is not a column of a message"):
        sent(queue, **given)


def test_every_column_of_a_message_is_the_senders_or_the_stores() -> None:
    assert {*SENT, *OF_THE_STORE, "sub_queue", "move_count"} == set(table_schema().names)
    assert not set(SENT) & OF_THE_STORE.keys()


def test_rows_of_a_queue_are_sent_again_when_what_the_store_wrote_is_null(queue: Queue) -> None:
    """As ``message_schema()`` makes them: a message that is sent again begins anew."""
    nothing = {name: pa.nulls(1, table_schema().field(name).type) for name in OF_THE_STORE}
    sent(queue, **nothing)
    (row,) = queue.rows().values()
    assert (row["lookup_id"], row["abort_count"], row["crash_count"], row["enqueued_at"]) == (1, 0, 0, queue.clock.now())


def test_a_column_that_comes_twice_is_refused(queue: Queue) -> None:
    twice = pa.RecordBatch.from_arrays([BAD, BAD], names=["body", "body"])

    with pytest.raises(InputError, match="twice"):
        send(queue.table, [twice], key="k", clock=queue.clock)


@pytest.mark.parametrize(("instant", "letters"), [(-62_135_596_800_000_000, 1), (253_402_300_799_999_999, 0)], ids=["year 1", "year 9999"])
def test_an_expiry_at_either_end_of_the_calendar_counts(queue: Queue, instant: int, letters: int) -> None:
    queue = queue.having(policy=Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Drop"))
    sent(queue, expires_at=microseconds(instant))

    result = queue.receive()

    assert (result.dead_lettered, result.dropped) == (letters, 1 - letters)


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)
DEEP: list[object] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("row", "mapping", "told"),
    [
        ("\ud800", {}, r"messages\[0\].*lone surrogate"),
        ({"b": "\ud800"}, {"body": "b"}, r"body='b': messages\[0\].*lone surrogate"),
        ({"b": "x", "i": "\ud800"}, {"body": "b", "message_id": "i"}, "'i'.*lone surrogate"),
        ({"b": "x", "i": "\ud800"}, {"body": "b", "properties": ("i",)}, "'i'.*lone surrogate"),
        ({"b": "x", "\ud800": "v"}, {"body": "b", "properties": ("\ud800",)}, "lone surrogate"),
        ({"b": "x", "i": CIRCLE}, {"body": "b", "properties": ("i",)}, "'i'.*holds itself"),
        ({"b": CIRCLE}, {}, r"messages\[0\], column 'b' cannot become JSON: Circular"),
        ({"a": 1, "b": float("nan")}, {}, r"messages\[0\], column 'b' cannot become JSON: it has no NaN and no infinity"),
        ({"a": 1, "b": {"c": [float("-inf")]}}, {"body": ("a", "b")}, "column 'b' cannot become JSON: it has no NaN and no infinity"),
        ({"a": 1, "b": object()}, {}, "column 'b' cannot become JSON: Object of type object"),
        ({"b": DEEP}, {}, "cannot become JSON"),
        ({"b": 10**5000}, {}, "cannot become JSON"),
        ({"b": "x", "t": float("nan")}, {"body": "b", "expires_after": "t"}, "nan seconds from now are no date"),
        ({"b": "x", "t": float("inf")}, {"body": "b", "expires_after": "t"}, "inf seconds from now are no date"),
        ({"b": "x", "t": 10**18}, {"body": "b", "expires_after": "t"}, "are no date"),
        ({"b": "x", "t": -1e13}, {"body": "b", "expires_after": "t"}, "are no date"),
        ({"b": "x"}, {"body": "b", "expires_after": timedelta.max}, "are no date"),
        ({"b": "x", "p": float("nan")}, {"body": "b", "priority": "p"}, "nan is no priority"),
    ],
)
def test_rows_that_cannot_become_messages_are_refused(queue: Queue, row: object, mapping: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        send(queue.table, rows_to_batches([row], ColumnMapping(**mapping), queue.clock.now()), key="k", clock=queue.clock)

    assert queue.rows() == {}


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({"priority": 3}, "priority=3: expected the name of a column; for one priority of all messages add a column that has it. Nothing was sent."),
        ({"group": True}, "group=True: expected the name of a column"),
        ({"expires_after": 60}, "expires_after=60: expected a duration (timedelta), or the name of a column of seconds. Nothing was sent."),
        ({"body": 3}, "body=3: expected the name of a column, a list of names without repetition, or None for all columns. Nothing was sent."),
        ({"body": ()}, "body=(): expected at least one column; None is all of them. Nothing was sent."),
        ({"body": ("a", "b", "a")}, "body=['a', 'b', 'a']: expected the name of a column, a list of names without repetition"),
        ({"properties": "abc"}, "properties='abc': expected a list of names of columns, without repetition. Nothing was sent."),
        ({"properties": ("a", 1)}, "properties=['a', 1]: expected a list of names of columns"),
    ],
)
def test_a_mapping_of_what_is_no_column_is_refused(mapping: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        ColumnMapping(**mapping)
    assert str(refused.value).startswith(told)


def test_a_priority_out_of_range_is_told_once() -> None:
    with pytest.raises(InputError) as refused:
        list(rows_to_batches([{"a": 1, "p": 11}], ColumnMapping(priority="p"), datetime.now(UTC)))
    assert str(refused.value) == "priority='p': 11 is no priority; expected a whole number from 0 to 10. Nothing was sent."


def test_bare_texts_with_lone_surrogates_are_refused_by_their_number() -> None:
    with pytest.raises(InputError, match=r"messages\[1\].*lone surrogate"):
        list(messages_to_batches(["fine", "\ud800"]))


def test_batches_of_large_bodies_stay_below_what_a_column_holds() -> None:
    body = bytes(MAX_BODY_BYTES)

    assert [batch.num_rows for batch in messages_to_batches([body] * 9)] == [4, 4, 1]


@pytest.mark.parametrize("key", ["../../etc", "a/b", "\x00", ODD, "k" * 1_000_000, "dag é 日本"])
def test_keys_with_odd_characters_name_their_run(queue: Queue, key: str) -> None:
    queue.sent("bad", "ok", key=key)

    assert queue.receive(key).received == 2
    assert queue.receive(key).received == 0
    assert queue.table.snapshot().claims == ()


@pytest.mark.parametrize("key", ["\ud800", " ", "\n"])
def test_keys_that_no_log_can_hold_and_blank_ones_are_refused_before_anything_is_done(queue: Queue, key: str) -> None:
    with pytest.raises(SettingError, match="key="):
        queue.sent("bad", key=key)
    with pytest.raises(SettingError, match="key="):
        queue.receive(key)
    assert len({run_key("dag", "\ud800"), run_key("dag", "\ud801"), run_key("dag", "?")}) == 3


# What people say ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("\ud800 torn", "? torn"),
        ("a\nb\r\n  c", "a b c"),
        ("x" * 50_000_000, "x" * 500),
        (" \n ", "it was switched off by hand"),
        ("\u202e\U0001f4a9", "\u202e\U0001f4a9"),
    ],
)
def test_the_reason_of_a_disabled_queue_is_one_line_of_at_most_500_characters(queue: Queue, reason: str, kept: str) -> None:
    disable(queue.table, queue.clock, reason)

    assert queue.table.snapshot().control.reason == kept
    assert enable(queue.table, queue.clock).reason == kept


@pytest.mark.parametrize("lookup_id", [2**63 - 1, 2**63, 10**30, -(2**63) - 1, 0])
def test_lookup_ids_that_no_message_has_are_not_found(queue: Queue, lookup_id: int) -> None:
    queue.sent("ok")

    with pytest.raises(MessageNotFoundError):
        remove_messages(queue.table, queue.clock, [1, lookup_id])
    with pytest.raises(MessageNotFoundError):
        move(queue.table, queue.clock, [lookup_id], SubQueue.POISON)
    assert list(queue.rows()) == [1]


# Numbers that end ---------------------------------------------------------------------------------------------------


LARGEST = 2**31 - 1


def test_counts_stop_at_the_largest_number_that_their_column_holds(queue: Queue) -> None:
    queue = queue.having(policy=ServiceBroker())
    largest = pa.array([LARGEST], pa.int32())
    queue.table.append([pa.RecordBatch.from_pydict({"body": BAD, "abort_count": largest, "crash_count": largest})], "k", queue.clock.now())

    assert queue.receive().halted is not None

    (row,) = queue.rows().values()
    assert (row["abort_count"], row["crash_count"]) == (LARGEST, LARGEST)


def test_a_queue_without_any_lookup_id_left_refuses_what_is_sent(queue: Queue) -> None:
    from airflow_poison.store.files import Commit

    log = queue.table.log
    assert log.commit(log.load(), Commit("append", lasting={"seq": 2**63 - 3}))
    queue.sent("bad")

    with pytest.raises(InputError, match="lookup ids"):
        queue.sent("one", "too many")

    assert list(queue.rows()) == [2**63 - 2]
    assert queue.receive().poisoned == 1
    remove_messages(queue.table, queue.clock, [2**63 - 2])
    assert queue.rows() == {}


@pytest.mark.parametrize("setting", ["retry_cycle_delay", "transaction_timeout"])
@pytest.mark.parametrize("span", [timedelta.max, LONGEST + timedelta(seconds=1), timedelta(seconds=-1)])
def test_a_duration_behind_the_end_of_the_calendar_is_refused_when_it_is_declared(setting: str, span: timedelta) -> None:
    with pytest.raises(SettingError, match=setting):
        Msmq4(**{setting: span})  # type: ignore[arg-type]  # the names are the settings'


def test_the_longest_delay_parks_a_message_for_a_hundred_years(queue: Queue) -> None:
    queue = queue.having(policy=Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=LONGEST, receive_error_handling="Move")).sent(
        "bad"
    )

    assert queue.receive().parked == 1
    (row,) = queue.rows(SubQueue.RETRY).values()
    assert row["due_at"] == queue.clock.now() + LONGEST
    queue.clock.advance(LONGEST)
    assert return_due(queue.table, queue.clock).returned == 1


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_message_that_is_given_back_for_ever_waits_for_a_hundred_years(queue: Queue, isolation: str) -> None:
    if isolation == "process":
        needs_processes(queue.store)
    queue = queue.sent("later")

    result = queue.having(handler="tests.unit.passes.test_dirt:postpone_for_ever").receive(isolation=isolation)

    assert result.postponed == 1
    (row,) = queue.rows(SubQueue.POSTPONED).values()
    assert row["due_at"] == queue.clock.now() + LONGEST


def postpone_for_ever(message: Message) -> None:
    from airflow_poison.values.failures import Postpone

    raise Postpone(timedelta.max)


# Errors of a failure's own text -------------------------------------------------------------------------------------

TEXTS_OF_FAILURES: dict[str, Callable[[], str]] = {
    "50 MB": lambda: "ü" * 50_000_000,
    "surrogates": lambda: "bad \ud83d text",
    "control": lambda: ODD,
    "NUL": lambda: "\x00" * 10,
    "line breaks": lambda: "\n\r\u2028\x0b\x0c\x85",
    "empty": lambda: "",
}


@pytest.mark.parametrize("name", TEXTS_OF_FAILURES)
@pytest.mark.parametrize("how", ["Move", "Reject", "Fault"])
def test_no_end_of_a_message_fails_because_of_its_failures_text(queue: Queue, name: str, how: str) -> None:
    text = TEXTS_OF_FAILURES[name]()

    def handler(_: Message) -> None:
        raise ValueError(text)

    queue = queue.having(policy=Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling=how), handler=handler).sent("bad")

    result = queue.receive()

    assert (result.poisoned, result.rejected, result.halted_messages) == {"Move": (1, 0, 0), "Reject": (0, 1, 0), "Fault": (0, 0, 1)}[how]
    if how == "Reject":
        assert queue.store.open("orders.dead-letter").snapshot().files[0].rows == 1
    elif how == "Fault":
        assert len(queue.table.snapshot().control.reason) <= 500
        assert "\n" not in queue.table.snapshot().control.reason
    list(queue.table.events())
    assert inspect(queue.table, queue.clock) is not None


@pytest.mark.parametrize("name", ["\x00", "a/b", ODD, "n" * 1_000_000, "orders", "Orders ", "..", "_delta_log", "\ufeff", ""])
def test_a_dead_letter_queue_of_an_impossible_name_stops_no_relay(queue: Queue, name: str) -> None:
    queue = queue.having(policy=Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Reject"))
    queue.sent("bad", properties={"dead_letter_queue": name, ODD: ODD, "big": "v" * 1_000_000})

    assert queue.receive().rejected == 1

    letters = queue.store.open("orders.dead-letter")
    (row,) = rows_of(letters).values()
    assert dict(row["properties"])[ODD] == ODD  # type: ignore[call-overload]  # pairs
    assert bodies(letters) == ["bad"]
    assert queue.table.snapshot().outbox == ()


RESERVED = ["poison.edits", "poison.dialog", "poison.destination", "poison.lookup_id", "poison.anything"]


@pytest.mark.parametrize("name", RESERVED)
def test_a_property_that_only_the_product_sets_is_refused_at_every_door(queue: Queue, name: str) -> None:
    with pytest.raises(InputError, match=f"Property {name!r} has a value in 1 of 1 messages; names that begin with 'poison.' are the product's own"):
        sent(queue, properties=pa.array([[("kind", "x"), (name, "[]")]], TEXTS))
    with pytest.raises(InputError, match=f"properties={name!r}: names that begin with 'poison.' are the product's own"):
        list(rows_to_batches([{"body": "x", name: "[]"}], ColumnMapping(body="body", properties=(name,)), queue.clock.now()))
    assert bodies(queue.table) == []


def test_a_dead_letter_that_is_sent_on_says_where_it_comes_from(queue: Queue) -> None:
    sent(queue, properties=pa.array([[("poison.origin_queue", "a"), ("poison.origin_lookup_id", "1"), ("poison.reason", "why")]], TEXTS))

    (row,) = rows_of(queue.table).values()
    assert dict(row["properties"])["poison.origin_queue"] == "a"  # type: ignore[call-overload]  # pairs


def test_messages_with_odd_texts_are_sent_to_another_queue_by_hand(queue: Queue) -> None:
    other = queue.store.create("other", queue.table.snapshot().control)
    sent(queue, message_id=[ODD], properties=pa.array([[(ODD, ODD)]], TEXTS))

    assert send_to(queue.table, queue.store, queue.clock, [1], "other").sent == 1
    (row,) = rows_of(other).values()
    assert row["message_id"] == ODD


# Clocks -------------------------------------------------------------------------------------------------------------


class TurnedBack(LocalEngine):
    """Has the clock jump back by a day between claim and delivery."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        self.clock.advance(timedelta(days=-1))
        keep_alive()
        super().run(table, claim, job, keep_alive=keep_alive)
        keep_alive()


def test_a_clock_that_jumps_back_in_a_pass_costs_nothing(queue: Queue) -> None:
    """Between claim, renewal and final commit: the claim is held longer than it was meant to, and nothing else."""
    policy = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=5), receive_error_handling="Move")
    queue = queue.having(policy=policy).sent("ok", "bad", "ok")
    before = queue.clock.now()

    result = queue.having(engine=lambda: TurnedBack(queue.clock)).receive()

    assert (result.settled, result.parked, result.rollbacks) == (2, 1, 2)
    assert queue.table.snapshot().claims == ()
    (row,) = queue.rows(SubQueue.RETRY).values()
    assert row["due_at"] == before - timedelta(days=1) + timedelta(minutes=5)
    queue.clock.at = before
    assert return_due(queue.table, queue.clock).returned == 1


def test_a_claim_of_the_future_is_finished_by_its_own_run(queue: Queue) -> None:
    """Its holder died, then the clock was put back: others wait for its expiry, the rerun of the task does not."""
    queue = queue.sent("ok", "bad")
    claimed = queue.table.claim("run-0", lease=timedelta(minutes=2), now=queue.clock.now(), max_messages=10)
    assert claimed is not None
    queue.clock.advance(timedelta(days=-365))

    assert queue.receive("other").received == 0
    assert queue.receive("run").received == 2


def test_a_due_time_that_jumps_back_behind_now_is_not_lost(queue: Queue) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=5), receive_error_handling="Move")
    queue = queue.having(policy=policy).sent("bad")
    queue.receive()
    queue.clock.advance(timedelta(days=-1))

    waiting = return_due(queue.table, queue.clock)
    queue.clock.advance(timedelta(days=1, minutes=5))

    assert (waiting.returned, waiting.waiting) == (0, 1)
    assert return_due(queue.table, queue.clock).returned == 1


@pytest.mark.parametrize(
    "handler", ["", ":", "a", "a:", ":b", "os:", "\x00:x", "\ud800:x", "os:\ud800", "..:x", "os:sep", "a b:c d", "os:" + "x" * 100_000]
)
def test_handler_names_with_odd_characters_are_refused_before_anything_is_claimed(queue: Queue, handler: str) -> None:
    from airflow_poison.values.errors import HandlerNotFoundError

    queue = queue.sent("ok")

    with pytest.raises(HandlerNotFoundError):
        queue.having(handler=handler).receive()
    assert queue.table.snapshot().claims == ()


@pytest.mark.parametrize("raised", ["SystemExit(0)", "SystemExit(1)"])
def test_a_module_that_ends_the_process_when_it_is_imported_is_a_handler_that_is_not_found(
    queue: Queue, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    from airflow_poison.values.errors import HandlerNotFoundError

    name = "script_that_ends"
    (tmp_path / f"{name}.py").write_text(f"raise {raised}\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(HandlerNotFoundError, match=raised.partition("(")[0]):
        queue.having(handler=f"{name}:land").receive()


@pytest.mark.parametrize("policy", [ServiceBroker(max_queue_readers=2), ListenerPort(next_message="sweep")], ids=["ordered groups", "forward sweep"])
def test_a_group_of_very_many_messages_is_received_in_one_pass(queue: Queue, policy: Policy) -> None:
    """1,000,000 were tried by hand: 20 s in ordered groups, 37 s in a sweep, 0.8 GB."""
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"ok"] * 20_000, pa.binary()), "group_id": ["one"] * 20_000})
    send(queue.table, [batch], key="k", clock=queue.clock)

    assert queue.having(policy=policy, handler=nothing).receive().settled == 20_000


def nothing(message: Message) -> None:
    """Return."""


def test_an_order_of_returns_that_is_none_is_named(queue: Queue) -> None:
    before = queue.table.snapshot().version
    with pytest.raises(SettingError, match=r"return_order='soonest'.*due_time, head_timer"):
        return_due(queue.table, queue.clock, return_order="soonest")
    assert queue.table.snapshot().version == before

"""Messages that people put elsewhere or take out: all or nothing, nothing lost, nothing doubled (spec WCF-14, WCF-25, WCF-28, SB-30)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import declare, disable
from airflow_poison.passes.move import move, put_back, remove, remove_messages
from airflow_poison.passes.relay import send_to
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.control import BLOCKED_BY, NOT_BEFORE_RESTART
from airflow_poison.store.files import Replacement
from airflow_poison.values.errors import InputError, MessageClaimedError, MessageNotFoundError, QueueNotFoundError, SettingError
from airflow_poison.values.schema import SubQueue, table_schema
from tests.given.passes import LEASE, DiedError, bodies, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.store.queue_table import QueueTable
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

MAIN, RETRY, POISON, POSTPONED = SubQueue.MAIN, SubQueue.RETRY, SubQueue.POISON, SubQueue.POSTPONED
PLACES = {1: MAIN, 2: MAIN, 3: RETRY, 4: RETRY, 5: POISON, 6: POISON, 7: POSTPONED, 8: POSTPONED}
MOVES = {MAIN: 0, RETRY: 1, POISON: 5, POSTPONED: 0}


@pytest.fixture
def queue(queue: Queue) -> Queue:
    """Two messages in each sub-queue, with abort count 3; the odd ones belong to conversation d2, the even ones to d1."""
    queue.sent(*("good" for _ in PLACES))
    [file] = queue.table.snapshot().files
    rows = [
        row
        | {"sub_queue": PLACES[number].value, "move_count": MOVES[PLACES[number]], "abort_count": 3, "conversation_id": f"d{1 + number % 2}"}
        | {"due_at": queue.clock.now() + LEASE if PLACES[number] in {RETRY, POSTPONED} else None}
        for number, row in enumerate(queue.table.read(file).to_pylist(), 1)
    ]
    queue.table.replace_files([Replacement(file, pa.Table.from_pylist(rows, schema=table_schema()))], [])
    return queue


def places(queue: Queue) -> dict[int, SubQueue]:
    return {number: SubQueue(str(row["sub_queue"])) for number, row in sorted(queue.rows().items())}


def claim(queue: Queue, place: SubQueue = MAIN) -> None:
    assert queue.table.claim("pass", lease=LEASE, now=queue.clock.now(), max_messages=9, sub_queue=place) is not None


def die() -> None:
    raise DiedError


def events(queue: Queue) -> list[tuple[str, int | None, int, int, dict[str, str]]]:
    return [(event.type.value, event.lookup_id, event.abort_count, event.move_count, dict(event.details)) for event in queue.table.events()]


# Between sub-queues -------------------------------------------------------------------------------------------------


def test_wcf_14_moves_to_main_count_and_reset_the_abort_count_and_postponing_does_not(queue: Queue) -> None:
    version = queue.table.snapshot().version
    assert move(queue.table, queue.clock, [3, 5, 7]) == 3
    assert places(queue) == PLACES | dict.fromkeys([3, 5, 7], MAIN)
    assert [queue.counts(number) for number in (3, 5, 7)] == [(0, 2), (0, 6), (3, 0)]
    assert [queue.counts(number) for number in (1, 2, 4, 6, 8)] == [(3, 0), (3, 0), (3, 1), (3, 5), (3, 0)]
    assert queue.table.snapshot().version == version + 1
    assert events(queue) == [
        ("RETURNED", 3, 0, 2, {"place": "main", "by": "hand"}),
        ("RETURNED", 5, 0, 6, {"place": "main", "by": "hand", "origin": "poison"}),
    ]


def test_moves_to_poison_are_told_and_alert_nobody(queue: Queue) -> None:
    assert move(queue.table, queue.clock, [2, 4, 8], "poison") == 3
    assert places(queue) == PLACES | dict.fromkeys([2, 4, 8], POISON)
    assert [queue.counts(number) for number in (2, 4, 8)] == [(0, 1), (0, 2), (0, 1)]
    assert [(kind, number, facts) for kind, number, _, _, facts in events(queue)] == [
        ("MOVED_POISON", number, {"place": "poison", "by": "hand"}) for number in (2, 4, 8)
    ]
    assert send_alerts(queue.table, "us", {"notes": lambda _alert: None}, queue.clock) == []


def test_everything_else_of_a_moved_message_stays(queue: Queue) -> None:
    before = queue.rows()[5]
    move(queue.table, queue.clock, [5])
    assert queue.rows()[5] == before | {"sub_queue": "main", "abort_count": 0, "move_count": 6}


def test_moved_messages_are_received_where_they_are_now(queue: Queue) -> None:
    move(queue.table, queue.clock, [1, 2], "poison")
    move(queue.table, queue.clock, [5])
    assert queue.receive().settled == 1
    assert sorted(queue.rows(POISON)) == [1, 2, 6]


@pytest.mark.parametrize("target", ["retry", "postponed", "transmission", "elsewhere"])
def test_people_move_messages_to_main_and_to_poison_only(queue: Queue, target: str) -> None:
    with pytest.raises(SettingError, match="main, poison"):
        move(queue.table, queue.clock, [1], target)


@pytest.mark.parametrize(
    ("target", "ids", "says"),
    [
        ("main", [3, 99], "Message 99 is not in 'orders;retry' or 'orders;poison' or 'orders;postponed'"),
        ("main", [1, 2, 3], r"Messages \[1, 2\] are not in"),
        ("poison", [1, 5], "Message 5 is not in 'orders' or 'orders;retry' or 'orders;postponed'"),
    ],
)
def test_messages_that_are_not_there_stop_the_move_of_all(queue: Queue, target: str, ids: list[int], says: str) -> None:
    version = queue.table.snapshot().version
    with pytest.raises(MessageNotFoundError, match=says):
        move(queue.table, queue.clock, ids, target)
    assert queue.table.snapshot().version == version


def test_a_claimed_message_stops_the_move_of_all(queue: Queue) -> None:
    claim(queue, POISON)
    with pytest.raises(MessageClaimedError, match=r"Messages \[5, 6\] of queue 'orders' are being received"):
        move(queue.table, queue.clock, [3, 5, 6])
    assert places(queue) == PLACES


def test_a_pass_that_claims_right_before_the_commit_wins(queue: Queue, at_point: AtPoint) -> None:
    at_point.do("store.replace.before_commit", lambda: claim(queue, POISON))
    with pytest.raises(MessageClaimedError):
        move(queue.table, queue.clock, [3, 5])
    assert places(queue) == PLACES
    assert queue.happened() == []


def test_a_split_of_the_file_right_before_the_commit_is_no_obstacle(queue: Queue, at_point: AtPoint) -> None:
    def split() -> None:
        [file] = [file for file in queue.table.snapshot().files if file.sub_queue == POISON]
        rows = queue.table.read(file)
        queue.table.split_file(file, [rows.slice(0, 1), rows.slice(1)])

    at_point.do("store.replace.after_files", split)
    move(queue.table, queue.clock, [5])
    assert places(queue) == PLACES | {5: MAIN}


def test_no_message_is_no_commit(queue: Queue) -> None:
    version = queue.table.snapshot().version
    assert move(queue.table, queue.clock, []) == 0
    assert queue.table.snapshot().version == version


@pytest.mark.parametrize("ids", [None, [5, 6]])
def test_wcf_28_put_back_resets_counts_however_it_is_asked_for(queue: Queue, ids: list[int] | None) -> None:
    assert put_back(queue.table, queue.clock, ids) == 2
    assert [queue.counts(number) for number in (5, 6)] == [(0, 6), (0, 6)]
    assert places(queue) == PLACES | {5: MAIN, 6: MAIN}
    assert [(kind, number) for kind, number, *_ in events(queue)] == [("RETURNED", 5), ("RETURNED", 6)]


@pytest.mark.parametrize("point", ["store.replace.after_files", "store.replace.before_commit", "store.replace.after_commit"])
def test_a_move_that_dies_is_all_or_nothing(queue: Queue, at_point: AtPoint, point: str) -> None:
    at_point.do(point, die)
    with pytest.raises(DiedError):
        move(queue.table, queue.clock, [3, 5, 7])
    done = point.endswith("after_commit")
    assert places(queue) == (PLACES | dict.fromkeys([3, 5, 7], MAIN) if done else PLACES)
    assert len(events(queue)) == (2 if done else 0)


# Out of the queue ---------------------------------------------------------------------------------------------------


def test_sb_30_all_messages_of_a_conversation_are_removed_in_one_commit(queue: Queue) -> None:
    version = queue.table.snapshot().version
    result = remove_messages(queue.table, queue.clock, conversation_id="d2")
    assert [message.lookup_id for message in result.messages] == [1, 3, 5, 7]
    assert sorted(places(queue)) == [2, 4, 6, 8]
    assert queue.table.snapshot().version == version + 1
    assert [(kind, number, facts) for kind, number, _, _, facts in events(queue)] == [
        ("DROPPED", number, {"place": "", "by": "hand"}) for number in (1, 3, 5, 7)
    ]


def test_sb_30_sb_55_messages_of_the_conversation_that_wait_for_a_disabled_queue_go_too(queue: Queue) -> None:
    disable(queue.table, queue.clock)
    columns: dict[str, pa.Array[Any]] = {"body": pa.array([b"late"]), "conversation_id": pa.array(["d2"])}
    send(queue.table, [pa.RecordBatch.from_pydict(columns)], key="late", clock=queue.clock)
    remove_messages(queue.table, queue.clock, conversation_id="d2")
    assert sorted(places(queue)) == [2, 4, 6, 8]


def test_sb_21_a_conversation_without_messages_is_no_error(queue: Queue) -> None:
    version = queue.table.snapshot().version
    assert remove_messages(queue.table, queue.clock, conversation_id="d9").messages == ()
    assert queue.table.snapshot().version == version


def test_messages_without_a_conversation_belong_to_none(queue: Queue) -> None:
    queue.sent("alone")
    remove_messages(queue.table, queue.clock, conversation_id="d2")
    assert 9 in places(queue)


def test_several_messages_are_removed_by_their_ids_and_shown(queue: Queue) -> None:
    result = remove_messages(queue.table, queue.clock, [8, 1, 3])
    assert [(message.lookup_id, message.sub_queue) for message in result.messages] == [(1, "main"), (3, "retry"), (8, "postponed")]
    assert result.to_dict()["removed"] == 3
    assert sorted(places(queue)) == [2, 4, 5, 6, 7]


def test_a_removal_of_messages_of_which_one_is_not_there_or_claimed_removes_none(queue: Queue) -> None:
    with pytest.raises(MessageNotFoundError, match="Message 99 is not in queue 'orders'"):
        remove_messages(queue.table, queue.clock, [1, 99])
    claim(queue)
    with pytest.raises(MessageClaimedError):
        remove_messages(queue.table, queue.clock, [1, 3])
    with pytest.raises(MessageClaimedError):
        remove_messages(queue.table, queue.clock, conversation_id="d1")
    assert places(queue) == PLACES


@pytest.mark.parametrize("arguments", [{}, {"lookup_ids": [1], "conversation_id": "d1"}])
def test_a_removal_says_which_messages_in_one_way(queue: Queue, arguments: Mapping[str, Any]) -> None:
    with pytest.raises(SettingError, match="either lookup_ids or conversation_id"):
        remove_messages(queue.table, queue.clock, **arguments)


# A message that blocks the queue ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["remove", "remove conversation", "move", "send"])
def test_dmp_14_the_block_ends_when_its_message_leaves(queue: Queue, how: str) -> None:
    queue.table.alter(lambda control: control.blocked(1, NOT_BEFORE_RESTART))
    declare(queue.store, "elsewhere", Msmq4(), queue.clock)
    match how:
        case "remove":
            remove(queue.table, 1, queue.clock)
        case "remove conversation":
            remove_messages(queue.table, queue.clock, conversation_id="d2")
        case "move":
            move(queue.table, queue.clock, [1], POISON)
        case _:
            send_to(queue.table, queue.store, queue.clock, [1], "elsewhere")
    assert BLOCKED_BY not in queue.table.snapshot().control.counters
    assert queue.receive().received == 1


def test_dmp_14_another_messages_removal_ends_no_block(queue: Queue) -> None:
    queue.table.alter(lambda control: control.blocked(1, NOT_BEFORE_RESTART))
    remove(queue.table, 2, queue.clock)
    assert queue.table.snapshot().control.counters[BLOCKED_BY] == 1
    assert queue.receive().received == 0


# To another queue ---------------------------------------------------------------------------------------------------


@pytest.fixture
def letters(queue: Queue) -> QueueTable:
    """The dead-letter queue of ``orders`` with message 1, and of ``invoices`` with message 2."""
    declare(queue.store, "invoices", Msmq4(), queue.clock)
    table = declare(queue.store, "letters", Msmq4(), queue.clock)
    for number, origin in enumerate(("orders", "invoices"), 1):
        properties = [[("poison.origin_queue", origin), ("poison.origin_lookup_id", "77"), ("poison.reason", "why"), ("kind", "order")]]
        columns: dict[str, pa.Array[Any]] = {
            "body": pa.array([f"letter {number}".encode()]),
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
            "abort_count": pa.array([2], pa.int32()),
        }
        table.append([pa.RecordBatch.from_pydict(columns)], origin, queue.clock.now())
    return table


def test_dead_letters_go_back_to_where_they_came_from(queue: Queue, letters: QueueTable) -> None:
    result = send_to(letters, queue.store, queue.clock, [1, 2])
    assert result.to_dict() == {"queue": "letters", "sent": 2, "to": {"invoices": 1, "orders": 1}}
    assert bodies(queue.store.open("invoices")) == ["letter 2"]
    [back] = [row for row in queue.rows().values() if row["body"] == b"letter 1"]
    assert (back["abort_count"], back["move_count"], back["sub_queue"]) == (0, 0, "main")
    properties = dict(back["properties"])  # type: ignore[call-overload]  # a map
    assert (properties["poison.origin_queue"], properties["kind"]) == ("letters", "order")
    assert "poison.destination" not in properties
    assert rows_of(letters) == {}
    assert letters.snapshot().outbox == ()
    assert [(event.type.value, event.lookup_id, dict(event.details)) for event in letters.events()] == [
        ("REQUEUED", 1, {"place": "orders", "by": "hand"}),
        ("REQUEUED", 2, {"place": "invoices", "by": "hand"}),
    ]


def test_messages_can_be_sent_to_a_queue_that_people_name(queue: Queue, letters: QueueTable) -> None:
    assert send_to(queue.table, queue.store, queue.clock, [2, 6], "invoices").to == {"invoices": 2}
    assert len(rows_of(queue.store.open("invoices"))) == 2
    assert sorted(places(queue)) == [1, 3, 4, 5, 7, 8]


def test_a_typing_error_makes_no_queue(queue: Queue, letters: QueueTable) -> None:
    with pytest.raises(QueueNotFoundError, match="'invoicse'"):
        send_to(queue.table, queue.store, queue.clock, [1], "invoicse")
    with pytest.raises(SettingError, match="another queue"):
        send_to(queue.table, queue.store, queue.clock, [1], "orders")
    assert places(queue) == PLACES
    assert list(queue.store.names()) == ["invoices", "letters", "orders"]


def test_a_message_that_says_no_origin_needs_a_name(queue: Queue, letters: QueueTable) -> None:
    with pytest.raises(InputError, match=r"\[1, 2\].*poison\.origin_queue"):
        send_to(queue.table, queue.store, queue.clock, [1, 2])
    assert places(queue) == PLACES


def test_missing_and_claimed_messages_are_not_sent_nor_their_neighbours(queue: Queue, letters: QueueTable) -> None:
    with pytest.raises(MessageNotFoundError):
        send_to(queue.table, queue.store, queue.clock, [3, 99], "invoices")
    claim(queue)
    with pytest.raises(MessageClaimedError):
        send_to(queue.table, queue.store, queue.clock, [1, 3], "invoices")
    assert places(queue) == PLACES
    assert rows_of(queue.store.open("invoices")) == {}


POINTS = [
    "store.replace.before_commit",
    "store.replace.after_commit",
    "store.append.after_files",
    "store.append.before_commit",
    "store.append.after_commit",
    "store.remove_outbox.before_commit",
    "store.remove_outbox.after_commit",
]


@pytest.mark.parametrize("point", POINTS)
def test_whoever_dies_on_the_way_each_message_arrives_once(queue: Queue, letters: QueueTable, at_point: AtPoint, point: str) -> None:
    at_point.do(point, die)
    with pytest.raises(DiedError):
        send_to(letters, queue.store, queue.clock, [1, 2])
    if point == "store.replace.before_commit":
        assert send_to(letters, queue.store, queue.clock, [1, 2]).sent == 2
    else:
        with pytest.raises(MessageNotFoundError):
            send_to(letters, queue.store, queue.clock, [1, 2])

    assert bodies(queue.store.open("invoices")) == ["letter 2"]
    assert bodies(queue.table).count("letter 1") == 1
    assert rows_of(letters) == {}
    assert letters.snapshot().outbox == ()


def test_a_pass_over_the_queue_finishes_what_a_dead_send_left(queue: Queue, letters: QueueTable, at_point: AtPoint) -> None:
    at_point.do("store.replace.after_commit", die)
    with pytest.raises(DiedError):
        send_to(queue.table, queue.store, queue.clock, [5], "invoices")
    queue.clock.advance(timedelta(seconds=1))
    queue.receive()
    assert len(rows_of(queue.store.open("invoices"))) == 1

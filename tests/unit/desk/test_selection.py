"""Selections: which messages they have, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, undo
from airflow_poison.desk.plans import plan, record
from airflow_poison.desk.queries import find, groups, query
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.move import move, put_back
from airflow_poison.values.errors import QueryError, SettingError
from airflow_poison.values.schema import SubQueue
from tests.unit.desk.conftest import body

if TYPE_CHECKING:
    from tests.given.passes import Queue

ALL = list(range(1, 10))


def ids(queue: Queue, **conditions: Any) -> list[int]:
    return [row.lookup_id for row in find(queue.table, Selection(**conditions), limit=200).messages]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, ALL),
        ({"sub_queue": None}, ALL),
        ({"sub_queue": SubQueue.MAIN}, []),
        ({"error_type": "KeyError"}, [1, 2, 3, 4]),
        ({"text": "COULD NOT"}, [5, 6, 7, 8, 9]),
        ({"text": '"carrier": "vx"'}, [1, 3, 5, 7, 9]),
        ({"lookup_ids": (2, 3, 99)}, [2, 3]),
        ({"counts": ("move_count=1", "abort_count>=0")}, ALL),
        ({"counts": ("move_count>1",)}, []),
        ({"properties": {"source": "test"}}, ALL),
        ({"properties": {"source": "other"}}, []),
        ({"where": "body.carrier = 'VX' and body.delay > 40"}, [5, 7, 9]),
        ({"where": "body.delay between 20 and 30"}, [2, 3]),
        ({"where": "body.delay > 20 or body.number < 2", "error_type": "KeyError"}, [1, 3, 4]),
        ({"where": "error_message like '%x7%'"}, [7]),
        ({"where": "properties['source'] = 'test' and lookup_id % 4 = 0"}, [4, 8]),
        ({"since": datetime(2013, 1, 1, tzinfo=UTC)}, ALL),
        ({"until": datetime(2013, 1, 1, tzinfo=UTC)}, []),
    ],
)
def test_it_has_the_messages_that_meet_every_condition(poisoned: Queue, conditions: dict[str, Any], expected: list[int]) -> None:
    assert ids(poisoned, **conditions) == expected


@pytest.mark.parametrize("limit", [1, 50, 51])
def test_a_page_of_a_type_of_failure_is_found_whatever_its_size(poisoned: Queue, limit: int) -> None:
    assert [row.lookup_id for row in find(poisoned.table, Selection(error_type="KeyError"), limit=limit).messages] == [1, 2, 3, 4][:limit]


@pytest.mark.parametrize(("text", "numbers"), [("7", (7,)), ("1,2,5-7", (1, 2, 5, 6, 7)), (" [3, 1] ", (1, 3)), ("5-5", (5,)), ("7-5", ())])
def test_lookup_ids_may_be_text(text: str, numbers: tuple[int, ...]) -> None:
    assert Selection.from_dict({"lookup_ids": text}).lookup_ids == numbers


@pytest.mark.parametrize("text", ["", "x", "1;2", "1-", "1.5", "1-1000001", "1-600000,1-600000"])
def test_another_text_is_no_lookup_ids(text: str) -> None:
    with pytest.raises(SettingError, match=r"lookup_ids=.*such as 1,2,5-9"):
        Selection.from_dict({"lookup_ids": text})


def test_a_text_is_greater_than_no_number(queue: Queue) -> None:
    queue.sent(body(1, "key", delay="late"), body(2, "key", delay=61), body(3, "key", delay=None), body(4, "key"), "no JSON", key="a").receive()
    assert ids(queue, where="body.delay > 60") == [2]
    assert ids(queue, where="not (body.delay <= 60)") == [2]
    assert ids(queue, where="body.delay = 'late'") == [1]


def test_a_page_has_its_order_and_the_total(poisoned: Queue) -> None:
    found = find(poisoned.table, Selection(), offset=2, limit=3, order="lookup_id", descending=True)
    assert ([row.lookup_id for row in found.messages], found.total) == ([7, 6, 5], 9)
    assert all(not row.body for row in found.messages)
    with pytest.raises(SettingError, match="order='body'"):
        find(poisoned.table, Selection(), order="body")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("delay >", "no SQL condition"),
        ("bodi.delay > 1", "bodi"),
        ("exists (select 1)", "without another query"),
        ("lookup_id in (select 1)", "without another query"),
        ("true group by lookup_id", "expected one condition"),
        ("true; drop view messages", "expected one condition|no SQL"),
        ("text = (select content from read_text('/etc/passwd'))", "without another query"),
        ("lookup_id / 'x' > 1", "x"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_its_reason(poisoned: Queue, where: str, says: str) -> None:
    with pytest.raises(QueryError, match=says) as error:
        find(poisoned.table, Selection(where=where))
    assert "lookup_id, message_id" in str(error.value) or "expected one condition" in str(error.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"errr": "x"}, "did you mean 'error'"),
        ({"error": "x"}, "12 hexadecimal digits"),
        ({"sub_queue": "elsewhere"}, "one of main"),
        ({"counts": "moves>1"}, "move_count>=3"),
        ({"since": "yesterday"}, "ISO 8601"),
        ({"lookup_ids": ["a"]}, "whole numbers"),
        ({"lookup_ids": [True]}, "whole numbers"),
        ({"properties": {"a": 1}}, "text values by name"),
        ({"text": 7}, "a text"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
        ({"where": "body.a = '\udfff'"}, "half of a surrogate pair"),
        ({"properties": {"a": "\ud800"}}, "half of a surrogate pair"),
    ],
)
def test_plain_values_that_are_no_selection_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Selection.from_dict(values)


def test_a_selection_is_the_same_after_json() -> None:
    selection = Selection(
        error="0123456789ab", since=datetime(2026, 1, 1, tzinfo=UTC), counts=("move_count>1",), properties={"a": "b"}, lookup_ids=(1, 2)
    )
    assert Selection.from_dict(selection.to_dict()) == selection
    assert Selection.from_dict(Selection(lookup_ids=()).to_dict()) == Selection(lookup_ids=()), "no message, not all of them"
    assert Selection.from_dict({}) == Selection()
    assert Selection.from_dict({"sub_queue": None}).sub_queue is None


def test_an_empty_text_is_no_condition_as_templates_of_dags_give_it() -> None:
    assert Selection.from_dict({"error": "", "error_type": None, "since": "", "until": None, "counts": "", "where": ""}) == Selection()


# Error groups ---------------------------------------------------------------------------------------------------------


def test_failures_that_differ_only_in_data_are_one_group(poisoned: Queue) -> None:
    found = groups(poisoned.table, Selection(), poisoned.clock)
    assert [(group.type, group.messages, group.sample) for group in found.groups] == [("ValueError", 5, 5), ("KeyError", 4, 1)]
    assert (found.messages, sum(found.groups[0].trend)) == (9, 5)
    assert ids(poisoned, error=found.groups[1].error) == [1, 2, 3, 4]


def test_a_missing_key_is_not_data(queue: Queue) -> None:
    queue.sent(body(1, "key", "carrier"), body(2, "key", "delay"), body(3, "key", "delay")).receive()
    assert [group.messages for group in groups(queue.table, Selection(), queue.clock).groups] == [2, 1]


def test_what_a_pass_says_of_failures_has_the_ids_of_their_groups(queue: Queue) -> None:
    ran = queue.sent(body(1, "key", "carrier"), body(2, "key", "delay"), body(3, "key", "delay"), body(4, "value", "7")).receive()
    found = groups(queue.table, Selection(), queue.clock).groups
    assert {error["fingerprint"]: error["messages"] for error in ran.errors} == {group.error: group.messages for group in found}
    assert [group.messages for group in found] == [2, 1, 1]


def test_a_group_was_seen_when_its_messages_failed(queue: Queue) -> None:
    queue.sent(body(1, "key", "a"), key="a")
    queue.clock.advance(timedelta(hours=1))
    failed = queue.clock.now()
    queue.receive()
    [group] = groups(queue.table, Selection(), queue.clock).groups
    assert (group.first_seen, group.last_seen) == (failed, failed)


def test_a_group_was_seen_first_and_last_when_its_messages_failed_whatever_people_did_since(queue: Queue) -> None:
    # given a message that fails, is put back by a plan, and fails again an hour later
    begun, hour = queue.clock.now(), timedelta(hours=1)
    queue.sent(body(1, "key", "delay")).receive("one")
    queue.clock.advance(hour)
    put_back(queue.table, queue.clock)
    queue.receive("two")
    # when people put it back and undo that, and move it there and back, hours later
    queue.clock.advance(hour)
    done = record(queue.table, plan(queue.table, Selection(), PlanAction(verb=Verb.PUT_BACK), queue.clock), queue.clock, who="ann")
    apply(queue.table, done, queue.clock)
    undo(queue.table, done, queue.clock, who="ann")
    queue.clock.advance(hour)
    move(queue.table, queue.clock, [1], SubQueue.MAIN)
    move(queue.table, queue.clock, [1], SubQueue.POISON)
    # then
    [group] = groups(queue.table, Selection(), queue.clock).groups
    assert (group.first_seen, group.last_seen) == (begun, begun + hour)


def test_an_empty_queue_has_no_groups(queue: Queue) -> None:
    assert groups(queue.table, Selection(), queue.clock).groups == ()
    assert find(queue.table, Selection(where="body.x > 1")).total == 0


# Queries --------------------------------------------------------------------------------------------------------------


def test_a_query_reads_messages_and_events(poisoned: Queue) -> None:
    text = "select body.carrier as carrier, count(*) as messages from messages group by all order by messages;"
    assert query(poisoned.table, text).to_pylist() == [{"carrier": "AA", "messages": 4}, {"carrier": "VX", "messages": 5}]
    assert query(poisoned.table, "select count(*) as n from events where event = 'MOVED_POISON'").to_pylist() == [{"n": 9}]
    assert query(poisoned.table, "select * from messages", limit=2).num_rows == 2
    [row] = query(poisoned.table, "select body.carrier, body.carrier as c, body, details.place from messages, events limit 1").to_pylist()
    assert (row["carrier"], row["c"], row["place"]) == ("VX", "VX", "poison")


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/*')",
        "copy messages to '/tmp/x.parquet'",
        "attach '/tmp/x.db'",
        "install httpfs",
        "set enable_external_access = true",
        "select 1; select 2",
        "create table x as select 1",
        "select getenv('HOME')",
        "selec",
    ],
)
def test_a_query_reads_and_changes_nothing_else(poisoned: Queue, text: str) -> None:
    with pytest.raises(QueryError):
        query(poisoned.table, text)


def test_looking_writes_nothing(poisoned: Queue) -> None:
    before = poisoned.table.snapshot().version
    groups(poisoned.table, Selection(), poisoned.clock)
    query(poisoned.table, "select 1")
    find(poisoned.table, Selection())
    assert poisoned.table.snapshot().version == before

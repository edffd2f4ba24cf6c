"""The outbox goes to the queues that its messages name, exactly once, whoever dies on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.passes import relay as relay_module
from airflow_poison.passes.relay import dead_letter_queue, relay
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.control import QueueState
from airflow_poison.store.files import Replacement
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.schema import DESTINATION, OUTBOX, SubQueue, table_schema
from tests.given.passes import DiedError, a_queue, bodies, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

SYSTEM_QUEUE = "_SYSTEM.Exception.Destination.ME1"


def leave(queue: Queue, *destinations: str | None, properties: Mapping[str, str] | None = None) -> None:
    """Put a message for each destination into the outbox, all in one file: ``to 1``, ``to 2`` and so on."""
    queue.sent(*(f"to {number}" for number, _ in enumerate(destinations, 1)))
    [file] = queue.table.snapshot().files
    named = [{} if name is None else {DESTINATION: name} for name in destinations]
    rows = [
        row | {"sub_queue": OUTBOX, "reason": "why", "abort_count": 5, "properties": list({**(properties or {}), **name}.items())}
        for row, name in zip(queue.table.read(file).to_pylist(), named, strict=True)
    ]
    queue.table.replace_files([Replacement(file, pa.Table.from_pylist(rows, schema=table_schema()))], [])


def relayed(queue: Queue) -> int:
    return relay(queue.store, queue.table, queue.clock)


def properties_of(table: QueueTable, lookup_id: int = 1) -> dict[str, str]:
    properties: dict[str, str] = dict(rows_of(table)[lookup_id]["properties"])  # type: ignore[call-overload]  # a map
    return properties


def test_one_outbox_file_goes_to_several_queues(queue: Queue) -> None:
    leave(queue, "backout", SYSTEM_QUEUE, "backout", None)
    assert relayed(queue) == 4
    assert bodies(queue.store.open("backout")) == ["to 1", "to 3"]
    assert bodies(queue.store.open(SYSTEM_QUEUE)) == ["to 2"]
    assert bodies(queue.store.open("orders.dead-letter")) == ["to 4"]
    assert queue.table.snapshot().outbox == ()
    assert queue.rows() == {}


def test_dmp_18_headers_and_properties_travel_and_the_destination_stays_behind(queue: Queue) -> None:
    leave(queue, "backout", properties={"JMS_IBM_Feedback": "2362", "kind": "order"})
    relayed(queue)
    table = queue.store.open("backout")
    assert properties_of(table) == {
        "JMS_IBM_Feedback": "2362",
        "kind": "order",
        "poison.origin_queue": "orders",
        "poison.origin_lookup_id": "1",
        "poison.reason": "why",
    }
    assert (rows_of(table)[1]["abort_count"], rows_of(table)[1]["move_count"]) == (0, 0)


def test_the_destination_of_a_disposition_comes_before_the_senders_dead_letter_queue(queue: Queue) -> None:
    leave(queue, "backout", properties={"dead_letter_queue": "lost"})
    relayed(queue)
    assert bodies(queue.store.open("backout")) == ["to 1"]
    assert list(queue.store.names()) == ["backout", "orders"]


@pytest.mark.parametrize("destination", ["../up", "a;poison", "x" * 200, "", "orders"])
def test_a_destination_that_names_no_other_queue_goes_to_the_dead_letter_queue(queue: Queue, destination: str) -> None:
    leave(queue, destination, properties={"dead_letter_queue": "lost"})
    assert relayed(queue) == 1
    assert bodies(queue.store.open("orders.dead-letter")) == ["to 1"]
    assert queue.rows() == {}


def test_a_senders_reply_to_queue_is_no_topic(queue: Queue) -> None:
    policy = ActivationSpecification(stop_endpoint_if_delivery_fails=False, backout_threshold=1, backout_requeue_queue="backout")
    asked = {"JMS_IBM_Report_Exception": "MQRO_EXCEPTION_WITH_FULL_DATA", "JMSReplyTo": "kafka:elsewhere"}
    asked["JMS_IBM_Report_Discard_Msg"] = "MQRO_DISCARD_MSG"  # so that the report is alone in its file
    queue.having(policy=policy).sent("bad", properties=asked).receive()
    assert queue.table.snapshot().outbox == ()
    assert bodies(queue.store.open("orders.dead-letter")) == ["bad"]


@pytest.mark.parametrize("name", ["orders", "x" * 100, "x" * 88 + ".dead-letter", "orders.dead-letter"])
def test_a_dead_letter_queue_is_never_the_queue_itself_and_always_a_name(queue: Queue, name: str) -> None:
    from airflow_poison.store import check_name

    assert check_name(dead_letter_queue(name)) != name


def test_a_queue_that_is_made_on_the_way_begins_neutral(queue: Queue) -> None:
    """A backout queue whose own policy backs out to itself, or that begins halted, would keep its messages from everybody."""
    halted = replace(queue.table.snapshot().control, state=QueueState.FAULTED, reason="message 1", counters={"told:us": 3, "failures": 2})
    queue.table.alter(lambda _: halted, lambda _, __: [])
    leave(queue, "backout")
    relayed(queue)
    control = queue.store.open("backout").snapshot().control
    assert (control.state, control.reason, dict(control.counters)) == (QueueState.ENABLED, "", {})
    assert dict(control.policy) == Msmq4().to_dict()


def test_a_queue_of_an_unknown_system_is_relayed_all_the_same(queue: Queue) -> None:
    unknown = replace(queue.table.snapshot().control, policy={"system": "of tomorrow"})
    queue.table.alter(lambda _: unknown, lambda _, __: [])
    leave(queue, "backout")
    assert relayed(queue) == 1


@pytest.mark.parametrize(
    "settings",
    [{"system": "ActivationSpecification", "failureDeliveryCount": 5}, {"system": "ListenerPort", "maxRetries": 5}],
    ids=["activation specification", "listener port"],
)
def test_wmq_10_the_dead_letter_queue_as_backout_queue_is_there_in_a_new_store(
    store: QueueStore, tmp_path: Path, settings: dict[str, object]
) -> None:
    policy = policy_from_dict({**settings, "BOTHRESH": 1, "BOQNAME": "SYSTEM.DEAD.LETTER.QUEUE"})  # the article
    queue = a_queue(store, tmp_path, policy).sent("bad", "good")

    result = queue.receive()

    assert (result.requeued, result.settled, result.blocked) == (1, 1, 0)
    assert bodies(store.open("SYSTEM.DEAD.LETTER.QUEUE")) == ["bad"]
    assert "mq.dead_letter_header" not in properties_of(store.open("SYSTEM.DEAD.LETTER.QUEUE"))  # WMQ-24: none for BOQNAME


def test_a_queue_that_exists_keeps_its_row(queue: Queue) -> None:
    backout = queue.store.create("backout", replace(queue.table.snapshot().control, reason="mine"))
    leave(queue, "backout")
    relayed(queue)
    assert backout.snapshot().control.reason == "mine"


def test_a_destination_that_fails_keeps_no_message_from_another_one(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    made = type(queue.store).create

    def create(store: QueueStore, name: str, *rest: Any) -> QueueTable:
        if name == "broken":
            raise TableChangedError("the queue is damaged")
        return made(store, name, *rest)

    leave(queue, "broken", "elsewhere")
    queue.sent("more", key="more")
    [file] = queue.table.snapshot().files
    [row] = queue.table.read(file).to_pylist()
    row |= {"sub_queue": OUTBOX, "properties": [(DESTINATION, "elsewhere")]}
    queue.table.replace_files([Replacement(file, pa.Table.from_pylist([row], schema=table_schema()))], [])
    with monkeypatch.context() as patched:
        patched.setattr(type(queue.store), "create", create)
        for _ in range(2):
            with pytest.raises(TableChangedError, match="damaged"):
                relayed(queue)
            assert sorted(bodies(queue.store.open("elsewhere"))) == ["more", "to 2"]

    assert relayed(queue) == 2
    assert bodies(queue.store.open("broken")) == ["to 1"]
    assert sorted(bodies(queue.store.open("elsewhere"))) == ["more", "to 2"]
    assert queue.table.snapshot().outbox == ()


def test_sb_19_a_disabled_destination_holds_them(queue: Queue) -> None:
    disabled = replace(queue.table.snapshot().control, state=QueueState.DISABLED)
    backout = queue.store.create("backout", disabled)
    leave(queue, "backout", "elsewhere")
    assert relayed(queue) == 2
    assert [rows_of(backout, place).keys() for place in (SubQueue.MAIN, SubQueue.TRANSMISSION)] == [set(), {1}]
    assert queue.table.snapshot().outbox == ()


def test_a_large_outbox_file_is_sent_in_portions_and_whole(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_ROWS", 2)
    leave(queue, "a", "b", "a", "a", "b", "a", "a")
    assert relayed(queue) == 7
    assert bodies(queue.store.open("a")) == ["to 1", "to 3", "to 4", "to 6", "to 7"]
    assert bodies(queue.store.open("b")) == ["to 2", "to 5"]


POINTS = ["store.append.after_files", "store.append.before_commit", "store.append.after_commit", "store.remove_outbox.before_commit"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("times", [1, 2], ids=["at the first queue", "at the second queue"])
def test_a_relay_that_dies_is_finished_once_by_the_next(queue: Queue, at_point: AtPoint, point: str, times: int) -> None:
    leave(queue, "one", "two", "one")

    def later() -> None:
        at_point.do(point, die)

    at_point.do(point, die if times == 1 or "remove" in point else later)
    with pytest.raises(DiedError):
        relayed(queue)
    relayed(queue)

    assert bodies(queue.store.open("one")) == ["to 1", "to 3"]
    assert bodies(queue.store.open("two")) == ["to 2"]
    assert queue.table.snapshot().outbox == ()


def test_two_relays_at_once_send_once(queue: Queue, at_point: AtPoint) -> None:
    leave(queue, "one", "two")
    at_point.do("store.append.after_files", lambda: relayed(queue))
    relayed(queue)
    assert bodies(queue.store.open("one")) == ["to 1"]
    assert bodies(queue.store.open("two")) == ["to 2"]


def die() -> None:
    raise DiedError

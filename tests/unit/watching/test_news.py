"""What has happened since somebody was told: nothing lost, nothing twice, the same keys for the same things."""

from __future__ import annotations

import shutil
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.passes.alter import disable, enable
from airflow_poison.passes.due import return_due
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.move import remove
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store import open_store
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.schema import SubQueue
from airflow_poison.watching.queue_events import Happening, Position, begin, news, ripens
from tests.given.tables import CONTROL, LATER, LEASE, NOW, claim, park_all, send

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
FAULT = Msmq4(receive_retry_count=0, max_retry_cycles=0)


class Reader:
    """Somebody who is told, look by look."""

    def __init__(self, happening: Happening, queue: QueueTable) -> None:
        self.happening, self.queue = happening, queue
        self.position = begin(happening, queue.snapshot())

    def told(self, now: datetime = NOW) -> list[dict[str, Any]]:
        found = news(self.happening, self.queue, self.queue.snapshot(), self.position, now)
        self.position = Position.from_dict(found.position.to_dict())
        return list(found.payloads)


def refuse(message: Message) -> None:
    raise ValueError(message.text)


def receive(store: QueueStore, queue: QueueTable, key: str, policy: Policy = MOVE) -> None:
    ReceivePass(table=queue, policy=policy, handler=refuse, engine=LocalEngine, clock=VirtualClock(NOW), isolation="none", store=store).run(key)


def test_messages_are_told_when_they_come_and_not_again(queue: QueueTable) -> None:
    send(queue, 2)
    reader = Reader(Happening.MESSAGES, queue)
    [told] = reader.told()
    assert (told["event"], told["queue"], told["count"], told["new"]) == ("messages", "orders", 2, 2)
    assert reader.told() == []
    send(queue, 3, key="second")
    [more] = reader.told()
    assert (more["count"], more["new"]) == (5, 3)
    assert more["key"] != told["key"]
    assert reader.told() == []


def test_messages_that_a_dead_pass_held_are_told_when_its_claim_ends(queue: QueueTable) -> None:
    send(queue, 2)
    reader = Reader(Happening.MESSAGES, queue)
    [first] = reader.told()
    claim(queue)
    assert reader.told() == []
    assert ripens(Happening.MESSAGES, queue.snapshot(), NOW) == NOW + LEASE
    [again] = reader.told(NOW + LEASE)
    assert again["new"] == 2
    assert again["key"] != first["key"]  # whoever drops keys that it has seen must not drop this one
    assert reader.told(NOW + LEASE) == []


def test_messages_of_a_blocked_queue_are_told_when_the_block_ends(queue: QueueTable) -> None:
    send(queue, 1)
    queue.alter(lambda control: control.blocked(1, LATER))
    reader = Reader(Happening.MESSAGES, queue)
    assert (reader.told(), ripens(Happening.MESSAGES, queue.snapshot(), NOW)) == ([], LATER)
    assert len(reader.told(LATER)) == 1


@pytest.mark.parametrize("happening", [Happening.MESSAGES, Happening.RETRY_DUE])
def test_what_a_halted_queue_cannot_receive_is_told_when_it_is_enabled_again(happening: Happening, queue: QueueTable) -> None:
    send(queue, 2)
    if happening is Happening.RETRY_DUE:
        park_all(queue, due_at=NOW)
    reader = Reader(happening, queue)
    assert len(reader.told()) == 1
    disable(queue, VirtualClock(NOW))
    assert reader.told() == []
    assert Reader(happening, queue).told() == [], "neither to somebody who begins to watch now"
    enable(queue, VirtualClock(NOW))
    [told] = reader.told()
    assert (told["event"], told["count"], told["new"]) == (happening.value, 2, 2)
    assert reader.told() == []


def test_the_halt_of_a_pass_tells_of_no_messages_that_it_leaves(store: QueueStore, queue: QueueTable) -> None:
    send(queue, 3)
    reader = Reader(Happening.MESSAGES, queue)
    assert len(reader.told()) == 1
    receive(store, queue, "halts", FAULT)
    assert queue.snapshot().control.state.value == "faulted"
    assert reader.told() == [], "a run of a DAG now could only fail"
    enable(queue, VirtualClock(NOW))
    assert [told["count"] for told in reader.told()] == [3]


def test_a_retry_is_told_once_when_it_is_due_also_when_the_last_one_has_not_returned_yet(queue: QueueTable) -> None:
    send(queue, 2)
    park_all(queue)
    reader = Reader(Happening.RETRY_DUE, queue)
    assert (reader.told(), ripens(Happening.RETRY_DUE, queue.snapshot(), NOW)) == ([], LATER)
    [told] = reader.told(LATER)
    assert (told["count"], told["new"], told["due_at"]) == (2, 2, LATER.isoformat())
    assert reader.told(LATER) == []

    send(queue, 1, key="second")
    park_all(queue, "second", due_at=LATER - timedelta(minutes=5))  # due earlier, parked later
    [more] = reader.told(LATER)
    assert (more["count"], more["new"]) == (3, 1)

    return_due(queue, VirtualClock(LATER))
    assert reader.told(LATER) == []


def test_between_two_looks_a_return_and_a_new_parking_are_not_taken_for_one(queue: QueueTable) -> None:
    send(queue, 1)
    park_all(queue)
    reader = Reader(Happening.RETRY_DUE, queue)
    assert len(reader.told(LATER)) == 1
    return_due(queue, VirtualClock(LATER))
    park_all(queue, "again")
    assert len(reader.told(LATER)) == 1


def test_poison_is_told_once_for_all_messages_between_two_looks(store: QueueStore, queue: QueueTable) -> None:
    send(queue, 2)
    receive(store, queue, "before")  # in the past of whoever begins now
    reader = Reader(Happening.POISONED, queue)
    send(queue, 3, key="second")
    receive(store, queue, "one")
    send(queue, 1, key="third")
    receive(store, queue, "two")
    remove(queue, 3, VirtualClock(NOW))  # by hand: nobody is told
    [told] = reader.told()
    assert (told["count"], told["kinds"], told["lookup_ids"]) == (4, {"MOVED_POISON": 4}, [3, 4, 5, 6])
    assert reader.told() == []


def test_each_halt_and_each_start_is_told(store: QueueStore, queue: QueueTable) -> None:
    queue.alter(lambda control: type(control)(FAULT.to_dict()))
    halts, starts = Reader(Happening.DISABLED, queue), Reader(Happening.ENABLED, queue)
    for number in range(2):
        send(queue, 1, key=str(number))
        receive(store, queue, f"run {number}", FAULT)
        remove(queue, 1 + number, VirtualClock(NOW))
        enable(queue, VirtualClock(NOW))
    told = halts.told()
    assert [(found["event"], found["kind"], found["lookup_id"]) for found in told] == [("disabled", "FAULTED", 1), ("disabled", "FAULTED", 2)]
    assert [found["kind"] for found in starts.told()] == ["STARTED", "STARTED"]
    assert len({found["key"] for found in told}) == 2
    assert (halts.told(), starts.told()) == ([], [])


def test_a_queue_that_people_switch_off_is_told_once_although_it_records_no_event(queue: QueueTable) -> None:
    """Spec section 11, item 3: STATUS = OFF by hand raises no event."""
    clock, halts = VirtualClock(NOW), Reader(Happening.DISABLED, queue)
    disable(queue, clock, "for the night")
    [told] = halts.told()
    assert (told["event"], told["kind"], told["at"], told["lookup_id"]) == ("disabled", None, NOW.isoformat(), None)
    assert told["details"] == {"endpoint": "orders", "state": "disabled", "reason": "for the night"}
    send(queue, 1)
    assert halts.told() == []

    enable(queue, clock)
    assert halts.told() == []
    disable(queue, clock, "for the night")
    [again] = halts.told()
    assert again["key"] != told["key"]


def test_switched_on_and_off_between_two_looks_is_off_once_more(queue: QueueTable) -> None:
    clock, halts = VirtualClock(NOW), Reader(Happening.DISABLED, queue)
    for _ in range(2):
        disable(queue, clock)
        assert [found["kind"] for found in halts.told()] == [None]
        enable(queue, clock)


def test_what_is_off_when_somebody_begins_lies_in_the_past(queue: QueueTable) -> None:
    disable(queue, VirtualClock(NOW))
    halts = Reader(Happening.DISABLED, queue)
    send(queue, 1)
    assert halts.told() == []


def test_a_halt_by_the_rules_is_not_told_again_when_people_switch_the_queue_off_besides(store: QueueStore, queue: QueueTable) -> None:
    halts = Reader(Happening.DISABLED, queue)
    queue.alter(lambda control: type(control)(FAULT.to_dict()))
    send(queue, 1)
    receive(store, queue, "run", FAULT)
    assert [found["kind"] for found in halts.told()] == ["FAULTED"]
    disable(queue, VirtualClock(NOW))
    assert halts.told() == []


def test_a_halt_by_the_rules_and_one_by_hand_between_two_looks_are_two(store: QueueStore, queue: QueueTable) -> None:
    halts = Reader(Happening.DISABLED, queue)
    queue.alter(lambda control: type(control)(FAULT.to_dict()))
    send(queue, 1)
    receive(store, queue, "run", FAULT)
    enable(queue, VirtualClock(NOW))
    disable(queue, VirtualClock(NOW))
    assert [found["kind"] for found in halts.told()] == ["FAULTED", None]
    assert halts.told() == []


def test_dmp_14_a_block_is_told_once_for_all_messages_between_two_looks(store: QueueStore, queue: QueueTable) -> None:
    with warnings.catch_warnings(action="ignore"):
        blocking = DefaultMessaging(exception_destination="None", max_failed_deliveries=1)
    reader = Reader(Happening.BLOCKED, queue)
    send(queue, 2)
    receive(store, queue, "one", blocking)
    [told] = reader.told()
    assert (told["event"], told["kinds"], told["lookup_ids"]) == ("blocked", {"BLOCKED": 1}, [1])
    assert reader.told() == []


@pytest.mark.parametrize("happening", sorted(set(Happening) - {Happening.BLOCKED, Happening.OUTAGE}))
def test_whoever_is_told_again_from_the_same_position_hears_the_same_keys(happening: Happening, store: QueueStore, queue: QueueTable) -> None:
    reader = Reader(happening, queue)
    queue.alter(lambda control: type(control)(FAULT.to_dict()))
    send(queue, 1)
    receive(store, queue, "fault", FAULT)
    enable(queue, VirtualClock(NOW))
    receive(store, queue, "move")
    send(queue, 2, key="parked")
    park_all(queue)
    send(queue, 1, key="there")
    first, position = reader.told(LATER), reader.position
    reader.position = begin(happening, queue.snapshot()) if happening in {Happening.MESSAGES, Happening.RETRY_DUE} else Position(0)
    again = reader.told(LATER)
    assert first
    if happening is Happening.POISONED:  # named by its range of versions
        again[0] |= {name: first[0][name] for name in ("key", "versions")}
    assert again == first
    assert reader.position == position


def test_a_queue_that_was_put_back_to_an_older_copy_goes_on_from_there(queue: QueueTable) -> None:
    reader = Reader(Happening.POISONED, queue)
    reader.position = Position(10_000)
    assert reader.told() == []
    assert reader.position.version == queue.snapshot().version


@pytest.mark.parametrize("quiet", [0, 30])
def test_all_events_of_a_queue_that_was_made_anew_are_news(quiet: int, tmp_path: Path) -> None:
    """Its versions begin anew: below the position, events waited until it had as many; above it, they were taken for sent."""
    told, reader = list[dict[str, Any]](), None
    for turn in range(2):
        store = open_store(str(tmp_path / "store"))
        queue = store.create("orders", CONTROL)
        reader = reader or Reader(Happening.POISONED, queue)
        reader.queue = queue
        send(queue, 1)
        receive(store, queue, "poisons")
        for _ in range(quiet * turn):
            disable(queue, VirtualClock(NOW))
            enable(queue, VirtualClock(NOW))
        told += reader.told()
        assert reader.told() == []
        shutil.rmtree(tmp_path / "store")
    assert [each["count"] for each in told] == [1, 1]
    assert told[0]["key"] != told[1]["key"]


def test_files_that_moved_are_other_files(queue: QueueTable) -> None:
    send(queue, 2)
    reader = Reader(Happening.MESSAGES, queue)
    assert len(reader.told()) == 1
    queue.move_files(lambda snapshot: list(snapshot.files), SubQueue.POISON, NOW)
    assert reader.told() == []
    queue.move_files(lambda snapshot: list(snapshot.files), SubQueue.MAIN, NOW)
    assert len(reader.told()) == 1

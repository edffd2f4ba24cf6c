"""A redrive for a new handler version: once for each, a canary of each error group, the others when it was good; also after deaths."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison import PoisonSubQueue
from airflow_poison.desk.plans import plans
from airflow_poison.desk.rule_runs import redrive, set_redrive
from airflow_poison.fsck.check import check
from airflow_poison.passes.alerts import AlertKind, send_alerts
from airflow_poison.passes.declaration import Canary
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.given.passes import DiedError

if TYPE_CHECKING:
    from airflow_poison.passes.alerts import Alert
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.values.message import Message
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

WHO = "dag:d/r/t"


def land(message: Message) -> None:
    """The mended handler: it needs no key any more, and its values are as wrong as before."""
    body = message.json()
    if body["fails"] == "value":
        raise ValueError(body["says"])


def land_all(message: Message) -> None:
    """It takes everything."""
    assert message.json()


def received(queue: Queue, key: str, handler: object = land, version: str | None = "2") -> ReceiveResult:
    begun = partial(redrive, queue.table, queue.clock, version, who=WHO)
    return queue.receive(key, handler=handler, before_claim=begun)


def states(queue: Queue) -> dict[str, tuple[str, int, int]]:
    """Of each error group the state of its newest plan, how many are done, and of how many."""
    return {each.groups[0].type: (each.state, each.done, each.messages) for each in reversed(plans(queue.table))}


def in_poison(queue: Queue) -> list[int]:
    return sorted(queue.rows(SubQueue.POISON))


def alerts(queue: Queue) -> list[Alert]:
    heard: list[Alert] = []
    send_alerts(queue.table, "me", {"notes": heard.append}, queue.clock, kinds=[AlertKind.DESK])
    return heard


@pytest.fixture
def waiting(poisoned: Queue) -> Queue:
    """A queue with poison, which redrives by itself; it knows version 1 of its handler."""
    set_redrive(poisoned.table, Canary(2, 0.5), poisoned.clock)
    assert redrive(poisoned.table, poisoned.clock, "1", who=WHO) == ()
    return poisoned


def test_it_is_off_unless_a_queue_is_set_so(poisoned: Queue) -> None:
    assert received(poisoned, "two").received == 0
    assert plans(poisoned.table) == ()


@pytest.mark.parametrize("version", ["1", None])
def test_the_version_that_is_known_and_none_start_nothing(waiting: Queue, version: str | None) -> None:
    assert received(waiting, "two", version=version).received == 0
    assert plans(waiting.table) == ()


def test_the_reader_of_poison_starts_nothing(waiting: Queue) -> None:
    received(waiting.having(policy=PoisonSubQueue()), "two")
    assert plans(waiting.table) == ()


def test_a_canary_of_each_group_is_received_by_the_pass_of_the_new_handler(waiting: Queue) -> None:
    result = received(waiting, "two")
    assert (result.received, result.settled, result.poisoned) == (4, 2, 2)
    assert states(waiting) == {"ValueError": ("canary", 2, 5), "KeyError": ("canary", 2, 4)}


def test_the_others_follow_where_the_canary_was_good_and_people_are_told(waiting: Queue) -> None:
    received(waiting, "two")
    result = received(waiting, "three")
    assert (result.received, result.settled) == (2, 2)
    assert states(waiting) == {"ValueError": ("stopped", 2, 5), "KeyError": ("done", 4, 4)}
    assert in_poison(waiting) == [5, 6, 7, 8, 9]
    told = sorted(alert.reason for alert in alerts(waiting))
    assert [line.partition(", error group ")[2].split(" ")[0] for line in told] == ["'KeyError", "'ValueError"]
    assert "was stopped: of its canary 0 messages settled, 2 messages failed" in told[1]
    if isinstance(waiting.store, DeltaStore):
        assert [each for each in check(waiting.table, waiting.clock).findings if each.severity.value == "error"] == []


def test_a_version_is_redriven_once(waiting: Queue) -> None:
    for number, version in enumerate(("2", "1", "2", "1")):
        received(waiting, f"pass-{number}", version=version)
    assert len(plans(waiting.table)) == 2
    assert alerts(waiting)
    assert alerts(waiting) == []


def test_a_still_newer_handler_takes_over(waiting: Queue) -> None:
    received(waiting, "two")
    assert received(waiting, "three", land_all, "3").settled == 6  # two values have failed in another handler: they are a group of their own
    assert [each.state for each in plans(waiting.table)].count("cancelled") == 2
    assert received(waiting, "four", land_all, "3").settled == 1
    assert in_poison(waiting) == []


def test_without_a_version_it_only_goes_on(waiting: Queue) -> None:
    received(waiting, "two")
    assert [each.state for each in redrive(waiting.table, waiting.clock, who=WHO)] == ["stopped", "done"]


def test_the_first_version_that_a_queue_sees_starts_nothing(poisoned: Queue) -> None:
    set_redrive(poisoned.table, {"messages": 1}, poisoned.clock)
    assert redrive(poisoned.table, poisoned.clock, "1", who=WHO) == ()
    assert len(redrive(poisoned.table, poisoned.clock, "2", who=WHO)) == 2


@pytest.mark.parametrize("version", ["", " ", "x" * 201, 3])
def test_what_is_no_version_is_refused(waiting: Queue, version: Any) -> None:
    with pytest.raises(SettingError, match="handler_version="):
        redrive(waiting.table, waiting.clock, version, who=WHO)


def test_it_can_be_switched_off(waiting: Queue) -> None:
    set_redrive(waiting.table, None, waiting.clock)
    assert waiting.table.snapshot().control.desk == {}
    received(waiting, "two")
    assert plans(waiting.table) == ()
    with pytest.raises(SettingError, match=r"canary\.messages=0"):
        set_redrive(waiting.table, {"messages": 0}, waiting.clock)
    with pytest.raises(SettingError, match="redrive_on_new_handler"):
        set_redrive(waiting.table, {"message": 1}, waiting.clock)


POINTS = ("desk.redrive.before_plan", "store.plan.after_commit", "desk.redrive.after_plan", "desk.redrive.before_seen", "desk.apply.before_chunk")


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta"], indirect=True)
@pytest.mark.parametrize("point", POINTS)
def test_who_dies_anywhere_does_each_message_once(waiting: Queue, at_point: AtPoint, point: str) -> None:
    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    for _ in range(3):
        try:
            received(waiting, "two")
        except DiedError:
            continue
    received(waiting, "three")
    moved = sorted(each.lookup_id or 0 for each in waiting.table.events(types=[EventType.RETURNED]))
    assert (moved, len(plans(waiting.table))) == ([1, 2, 3, 4, 5, 6], 2)


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta"], indirect=True)
@pytest.mark.parametrize("point", POINTS)
def test_two_passes_at_the_same_time_redrive_once(waiting: Queue, at_point: AtPoint, point: str) -> None:
    at_point.do(point, lambda: redrive(waiting.table, waiting.clock, "2", who=WHO))
    redrive(waiting.table, waiting.clock, "2", who=WHO)
    assert (len(plans(waiting.table)), len(waiting.rows(SubQueue.MAIN))) == (2, 4)


def test_a_group_whose_plan_fails_keeps_no_other_group_from_its_redrive(waiting: Queue, at_point: AtPoint) -> None:
    def fail() -> None:
        raise ValueError("of a library")

    at_point.do("desk.apply.before_chunk", fail)
    with pytest.raises(ValueError, match="of a library"):
        redrive(waiting.table, waiting.clock, "2", who=WHO)

    assert sorted((state, done) for state, done, _ in states(waiting).values()) == [("canary", 2), ("failed", 0)]

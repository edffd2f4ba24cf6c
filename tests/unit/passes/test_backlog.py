"""A backlog is told once, with the key of its oldest message, whoever is killed and whenever."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.fsck.check import check
from airflow_poison.notifications import AlertTargets
from airflow_poison.passes.alerts import Alert, AlertKind, send_backlog_alert
from airflow_poison.passes.alter import disable, enable
from airflow_poison.passes.messages import with_columns
from airflow_poison.passes.move import move, remove_messages
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values import fault_points
from airflow_poison.values.clock import in_zone
from airflow_poison.values.errors import AlertError, SettingError
from airflow_poison.values.schema import SubQueue
from tests.given.passes import DiedError, a_queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from tests.given.passes import Queue

HOUR = timedelta(hours=1)


@pytest.fixture
def queue(store: QueueStore, tmp_path: Path) -> Iterator[Queue]:
    """Message 1 was sent an hour and a half ago, message 2 half an hour ago."""
    queue = a_queue(store, tmp_path, Msmq4()).sent("good")
    queue.clock.advance(HOUR)
    queue.sent("good")
    queue.clock.advance(HOUR / 2)
    yield queue
    fault_points.install(None)
    if isinstance(store, DeltaStore):
        assert [finding for finding in check(queue.table, queue.clock).findings if finding.severity == "error"] == []


def look(queue: Queue, subscriber: str = "me", older_than: timedelta = HOUR) -> list[tuple[int, ...]]:
    """The oldest message of each alert that is told."""
    told: list[Alert] = []
    assert send_backlog_alert(queue.table, subscriber, older_than, told.append, queue.clock) == told
    assert {(alert.kind, alert.event, alert.queue) for alert in told} <= {(AlertKind.BACKLOG, "BACKLOG_TOO_OLD", "orders")}
    return [alert.lookup_ids for alert in told]


def gone(queue: Queue, *numbers: int) -> None:
    remove_messages(queue.table, queue.clock, numbers)


def test_what_is_not_too_old_is_no_backlog_and_nothing_is_written(queue: Queue) -> None:
    version = queue.table.snapshot().version
    assert look(queue, older_than=2 * HOUR) == []
    assert queue.table.snapshot().version == version


def test_an_age_that_is_reached_is_too_old(queue: Queue) -> None:
    assert look(queue, older_than=1.5 * HOUR + timedelta(microseconds=1)) == []
    assert look(queue, older_than=1.5 * HOUR) == [(1,)]


def test_a_backlog_is_told_once_also_while_its_oldest_message_changes(queue: Queue) -> None:
    assert look(queue) == [(1,)]
    assert look(queue) == []
    queue.clock.advance(HOUR)
    gone(queue, 1)  # the other one is too old by now: still the same backlog
    assert look(queue) == []


def test_a_backlog_says_what_waits(queue: Queue) -> None:
    told: list[Alert] = []
    send_backlog_alert(queue.table, "me", HOUR, told.append, queue.clock)
    sent = str(queue.rows()[1]["enqueued_at"])[:19]
    assert told[0].reason == f"Queue 'orders' has a backlog: message 1 in main was sent at {sent} UTC; 2 in main, 0 in retry wait."
    with in_zone("default_timezone", "Asia/Tokyo"):
        send_backlog_alert(queue.table, "another", HOUR, told.append, queue.clock)
    assert " JST; 2 in main" in told[1].reason
    assert told[0].count == 2


def test_the_next_backlog_is_told_when_another_message_has_become_too_old(queue: Queue) -> None:
    assert look(queue) == [(1,)]
    gone(queue, 1)
    assert look(queue) == []
    queue.clock.advance(HOUR)
    assert look(queue) == [(2,)]


def test_a_message_that_was_told_and_comes_back_is_not_told_again_but_one_behind_it_is(queue: Queue) -> None:
    assert look(queue) == [(1,)]
    move(queue.table, queue.clock, [1], "poison")
    assert look(queue) == []
    move(queue.table, queue.clock, [1], "main")
    assert look(queue) == []
    queue.clock.advance(HOUR)
    assert look(queue) == [(2,)]


@pytest.mark.parametrize(("place", "told"), [("retry", [(1,)]), ("poison", []), ("postponed", [])])
def test_retry_counts_and_poison_and_what_was_given_back_do_not(queue: Queue, place: str, told: object) -> None:
    [file] = [file for file in queue.table.snapshot().files if file.min_lookup_id == 1]
    due = queue.clock.now() + HOUR if place != "poison" else None
    queue.table.replace_file(file, with_columns(queue.table.read(file), sub_queue=SubQueue(place).value, due_at=due), [])
    assert look(queue) == told


def test_within_a_file_the_oldest_message_is_found_also_when_its_number_is_not_the_lowest(queue: Queue) -> None:
    queue.sent("good", "good", "good")
    [file] = [file for file in queue.table.snapshot().files if file.min_lookup_id == 3]
    now = queue.clock.now()
    ages = [now, now - 3 * HOUR, now - 2 * HOUR]
    queue.table.replace_file(file, with_columns(queue.table.read(file), enqueued_at=ages), [])
    assert look(queue) == [(4,)]


def test_each_subscriber_is_told(queue: Queue) -> None:
    assert look(queue) == [(1,)]
    assert look(queue, "you") == [(1,)]
    assert look(queue, "you") == []


def test_an_alert_that_fails_is_given_again_with_the_same_key_though_its_message_is_gone(queue: Queue) -> None:
    keys: list[str] = []

    def fails(alert: Alert) -> None:
        keys.append(alert.key)
        raise ValueError("no network")

    with pytest.raises(AlertError, match="no network"):
        send_backlog_alert(queue.table, "me", HOUR, fails, queue.clock)
    queue.clock.advance(HOUR)
    gone(queue, 1)
    told: list[Alert] = []
    send_backlog_alert(queue.table, "me", HOUR, told.append, queue.clock)
    assert ([alert.key for alert in told], told[0].lookup_ids) == (keys, (2,))
    assert look(queue) == []


def test_a_backlog_that_has_gone_before_anybody_heard_of_it_is_not_told(queue: Queue) -> None:
    def fails(_alert: Alert) -> None:
        raise ValueError

    with pytest.raises(AlertError):
        send_backlog_alert(queue.table, "me", HOUR, fails, queue.clock)
    gone(queue, 1)
    assert look(queue) == []
    queue.clock.advance(HOUR)
    assert look(queue) == [(2,)]


@pytest.mark.parametrize("recovered", [False, True])
def test_killed_anywhere_it_is_told_at_least_once_and_always_with_one_key(queue: Queue, *, recovered: bool) -> None:
    if recovered:
        look(queue)
        gone(queue, 1)
        look(queue)
        queue.clock.advance(HOUR)
    keys: list[str] = []
    for number in range(30):
        left = iter(range(number + 1))

        def die(_point: str, left: Any = left, last: int = number) -> None:
            if next(left, -1) == last:
                raise DiedError

        fault_points.install(die)
        try:
            send_backlog_alert(queue.table, "me", HOUR, lambda alert: keys.append(alert.key), queue.clock)
        except DiedError:
            continue
        finally:
            fault_points.install(None)
        break
    assert number >= 3
    assert len(set(keys)) == 1
    assert look(queue) == []


def test_a_queue_that_is_enabled_or_restarted_does_not_forget_what_was_told(queue: Queue) -> None:
    look(queue)
    disable(queue.table, queue.clock)
    enable(queue.table, queue.clock)
    assert look(queue) == []
    assert all(not name.startswith("backlog") for name in queue.table.snapshot().control.endpoint_counters)


@pytest.mark.parametrize("given", [{"on_backlog": print}, {"backlog_older_than": HOUR}, {"on_backlog": print, "backlog_older_than": timedelta(0)}])
def test_who_is_to_be_told_and_of_which_age_belong_together(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="backlog_older_than"):
        AlertTargets.of(**given)

"""Conditions: what they say of a queue, when time alone may change it, and their JSON form."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_poison.store.control import Control, QueueState
from airflow_poison.store.files import Claim, DataFile, Snapshot
from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import SubQueue
from airflow_poison.watching.conditions import (
    Answer,
    Condition,
    Enabled,
    Halted,
    MessagesAvailable,
    PoisonPresent,
    RetryDue,
    condition_from_dict,
)

NOW = datetime(2013, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def file(place: str, number: int, rows: int = 1, *, due: datetime | None = None, sent: datetime = NOW, priority: int = 5) -> DataFile:
    return DataFile(
        f"sub_queue={place}/move_count=0/{number}.parquet", place, 0, rows, 1, number, number + rows - 1, priority, priority, sent, due, due
    )


def queue(*files: DataFile, control: Control | None = None, claims: tuple[Claim, ...] = ()) -> Snapshot:
    return Snapshot(7, control or Control({}), files, claims, ())


def claimed(expires_at: datetime, *files: DataFile) -> Claim:
    return Claim("run", 1, "a", expires_at, files)


def test_wcf_30_a_retry_is_due_when_its_time_has_come() -> None:
    there = queue(file("retry", 1, 3, due=NOW))
    assert RetryDue().met(there, NOW - timedelta(seconds=1)) == Answer(
        met=False, facts={"due": 0, "postponed": 0, "waiting": 3, "next_due_at": NOW.isoformat()}, not_before=NOW
    )
    assert RetryDue().met(there, NOW) == Answer(met=True, facts={"due": 3, "postponed": 0, "waiting": 3, "next_due_at": None})


def test_a_file_of_parked_messages_falls_due_as_a_whole() -> None:
    parked = replace(file("retry", 1, 2), min_due_at=NOW, max_due_at=NOW + HOUR)
    answer = RetryDue().met(queue(parked), NOW)
    assert (answer.met, answer.not_before) == (False, NOW + HOUR)


def test_what_a_handler_postponed_is_returned_too() -> None:
    answer = RetryDue().met(queue(file("postponed", 1, 2, due=NOW)), NOW)
    assert (answer.met, answer.facts["due"], answer.facts["postponed"]) == (True, 0, 2)


def test_wcf_31_an_earlier_head_that_is_not_due_holds_back_what_stands_behind_it() -> None:
    files = file("retry", 1, due=NOW + HOUR), file("retry", 2, due=NOW)
    assert RetryDue().met(queue(*files), NOW).met
    held_back = RetryDue().met(queue(*files, control=Control({"return_order": "head_timer"})), NOW)
    assert (held_back.met, held_back.not_before) == (False, NOW + HOUR)


def test_messages_are_available_when_as_many_as_wanted_are_free() -> None:
    there = queue(file("main", 1, 3))
    assert MessagesAvailable(count=3).met(there, NOW).facts == {"sub_queue": "main", "messages": 3, "oldest_enqueued_at": NOW.isoformat()}
    assert MessagesAvailable(count=3).met(there, NOW).met
    assert not MessagesAvailable(count=4).met(there, NOW).met
    assert not MessagesAvailable("poison").met(there, NOW).met


def test_what_a_pass_holds_is_not_available_until_its_claim_ends() -> None:
    held = file("main", 1)
    answer = MessagesAvailable().met(queue(held, claims=(claimed(NOW + HOUR, held),)), NOW)
    assert (answer.met, answer.not_before) == (False, NOW + HOUR)
    assert MessagesAvailable().met(queue(held, claims=(claimed(NOW, held),)), NOW).met


def test_nothing_is_available_in_main_while_a_message_blocks_the_queue() -> None:
    blocked = Control({}).blocked(1, NOW + HOUR)
    answer = MessagesAvailable().met(queue(file("main", 1), control=blocked), NOW)
    assert (answer.met, answer.not_before) == (False, NOW + HOUR)
    assert MessagesAvailable("poison").met(queue(file("poison", 1), control=blocked), NOW).met
    assert MessagesAvailable().met(queue(file("main", 1), control=blocked), NOW + HOUR).met


@pytest.mark.parametrize("state", [QueueState.DISABLED, QueueState.STOPPED, QueueState.FAULTED])
def test_nothing_is_available_or_due_while_the_endpoint_does_not_receive(state: QueueState) -> None:
    files = file("main", 1, 3), file("poison", 4), file("retry", 5, due=NOW), file("transmission", 6)
    halted, reader = queue(*files, control=Control({}, state)), queue(*files, control=Control({}, poison_state=state))
    answer = MessagesAvailable().met(halted, NOW)
    assert (answer.met, answer.facts["messages"], answer.facts["state"]) == (False, 3, state.value)
    assert (RetryDue().met(halted, NOW).met, RetryDue().met(halted, NOW).facts["state"]) == (False, state.value)
    assert MessagesAvailable("poison").met(halted, NOW).met, "the reader of the poison sub-queue is an endpoint of its own"
    assert not MessagesAvailable("poison").met(reader, NOW).met
    assert MessagesAvailable().met(reader, NOW).met
    assert MessagesAvailable("transmission").met(halted, NOW).met, "this is where messages wait because the queue is disabled"
    assert MessagesAvailable(age=timedelta(0)).met(halted, NOW).met, "the backlog is there, whatever the queue does"


def test_a_backlog_is_as_old_as_its_oldest_message_held_or_not() -> None:
    old = file("main", 1, sent=NOW - HOUR)
    there = queue(old, file("main", 2), claims=(claimed(NOW + HOUR, old),))
    assert MessagesAvailable(age=HOUR).met(there, NOW).met
    answer = MessagesAvailable(age=2 * HOUR).met(there, NOW)
    assert (answer.met, answer.not_before) == (False, NOW + HOUR)
    assert MessagesAvailable(count=3, age=2 * HOUR).met(there, NOW).not_before is None


def test_poison_is_present_by_number_and_age() -> None:
    there = queue(file("poison", 1, 2, sent=NOW - HOUR), file("main", 3, 9))
    assert PoisonPresent().met(there, NOW).facts["messages"] == 2
    assert PoisonPresent(count=2, age=HOUR).met(there, NOW).met
    assert not PoisonPresent(count=3).met(there, NOW).met
    assert PoisonPresent(age=2 * HOUR).met(there, NOW).not_before == NOW + HOUR


@pytest.mark.parametrize("state", [QueueState.DISABLED, QueueState.STOPPED, QueueState.FAULTED])
def test_each_endpoint_is_halted_or_enabled_alone(state: QueueState) -> None:
    main, poison = (queue(control=Control({}).halted(reads, state, "why")) for reads in (SubQueue.MAIN, SubQueue.POISON))
    assert [Halted(end).met(main, NOW).met for end in ("main", "poison", "any")] == [True, False, True]
    assert [Halted(end).met(poison, NOW).met for end in ("main", "poison", "any")] == [False, True, True]
    assert [Enabled(end).met(main, NOW).met for end in ("main", "poison", "any")] == [False, True, True]
    assert Halted("any").met(poison, NOW).facts == {"sub_queue": "poison", "state": state.value, "reason": "why"}


@pytest.mark.parametrize(
    "condition",
    [RetryDue(), MessagesAvailable("retry", 3, HOUR), MessagesAvailable(), PoisonPresent(2, HOUR), Halted("any"), Enabled("poison")],
    ids=lambda condition: type(condition).__name__,
)
def test_the_json_form_comes_back_as_the_same_condition(condition: Condition) -> None:
    assert condition_from_dict(condition.to_dict()) == condition
    assert len({condition, condition_from_dict(condition.to_dict())}) == 1


def test_values_that_mean_nothing_are_refused() -> None:
    with pytest.raises(SettingError, match="sub_queue='mian' is not allowed; allowed: main, retry"):
        MessagesAvailable("mian")
    with pytest.raises(SettingError, match="count=0"):
        PoisonPresent(0)
    with pytest.raises(SettingError, match="age="):
        PoisonPresent(age=-HOUR)
    with pytest.raises(SettingError, match="condition='new_moon' is not allowed; allowed: retry_due"):
        condition_from_dict({"system": "new_moon"})

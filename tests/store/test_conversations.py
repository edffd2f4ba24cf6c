"""Conversation endpoints and dialog messages in a queue's table: one commit for verbs from outside a pass, and what a pass leaves of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.store.control import Control, QueueState
from airflow_poison.store.files import Replacement, Transaction
from airflow_poison.values.errors import ConservationError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import TRANSMISSION_QUEUE, SubQueue
from tests.given.dialogs import act, endpoint, endpoints, letter, letters, next_version, rows
from tests.given.tables import LEASE, NOW, all_rows, claim, ids, put, rows_of, seal, send

if TYPE_CHECKING:
    from airflow_poison.store.files import Claim, Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

TOLD = Event(EventType.DROPPED, NOW, 1)


def files_of(queue: QueueTable) -> set[str]:
    """The data files in the folder, whether a version names them or not."""
    return {found.path for found in queue.folder.data_files()}


def live(queue: QueueTable) -> set[str]:
    return {file.path for file in queue.log.load().files}


# What a transaction does ------------------------------------------------------------------------------------------------


def test_a_transaction_adds_to_both_partitions_in_one_version(queue: QueueTable) -> None:
    version = queue.snapshot().version
    assert act(queue, "begin", endpoint("a", 1), letter("hello"), letter("again"), events=(TOLD,))
    found = queue.snapshot()
    assert (found.version, endpoints(queue), letters(queue)) == (version + 1, {"a": 1}, ["hello", "again"])
    assert list(queue.events()) == [TOLD]
    assert (found.files, found.outbox, found.claims) == ((), (), ())
    assert found.depth(SubQueue.MAIN, NOW).messages == 0


def test_rows_come_back_as_they_were_and_get_the_time_of_the_commit_when_they_have_none(queue: QueueTable) -> None:
    before = NOW - timedelta(days=1)
    act(queue, "begin", endpoint("a", 1, at=before), endpoint("b", 7), letter("hello"))
    [kept] = queue.snapshot().conversations
    assert queue.read(kept) == rows(endpoint("a", 1, at=before), endpoint("b", 7, at=NOW))
    [waiting] = queue.snapshot().transmissions
    assert queue.read(waiting) == rows(letter("hello") | {"enqueued_at": NOW})


def test_statistics_tell_when_the_next_endpoint_is_due_and_how_long_a_message_has_waited(queue: QueueTable) -> None:
    due = NOW + timedelta(minutes=1)
    act(queue, "begin", endpoint("a", 1) | {"due_at": due}, endpoint("b", 2), letter("hello"))
    [kept], [waiting] = queue.snapshot().conversations, queue.snapshot().transmissions
    assert (kept.min_due_at, kept.max_lookup_id, kept.rows) == (due, 2, 2)
    assert (waiting.min_enqueued_at, waiting.rows) == (NOW, 1)


def test_a_transaction_takes_no_lookup_ids(queue: QueueTable) -> None:
    send(queue, 2)
    act(queue, "begin", endpoint("a", 900), letter("hello"))
    assert send(queue, 1, "more").first_lookup_id == 3


def test_a_transaction_removes_messages_and_tells_it(queue: QueueTable) -> None:
    send(queue, 3)
    [file] = queue.snapshot().files
    half = Replacement(file, queue.read(file).slice(1), removed=1)
    assert act(queue, "end", endpoint("a", 2, "CD"), replacements=(half,), events=(TOLD,))
    assert (ids(queue), endpoints(queue), list(queue.events())) == ([2, 3], {"a": 2}, [TOLD])


def test_a_transaction_takes_files_of_dialogs_away(queue: QueueTable) -> None:
    for version in (1, 2, 3):
        act(queue, str(version), endpoint("a", version), letter(str(version)))
    found = queue.snapshot()
    act(queue, "sent", remove=(found.transmissions[1], *found.conversations[:1]))
    assert letters(queue) == ["1", "3"]
    assert queue.snapshot().conversations == found.conversations[1:]


# Once for each key ------------------------------------------------------------------------------------------------------


def test_a_second_transaction_with_the_key_changes_nothing_and_asks_nobody(queue: QueueTable) -> None:
    assert act(queue, "begin", endpoint("a", 1), letter("hello"))
    before = queue.snapshot()
    assert not queue.transact(lambda _: pytest.fail("the plan was asked"), "begin", NOW)
    assert queue.snapshot() == before
    assert act(queue, "another", endpoint("a", 2))


def test_a_plan_that_wants_nothing_commits_nothing_and_leaves_the_key_free(queue: QueueTable) -> None:
    version = queue.snapshot().version
    assert queue.transact(lambda _: None, "begin", NOW)
    assert queue.snapshot().version == version
    assert act(queue, "begin", endpoint("a", 1))


def test_an_empty_transaction_is_remembered(queue: QueueTable) -> None:
    assert act(queue, "nothing")
    assert not act(queue, "nothing")
    assert queue.snapshot().conversations == ()


def test_keys_of_sends_and_passes_are_others(queue: QueueTable) -> None:
    send(queue, 2, "key")
    queue.finish(held := claim(queue, "key"), seal(queue, held), now=NOW)
    assert act(queue, "key", endpoint("a", 1))


def test_the_plan_is_asked_again_when_somebody_was_faster(queue: QueueTable, at_point: AtPoint) -> None:
    act(queue, "begin", endpoint("a", 1))
    at_point.do("store.transact.before_commit", lambda: queue.transact(next_version(queue), "faster", NOW))
    queue.transact(next_version(queue), "slower", NOW)
    assert (endpoints(queue), letters(queue)) == ({"a": 3}, ["a 2", "a 3"])
    assert files_of(queue) == live(queue)


def test_two_at_once_with_one_key_do_it_once(queue: QueueTable, at_point: AtPoint) -> None:
    at_point.do("store.transact.before_commit", lambda: queue.transact(next_version(queue), "key", NOW))
    assert not queue.transact(next_version(queue), "key", NOW)
    assert (endpoints(queue), letters(queue)) == ({"a": 1}, ["a 1"])
    assert files_of(queue) == live(queue)


def test_a_plan_that_finds_its_work_done_by_somebody_faster_leaves_it(queue: QueueTable, at_point: AtPoint) -> None:
    def plan(snapshot: Snapshot) -> Transaction | None:
        return None if snapshot.conversations else Transaction(rows(endpoint("a", 1)))

    at_point.do("store.transact.before_commit", lambda: act(queue, "faster", endpoint("a", 9)))
    assert queue.transact(plan, "slower", NOW)
    assert endpoints(queue) == {"a": 9}


# What is refused --------------------------------------------------------------------------------------------------------


def test_alone_is_refused_while_anybody_has_a_claim_and_nothing_has_changed(queue: QueueTable) -> None:
    send(queue, 2)
    held = claim(queue)
    before, on_disk = queue.snapshot(), files_of(queue)
    with pytest.raises(TableChangedError, match="a pass has claimed"):
        act(queue, "send", endpoint("a", 2), letter("hello"), alone=True)
    assert (queue.snapshot(), files_of(queue)) == (before, on_disk)
    assert act(queue, "begin", endpoint("b", 1))  # needs no lock
    queue.release(held)
    assert act(queue, "send", endpoint("a", 2), alone=True)


def test_a_claim_that_has_expired_is_one_what_its_pass_has_done_may_still_count(queue: QueueTable) -> None:
    send(queue, 2)
    assert queue.claim("dead", lease=timedelta(0), now=NOW, max_messages=9)
    assert queue.expired(NOW)
    with pytest.raises(TableChangedError):
        act(queue, "send", endpoint("a", 2), alone=True)


def test_a_claim_that_comes_between_plan_and_commit_is_noticed(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 2)
    at_point.do("store.transact.before_commit", lambda: claim(queue))
    with pytest.raises(TableChangedError, match="a pass has claimed"):
        act(queue, "send", endpoint("a", 2), letter("hello"), alone=True)
    assert (endpoints(queue), letters(queue)) == ({}, [])
    assert files_of(queue) == live(queue)


def test_a_plan_that_refuses_leaves_nothing_and_the_key_free(queue: QueueTable) -> None:
    def refuse(_: Snapshot) -> Transaction:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        queue.transact(refuse, "key", NOW)
    assert act(queue, "key", endpoint("a", 1))


def test_a_claimed_file_cannot_be_replaced(queue: QueueTable) -> None:
    send(queue, 2)
    held = claim(queue)
    with pytest.raises(TableChangedError, match=held.files[0].path):
        act(queue, "end", endpoint("a", 2), replacements=(Replacement(held.files[0], rows(), removed=2),))
    assert (endpoints(queue), ids(queue)) == ({}, [1, 2])


def test_a_file_that_is_gone_cannot_be_replaced_or_removed(queue: QueueTable) -> None:
    act(queue, "begin", endpoint("a", 1), letter("hello"))
    [old] = queue.snapshot().transmissions
    queue.remove_transmissions([old])
    with pytest.raises(TableChangedError, match=old.path):
        act(queue, "again", remove=(old,))


def wrong_numbers(queue: QueueTable) -> Transaction:
    [file] = queue.snapshot().files
    return Transaction(rows(endpoint("a", 2)), replacements=(Replacement(file, queue.read(file).slice(1)),))


def wrong_place(_: QueueTable) -> Transaction:
    return Transaction(rows(endpoint("a", 2), letter("x") | {"sub_queue": "main"}))


def wrong_file(queue: QueueTable) -> Transaction:
    return Transaction(rows(endpoint("a", 2)), remove=queue.snapshot().files)


def one_file_twice(queue: QueueTable) -> Transaction:
    return Transaction(rows(endpoint("a", 2)), remove=queue.snapshot().transmissions * 2)


def messages_into_the_order(queue: QueueTable) -> Transaction:
    [file] = queue.snapshot().files
    return Transaction(rows(endpoint("a", 2)), replacements=(Replacement(file, put(queue.read(file), TRANSMISSION_QUEUE, 0)),))


def letters_in_part(queue: QueueTable) -> Transaction:
    [file] = queue.snapshot().transmissions
    return Transaction(rows(endpoint("a", 2)), replacements=(Replacement(file, rows(), removed=1),))


Wanted = Callable[["QueueTable"], Transaction]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (wrong_numbers, "holds 3 messages; 0 were to go"),
        (wrong_place, "adds rows to 'main'"),
        (wrong_file, "or removes a file there; expected _conversation or _transmission"),
        (one_file_twice, "names a file twice"),
        (messages_into_the_order, "cannot be put into '_transmission'"),
        (letters_in_part, "can only go whole"),
    ],
)
def test_what_would_lose_double_or_mislay_rows_is_refused(queue: QueueTable, wanted: Wanted, says: str) -> None:
    send(queue, 3)
    act(queue, "begin", endpoint("a", 1), letter("hello"))
    before, on_disk = queue.snapshot(), files_of(queue)
    with pytest.raises(ConservationError, match=says):
        queue.transact(lambda _: wanted(queue), "wrong", NOW)
    assert (queue.snapshot(), files_of(queue)) == (before, on_disk)
    assert act(queue, "wrong", endpoint("a", 2))


# A pass -----------------------------------------------------------------------------------------------------------------


def staged(queue: QueueTable, key: str, *bodies: str) -> Claim:
    """A pass that settles a message, parks another, changes an endpoint and answers."""
    held = claim(queue, key, 2)
    parked = put(rows_of(queue, held).slice(1), "retry", due_at=NOW)
    queue.stage_table(held, pa.concat_tables([parked, rows(endpoint("a", len(letters(queue)) + 2), *(letter(body) for body in bodies))]))
    return held


def test_a_pass_stages_endpoints_and_dialog_messages_with_its_outcomes(queue: QueueTable) -> None:
    act(queue, "begin", endpoint("a", 1))
    send(queue, 2)
    held = staged(queue, "run", "answer 1", "answer 2")
    assert (endpoints(queue), letters(queue)) == ({"a": 1}, [])
    manifest = seal(queue, held)
    assert queue.finish(held, manifest, now=NOW)
    assert not queue.finish(held, manifest, now=NOW)
    assert (endpoints(queue), letters(queue)) == ({"a": 2}, ["answer 1", "answer 2"])
    assert [(row["lookup_id"], row["sub_queue"]) for row in all_rows(queue)] == [(2, "retry")]


def test_a_pass_whose_commit_was_overtaken_names_its_dialog_messages_anew(queue: QueueTable, at_point: AtPoint) -> None:
    send(queue, 2)
    held = staged(queue, "run", "answer")
    at_point.do("store.finish.before_commit", lambda: act(queue, "faster", letter("earlier")))
    assert queue.finish(held, seal(queue, held), now=NOW)
    assert letters(queue) == ["earlier", "answer"]
    assert [file.path.rpartition("/")[2][:20] for file in queue.snapshot().transmissions] == [
        f"{queue.snapshot().version - 1:020d}",
        f"{queue.snapshot().version:020d}",
    ]
    assert {path for path in files_of(queue) if TRANSMISSION_QUEUE in path} == {file.path for file in queue.snapshot().transmissions}


def test_a_later_holder_finishes_what_an_earlier_one_has_sealed(queue: QueueTable) -> None:
    send(queue, 2)
    first = staged(queue, "run", "answer")
    seal(queue, first)
    second = queue.take_over(first, lease=LEASE, now=NOW)
    assert second is not None
    manifest = queue.manifest(second)
    assert manifest is not None
    assert queue.finish(second, manifest, now=NOW)
    assert (endpoints(queue), letters(queue)) == ({"a": 2}, ["answer"])


def test_dialog_messages_are_in_the_order_of_their_commits_over_many_of_them(queue: QueueTable) -> None:
    send(queue, 40)
    for number in range(45):
        if number % 3 == 2:
            held = staged(queue, str(number), f"{number} a", f"{number} b")
            assert queue.finish(held, seal(queue, held), now=NOW)
        else:
            act(queue, str(number), letter(f"{number} a"), letter(f"{number} b"))
    assert letters(queue) == [f"{number} {part}" for number in range(45) for part in "ab"]


def test_no_message_of_a_dialog_is_joined_moved_or_split_with_others(queue: QueueTable) -> None:
    """The path of a file is the key under which it is sent on, and its place in the order."""
    for number in range(4):
        act(queue, str(number), endpoint("a", number), letter(str(number)))
    before = queue.snapshot()
    queue.compact(min_files=2)
    queue.alter(lambda control: replace(control, state=QueueState.DISABLED), lambda _, __: [])
    queue.alter(Control.enabled, lambda _, __: [])
    assert (queue.snapshot().transmissions, queue.snapshot().conversations) == (before.transmissions, before.conversations)


def test_dialog_messages_that_were_sent_are_removed_once(queue: QueueTable) -> None:
    act(queue, "1", letter("1"))
    act(queue, "2", letter("2"))
    sent = queue.snapshot().transmissions[:1]
    queue.remove_transmissions(sent)
    version = queue.snapshot().version
    queue.remove_transmissions(sent)
    assert (letters(queue), queue.snapshot().version) == (["2"], version)


# Cleaning beside it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["store.transact.after_files", "store.transact.before_commit"])
def test_a_cleaner_that_keeps_nothing_stops_a_transaction_or_lets_it_be(queue: QueueTable, at_point: AtPoint, point: str) -> None:
    act(queue, "begin", endpoint("a", 1), letter("1"))
    at_point.do(point, lambda: queue.clean(retention=timedelta(0), safe_age=timedelta(0)))
    try:
        act(queue, "next", endpoint("a", 2), letter("2"))
    except TableChangedError:
        assert (endpoints(queue), letters(queue)) == ({"a": 1}, ["1"])
        assert act(queue, "next", endpoint("a", 2), letter("2"))
    assert (endpoints(queue), letters(queue)) == ({"a": 2}, ["1", "2"])
    assert live(queue) <= files_of(queue)


@pytest.mark.parametrize("point", ["store.clean.after_listing", "store.clean.before_fence", "store.fence.before_commit", "store.clean.before_remove"])
def test_a_transaction_that_runs_while_a_cleaner_stands_still_loses_nothing(queue: QueueTable, at_point: AtPoint, point: str) -> None:
    for version in (1, 2, 3):
        act(queue, str(version), endpoint("a", version), letter(str(version)))
    queue.remove_transmissions(queue.snapshot().transmissions[:1])
    at_point.do(point, lambda: act(queue, "4", endpoint("a", 4), letter("4")))
    queue.clean(retention=timedelta(0), safe_age=timedelta(0))
    assert (endpoints(queue), letters(queue)) == ({"a": 4}, ["2", "3", "4"])
    assert live(queue) <= files_of(queue)


# Services ---------------------------------------------------------------------------------------------------------------

SERVICES = {"//shop/orders": {"contracts": {"//shop/buy": [["//shop/order", "initiator"]]}}}


def test_services_are_kept_by_whatever_changes_the_control_row(queue: QueueTable) -> None:
    assert queue.snapshot().control.services == {}
    queue.alter(lambda control: replace(control, services=SERVICES), lambda _, __: [])
    queue.alter(lambda control: replace(control, reason="why"), lambda _, __: [])
    send(queue, 1)
    held = claim(queue)
    queue.finish(held, seal(queue, held), change=lambda control: control.with_counters({"a": 1}), now=NOW)
    found = queue.snapshot().control
    assert (found.services, found.reason, found.counters) == (SERVICES, "why", {"a": 1})

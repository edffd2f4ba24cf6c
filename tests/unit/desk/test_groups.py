"""Error groups: what they count and when they have failed, held against the slow way over random histories; their order, search and marks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_poison.desk import queries as recorded
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, undo
from airflow_poison.desk.plans import plan, record
from airflow_poison.desk.queries import groups
from airflow_poison.desk.rules import declare_mask
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.due import return_due
from airflow_poison.passes.history import BY_HAND
from airflow_poison.passes.move import move, put_back, remove
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.memory import MemoryStore
from airflow_poison.store.row_groups import RowGroups
from airflow_poison.values.errors import MessageNotFoundError, PlanStateError, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import ERROR_GROUP, LAST_ERROR, SubQueue, table_schema
from tests.given.examples import examples
from tests.given.passes import Queue, a_queue, rows_of
from tests.unit.desk.conftest import Failing, body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from airflow_poison.desk.queries import ErrorGroup
    from airflow_poison.store.queue_table import QueueTable

HOUR = timedelta(hours=1)
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=HOUR, receive_error_handling="Move")
FAILED = {EventType.MOVED_RETRY, EventType.MOVED_POISON}
KINDS = [("key", "carrier"), ("key", "delay"), ("value", "could not convert 'x7' at 12"), ("", "")]
"""What a message fails with; one does not."""


# The slow way ---------------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A queue, and when each error group has failed: looked up message by message, after each pass."""

    queue: Queue
    failed: dict[str, list[datetime]] = field(default_factory=dict)
    sent: dict[int, datetime] = field(default_factory=dict)
    runs: int = 0
    done: list[str] = field(default_factory=list)

    def send(self, kinds: list[int]) -> None:
        before = max(self.sent, default=0)
        self.sent |= {before + number: self.queue.clock.now() for number in range(1, len(kinds) + 1)}
        self.queue.sent(*(body(before + number, *KINDS[kind], carrier="VX") for number, kind in enumerate(kinds, 1)), key=f"send-{before}")

    def receive(self) -> None:
        version, self.runs = self.queue.table.snapshot().version, self.runs + 1
        return_due(self.queue.table, self.queue.clock)
        self.queue.receive(f"run-{self.runs}")
        rows = rows_of(self.queue.table)
        for event in self.queue.table.events(version, types=FAILED):
            if event.lookup_id is not None and event.details.get("by") != BY_HAND:
                error: Any = rows[event.lookup_id]["last_error"]
                self.failed.setdefault(error["fingerprint"], []).append(event.at)

    def act(self, action: PlanAction, chosen: list[int]) -> None:
        selection = Selection(sub_queue=None, lookup_ids=tuple(chosen))
        planned = plan(self.queue.table, selection, action, self.queue.clock)
        if planned.members.num_rows:
            self.done.append(record(self.queue.table, planned, self.queue.clock, who="ann"))
            apply(self.queue.table, self.done[-1], self.queue.clock)

    def undo(self) -> None:
        if self.done:
            with suppress(PlanStateError):
                undo(self.queue.table, self.done.pop(), self.queue.clock, who="ann")

    def by_hand(self, number: int, target: SubQueue) -> None:
        with suppress(MessageNotFoundError):
            move(self.queue.table, self.queue.clock, [number], target)

    def remove(self, number: int) -> None:
        with suppress(MessageNotFoundError):
            remove(self.queue.table, number, self.queue.clock)

    def maintain(self) -> None:
        self.queue.table.compact(min_files=2)
        self.queue.table.clean(retention=timedelta(0), safe_age=timedelta(0))

    def expected(self, place: SubQueue | None) -> dict[str, tuple[int, int, datetime, datetime, int]]:
        """How many messages each group has, the first one, when it failed first and last, and how often."""
        members: dict[str, list[int]] = {}
        for number, row in rows_of(self.queue.table, place).items():
            error: Any = row["last_error"]
            members.setdefault("" if error is None else error["fingerprint"], []).append(number)
        return {error: (len(ids), min(ids), *self._times(error, ids)) for error, ids in members.items()}

    def _times(self, error: str, ids: list[int]) -> tuple[datetime, datetime, int]:
        failed, sent = self.failed.get(error, []), [self.sent[number] for number in ids]
        return (min(failed), max(failed), len(failed)) if failed else (min(sent), max(sent), 0)


numbers, kinds = st.integers(1, 12), st.integers(0, len(KINDS) - 1)
PUT_BACK, TO_POISON, REMOVE = PlanAction(verb=Verb.PUT_BACK), PlanAction(verb=Verb.MOVE, target="poison"), PlanAction(verb=Verb.REMOVE)


def edit(kind: int) -> PlanAction:
    return PlanAction(verb=Verb.EDIT, patch=dict(zip(("fails", "says"), KINDS[kind], strict=True)))


steps: st.SearchStrategy[Callable[[Watched], object]] = st.one_of(
    st.lists(kinds, min_size=1, max_size=5).map(lambda found: lambda it: it.send(found)),
    st.just(Watched.receive),
    st.just(Watched.receive),
    st.tuples(
        st.one_of(st.sampled_from([PUT_BACK, PUT_BACK, TO_POISON, REMOVE]), kinds.map(edit)), st.lists(numbers, min_size=1, max_size=6, unique=True)
    ).map(lambda found: lambda it: it.act(*found)),
    st.just(Watched.undo),
    st.tuples(numbers, st.sampled_from([SubQueue.MAIN, SubQueue.POISON])).map(lambda found: lambda it: it.by_hand(*found)),
    numbers.map(lambda number: lambda it: it.remove(number)),
    st.just(lambda it: put_back(it.queue.table, it.queue.clock)),
    st.just(Watched.maintain),
)


def shown(found: tuple[ErrorGroup, ...]) -> Mapping[str, tuple[int, int, datetime | None, datetime | None, int]]:
    return {group.error: (group.messages, group.sample, group.first_seen, group.last_seen, sum(group.trend)) for group in found}


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=14))
@pytest.mark.long
def test_groups_are_what_messages_and_failures_say_one_by_one(tmp_path: Path, history: list[Callable[[Watched], object]]) -> None:
    it = Watched(a_queue(MemoryStore(), tmp_path, POLICY).having(handler=Failing(str(tmp_path / "calls"))))
    begun: list[Callable[[Watched], object]] = [lambda it: it.send([0, 1, 2, 3, 0]), Watched.receive]
    for step in begun + history:
        it.queue.clock.advance(HOUR * 1.5)
        step(it)
        for place in (SubQueue.POISON, None):
            expected = it.expected(place)
            assert shown(groups(it.queue.table, Selection(sub_queue=place), it.queue.clock).groups) == expected
            assert shown(groups(it.queue.table, Selection(sub_queue=place, where="lookup_id > 0"), it.queue.clock).groups) == expected


# The groups of events -------------------------------------------------------------------------------------------------


def test_a_group_has_failed_whatever_has_become_of_its_messages(queue: Queue) -> None:
    # given two messages that fail alike, an hour apart, and the first one is put back, edited and settled
    begun = queue.clock.now()
    queue.sent(body(1, "key", "delay")).receive("one")
    queue.clock.advance(HOUR)
    queue.sent(body(2, "key", "delay")).receive("two")
    queue.clock.advance(HOUR)
    mended = plan(queue.table, Selection(lookup_ids=(1,)), edit(3), queue.clock)
    apply(queue.table, record(queue.table, mended, queue.clock, who="ann"), queue.clock)
    put_back(queue.table, queue.clock, [1])
    queue.receive("three")
    # then
    [group] = groups(queue.table, Selection(), queue.clock).groups
    assert (group.messages, group.first_seen, group.last_seen, sum(group.trend)) == (1, begun, begun + HOUR, 2)


def test_a_message_that_fails_otherwise_is_no_failure_of_its_new_group_before(queue: Queue) -> None:
    # given a message that fails, is edited and put back, and then fails with another error: that is a new kind
    queue.sent(body(1, "key", "delay")).receive("one")
    queue.clock.advance(HOUR * 48)
    changed = plan(queue.table, Selection(), edit(2), queue.clock)
    apply(queue.table, record(queue.table, changed, queue.clock, who="ann"), queue.clock)
    put_back(queue.table, queue.clock)
    again = queue.clock.now()
    queue.receive("two")
    # then
    [group] = groups(queue.table, Selection(), queue.clock).groups
    assert (group.type, group.first_seen, group.new) == ("ValueError", again, True)


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes record no error group, as those of earlier versions of this package."""

    def nothing(found: pa.Array[Any]) -> pa.Array[Any]:
        cells: pa.Array[Any] = pa.nulls(len(found), table_schema().field(LAST_ERROR).type)
        return cells

    monkeypatch.setattr("airflow_poison.delivery.settlement.of_groups", nothing)


@pytest.mark.usefixtures("earlier")
@pytest.mark.parametrize("joined", [False, True])
def test_failures_that_do_not_say_their_group_are_of_the_group_of_their_message(queue: Queue, *, joined: bool) -> None:
    begun = queue.clock.now()
    queue.sent(body(1, "key", "delay"), body(2, "value", "7")).receive("one")
    queue.clock.advance(HOUR)
    put_back(queue.table, queue.clock, [1])
    queue.receive("two")
    done = record(queue.table, plan(queue.table, Selection(), PUT_BACK, queue.clock), queue.clock, who="ann")
    apply(queue.table, done, queue.clock)
    undo(queue.table, done, queue.clock, who="ann")
    if joined:
        queue.table.compact(min_files=2)
    found = groups(queue.table, Selection(), queue.clock, order="type", descending=False).groups
    seen = [(group.type, group.first_seen, group.last_seen, sum(group.trend)) for group in found]
    assert seen == [("KeyError", begun, begun + HOUR, 2), ("ValueError", begun, begun, 1)]


def test_no_body_of_an_event_with_a_group_is_read(poisoned: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    batches = RowGroups.batches

    def noted(groups: RowGroups, numbers: list[int], names: list[str], *more: int) -> Any:
        asked.extend(names)
        return batches(groups, numbers, names, *more)

    monkeypatch.setattr(RowGroups, "batches", noted)
    monkeypatch.setattr(recorded, "_known", recorded._Known())
    groups(poisoned.table, Selection(), poisoned.clock)
    assert set(asked) == {"lookup_id", "message_type", "enqueued_at", ERROR_GROUP}


def test_an_event_file_is_read_once(poisoned: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(poisoned.table, Selection(), poisoned.clock)
    read: list[str] = []
    of_file = recorded._of_file

    def noted(table: QueueTable, path: str) -> Any:
        read.append(path)
        return of_file(table, path)

    monkeypatch.setattr(recorded, "_of_file", noted)
    poisoned.sent(body(10, "key", "delay")).receive("two")
    found = groups(poisoned.table, Selection(), poisoned.clock)
    assert (len(read), found.messages) == (1, 10)


def test_what_is_known_of_event_files_is_bounded(poisoned: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_known", recorded._Known())
    monkeypatch.setattr(recorded, "_MOST_KNOWN", 5)
    for number in range(3):
        poisoned.sent(body(10 + number, "key", "delay"), key=f"more-{number}").receive(f"run-{number}")
    before = groups(poisoned.table, Selection(), poisoned.clock)
    assert sum(each.weight for each in recorded._known.files.values()) == recorded._known.weight <= 5
    assert shown(groups(poisoned.table, Selection(), poisoned.clock).groups) == shown(before.groups)


# Order, search and marks ----------------------------------------------------------------------------------------------


def types(queue: Queue, **asked: Any) -> list[str]:
    return [group.type for group in groups(queue.table, Selection(), queue.clock, **asked).groups]


@pytest.fixture
def three(queue: Queue) -> Queue:
    """Three groups: two messages without a key first, three with a wrong value last, and one that nobody could read between."""
    queue.sent(body(1, "key", "delay"), body(2, "key", "delay")).receive("one")
    queue.clock.advance(HOUR * 23)
    queue.sent("no JSON").receive("two")
    queue.clock.advance(HOUR * 2)
    queue.sent(*(body(number, "value", f"could not convert '{number}'") for number in (4, 5, 6))).receive("three")
    return queue


def test_groups_are_sorted(three: Queue) -> None:
    key, value, json_error = "KeyError", "ValueError", "airflow_poison.values.json_text.JsonError"
    assert types(three) == [value, key, json_error]
    assert types(three, order="messages", descending=False) == [json_error, key, value]
    assert types(three, order="first_seen", descending=True) == [value, json_error, key]
    assert types(three, order="last_seen", descending=False) == [key, json_error, value]
    assert types(three, order="type", descending=False) == [json_error, key, value]
    with pytest.raises(SettingError, match=r"order='colour'.*messages, first_seen"):
        types(three, order="colour")


def test_groups_are_cut_in_their_order(three: Queue) -> None:
    found = groups(three.table, Selection(), three.clock, order="first_seen", limit=1)
    assert ([group.type for group in found.groups], found.more, found.messages) == (["ValueError"], 2, 6)


@pytest.mark.parametrize(("search", "found"), [("DELAY", ["KeyError"]), ("valueERR", ["ValueError"]), ("convert", ["ValueError"]), ("nothing", [])])
def test_groups_are_searched_by_type_and_text(three: Queue, search: str, found: list[str]) -> None:
    assert types(three, search=search) == found


def test_a_group_is_searched_by_its_id(three: Queue) -> None:
    [first, *_] = groups(three.table, Selection(), three.clock).groups
    found = groups(three.table, Selection(), three.clock, search=first.error.upper()[:8])
    assert (found.groups, found.more, found.messages) == ((first,), 0, 6)


def test_a_group_is_new_for_a_day(three: Queue) -> None:
    def new(**asked: Any) -> set[str]:
        return {group.type for group in groups(three.table, Selection(), three.clock, **asked).groups if group.new}

    assert new() == {"ValueError", "airflow_poison.values.json_text.JsonError"}
    assert new(since=three.clock.now()) == {"ValueError"}
    three.clock.advance(HOUR * 23)
    assert new() == {"ValueError"}
    three.clock.advance(HOUR * 2)
    assert new() == set()


def test_what_has_not_failed_is_a_group_that_was_seen_when_it_was_sent(queue: Queue) -> None:
    at = queue.clock.now()
    queue.sent(body(1))
    queue.clock.advance(HOUR)
    move(queue.table, queue.clock, [1], SubQueue.POISON)
    [group] = groups(queue.table, Selection(), queue.clock).groups
    assert (group.error, group.type, group.first_seen, group.last_seen, sum(group.trend)) == ("", "", at, at, 0)


def test_texts_of_groups_hide_what_the_queue_hides(queue: Queue) -> None:
    queue.sent(body(1, "value", "card 4111-2222")).receive("one")
    declare_mask(queue.table, queue.clock, ["$.says"])
    [group] = groups(queue.table, Selection(), queue.clock).groups
    assert ("4111" in group.text, groups(queue.table, Selection(), queue.clock, search="4111").groups) == (False, ())
    [group] = groups(queue.table, Selection(), queue.clock, unmask=True, search="4111").groups
    assert group.text == "card 4111-2222"

"""Which message of a batch is received next: row order, sweeps, and conversation groups that one session has at a time."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.delivery.journal import MAX_ATTEMPTS, MessageState, word
from airflow_poison.delivery.rows import BatchEntry, Entries, GroupRows, Rows, rows_of
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Counts, Dispose
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.clock import VirtualClock
from tests.given.endpoints import in_groups
from tests.given.messages import batch_of

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy


def sweeping() -> Policy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ActivationSpecification(max_server_sessions=2)


def source(policy: Policy, groups: str, words: list[int] | None = None) -> Rows:
    batch = in_groups(groups, ["x"] * len(groups))
    given = words or [0] * len(groups)
    return rows_of(policy, Entries(policy, batch, given, VirtualClock().now()), range(len(groups)), given)  # type: ignore[arg-type]  # as a memoryview


def rows(entries: list[BatchEntry | None]) -> list[int | None]:
    return [entry.row if entry is not None else None for entry in entries]


def taken(found: BatchEntry | None) -> BatchEntry:
    assert found is not None
    return found


def test_what_was_put_back_is_received_first() -> None:
    queue = source(Msmq4(), "    ")
    first, second = taken(queue.take()), taken(queue.take())
    queue.put_back([second])
    queue.put_back([first])

    assert rows([queue.take() for _ in range(5)]) == [0, 1, 2, 3, None]


def test_wmq_29_a_sweep_goes_on_behind_the_last_and_wraps_to_the_top() -> None:
    queue = source(sweeping(), "    ")
    held = [taken(queue.take()) for _ in range(2)]
    queue.put_back(held)

    assert rows([queue.take() for _ in range(5)]) == [2, 3, 0, 1, None]


def test_wmq_29_a_second_sweep_goes_on_too() -> None:
    queue = source(sweeping(), "   ")
    entries = [taken(queue.take()) for _ in range(3)]
    queue.put_back(entries)
    again = taken(queue.take())
    queue.put_back([again])

    assert [again.row, *rows([queue.take() for _ in range(4)])] == [0, 1, 2, 0, None]


def test_wmq_29_a_sweep_never_meets_what_is_in_flight() -> None:
    queue = source(sweeping(), "   ")
    first, second, third = (taken(queue.take()) for _ in range(3))
    queue.put_back([first])

    assert rows([queue.take([second, third]), queue.take([first, second, third])]) == [0, None]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60), st.integers(1, 6))
def test_wmq_29_a_sweep_takes_the_next_row_that_waits_whatever_was_put_back(steps: list[tuple[int, bool]], messages: int) -> None:
    """Against the definition: the lowest waiting row behind the last that was taken, else the lowest."""
    queue, waiting, out, last = source(sweeping(), " " * messages), set(range(messages)), list[BatchEntry](), -1
    for which, returns in steps:
        if returns and out:
            back = out.pop(which % len(out))
            queue.put_back([back])
            waiting.add(back.row)
            continue
        entry = queue.take(out)
        expected = min((row for row in waiting if row > last), default=min(waiting, default=None))
        assert (entry.row if entry else None) == expected
        if entry is not None:
            waiting.discard(entry.row)
            out.append(entry)
            last = entry.row


def test_settled_messages_and_those_with_the_most_attempts_are_passed_over() -> None:
    words = [
        word(MessageState.CARRIED),
        word(MessageState.UNTOUCHED, MAX_ATTEMPTS),
        word(MessageState.UNTOUCHED, MAX_ATTEMPTS - 1),
        word(MessageState.ENDED),
        0,
    ]

    for policy in (Msmq4(), sweeping(), ServiceBroker(max_queue_readers=2)):
        queue = source(policy, "abcde", list(words))
        assert rows([queue.take(), queue.take(), queue.take()]) == [2, 4, None]


def test_a_blocked_queue_gives_nothing() -> None:
    for policy in (Msmq4(), ServiceBroker(max_queue_readers=2)):
        queue = source(policy, "ab")
        queue.blocked = True
        assert queue.take() is None


def test_sb_47_other_sessions_skip_a_group_that_one_has() -> None:
    queue = source(ServiceBroker(max_queue_readers=3), "aab a ")
    held: list[BatchEntry] = []
    while (entry := queue.take(held)) is not None:
        held.append(entry)

    assert rows([*held]) == [0, 2, 3, 5]
    assert rows([queue.take([held[1]])]) == [1]


def test_sb_47_a_group_goes_on_with_the_message_that_was_rolled_back() -> None:
    queue = source(ServiceBroker(max_queue_readers=2), "aab")
    first = taken(queue.take())
    other = taken(queue.take([first]))
    queue.put_back([first])

    assert (first.row, other.row) == (0, 2)
    assert rows([queue.take([other]), queue.take([other])]) == [0, 1]


def test_one_reader_needs_no_locks() -> None:
    assert type(source(ServiceBroker(), "ab")) is Rows
    assert type(source(ServiceBroker(max_queue_readers=2), "ab")) is GroupRows


@given(st.text("abc ", min_size=1, max_size=8), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=80))
def test_sb_47_each_receive_takes_the_first_waiting_message_of_a_free_group(groups: str, steps: list[tuple[int, bool]]) -> None:
    """Against the definition; so every group is received in its order, by one session at a time."""
    queue, waiting, out = source(ServiceBroker(max_queue_readers=4), groups), set(range(len(groups))), list[BatchEntry]()
    for which, returns in steps:
        if returns and out:
            back = out.pop(which % len(out))
            queue.put_back([back])
            waiting.add(back.row)
            continue
        locked = {entry.group for entry in out}
        free = [row for row in waiting if (groups[row].strip() or f"#{row}") not in locked]
        entry = queue.take(out)
        assert (entry.row if entry else None) == min(free, default=None)
        if entry is not None:
            waiting.discard(entry.row)
            out.append(entry)


class CountedWords(list[int]):
    """Words that count how often somebody looks at them."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


def test_a_long_group_costs_each_receive_no_more_than_a_short_one() -> None:
    words = CountedWords([0] * 3_000)
    queue = source(ServiceBroker(max_queue_readers=2), "a" * 3_000, words)
    for _ in itertools.repeat(None, 3_000):
        entry = taken(queue.take())
        assert queue.take([entry]) is None

    assert words.looks < 10 * 3_000


@pytest.mark.parametrize("group", ["", None])
def test_a_message_without_a_group_is_a_group_of_its_own(group: str | None) -> None:
    import pyarrow as pa

    batch = batch_of(["x"] * 3, first_id=40)
    names = batch.schema.names
    groups: pa.Array[Any] = pa.array([group, group, "g"])
    conversations: pa.Array[Any] = pa.array(["c", group, "c"])
    batch = batch.set_column(names.index("group_id"), "group_id", groups).set_column(names.index("conversation_id"), "conversation_id", conversations)
    entries = Entries(Msmq4(), batch, [0] * 3, VirtualClock().now())

    assert [entries.entry(row).group for row in range(3)] == ["c", "#41", "g"] == entries.groups()


def test_entries_of_every_slice_of_a_batch_have_their_own_cells() -> None:
    batch = batch_of(["x" * (row % 7) for row in range(5_000)], first_id=100, abort_count=2, move_count=3)
    entries = Entries(Msmq4(), batch, [0] * 5_000, VirtualClock().now())

    for row in (0, 1_023, 1_024, 4_999, 2_500, 0):
        entry = entries.entry(row)
        assert (entry.row, entry.lookup_id, entry.size, entry.counts) == (row, 100 + row, row % 7, Counts(2, 3))


@pytest.mark.parametrize(
    ("policy", "attempts", "counts"),
    [
        (Msmq4(receive_retry_count=1), 2, Counts(2, 0)),
        (Msmq3(receive_retry_count=1), 2, Counts(2, 0)),
        (ServiceBroker(), 7, Counts(7, 0)),
        (sweeping(), 3, Counts(3, 0)),
        (ListenerPort(), 2, Counts(2, 0)),
        (DefaultMessaging(max_failed_deliveries=5), 4, Counts(4, 0)),
        (DefaultMessaging(max_failed_deliveries=5), 5, Counts(5, 0)),
    ],
    ids=lambda value: value.system if hasattr(value, "system") else None,
)
def test_a_message_has_the_counts_of_its_earlier_attempts(policy: Policy, attempts: int, counts: Counts) -> None:
    entries = Entries(policy, batch_of(["x"]), [word(MessageState.UNTOUCHED, attempts, 1)], VirtualClock().now())

    assert entries.entry(0).counts == counts


def test_what_its_last_attempt_led_to_is_known_unless_it_would_halt_an_endpoint_that_nobody_had() -> None:
    def resumed_end(policy: Policy, state: MessageState, attempts: int) -> object:
        return Entries(policy, batch_of(["x"]), [word(state, attempts)], VirtualClock().now()).entry(0).resumed_end

    assert isinstance(resumed_end(DefaultMessaging(max_failed_deliveries=2), MessageState.UNTOUCHED, 2), Dispose)
    assert resumed_end(DefaultMessaging(max_failed_deliveries=2), MessageState.UNTOUCHED, 1) is None
    assert resumed_end(ListenerPort(max_retries=2), MessageState.UNTOUCHED, 2) is None
    assert resumed_end(ListenerPort(max_retries=2), MessageState.CRASHED, 2) is not None

"""A kill between any two stores never miscounts: every prefix of a run's stores is settled and compared with what had been decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.delivery.handlers import HandlerRef
from airflow_poison.delivery.host import EndpointHost
from airflow_poison.delivery.journal import (
    MAX_ATTEMPTS,
    SETTLED,
    MessageState,
    attempts_of,
    counted,
    crashes_of,
    settle,
    state_of,
    word,
)
from airflow_poison.delivery.rows import Entries, rows_of
from airflow_poison.delivery.stage import StageJob
from airflow_poison.rules.loop import ReceiveLoop, Sessions
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.failures import Failure, FailureKind
from tests.given.endpoints import broker, in_groups, specification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.delivery.failurelog import Rollback
    from airflow_poison.delivery.wire import Call
    from airflow_poison.rules.policy import Policy

ROWS = 7


class RecordingWords(list[int]):
    """Words that remember every store."""

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(values)
        self.stores: list[tuple[int, int]] = []

    def __setitem__(self, row: Any, value: Any) -> None:
        self.stores.append((row, value))
        super().__setitem__(row, value)


@dataclass
class Truth:
    """What had been decided before each store."""

    words: RecordingWords
    committed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    rolled_back: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def stores(self) -> int:
        return len(self.words.stores)


class SilentLog:
    def append(self, entry: Rollback) -> None:
        """Nobody reads it."""

    def append_halt(self, lookup_id: int, details: Any) -> None:
        """Nobody reads it."""


class ScriptedCallers:
    """Sessions whose handlers fail as scripted."""

    def __init__(self, failing: dict[tuple[int, int], FailureKind]) -> None:
        self._failing = failing
        self._begun: dict[int, Call] = {}

    side_by_side = True

    def load(self, batch: Any, label: Any, sessions: int, services: Any = None) -> None:
        """Nothing to load."""

    def prepare(self, session: int) -> None:
        """Nothing to start."""

    def change(self, session: int) -> None:
        """No handler acts in a conversation."""

    def rows(self, session: int) -> bytes:
        """Nothing is returned here."""
        return b""

    def has_taken(self, session: int) -> bool:
        return True

    def begin(self, session: int, call: Call, opened: float) -> None:
        self._begun[session] = call

    def result(self, session: int) -> Failure | None:
        call = self._begun.pop(session)
        kind = self._failing.get((call.row, call.counts.abort_count))
        return None if kind is None else Failure(kind)

    def close(self) -> None:
        """Nothing to end."""


class WatchedHost(EndpointHost):
    """Notes at which store each decision begins."""

    truth: Truth

    def committed(self, entries: Any) -> None:
        self.truth.committed.append((self.truth.stores(), tuple(entry.row for entry in entries)))
        super().committed(entries)

    def rolled_back(self, entries: Any, culprit: Any, failure: Failure) -> None:
        self.truth.rolled_back.append((self.truth.stores(), tuple(entry.row for entry in entries)))
        super().rolled_back(entries, culprit, failure)


def run(
    policy: Policy, failing: dict[tuple[int, int], FailureKind], carried: frozenset[int] = frozenset(), groups: str = " " * ROWS
) -> tuple[RecordingWords, Truth]:
    words = RecordingWords([word(MessageState.CARRIED) if row in carried else 0 for row in range(ROWS)])
    clock = VirtualClock()

    host = WatchedHost(
        StageJob("", policy, HandlerRef("none"), "", clock, record_all=True),
        SimpleNamespace(words=words, number=0),  # type: ignore[arg-type]  # a list stores like a memoryview
        SilentLog(),  # type: ignore[arg-type]  # nobody reads it
        ScriptedCallers(failing),
        holds=policy.open().batch_size() > 1,
        sessions=Sessions.of(policy).number,
    )
    host.truth = Truth(words)
    entries = Entries(policy, in_groups(groups, ["x"] * ROWS), list(words), clock.now())
    rows = rows_of(policy, entries, [row for row in range(ROWS) if row not in carried], words)  # type: ignore[arg-type]  # as above
    host.source = rows
    ReceiveLoop(policy.open(), rows, host, Sessions.of(policy)).run()
    return words, host.truth


outcomes = st.dictionaries(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, 2)),
    st.sampled_from([FailureKind.EXCEPTION, FailureKind.UNPROCESSABLE, FailureKind.POSTPONED]),
)


ended_processes = st.dictionaries(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, 2)),
    st.sampled_from([FailureKind.EXCEPTION, FailureKind.UNPROCESSABLE, FailureKind.POSTPONED, FailureKind.CRASH, FailureKind.TIMEOUT]),
)


@given(outcomes, st.integers(0, 4), st.frozensets(st.integers(0, ROWS - 1), max_size=3))
def test_every_prefix_of_the_stores_settles_to_what_was_decided(
    failing: dict[tuple[int, int], FailureKind], batch_size: int, carried: frozenset[int]
) -> None:
    policy = Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Move", max_batch_size=batch_size)

    assert_every_prefix_settles(*run(policy, failing, carried), carried)


@given(ended_processes, st.integers(2, 4), st.integers(0, 2), st.integers(1, 9), st.frozensets(st.integers(0, ROWS - 1), max_size=3))
def test_wmq_17_with_several_sessions_too(
    failing: dict[tuple[int, int], FailureKind], sessions: int, early: int, failures: int, carried: frozenset[int]
) -> None:
    policy = specification(sessions, failures, early_hand_out=early)

    assert_every_prefix_settles(*run(policy, failing, carried), carried)


@given(ended_processes, st.integers(2, 4), st.text("ab ", min_size=ROWS, max_size=ROWS))
def test_sb_47_with_several_readers_and_groups_too(failing: dict[tuple[int, int], FailureKind], readers: int, groups: str) -> None:
    words, truth = run(broker(readers), failing, groups=groups)

    assert_every_prefix_settles(words, truth)


def assert_every_prefix_settles(words: RecordingWords, truth: Truth, carried: frozenset[int] = frozenset()) -> None:
    initial = [word(MessageState.CARRIED) if row in carried else 0 for row in range(ROWS)]

    for length in range(len(words.stores) + 1):
        found = np.array(initial, np.int32)
        for row, value in words.stores[:length]:
            found[row] = value
        before = [crashes_of(int(value)) for value in found]
        flying = [row for row in range(ROWS) if state_of(int(found[row])) is MessageState.IN_FLIGHT]
        held = [row for row in range(ROWS) if state_of(int(found[row])) is MessageState.HELD]
        settle(found)

        committed = {row for at, members in truth.committed if at < length for row in members}
        assert {row for row in range(ROWS) if state_of(int(found[row])) is MessageState.COMMITTED} == committed
        for row in set(range(ROWS)) - committed - carried:
            begun = sum(row in members for at, members in truth.rolled_back if at < length)
            done = sum(stored == row and attempts_of(value) for stored, value in words.stores[:length]) and attempts_of(
                next(value for stored, value in reversed(words.stores[:length]) if stored == row)
            )
            killed = row in flying or row in held
            assert attempts_of(int(found[row])) == done + killed
            assert done <= begun <= attempts_of(int(found[row]))
            assert crashes_of(int(found[row])) == before[row] + (row in flying)
            assert state_of(int(found[row])) not in {MessageState.IN_FLIGHT, MessageState.HELD}


@given(outcomes, st.integers(0, 4))
def test_settling_may_itself_be_interrupted(failing: dict[tuple[int, int], FailureKind], batch_size: int) -> None:
    policy = Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Move", max_batch_size=batch_size)
    words, _ = run(policy, failing, frozenset())

    for length in range(len(words.stores) + 1):
        found = np.zeros(ROWS, np.int32)
        for row, value in words.stores[:length]:
            found[row] = value
        once = found.copy()
        settle(once)
        watched = RecordingWords(found.tolist())
        changed = [row for row in reversed(range(ROWS)) if found[row] != once[row]]
        order = sorted(changed, key=lambda row: (state_of(int(found[row])) is MessageState.IN_FLIGHT, -row))
        for row in order:
            watched[row] = int(once[row])
            again = np.array(watched, np.int32)
            settle(again)
            assert again.tolist() == once.tolist()


def test_counts_stop_at_the_largest_that_a_word_holds() -> None:
    full = word(MessageState.CRASHED, 5_000, 5_000)

    assert counted(full, MessageState.CRASHED, crash=True) == full
    assert (attempts_of(full), crashes_of(full)) == (MAX_ATTEMPTS, 0x7FF)
    assert np.int32(full) > 0
    some = np.array([full, word(MessageState.IN_FLIGHT, 4_094, 3), word(MessageState.IN_FLIGHT)], np.int32)
    died = np.array([True, False, True])
    found = counted(some, MessageState.UNTOUCHED, crash=died)
    assert found.tolist() == [counted(value, MessageState.UNTOUCHED, crash=one) for value, one in zip(some.tolist(), died.tolist(), strict=True)]


def test_settled_states_are_those_that_no_delivery_follows() -> None:
    assert set(MessageState) - set(SETTLED) == {
        MessageState.UNTOUCHED,
        MessageState.IN_FLIGHT,
        MessageState.CRASHED,
        MessageState.TIMED_OUT,
        MessageState.HELD,
        MessageState.IN_BATCH,
        MessageState.DECIDED,
        MessageState.SUSPECTED,
        MessageState.SUSPECTED_ALONE,
    }

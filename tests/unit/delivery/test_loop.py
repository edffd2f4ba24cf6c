"""The receive loop's seam: which calls a host sees, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from airflow_poison.rules.decisions import Counts, Halted
from airflow_poison.rules.loop import BATCH_MET_POISON, ReceiveLoop, Sessions
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.failures import Failure, FailureKind
from tests.given.endpoints import specification

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.rules.decisions import Block, Deliver, Dispose, Halt, Park

RAISED = Failure(FailureKind.EXCEPTION, text="rb")
POSTPONED = Failure(FailureKind.POSTPONED)
NOW = datetime(2013, 1, 1, tzinfo=UTC)


@dataclass
class Entry:
    lookup_id: int
    counts: Counts = field(default_factory=Counts)
    size: int = 0
    expires_at: datetime | None = None
    group: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Queue:
    entries: list[Entry]

    def take(self, beside: Sequence[Entry] = ()) -> Entry | None:
        return self.entries.pop(0) if self.entries else None

    def put_back(self, entries: Sequence[Entry]) -> None:
        self.entries = sorted([*self.entries, *entries], key=lambda entry: entry.lookup_id)


@dataclass
class Recorder:
    """Fails deliveries as told (lookup id: failures in order) and records every call."""

    failures: dict[int, list[Failure]] = field(default_factory=dict)
    bad: frozenset[int] = frozenset()
    said: list[str] = field(default_factory=list)
    reasons: list[Failure] = field(default_factory=list)

    def now(self) -> datetime:
        return NOW

    def unreadable(self, entry: Entry) -> Failure | None:
        return Failure(FailureKind.UNREADABLE) if entry.lookup_id in self.bad else None

    def deliver(self, entry: Entry, delivery: Deliver) -> Failure | None:
        self.said.append(f"deliver {entry.lookup_id}")
        left = self.failures.get(entry.lookup_id, [])
        return left.pop(0) if left else None

    def begin(self, entry: Entry, delivery: Deliver) -> None:
        self.said.append(f"begin {entry.lookup_id}")

    def result(self, entry: Entry) -> Failure | None:
        left = self.failures.get(entry.lookup_id, [])
        failure = left.pop(0) if left else None
        self.said.append(f"result {entry.lookup_id}")
        if failure is not None and failure.kind is FailureKind.UNREADABLE:
            raise ServerSessionError("no session can be started")
        return failure

    def committed(self, entries: Sequence[Entry]) -> None:
        self.said.append("commit " + " ".join(str(entry.lookup_id) for entry in entries))

    def rolled_back(self, entries: Sequence[Entry], culprit: Entry | None, failure: Failure) -> None:
        self.reasons.append(failure)
        self.said.append("roll back " + " ".join(f"{entry.lookup_id}/{entry.counts.abort_count}" for entry in entries))

    def move(self, entry: Entry, decision: Park | Dispose) -> bool:
        return True

    def wait(self, entry: Entry) -> None:
        raise AssertionError

    def ended(self, entry: Entry, decision: Park | Dispose | Block | Halt, failure: Failure | None) -> None:
        self.said.append(f"end {entry.lookup_id}")

    def halted(self, decision: Halt) -> None:
        self.said.append("halted")

    def withholds(self, entry: Entry) -> bool:
        return False

    def left_in_place(self, entry: Entry, decision: Park | Dispose) -> None:
        raise AssertionError

    def postponed(self, entry: Entry, failure: Failure) -> None:
        self.said.append(f"postpone {entry.lookup_id}/{entry.counts.move_count}")

    def back_at_savepoint(self, entry: Entry) -> None:
        self.said.append(f"back {entry.lookup_id}/{entry.counts.abort_count}")


def run(policy: Msmq4, entries: list[Entry], host: Recorder) -> Halt | None:
    return ReceiveLoop(policy.open(), Queue(entries), host).run()


def test_a_batch_commits_together_when_it_is_full_or_the_queue_is_empty() -> None:
    host = Recorder()

    run(Msmq4(max_batch_size=2), [Entry(1), Entry(2), Entry(3)], host)

    assert host.said == ["deliver 1", "deliver 2", "commit 1 2", "deliver 3", "commit 3"]


def test_wcf_41_innocents_learn_that_their_batch_met_a_poison_message() -> None:
    host = Recorder(bad=frozenset({2}))

    run(Msmq4(max_batch_size=2, receive_error_handling="Drop"), [Entry(1), Entry(2)], host)

    assert host.said == ["deliver 1", "roll back 1/1", "end 2", "deliver 1", "commit 1"]
    assert host.reasons == [BATCH_MET_POISON]


def test_a_postponed_message_takes_no_part_in_its_transaction() -> None:
    # Given a receive context, where a delivery sees one move more than is stored
    host = Recorder({2: [POSTPONED]})

    run(Msmq4(max_batch_size=3, receive_context=True), [Entry(1), Entry(2)], host)

    assert host.said == ["deliver 1", "deliver 2", "commit 1", "postpone 2/0"]


def test_an_unprocessable_message_ends_after_its_rollback() -> None:
    host = Recorder({1: [Failure(FailureKind.UNPROCESSABLE)]})

    run(Msmq4(receive_error_handling="Drop"), [Entry(1)], host)

    assert host.said == ["deliver 1", "roll back 1/1", "end 1"]


def test_wcf_21_a_fault_ends_the_loop_and_leaves_the_message_at_its_place() -> None:
    queue, host = Queue([Entry(1, Counts(6, 4)), Entry(2)]), Recorder()

    halt = ReceiveLoop(Msmq4().open(), queue, host).run()

    assert halt is not None
    assert halt.how is Halted.FAULTED
    assert [entry.lookup_id for entry in queue.entries] == [1, 2]
    assert queue.entries[0].counts == Counts(7, 4)


def test_a_round_is_handed_out_and_its_results_are_taken_in_the_order_of_the_sessions() -> None:
    host = Recorder({2: [RAISED]})

    ReceiveLoop(specification(2).open(), Queue([Entry(1), Entry(2), Entry(3)]), host, Sessions(2)).run()

    assert host.said == [
        *("begin 1", "begin 2", "result 1", "commit 1", "result 2", "roll back 2/1"),
        *("begin 2", "begin 3", "result 2", "commit 2", "result 3", "commit 3"),
    ]


@pytest.mark.parametrize(("early", "begun"), [(0, ["1", "2", "3"]), (1, ["1", "2", "3", "4"]), (2, ["1", "2", "3", "4", "5"])])
def test_wmq_20_early_hand_out_gives_the_first_sessions_their_next_message_before_the_others_are_done(early: int, begun: list[str]) -> None:
    host = Recorder({number: [RAISED] for number in range(1, 7)})

    class Sweep(Queue):
        def put_back(self, entries: Sequence[Entry]) -> None:
            self.entries += entries

    ReceiveLoop(specification(3, 3).open(), Sweep([Entry(number) for number in range(1, 7)]), host, Sessions(3, early)).run()

    assert [said.removeprefix("begin ") for said in host.said if said.startswith("begin")] == begun
    assert [said.removeprefix("result ") for said in host.said if said.startswith("result")] == begun


def test_wcf_37_in_a_round_too_a_message_at_most_once_is_committed_before_it_is_delivered() -> None:
    host = Recorder({1: [RAISED]})
    with pytest.warns(UserWarning, match="exactly_once"):
        lossy = Msmq4(exactly_once=False)

    ReceiveLoop(lossy.open(), Queue([Entry(1), Entry(2)]), host, Sessions(2)).run()

    assert host.said == ["commit 1", "begin 1", "commit 2", "begin 2", "result 1", "result 2"]


def test_what_is_in_flight_when_a_session_fails_by_itself_can_still_be_finished() -> None:
    host = Recorder({1: [Failure(FailureKind.UNREADABLE)], 2: [RAISED]})
    loop = ReceiveLoop(specification(3).open(), Queue([Entry(number) for number in range(1, 6)]), host, Sessions(3))
    with pytest.raises(ServerSessionError):
        loop.run()

    loop.finish()

    assert host.said[3:] == ["result 1", "result 2", "roll back 2/1", "result 3", "commit 3"]

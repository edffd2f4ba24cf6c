"""The receive loop's seam: which calls a host sees, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.loop import BATCH_MET_POISON, ReceiveLoop
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.policies.decisions import Counts, Halted
from airflow_poison.core.policies.msmq4 import Msmq4

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.core.policies.decisions import Deliver, Dispose, Halt, Park

RAISED = Failure(FailureKind.EXCEPTION, text="rb")
POSTPONED = Failure(FailureKind.POSTPONED)
NOW = datetime(2013, 1, 1, tzinfo=UTC)


@dataclass
class Entry:
    lookup_id: int
    counts: Counts = field(default_factory=Counts)
    size: int = 0
    expires_at: datetime | None = None


@dataclass
class Queue:
    entries: list[Entry]

    def take(self) -> Entry | None:
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

    def committed(self, entries: Sequence[Entry]) -> None:
        self.said.append("commit " + " ".join(str(entry.lookup_id) for entry in entries))

    def rolled_back(self, entries: Sequence[Entry], culprit: Entry | None, failure: Failure) -> None:
        self.reasons.append(failure)
        self.said.append("roll back " + " ".join(f"{entry.lookup_id}/{entry.counts.abort_count}" for entry in entries))

    def move(self, entry: Entry, decision: Park | Dispose) -> bool:
        return True

    def wait(self, entry: Entry) -> None:
        raise AssertionError

    def ended(self, entry: Entry, decision: Park | Dispose | Halt, failure: Failure | None) -> None:
        self.said.append(f"end {entry.lookup_id}")

    def left_in_place(self, entry: Entry, decision: Park | Dispose) -> None:
        raise AssertionError

    def postponed(self, entry: Entry, failure: Failure) -> None:
        self.said.append(f"postpone {entry.lookup_id}/{entry.counts.move_count}")


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

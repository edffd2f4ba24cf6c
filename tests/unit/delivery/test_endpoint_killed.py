"""A pass that dies at any of its stores, and the passes that take it over: what its words say holds, whatever the endpoint had in memory.

The task is "killed" by an exception that nothing of ours catches, right behind a store; the next endpoint has only the journals.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_poison.delivery.handlers import HandlerRef
from airflow_poison.delivery.host import EndpointSession
from airflow_poison.delivery.journal import Journal, MessageState, attempts_of, state_of
from airflow_poison.delivery.recovered import RecoveredAttempts, read_history, read_journals, read_partition
from airflow_poison.delivery.settlement import GiveBack
from airflow_poison.delivery.stage import StageJob
from airflow_poison.rules.decisions import Block, Dispose, Halt, Park
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.policy import FIRST, Access, Opening, Restart
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ConfigurationWarning
from airflow_poison.values.failures import Failure, FailureKind
from tests.given.endpoints import NEVER, broker, in_groups, specification
from tests.given.examples import examples

if TYPE_CHECKING:
    from airflow_poison.delivery.session import BatchReport
    from airflow_poison.delivery.wire import Call
    from airflow_poison.rules.policy import Policy

ROWS = 6
GROUPS = "ab ab "


class KilledError(BaseException):
    """Nothing of ours catches it."""


class Words:
    """The words of a section, until so many stores have been made."""

    def __init__(self, words: memoryview, stores: list[int]) -> None:
        self._words, self._stores = words, stores

    def __getitem__(self, row: int) -> int:
        return self._words[row]

    def __setitem__(self, row: int, value: int) -> None:
        self._words[row] = value
        self._stores[0] -= 1
        if self._stores[0] == 0:
            raise KilledError


class DyingJournal(Journal):
    """A journal whose task is killed behind the so-manieth store; 0: never."""

    def __init__(self, folder: Path, stores: int) -> None:
        super().__init__(folder, "0")
        self._stores = [stores]

    def append(self, *given: Any) -> Any:
        section = super().append(*given)
        found = section.as_array()
        section.as_array = lambda: found  # type: ignore[method-assign]  # what is read stays real
        section.words = Words(section.words, self._stores)  # type: ignore[assignment]  # stores as the loop makes them
        return section


@dataclass
class Handlers:
    """Server sessions whose handlers fail as scripted: by message and number of the delivery, over all passes."""

    script: dict[tuple[int, int], FailureKind]
    hopeless: frozenset[int] = frozenset()
    begun: list[int] = field(default_factory=list)
    returned: Counter[int] = field(default_factory=Counter)
    given_back: Counter[int] = field(default_factory=Counter)
    _under_way: dict[int, Failure | None] = field(default_factory=dict)
    side_by_side = True

    def load(self, batch: Any, label: Any, sessions: int, services: Any = None) -> None:
        self._under_way.clear()

    def prepare(self, session: int) -> None:
        assert session not in self._under_way

    def begin(self, session: int, call: Call, opened: float) -> None:
        kind = FailureKind.EXCEPTION if call.row in self.hopeless else self.script.get((call.row, self.begun.count(call.row)))
        self.begun.append(call.row)
        self.returned[call.row] += kind is None
        self.given_back[call.row] += kind is FailureKind.POSTPONED
        self._under_way[session] = None if kind is None else Failure(kind)

    def result(self, session: int) -> Failure | None:
        return self._under_way.pop(session)

    def change(self, session: int) -> None:
        """No handler acts in a conversation."""

    def rows(self, session: int) -> bytes:
        """Nothing is returned here."""
        return b""

    def has_taken(self, session: int) -> bool:
        return True

    def close(self) -> None:
        """Nothing to end."""


def job_of(policy: Policy, opening: Opening = FIRST) -> StageJob:
    return StageJob("", policy, HandlerRef("none"), "", VirtualClock(), opening=opening)


def receive(policy: Policy, handlers: Handlers, root: Path, *, killed_at: int = 0, counters: dict[str, int] | None = None) -> BatchReport:
    """Receive as the next holder of a claim does: after its earlier ones, in a folder of its own."""
    earlier = sorted(root.iterdir())
    story = read_history(earlier)
    folder = root / str(len(earlier))
    folder.mkdir()
    opening = Opening(counters=policy.counters_after(counters or {}, Restart.SERVER))
    job = replace(job_of(policy, opening), singly=bool(story.alone))
    journal = DyingJournal(folder, killed_at)
    with EndpointSession(job, handlers, journal, story.recovered) as endpoint:
        return endpoint.deliver(in_groups(GROUPS, ["x"] * ROWS))


def live(policy: Policy, handlers: Handlers, kills: list[int]) -> tuple[BatchReport, list[dict[int, int]], list[int]]:
    """Receive, killed at each of these stores in turn; return the last report, the words behind each kill, and where deliveries stood then."""
    seen: list[dict[int, int]] = []
    stood: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for killed_at in kills:
            try:
                report = receive(policy, handlers, folder, killed_at=killed_at)
            except KilledError:
                recovered = read_history(sorted(folder.iterdir())).recovered
                seen.append(dict(zip(recovered.lookup_ids.tolist(), recovered.words.tolist(), strict=True)))
                stood.append(len(handlers.begun))
            else:
                return report, seen, stood
        return receive(policy, handlers, folder), seen, stood


POLICIES: dict[str, Policy] = {
    "ActivationSpecification": specification(3),
    "ActivationSpecification, early": specification(3, early_hand_out=2),
    "ActivationSpecification, one session": specification(1),
    "ActivationSpecification, stops": specification(2, failures=4),
    "ListenerPort": ListenerPort(max_sessions=2, max_retries=3),
    "ServiceBroker": broker(3),
    "DefaultMessaging": DefaultMessaging(max_failed_deliveries=3, auto_stop_sequential_message_failure=NEVER, max_concurrency=2),
    "DefaultMessaging, blocks": DefaultMessaging(max_failed_deliveries=2, exception_destination="None"),
    "Msmq3": Msmq3(receive_retry_count=2, receive_error_handling="Drop"),
    "Msmq4, batches": Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Move", max_batch_size=3),
}
KINDS = [FailureKind.EXCEPTION, FailureKind.EXCEPTION, FailureKind.UNPROCESSABLE, FailureKind.POSTPONED, FailureKind.CRASH, FailureKind.TIMEOUT]


@settings(max_examples=examples(60))
@given(
    st.sampled_from(sorted(POLICIES)),
    st.dictionaries(st.tuples(st.integers(0, ROWS - 1), st.integers(0, 3)), st.sampled_from(KINDS)),
    st.frozensets(st.integers(0, ROWS - 1), max_size=2),
    st.lists(st.integers(1, 25), max_size=3),
)
def test_whatever_a_dead_pass_had_stored_holds(
    name: str, script: dict[tuple[int, int], FailureKind], hopeless: frozenset[int], kills: list[int]
) -> None:
    handlers = Handlers(script, hopeless)

    report, seen, stood = live(POLICIES[name], handlers, kills)

    for words, begun in zip(seen, stood, strict=True):
        later = set(handlers.begun[begun:])
        states = {row: state_of(value) for row, value in words.items()}
        assert not later & {row for row, state in states.items() if state in {MessageState.COMMITTED, MessageState.ENDED}}
        assert MessageState.HALTED not in states.values() or not later
    for row, value in enumerate(report.words.tolist()):
        committed = state_of(value) is MessageState.COMMITTED
        rolled_back = handlers.begun.count(row) - committed - handlers.given_back[row] * (state_of(value) is MessageState.ENDED)
        killed = sum(bool(words) for words in seen)
        assert rolled_back - killed <= attempts_of(value) <= rolled_back + killed, (row, report.words)
        innocent = attempts_of(value) if name == "Msmq4, batches" else 0  # rolled back with another member
        assert handlers.returned[row] <= committed + killed + innocent
        assert state_of(value) not in {MessageState.IN_FLIGHT, MessageState.HELD}
    assert report.halted == any(state_of(value) is MessageState.HALTED for value in report.words.tolist())


@settings(max_examples=examples(40))
@example([16, 7], 2)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=3), st.sampled_from([1, 2]))
def test_dmp_7_a_hopeless_message_is_delivered_more_often_only_where_nobody_was_charged_for_a_death(kills: list[int], sessions: int) -> None:
    """Three deliveries. One in flight: a kill can only take one away, handed out and no handler called. Two: neither is charged.

    One that was in flight alone is charged also when no handler had been called yet, and the endpoint that is opened then counts anew.
    """
    handlers = Handlers({}, hopeless=frozenset(range(ROWS)))

    report, seen, _ = live(replace(POLICIES["DefaultMessaging"], max_concurrency=sessions), handlers, kills)

    delivered = Counter(handlers.begun)
    assert all(3 <= attempts_of(value) <= max(3, delivered[row] + len(seen)) for row, value in enumerate(report.words.tolist()))
    assert all(times <= 3 + (sessions > 1) * len(seen) for times in delivered.values())
    assert report.decided is not None
    assert all(isinstance(end, Dispose) and end.destination == "_SYSTEM.Exception.Destination.ME1" for end in report.decided.ends.values())


@pytest.mark.parametrize("name", ["ActivationSpecification", "ServiceBroker", "DefaultMessaging", "Msmq3", "Msmq4, batches"])
def test_verdicts_of_a_dead_pass_hold(name: str) -> None:
    handlers = Handlers({(0, 0): FailureKind.UNPROCESSABLE, (1, 0): FailureKind.POSTPONED})
    complete, _, _ = live(POLICIES[name], handlers, [])

    for killed_at in range(1, 40):
        again = Handlers(handlers.script)
        report, seen, _ = live(POLICIES[name], again, [killed_at])
        if not seen:
            break
        ended = {row for row, value in seen[0].items() if state_of(value) is MessageState.ENDED}
        assert complete.decided is not None
        assert report.decided is not None
        for row in ended:
            assert type(report.decided.ends[row]) is type(complete.decided.ends[row])
            assert again.begun.count(row) == handlers.begun.count(row)
        if 1 in ended:
            assert isinstance(report.decided.ends[1], GiveBack)
    else:
        pytest.fail("the pass was never left alone")


def test_wmq_20_a_recorded_halt_holds_and_of_the_two_in_flight_beside_it_nobody_is_charged() -> None:
    policy = specification(3, failures=1)
    stores_of_the_halt = 3 + 1 + 1  # three handed out, one rolled back, one halted
    handlers = Handlers({}, hopeless=frozenset(range(ROWS)))

    report, seen, _ = live(policy, handlers, [stores_of_the_halt])

    assert state_of(seen[0][0]) is MessageState.HALTED
    assert handlers.begun == [0, 1, 2]
    assert [attempts_of(value) for value in report.words.tolist()] == [1, 0, 0, 0, 0, 0]
    assert report.decided is not None
    assert report.decided.halt == report.decided.ends[0]
    assert isinstance(report.decided.halt, Halt)
    assert report.decided.halt.details["code"] == "CWWMQ0007W", "what is told of it is known too"


@pytest.mark.parametrize("saved", [False, True])
def test_sb_17_the_document_of_a_disabled_queue_survives_its_pass(*, saved: bool) -> None:
    policy, handlers = broker(1, rollback_limit=1), Handlers({(0, 0): FailureKind.EXCEPTION})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = receive(policy, handlers, folder).decided
        if saved:
            read_journals([folder / "0"]).save(folder / "carry")
        recovered = RecoveredAttempts.load(folder / "carry").merged(RecoveredAttempts()) if saved else read_journals([folder / "0"])
        job = job_of(policy)
        with EndpointSession(job, handlers, Journal(folder, "1"), recovered) as endpoint:
            again = endpoint.deliver(in_groups(GROUPS, ["x"] * ROWS)).decided

    assert told is not None
    assert again is not None
    assert again.halt == told.halt
    assert again.halt is not None
    assert "<EVENT_INSTANCE" in again.halt.details["document"]


def test_a_halt_that_was_not_stored_is_lost_with_the_memory_of_its_endpoint() -> None:
    """Spec 11.1: a restart of the application server sets c to 0; the message's own count is durable."""
    handlers = Handlers({(0, 0): FailureKind.EXCEPTION})

    report, seen, _ = live(specification(1, failures=1), handlers, [2])

    assert [(state_of(seen[0][0]), attempts_of(seen[0][0]))] == [(MessageState.UNTOUCHED, 1)]
    assert handlers.begun == [0, *range(ROWS)]
    assert not report.halted


def test_a_recorded_halt_closes_the_endpoint_of_every_batch() -> None:
    """Also of those before it: with groups spread over tasks, the message that halted may be another task's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        handlers = Handlers({(5, 0): FailureKind.EXCEPTION})
        receive(specification(1, failures=1), handlers, folder)
        begun = len(handlers.begun)

        job = job_of(specification(1, failures=1))
        journal = Journal(folder, "1")
        recovered = read_partition(folder / "0", "0")
        with EndpointSession(job, handlers, journal, recovered) as endpoint:
            report = endpoint.deliver(in_groups("   ", ["x"] * 3, first_id=100))

    assert len(handlers.begun) == begun
    assert report.halted
    assert report.decided is not None
    assert report.decided.halt is None, "it is the other task that tells of it"


def test_the_last_of_several_verdicts_counts() -> None:
    """The second pass was told that it is unprocessable; the first one knew only an exception."""
    for _ in range(10):
        handlers = Handlers({(0, 0): FailureKind.EXCEPTION, (0, 1): FailureKind.UNPROCESSABLE})
        report, seen, _ = live(POLICIES["ActivationSpecification, one session"], handlers, [2, 6])

        assert state_of(seen[1][0]) is MessageState.ENDED
        assert handlers.begun == [0, 0, *range(1, ROWS)]
        assert report.decided is not None
        assert isinstance(report.decided.ends[0], Dispose)


def test_a_verdict_whose_rollback_was_stored_holds_already() -> None:
    handlers = Handlers({(0, 0): FailureKind.UNPROCESSABLE})

    report, seen, _ = live(POLICIES["ActivationSpecification, one session"], handlers, [2])

    assert state_of(seen[0][0]) is MessageState.UNTOUCHED
    assert handlers.begun == [*range(ROWS)]
    assert report.decided is not None
    assert isinstance(report.decided.ends[0], Dispose)


def test_wcf_41_the_verdict_on_one_member_of_a_batch_is_none_on_the_others() -> None:
    """Without retries the innocents go through a retry cycle; only the culprit is moved at once, also when the pass dies behind that."""
    with pytest.warns(ConfigurationWarning):
        policy = Msmq4(receive_retry_count=0, max_retry_cycles=1, receive_error_handling="Move", max_batch_size=3)
    for killed_at in range(5, 12):
        handlers = Handlers({(2, 0): FailureKind.UNPROCESSABLE})
        report, _, _ = live(policy, handlers, [killed_at])
        assert report.decided is not None
        assert {row: type(end) for row, end in report.decided.ends.items() if row != 2} | {0: Park, 1: Park} == {
            row: type(end) for row, end in report.decided.ends.items() if row != 2
        }


def test_m3_4_a_message_that_was_dropped_stays_so_though_each_endpoint_counts_anew() -> None:
    """One attempt of a first pass, three of a second one, which drops it and dies."""
    handlers = Handlers({}, hopeless=frozenset([0]))

    report, seen, _ = live(POLICIES["Msmq3"], handlers, [1, 8])

    assert [(state_of(words[0]), attempts_of(words[0])) for words in seen] == [(MessageState.CRASHED, 1), (MessageState.ENDED, 4)]
    assert handlers.begun == [0, 0, 0, *range(1, ROWS)]
    assert report.decided is not None
    assert isinstance(report.decided.ends[0], Dispose)


def test_a_block_that_was_stored_blocks_again() -> None:
    handlers = Handlers({}, hopeless=frozenset([0]))
    policy = DefaultMessaging(max_failed_deliveries=2, exception_destination="None")
    stores_of_the_block = 2 * 2 + 1

    report, seen, _ = live(policy, handlers, [stores_of_the_block])

    assert state_of(seen[0][0]) is MessageState.ENDED
    assert handlers.begun == [0, 0]
    assert report.decided is not None
    assert isinstance(report.decided.ends[0], Block)


def test_where_a_message_goes_is_decided_with_what_the_endpoint_found() -> None:
    """The exception destination is missing: the engine's own queue stands in for it, also after a kill (spec DMP-17)."""
    policy = DefaultMessaging(max_failed_deliveries=1, exception_destination="MINE", auto_stop_sequential_message_failure=NEVER)
    opening = Opening(access={"MINE": Access.MISSING})
    with tempfile.TemporaryDirectory() as name:
        folder, handlers = Path(name), Handlers({}, hopeless=frozenset([0]))
        job = job_of(policy, opening)
        with (
            pytest.raises(KilledError),
            EndpointSession(job, handlers, DyingJournal(folder, 2), read_journals([])) as dying,
        ):
            dying.deliver(in_groups(" ", ["x"]))
        recovered = read_journals([folder])
        with EndpointSession(job, handlers, Journal(folder, "0"), recovered) as endpoint:
            report = endpoint.deliver(in_groups(" ", ["x"]))

    assert handlers.begun == [0]
    assert report.decided is not None
    end = report.decided.ends[0]
    assert isinstance(end, Dispose)
    assert end.destination == "_SYSTEM.Exception.Destination.ME1"

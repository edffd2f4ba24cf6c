"""Outage or poison in batches: a batch that fails for an outage is not searched, and whoever is at fault among its messages is still found."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_poison.delivery.handlers import Batching
from airflow_poison.passes.due import return_due
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import PoisonRows
from airflow_poison.values.schema import SubQueue
from tests.given.examples import examples
from tests.given.passes import DiedError, DyingEngine, Queue
from tests.unit.passes import test_outage
from tests.unit.passes.test_outage import OUTAGE, RETRIES, a_queue_of, as_sent, events

if TYPE_CHECKING:
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.policy import Policy
    from tests.given.points import AtPoint


def _takes_batches(policy: Policy) -> bool:
    try:
        Batching("arrow").check_policy(policy)
    except SettingError:
        return False
    return True


HALTING = {name: policy for name, policy in test_outage.HALTING.items() if _takes_batches(policy)}
OTHERS = {name: policy for name, policy in test_outage.OTHERS.items() if _takes_batches(policy)}
CHARGES = ("parked", "poisoned", "dropped", "exceptioned", "rollbacks")
POLICIES = [pytest.param(policy, id=name) for name, policy in {**HALTING, **OTHERS}.items()]


class Database:
    """What the handler needs.

    :ivar calls: the lookup ids of each call of the handler.
    :ivar goes_away_after: so many calls.
    """

    def __init__(self) -> None:
        self.away = False
        self.calls: list[list[int]] = []
        self.done: list[int] = []
        self.goes_away_after: int | None = None

    def __call__(self, frame: Any) -> None:
        """Be the handler: what is wrong with a body is found before anything is written."""
        ids, words = frame["lookup_id"].to_pylist(), [body.decode() for body in frame["body"].to_pylist()]
        self.calls.append(ids)
        if self.goes_away_after is not None and len(self.calls) > self.goes_away_after:
            self.away = True
        if named := {number: word for number, word in zip(ids, words, strict=True) if word == "named" or (word == "crowd" and len(ids) > 1)}:
            raise PoisonRows(named)
        if self.away and set(words) - {"free", "bad first"}:
            raise ConnectionError(f"no route, {len(ids)} messages")
        if set(words) & {"bad", "bad first"}:
            raise KeyError("bad")
        self.done += ids

    def wasted(self) -> list[int]:
        """How many messages were in each call since the last question."""
        sizes, self.calls = [len(ids) for ids in self.calls], []
        return sizes


database = Database()


def land(frame: Any) -> None:
    database(frame)


@pytest.fixture(autouse=True)
def _database() -> None:
    database.__init__()  # type: ignore[misc]  # as new


def receive(queue: Queue, key: str = "run", **changes: object) -> ReceiveResult:
    return queue.receive(key, **{"handler": f"{__name__}:land", "outage": OUTAGE, "batching": Batching("arrow"), **changes})


def unstable(queue: Queue) -> list[str]:
    return events(queue, EventType.UNSTABLE_BATCH)


@pytest.mark.parametrize("policy", POLICIES)
def test_while_the_database_is_away_nothing_is_charged_and_each_pass_wastes_few_calls(policy: Policy, tmp_path: Path) -> None:
    queue = a_queue_of(policy, tmp_path, *["good"] * 2_000)
    database.away = True

    first = receive(queue, "first")
    wasted = database.wasted()
    assert first.outage is not None
    assert first.outage["error"].startswith("ConnectionError: no route")
    assert first.halted is None
    assert wasted[0] == 2_000
    assert wasted.count(1) <= 2 * OUTAGE.at_least
    assert len(wasted) - wasted.count(1) <= 1 + OUTAGE.at_least
    if policy.stateless:
        assert wasted[1:] == [1] * OUTAGE.tried_out_of_turn
    for number in range(3):
        queue.clock.advance(OUTAGE.every)
        probe = receive(queue, f"probe-{number}")
        assert probe.outage is not None
        assert probe.outage["fingerprint"] == first.outage["fingerprint"]
        wasted = database.wasted()
        assert wasted == [1] * len(wasted)
        assert 0 < len(wasted) <= OUTAGE.probe

    assert as_sent(queue)
    assert queue.table.snapshot().control.state is QueueState.ENABLED
    assert queue.table.snapshot().control.blocked_until(queue.clock.now()) is None
    assert events(queue) == ["OUTAGE_BEGAN"]
    assert unstable(queue) == []

    database.away = False
    queue.clock.advance(OUTAGE.every)
    over = receive(queue, "over")

    assert (over.settled, over.outage) == (2_000, None)
    assert Counter(database.done) == Counter(range(1, 2_001))
    assert queue.rows() == {}
    assert events(queue) == ["OUTAGE_BEGAN", "OUTAGE_OVER"]


@pytest.mark.parametrize("size", [2, 15, 300])
@pytest.mark.parametrize("policy", POLICIES)
def test_batches_that_are_too_small_to_judge_by_are_searched_until_enough_messages_have_failed(policy: Policy, size: int, tmp_path: Path) -> None:
    queue = a_queue_of(policy, tmp_path, *["good"] * 1_000)
    database.away = True

    outage = replace(OUTAGE, at_least=301)
    result = receive(queue, batching=Batching("arrow", size), outage=outage)
    wasted = database.wasted()

    assert result.outage is not None
    assert as_sent(queue)
    assert wasted.count(1) <= outage.at_least
    assert len(wasted) <= 2 * outage.at_least + 20
    assert unstable(queue) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_an_outage_in_the_middle_of_a_pass_leaves_settled_what_has_settled(policy: Policy, tmp_path: Path) -> None:
    queue = a_queue_of(policy, tmp_path, *["good"] * 1_000)
    database.goes_away_after = 4

    result = receive(queue, batching=Batching("arrow", 100))

    assert result.outage is not None
    assert (result.settled, result.untouched) == (400, 600)
    assert sorted(queue.rows()) == list(range(401, 1_001))
    assert as_sent(queue)


def test_an_outage_that_begins_while_a_batch_is_searched_ends_the_search(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 499, "bad", *["good"] * 500)
    database.goes_away_after = 4  # the batch, one tried alone, two pieces

    result = receive(queue)

    assert result.outage is not None
    assert result.settled == 201
    assert as_sent(queue)
    assert unstable(queue) == []
    assert len(database.calls) <= 4 + 1 + OUTAGE.tried_out_of_turn


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if "without poison handling" not in str(policy.id)])
def test_poison_among_good_messages_is_found_and_charged_as_ever(policy: Policy, tmp_path: Path) -> None:
    bodies = ["good"] * 700
    bodies[500] = "bad"
    watched, plain = a_queue_of(policy, tmp_path, *bodies), a_queue_of(policy, tmp_path, *bodies)

    result = receive(watched)
    calls = len(database.calls)
    database.__init__()  # type: ignore[misc]  # as new
    without = receive(plain, outage=None)

    assert result.outage is None
    assert [getattr(result, name) for name in CHARGES] == [getattr(without, name) for name in CHARGES]
    assert (result.halted is None, result.blocked_until) == (without.halted is None, without.blocked_until)
    assert {number for number, row in watched.rows().items() if _is_charged(row)} <= {501}
    assert calls <= len(database.calls) + 5 + OUTAGE.probe  # one for each part that has failed and is large, and those that are tried before a halt


@pytest.mark.parametrize("size", [10, 10_000])
def test_poison_that_fails_otherwise_is_charged_as_ever(size: int, tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, "bad first", *["good"] * 600)
    database.goes_away_after = 0 if size == 10 else 15

    result = receive(queue, batching=Batching("arrow", size))

    assert result.outage is not None
    assert result.outage["error"].startswith("ConnectionError")
    assert list(queue.rows(SubQueue.RETRY)) == [1]
    assert {number for number, row in queue.rows().items() if _is_charged(row)} == {1}
    assert [error["error"] for error in result.errors] == ["KeyError: 'bad'"]


@pytest.mark.parametrize("bodies", [["bad"] * 80, ["good", "good", "bad", "good"] * 80], ids=["all", "some"])
def test_poison_that_comes_back_from_retry_is_no_outage(bodies: list[str], tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *bodies)
    first = receive(queue, "first", outage=None)
    queue.clock.advance(timedelta(hours=1))
    return_due(queue.table, queue.clock)

    second = receive(queue, "second")

    assert (first.parked, second.outage, second.poisoned) == (80, None, 80)


@pytest.mark.parametrize("size", [20, 60, 10_000])
def test_a_heap_of_poison_among_good_messages_is_no_outage(size: int, tmp_path: Path) -> None:
    """Whole batches fail; messages from elsewhere are tried first."""
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 240, *["bad"] * 60, *["good"] * 400)

    result = receive(queue, batching=Batching("arrow", size))

    assert (result.outage, result.parked, result.settled) == (None, 60, 640)
    assert Counter(database.done).most_common(1)[0][1] == 1


# What handlers say of messages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("body", ["named", "unfit"])
def test_what_is_said_of_messages_themselves_is_no_evidence_of_an_outage(body: str, size: int, tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *[body] * 60, "good")
    schema = "n int" if body == "unfit" else None

    result = receive(queue, batching=Batching("arrow", size, schema), **({"handler": f"{__name__}:ignore"} if schema else {}))

    assert result.outage is None
    assert result.parked == 60 + (body == "unfit")


def ignore(frame: Any) -> None:
    """Be called with nothing: no body fits."""
    database.calls.append(frame["lookup_id"].to_pylist())


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_that_the_handler_names_in_an_outage_are_charged_and_nobody_else(policy: Policy, tmp_path: Path) -> None:
    bodies = ["good"] * 600
    bodies[300] = bodies[301] = "named"
    queue = a_queue_of(policy, tmp_path, *bodies)
    database.away = True

    result = receive(queue)

    assert result.outage is not None
    assert result.halted is None
    rows = queue.rows()
    assert len(rows) == 600
    charged = {number for number, row in rows.items() if _is_charged(row)}
    if policy.stateless and not policy.halting:
        assert charged == {301, 302}
        assert {rows[number]["last_error"]["type"] for number in charged} == {"airflow_poison.values.failures.PoisonRows"}  # type: ignore[index]  # cells
    else:
        assert charged <= {301, 302}  # where an order is kept their turn has not come


def test_bodies_that_do_not_fit_wait_for_the_end_of_an_outage(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["unfit", '{"n": 1}'] * 60)

    result = receive(queue, batching=Batching("arrow", schema="n int"), handler=f"{__name__}:finds_no_route")

    assert result.outage is not None
    assert as_sent(queue)
    assert database.wasted() == [60] + [1] * OUTAGE.tried_out_of_turn


def finds_no_route(frame: Any) -> None:
    """Find the database away."""
    database.calls.append(frame["lookup_id"].to_pylist())
    raise ConnectionError


def test_named_rows_that_wait_for_the_others_are_not_tried_besides(tmp_path: Path) -> None:
    """Alone they are fine: one that is committed before it is charged would be charged after it was processed."""
    queue = a_queue_of(RETRIES, tmp_path, *["bad", "crowd", "bad", "crowd", "bad", "good"] * 50)

    result = receive(queue, outage=replace(OUTAGE, at_least=50, probe=100, share=1.0))

    assert (result.settled, result.parked, result.outage) == (50, 250, None)
    assert Counter(database.done) == Counter(range(6, 301, 6))


@pytest.mark.parametrize("policy", [RETRIES, ServiceBroker()], ids=["msmq 4", "service broker"])
def test_what_handlers_return_lands_once_for_each_settled_message(policy: Policy) -> None:
    from airflow_poison.testing import receive as receive_in_test
    from airflow_poison.values.clock import VirtualClock

    clock = VirtualClock()
    back_at, calls = clock.now() + timedelta(hours=1), list[int]()

    def flaky(frame: Any) -> Any:
        """Find the database away after 3 calls, for an hour."""
        calls.append(len(frame))
        if len(calls) > 3 and clock.now() < back_at:
            raise ConnectionError
        return frame.select(["lookup_id"]).append_column("id", frame["lookup_id"])

    received = receive_in_test(flaky, ["good"] * 350, policy, output="/landed", outage=OUTAGE, clock=clock, batch="arrow", batch_size=50)

    assert [event.type.value for event in received.events if "OUTAGE" in event.type.value] == ["OUTAGE_BEGAN", "OUTAGE_OVER"]
    assert received.places == ["processed"] * 350
    assert sorted(row["id"] for row in received.rows) == list(range(1, 351))


# It dies in between ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [RETRIES, HALTING["msmq 4, fault"], ServiceBroker()], ids=["msmq 4", "msmq 4, fault", "service broker"])
@pytest.mark.parametrize("messages", [50, 600])
@pytest.mark.parametrize("point", ["delivery.batch.in_hand", "delivery.outage.before_name", "delivery.outage.after_name"])
def test_whoever_takes_over_charges_nobody(policy: Policy, messages: int, point: str, tmp_path: Path, at_point: AtPoint) -> None:
    queue = a_queue_of(policy, tmp_path, *["good"] * messages)
    database.away = True

    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    with pytest.raises(DiedError):
        receive(queue, "dies")
    database.wasted()
    queue.clock.advance(timedelta(minutes=3))
    second = receive(queue, "takes over")

    assert second.outage is not None
    assert second.halted is None
    assert as_sent(queue)
    assert unstable(queue) == []
    assert len(database.calls) <= (0 if point.endswith("after_name") else 2 * OUTAGE.at_least)
    database.away = False
    queue.clock.advance(OUTAGE.every)
    assert receive(queue, "over").settled == messages
    assert Counter(database.done) == Counter(range(1, messages + 1))


def test_who_takes_over_honours_the_verdict_and_takes_back_what_was_charged_before_it(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 60)
    database.away = True
    with pytest.raises(DiedError):
        receive(queue, "dies", engine=DyingEngine, batching=Batching("arrow", 2))
    assert database.wasted()
    queue.clock.advance(timedelta(minutes=3))

    second = receive(queue, "takes over", outage=None)

    assert second.outage is not None
    assert second.outage["given_back"] > 0
    assert database.wasted() == []
    assert as_sent(queue)


# Mixtures ----------------------------------------------------------------------------------------------------------------

words = st.sampled_from(["good", "good", "good", "good", "free", "bad", "bad first", "named"])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(
        [policy for policy in [*HALTING.values(), *OTHERS.values()] if not isinstance(policy, ServiceBroker) or policy.poison_message_handling]
    ),
    st.lists(words, min_size=1, max_size=120),
    st.integers(0, 40),
    st.sampled_from([0.3, 0.5, 0.8]),
    st.sampled_from([1, 7, 40, 10_000]),
)
def test_whatever_is_mixed_only_culprits_are_charged(policy: Policy, bodies: list[str], goes_away_after: int, share: float, size: int) -> None:
    database.__init__()  # type: ignore[misc]  # as new
    with tempfile.TemporaryDirectory() as folder:
        queue = a_queue_of(policy, Path(folder), *bodies)
        database.goes_away_after = goes_away_after
        result = receive(queue, outage=replace(OUTAGE, share=share), batching=Batching("arrow", size))
        rows = queue.rows()

    assert result.received == len(bodies)
    assert rows.keys().isdisjoint(database.done)
    assert not database.done or Counter(database.done).most_common(1)[0][1] == 1
    if result.outage is None:
        return
    if result.outage["error"].startswith("ConnectionError"):
        assert {bodies[number - 1] for number, row in rows.items() if _is_charged(row)} <= {"bad", "bad first", "named"}
    for row in rows.values():
        assert row["last_error"] is None or row["last_error"]["fingerprint"] != result.outage["fingerprint"]  # type: ignore[index]  # a cell
    if result.halted is not None:
        assert bodies[(result.halted["lookup_id"] or 1) - 1] not in {"good", "free"}


@settings(max_examples=examples(25), deadline=None)
@given(
    st.sampled_from([RETRIES, OTHERS["msmq 3"], DefaultMessaging(max_failed_deliveries=3)]),
    st.lists(words, min_size=1, max_size=60),
    st.sampled_from([1, 7, 10_000]),
)
def test_in_the_end_good_messages_are_processed_once_and_bad_ones_have_ended(policy: Policy, bodies: list[str], size: int) -> None:
    """The database is away for three passes, and whatever that has cost, it is nothing."""
    if not _takes_batches(policy):
        policy = replace(policy, max_concurrency=1)
    database.__init__()  # type: ignore[misc]  # as new
    with tempfile.TemporaryDirectory() as folder:
        queue = a_queue_of(policy, Path(folder), *bodies)
        database.away = True
        found = [_go_on(queue, f"away-{number}", size) for number in range(3)]
        judged_over = queue.table.events(types=(EventType.OUTAGE_OVER,))
        database.away = False
        for number in range(6):
            _go_on(queue, f"back-{number}", size)
        rows = queue.rows()

    if not all(result.outage is not None and result.outage["error"].startswith("ConnectionError") for result in found):
        return
    if judged_over:  # more than half of a probe was poison: then what else failed in it is charged
        return
    assert Counter(database.done) == Counter(number for number, body in enumerate(bodies, 1) if body in {"good", "free"})
    assert {row["sub_queue"] for row in rows.values()} <= {"poison"}


def _go_on(queue: Queue, key: str, size: int) -> ReceiveResult:
    queue.clock.advance(timedelta(minutes=31))
    return_due(queue.table, queue.clock)
    return receive(queue, key, batching=Batching("arrow", size))


def _is_charged(row: dict[str, object]) -> bool:
    return bool(row["abort_count"] or row["move_count"] or row["crash_count"] or row["last_error"] or row["sub_queue"] != "main")

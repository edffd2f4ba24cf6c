"""Outage or poison: what fails alike is given back uncounted, only probes are delivered until one succeeds, and what fails otherwise is charged."""

from __future__ import annotations

import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings

import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_poison.delivery.outage import OUTAGE_FILE
from airflow_poison.delivery.stage import Order
from airflow_poison.passes.alerts import AlertKind, send_alerts
from airflow_poison.passes.due import return_due
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.outage import Outage
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.spark.shares import SharedSite, deliver_share, plan_shares, read_share
from airflow_poison.store.control import QueueState
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.errors import QueueHaltedError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind, Postpone, Unprocessable, origin
from airflow_poison.values.schema import SubQueue
from airflow_poison.watching.conditions import MessagesAvailable
from airflow_poison.watching.queue_events import Happening, Position, begin, news, ripens
from tests.given.examples import examples
from tests.given.passes import DiedError, DyingEngine, Queue, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message
    from tests.given.points import AtPoint

RETRIES = Msmq4(receive_retry_count=2, max_retry_cycles=1, receive_error_handling="Move")
OUTAGE = Outage(at_least=20, probe=5, every=timedelta(minutes=5))
with catch_warnings(action="ignore"):
    HALTING: dict[str, Policy] = {
        "service broker": ServiceBroker(),
        "service broker, disabled in the background": ServiceBroker(disabling="background"),
        "service broker, by group": ServiceBroker(scope="conversation_group"),
        "service broker, three readers": ServiceBroker(max_queue_readers=3),
        "msmq 4, fault": Msmq4(receive_retry_count=1, max_retry_cycles=0),
        "msmq 3, fault": Msmq3(receive_retry_count=1),
        "activation specification": ActivationSpecification(),
        "activation specification, one session": ActivationSpecification(max_server_sessions=1, failure_delivery_count=2),
        "listener port": ListenerPort(),
        "listener port, three sessions": ListenerPort(max_sessions=3, max_retries=2),
        "default messaging, blocks": DefaultMessaging(exception_destination="None", max_failed_deliveries=2),
        "default messaging, stops": DefaultMessaging(auto_stop_sequential_message_failure=3),
    }
    OTHERS: dict[str, Policy] = {
        "msmq 4": RETRIES,
        "msmq 4 in batches": replace(RETRIES, max_batch_size=4),
        "msmq 3": Msmq3(receive_retry_count=1, receive_error_handling="Drop"),
        "service broker without poison handling": ServiceBroker(poison_message_handling=False),
        "activation specification that never stops": ActivationSpecification(stop_endpoint_if_delivery_fails=False, backout_threshold=3),
        "default messaging": DefaultMessaging(max_failed_deliveries=3),
    }


class Database:
    """What the handler needs.

    :ivar calls: of the handler, by lookup id.
    """

    def __init__(self) -> None:
        self.away = False
        self.calls: list[int] = []
        self.done: list[int] = []
        self.goes_away_after: int | None = None

    def __call__(self, message: Message) -> None:
        """Be the handler."""
        self.calls.append(message.lookup_id)
        if self.goes_away_after is not None and len(self.calls) > self.goes_away_after:
            self.away = True
        match message.text.split()[0]:
            case "bad":
                raise KeyError(message.lookup_id)
            case "worse":
                raise ZeroDivisionError
            case "later":
                raise Postpone
            case "never":
                raise Unprocessable
        if self.away and message.text != "free":
            raise ConnectionError(f"no route, message {message.lookup_id}")
        self.done.append(message.lookup_id)

    def wasted(self) -> int:
        """Calls since the last question."""
        number, self.calls = len(self.calls), []
        return number


database = Database()


def land(message: Message) -> None:
    database(message)


HANDLER = f"{__name__}:land"


@pytest.fixture(autouse=True)
def _database() -> None:
    database.__init__()  # type: ignore[misc]  # as new


def a_queue_of(policy: Policy, folder: Path, *bodies: str) -> Queue:
    queue = a_queue(MemoryStore(), folder, policy)
    return queue.sent(*bodies) if bodies else queue


def receive(queue: Queue, key: str = "run", **changes: object) -> ReceiveResult:
    return queue.receive(key, **{"handler": HANDLER, "outage": OUTAGE, **changes})


def as_sent(queue: Queue) -> bool:
    """Whether every message is in main as it was sent."""
    rows = queue.rows(SubQueue.MAIN)
    return rows == queue.rows() and all(
        (row["abort_count"], row["move_count"], row["crash_count"] or 0, row["last_error"], row["due_at"]) == (0, 0, 0, None, None)
        for row in rows.values()
    )


def events(queue: Queue, *types: EventType) -> list[str]:
    return [event.type.value for event in queue.table.events(types=types or (EventType.OUTAGE_BEGAN, EventType.OUTAGE_OVER))]


@pytest.mark.parametrize("policy", [pytest.param(policy, id=name) for name, policy in {**HALTING, **OTHERS}.items()])
def test_while_the_database_is_away_nothing_is_charged_parked_or_halted_and_each_pass_wastes_few_calls(policy: Policy, tmp_path: Path) -> None:
    queue = a_queue_of(policy, tmp_path, *["good"] * 200)
    database.away = True

    first = receive(queue, "first")
    assert first.outage is not None
    assert first.outage["error"].startswith("ConnectionError: no route")
    assert first.halted is None
    assert database.wasted() <= OUTAGE.at_least
    for number in range(3):
        queue.clock.advance(OUTAGE.every)
        probe = receive(queue, f"probe-{number}")
        assert probe.outage is not None
        assert probe.outage["fingerprint"] == first.outage["fingerprint"]
        assert 0 < database.wasted() <= OUTAGE.probe

    assert as_sent(queue)
    assert not queue.table.snapshot().control.endpoint_counters.get("rollbacks")
    assert queue.table.snapshot().control.state is QueueState.ENABLED
    assert queue.table.snapshot().control.blocked_until(queue.clock.now()) is None
    assert events(queue) == ["OUTAGE_BEGAN"]
    assert len(queue.happened()) == 1 + sum(kind == "POLICY_CHANGED" for kind, _ in queue.happened())

    database.away = False
    queue.clock.advance(OUTAGE.every)
    over = receive(queue, "over")

    assert (over.settled, over.outage, over.passes) == (200, None, 2)
    assert Counter(database.done) == Counter(range(1, 201))
    assert queue.rows() == {}
    assert queue.table.snapshot().control.outage() is None
    assert events(queue) == ["OUTAGE_BEGAN", "OUTAGE_OVER"]


@pytest.mark.parametrize("policy", [pytest.param(policy, id=name) for name, policy in HALTING.items()])
def test_a_message_that_fails_alone_halts_or_blocks_its_queue_as_without_an_outage(policy: Policy, tmp_path: Path) -> None:
    queue = a_queue_of(policy, tmp_path, "good", "bad", *["good"] * 40)

    result = receive(queue)

    assert result.outage is None
    assert result.halted is not None or result.blocked_until is not None or result.exceptioned == 1
    assert 2 not in database.done
    if result.halted is not None:
        assert result.halted["lookup_id"] in {2, None}
        assert queue.table.snapshot().control.state is not QueueState.ENABLED


def test_without_outage_every_failure_is_charged(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 50)
    database.away = True

    result = receive(queue, outage=None)

    assert (result.parked, result.outage, database.wasted()) == (50, None, 150)
    assert events(queue) == []


def test_a_pass_before_the_next_probe_is_due_delivers_nothing_and_claims_nothing(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 50)
    database.away = True
    receive(queue, "first")
    version = queue.table.snapshot().version
    database.wasted()

    queue.clock.advance(OUTAGE.every - timedelta(seconds=1))
    result = receive(queue, "second", engine=lambda: pytest.fail("an engine was made"))

    assert result.received == 0
    assert result.outage is not None
    assert result.outage["since"] <= result.outage["next_probe_at"]
    assert database.wasted() == 0
    assert queue.table.snapshot().version == version


def test_a_sensor_waits_for_the_next_probe(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 50)
    database.away = True
    receive(queue)

    waiting = MessagesAvailable().met(queue.table.snapshot(), queue.clock.now())
    due = MessagesAvailable().met(queue.table.snapshot(), queue.clock.now() + OUTAGE.every)

    assert (waiting.met, waiting.not_before) == (False, queue.clock.now() + OUTAGE.every)
    assert due.met


def test_an_outage_in_the_middle_of_a_pass_leaves_settled_what_has_settled(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 300)
    database.goes_away_after = 100

    result = receive(queue)

    assert result.outage is not None
    assert result.settled == 100
    assert result.untouched == 200
    assert len(database.calls) <= 100 + OUTAGE.at_least
    assert sorted(queue.rows()) == list(range(101, 301))
    assert as_sent(queue)


def test_what_fails_otherwise_is_charged_as_ever(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, "bad", *["good"] * 60)
    database.away = True

    result = receive(queue)

    assert result.outage is not None
    assert (result.parked, result.untouched, result.rollbacks) == (1, 60, 3)
    assert list(queue.rows(SubQueue.RETRY)) == [1]
    assert [error["error"] for error in result.errors] == ["KeyError: 1"]
    assert events(queue, EventType.MOVED_RETRY) == ["MOVED_RETRY"]


def test_what_an_outage_has_parked_in_this_pass_comes_back_to_its_place(tmp_path: Path) -> None:
    """Each message is given up at its first failure: by the verdict many have been parked, in batches that are settled already."""
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=1, receive_error_handling="Move")
    queue = a_queue_of(policy, tmp_path, *["good", "good", "good", "free"] * 2_000)
    database.away = True

    result = receive(queue, outage=replace(OUTAGE, at_least=5_000, probe=100))

    assert result.outage is not None
    assert result.outage["given_back"] > 3_000
    assert result.settled > 1_000
    assert as_sent(queue)
    assert result.received == result.settled + result.untouched == 8_000
    assert queue.rows().keys().isdisjoint(database.done)


def test_messages_stay_in_the_sub_queue_that_they_were_read_from(tmp_path: Path) -> None:
    from airflow_poison.passes.move import move
    from airflow_poison.rules.msmq4 import PoisonSubQueue

    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 60)
    move(queue.table, queue.clock, list(range(1, 61)), SubQueue.POISON)
    before = queue.rows(SubQueue.POISON)
    database.away = True

    result = receive(queue, policy=PoisonSubQueue(receive_retry_count=1))

    assert result.outage is not None
    assert queue.rows(SubQueue.POISON) == before
    assert queue.table.snapshot().control.outage() is None
    assert queue.table.snapshot().control.outage(SubQueue.POISON) is not None
    assert receive(queue, "main").outage is None


@pytest.mark.parametrize("kind", ["bad", "never", "later"])
def test_poison_that_comes_back_from_retry_alone_is_no_outage(kind: str, tmp_path: Path) -> None:
    """It was charged with the same type of exception before; fresh messages that fail alike with it are few."""
    queue = a_queue_of(RETRIES, tmp_path, *["good", "good", kind, "good"] * 80)
    first = receive(queue, "first")
    queue.clock.advance(timedelta(hours=1))
    return_due(queue.table, queue.clock)

    second = receive(queue, "second")

    assert first.outage is second.outage is None
    assert {"bad": second.poisoned, "never": first.poisoned, "later": second.postponed}[kind] == 80


def test_a_heap_of_poison_among_good_messages_is_no_outage(tmp_path: Path) -> None:
    """By the last deliveries it would be: 60 in a row fail alike. Messages from elsewhere are tried first."""
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 200, *["bad"] * 60, *["good"] * 400)

    result = receive(queue)

    assert (result.outage, result.parked, result.settled) == (None, 60, 600)
    assert Counter(database.done).most_common(1)[0][1] == 1


def test_one_bad_message_is_no_outage_however_often_it_is_tried(tmp_path: Path) -> None:
    queue = a_queue_of(Msmq4(receive_retry_count=100, max_retry_cycles=1, receive_error_handling="Move"), tmp_path, "bad", "bad")

    assert (receive(queue).parked, database.wasted()) == (2, 202)


def test_fewer_deliveries_than_at_least_are_no_outage(tmp_path: Path) -> None:
    queue = a_queue_of(replace(RETRIES, receive_retry_count=0), tmp_path, *["good"] * (OUTAGE.at_least - 1))
    database.away = True

    assert receive(queue).parked == OUTAGE.at_least - 1


def test_at_least_deliveries_that_fail_alike_are_one(tmp_path: Path) -> None:
    queue = a_queue_of(replace(RETRIES, receive_retry_count=0), tmp_path, *["good"] * OUTAGE.at_least)
    database.away = True

    assert receive(queue).outage is not None
    assert as_sent(queue)


@pytest.mark.parametrize(("share", "is_outage"), [(0.5, True), (0.9, False)])
def test_the_share_decides(share: float, is_outage: bool, tmp_path: Path) -> None:  # noqa: FBT001  (a parameter of the test)
    queue = a_queue_of(replace(RETRIES, receive_retry_count=0), tmp_path, *["good", "good", "free"] * 100)
    database.away = True

    assert (receive(queue, outage=replace(OUTAGE, share=share)).outage is not None) is is_outage


def test_a_probe_that_fails_otherwise_has_found_the_outage_over(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 50)
    database.away = True
    receive(queue, "first")
    database.away = False
    queue.clock.advance(OUTAGE.every)
    queue.sent("bad")

    result = receive(queue, "second")

    assert (result.outage, result.settled, result.parked) == (None, 50, 1)


def test_a_pass_that_looks_for_no_outages_receives_everything_and_ends_one(tmp_path: Path) -> None:
    """So people say that it is poison; from then on these messages are no evidence any more."""
    queue = a_queue_of(RETRIES, tmp_path, *["bad"] * 50)
    assert receive(queue, "first").outage is not None

    charged = receive(queue, "second", outage=None)
    queue.clock.advance(timedelta(hours=1))
    return_due(queue.table, queue.clock)
    last = receive(queue, "third")

    assert (charged.parked, charged.outage) == (50, None)
    assert queue.table.snapshot().control.outage() is None
    assert events(queue) == ["OUTAGE_BEGAN", "OUTAGE_OVER"]
    assert (last.outage, last.poisoned) == (None, 50)


def test_service_broker_counters_are_as_before_the_pass_where_nothing_has_committed(tmp_path: Path) -> None:
    queue = a_queue_of(ServiceBroker(), tmp_path, *["good"] * 50)
    queue.table.alter(lambda control: control.with_endpoint_counters({"rollbacks": 3}))
    database.away = True

    result = receive(queue)

    assert result.outage is not None
    assert queue.table.snapshot().control.endpoint_counters == {"rollbacks": 3}


def test_service_broker_counters_begin_anew_where_something_has_committed(tmp_path: Path) -> None:
    queue = a_queue_of(ServiceBroker(), tmp_path, *["good"] * 50)
    queue.table.alter(lambda control: control.with_endpoint_counters({"rollbacks": 3}))
    database.goes_away_after = 10

    result = receive(queue)

    assert (result.outage is not None, result.settled) == (True, 10)
    assert queue.table.snapshot().control.endpoint_counters == {}


def test_strict_order_is_kept_nothing_behind_a_message_is_tried(tmp_path: Path) -> None:
    queue = a_queue_of(
        DefaultMessaging(strict_message_ordering=True, exception_destination="None", max_failed_deliveries=2), tmp_path, *["good"] * 30
    )
    database.away = True

    assert receive(queue).outage is None
    assert set(database.calls) == {1}


def test_a_message_of_a_group_is_not_tried_before_those_before_it(tmp_path: Path) -> None:
    """Of each other conversation group the first message is tried, and no second one."""
    import pyarrow as pa

    from airflow_poison.passes.send import send

    queue = a_queue_of(ServiceBroker(), tmp_path)
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"good"] * 40), "group_id": pa.array([f"g{number // 4}" for number in range(40)])})
    send(queue.table, [batch], key="groups", clock=queue.clock)
    database.away = True

    assert receive(queue).outage is not None
    assert set(database.calls) <= {1 + 4 * number for number in range(10)}


# It dies in between ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [pytest.param(policy, id=name) for name, policy in {**HALTING, **OTHERS}.items() if "background" not in name])
@pytest.mark.parametrize(
    "point",
    [
        "delivery.outage.after_name",
        "pass.outage.after_verdict",
        "pass.outage.after_unstaging",
        "pass.outage.after_settling",
        "store.seal.before_listing",
        "store.seal.after_rename",
        "store.finish.before_links",
        "store.finish.before_clearing",
    ],
)
def test_whoever_takes_over_finds_the_verdict_and_calls_no_handler(policy: Policy, point: str, tmp_path: Path, at_point: AtPoint) -> None:
    queue = a_queue_of(policy, tmp_path, *["good"] * 60)
    database.away = True

    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    with pytest.raises(DiedError):
        receive(queue, "dies")
    wasted = database.wasted()
    queue.clock.advance(timedelta(minutes=3))
    second = receive(queue, "takes over")

    assert wasted <= OUTAGE.at_least
    assert database.wasted() == 0
    assert second.outage is not None
    assert as_sent(queue)
    assert events(queue) == ["OUTAGE_BEGAN"]


@pytest.mark.parametrize("policy", [pytest.param(policy, id=name) for name, policy in {**HALTING, **OTHERS}.items()])
def test_a_pass_that_dies_before_its_verdict_is_finished_by_one_that_finds_it_anew(policy: Policy, tmp_path: Path, at_point: AtPoint) -> None:
    queue = a_queue_of(policy, tmp_path, *["good"] * 60)
    database.away = True

    def die() -> None:
        raise DiedError

    at_point.do("delivery.outage.before_name", die)
    with pytest.raises(DiedError):
        receive(queue, "dies")
    queue.clock.advance(timedelta(minutes=3))
    second = receive(queue, "takes over")

    assert second.outage is not None
    assert as_sent(queue)
    assert database.wasted() <= 2 * OUTAGE.at_least


def test_who_takes_over_without_looking_for_outages_honours_the_verdict(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 60)
    database.away = True
    with pytest.raises(DiedError):
        receive(queue, "dies", engine=DyingEngine)
    database.wasted()
    queue.clock.advance(timedelta(minutes=3))

    second = receive(queue, "takes over", outage=None)

    assert second.outage is not None
    assert database.wasted() == 0
    assert as_sent(queue)


def test_a_verdict_that_cannot_be_read_is_none_and_nothing_is_lost(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 60)
    database.away = True
    with pytest.raises(DiedError):
        receive(queue, "dies", engine=DyingEngine)
    (claim,) = queue.table.snapshot().claims
    (note,) = Path(queue.table.uri).rglob(OUTAGE_FILE)
    note.write_text("{")
    database.away = False
    queue.clock.advance(timedelta(minutes=3))

    result = receive(queue, "takes over")

    assert result.outage is None
    assert result.settled + result.parked == claim.messages


# Who is told -----------------------------------------------------------------------------------------------------------


def test_people_are_told_once_when_it_begins_and_once_when_it_is_over(tmp_path: Path) -> None:
    queue, told = a_queue_of(RETRIES, tmp_path, *["good"] * 60), list[tuple[str, str, str]]()

    def report() -> None:
        send_alerts(queue.table, "me", {"notes": lambda alert: told.append((alert.kind.value, alert.reason, alert.what_to_do))}, queue.clock)

    database.away = True
    for number in range(4):
        receive(queue, f"run-{number}")
        report()
        queue.clock.advance(OUTAGE.every)
    database.away = False
    receive(queue, "over")
    report()
    report()

    assert [kind for kind, _, _ in told] == [AlertKind.OUTAGE, AlertKind.OUTAGE_OVER]
    assert "no poison: ConnectionError: no route" in told[0][1]
    assert "run one pass without outage=" in told[0][2]
    assert told[1][1].endswith("is over.")


def test_the_asset_hears_when_it_begins_and_when_it_is_over_and_hears_the_same_again(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 60)
    start = begin(Happening.OUTAGE, queue.table.snapshot())
    database.away = True
    receive(queue, "first")
    queue.clock.advance(OUTAGE.every)
    database.away = False
    receive(queue, "over")

    told = [news(Happening.OUTAGE, queue.table, queue.table.snapshot(), start, queue.clock.now()).payloads for _ in range(2)]

    assert [payload["kind"] for payload in told[0]] == ["OUTAGE_BEGAN", "OUTAGE_OVER"]
    assert [payload["key"] for payload in told[0]] == [payload["key"] for payload in told[1]]


def test_messages_that_wait_for_a_probe_are_told_when_it_is_due(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 60)
    database.away = True
    receive(queue)
    snapshot, now = queue.table.snapshot(), queue.clock.now()

    assert news(Happening.MESSAGES, queue.table, snapshot, Position(), now).payloads == ()
    assert ripens(Happening.MESSAGES, snapshot, now) == now + OUTAGE.every
    assert news(Happening.MESSAGES, queue.table, snapshot, Position(), now + OUTAGE.every).payloads[0]["count"] == 60


def test_two_passes_side_by_side_record_one_beginning(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 60).sent(*["good"] * 60)
    database.away = True
    inner: list[ReceiveResult] = []

    class Beside(LocalEngine):
        def run(self, table, claim, job, *, keep_alive):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  (as the engine's)
            super().run(table, claim, job, keep_alive=keep_alive)
            if not inner:
                inner.append(receive(queue, "beside"))

    outer = receive(queue, "outer", engine=Beside, max_messages=60)

    assert inner[0].outage is not None
    assert outer.outage is not None
    assert events(queue) == ["OUTAGE_BEGAN"]
    assert as_sent(queue)


def test_the_fingerprint_that_is_recorded_is_that_of_the_type_and_the_place(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 60)
    database.away = True
    result = receive(queue)
    receive(queue.sent("good"), "charged", outage=None)

    charged: Any = next(iter(queue.rows().values()))["last_error"]
    assert result.outage is not None
    assert origin(Failure(FailureKind.EXCEPTION, charged["type"], "says something else", charged["trace"])) == result.outage["fingerprint"]
    assert origin(Failure(FailureKind.EXCEPTION, "ConnectionError")) != result.outage["fingerprint"]


@pytest.mark.parametrize("policy", [RETRIES, replace(RETRIES, max_batch_size=4), ServiceBroker()], ids=["msmq 4", "in batches", "service broker"])
def test_what_handlers_return_lands_once_for_each_settled_message_also_of_those_tried_besides(policy: Policy) -> None:
    from airflow_poison.testing import receive as receive_in_test
    from airflow_poison.values.clock import VirtualClock

    clock = VirtualClock()
    back_at, calls = clock.now() + timedelta(hours=1), Counter[int]()

    def flaky(message: Message) -> dict[str, int]:
        """Find the database away after 60 calls, for an hour."""
        calls[message.lookup_id] += 1
        if calls.total() > 60 and clock.now() < back_at:
            raise ConnectionError
        return {"id": message.lookup_id}

    received = receive_in_test(flaky, ["good"] * 150, policy, output="/landed", outage=OUTAGE, clock=clock)

    assert [event.type.value for event in received.events if "OUTAGE" in event.type.value] == ["OUTAGE_BEGAN", "OUTAGE_OVER"]
    assert received.places == ["processed"] * 150
    assert sorted(row["id"] for row in received.rows) == list(range(1, 151))


# Several tasks -----------------------------------------------------------------------------------------------------------


class TasksEngine(LocalEngine):
    """Delivers in several tasks side by side, each with its own share of the claim, as those of a Spark job; here they are threads."""

    tasks = 4

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        if job.only or job.order is not Order.NONE:
            super().run(table, claim, job, keep_alive=keep_alive)
            return
        site, shares = SharedSite(table.root), plan_shares(claim.files, self.tasks)
        with ThreadPoolExecutor(self.tasks) as threads:
            ran = [threads.submit(deliver_share, site, job, str(number), read_share(site, share)) for number, share in enumerate(shares)]
            for each in ran:
                each.result()


def test_all_tasks_of_a_pass_stop_and_each_wastes_at_least_calls_at_most(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["good"] * 2_000)
    database.away = True

    result = receive(queue, engine=TasksEngine)

    assert result.outage is not None
    assert database.wasted() <= OUTAGE.at_least * TasksEngine.tasks
    assert as_sent(queue)
    assert result.untouched == 2_000


def test_what_other_tasks_have_settled_stays_settled_and_what_they_charged_otherwise_stays_charged(tmp_path: Path) -> None:
    queue = a_queue_of(RETRIES, tmp_path, *["free"] * 600, "bad", *["free"] * 400, *["good"] * 1_000)
    database.away = True

    result = receive(queue, engine=TasksEngine)

    assert result.outage is not None
    rows = queue.rows()
    assert rows.keys().isdisjoint(database.done)
    assert result.settled == len(database.done) == 2_001 - len(rows)
    assert {number for number, row in rows.items() if row["sub_queue"] != "main"} <= {601}


@pytest.mark.parametrize("number", [50_000, pytest.param(1_000_000, marks=pytest.mark.campaign)])
def test_a_million_messages_with_the_database_away_for_an_hour(number: int, tmp_path: Path) -> None:
    """Passes every five minutes on the virtual clock: a few calls are wasted, no count changes, nothing is poison, and then all is processed."""
    import pyarrow as pa

    from airflow_poison.passes.send import send

    outage = Outage()
    queue = a_queue_of(Msmq4(receive_error_handling="Move"), tmp_path)
    send(queue.table, [pa.RecordBatch.from_pydict({"body": pa.array([b"good"] * number)})], key="million", clock=queue.clock)
    database.away, began = True, queue.clock.now()
    wasted: list[int] = []
    while queue.clock.now() - began < timedelta(hours=1):
        assert receive(queue, f"at {queue.clock.now()}", engine=TasksEngine, outage=outage).outage is not None
        wasted.append(database.wasted())
        queue.clock.advance(timedelta(minutes=5))

    assert len(wasted) == 12
    assert wasted[0] <= outage.at_least * TasksEngine.tasks
    assert max(wasted[1:]) <= outage.probe
    assert {file.sub_queue for file in queue.table.snapshot().files} == {"main"}
    for file in queue.table.snapshot().files:
        counts = queue.table.read(file, ["abort_count", "crash_count", "last_error", "due_at"])
        assert pc.max(counts["abort_count"]).as_py() == 0
        assert counts["last_error"].null_count == counts["due_at"].null_count == len(counts)
    assert [*map(str, events(queue))] == ["OUTAGE_BEGAN"]

    database.away = False
    result = receive(queue, "over", engine=TasksEngine, outage=outage)

    assert (result.settled, result.outage) == (number, None)
    assert len(database.done) == number == len(set(database.done))
    assert events(queue) == ["OUTAGE_BEGAN", "OUTAGE_OVER"]


# Mixtures --------------------------------------------------------------------------------------------------------------

words = st.sampled_from(["good", "good", "good", "good", "free", "bad", "worse", "never"])
policies = st.sampled_from([*HALTING.values(), *OTHERS.values()])


@settings(max_examples=examples(60), deadline=None)
@given(policies, st.lists(words, min_size=1, max_size=120), st.integers(0, 60), st.sampled_from([0.3, 0.5, 0.8]))
def test_whatever_is_mixed_what_failed_as_the_outage_does_has_its_counts_and_the_rest_is_charged(
    policy: Policy, bodies: list[str], goes_away_after: int, share: float
) -> None:
    database.__init__()  # type: ignore[misc]  # as new
    with tempfile.TemporaryDirectory() as folder:
        queue = a_queue_of(policy, Path(folder), *bodies)
        database.goes_away_after = goes_away_after
        result = receive(queue, outage=replace(OUTAGE, share=share))
        rows = queue.rows()

    assert result.received == len(bodies)
    if result.outage is None:
        return
    lost = result.outage["error"].split(":")[0]
    for number, row in rows.items():
        body = bodies[number - 1]
        if lost == "ConnectionError" and body in {"good", "free"}:
            assert (row["abort_count"], row["move_count"], row["last_error"], row["sub_queue"]) == (0, 0, None, "main"), (number, body)
        if row["last_error"] is not None:
            assert row["last_error"]["fingerprint"] != result.outage["fingerprint"]  # type: ignore[index]  # a cell
    if not getattr(policy, "max_batch_size", 0):  # a batch that is rolled back was with the handler, and comes again (spec WCF-41)
        assert rows.keys().isdisjoint(database.done)
        assert len(database.done) == len({*database.done})
    if result.halted is not None:
        assert bodies[(result.halted["lookup_id"] or 1) - 1] not in {"good", "free"}


@settings(max_examples=examples(25), deadline=None)
@example(OTHERS["msmq 4 in batches"], [*["good"] * 6, "bad", "good"])
@given(st.sampled_from([policy for policy in OTHERS.values() if not isinstance(policy, ServiceBroker)]), st.lists(words, min_size=1, max_size=60))
def test_in_the_end_good_messages_are_processed_once_and_bad_ones_have_ended(policy: Policy, bodies: list[str]) -> None:
    """The database is away for three passes, and whatever that has cost, it is nothing.

    A batch of the specification that has a bad message is rolled back whole, and its messages are delivered again (spec WCF-41).
    """
    database.__init__()  # type: ignore[misc]  # as new
    with tempfile.TemporaryDirectory() as folder:
        queue = a_queue_of(policy, Path(folder), *bodies)
        database.away = True
        found = [_go_on(queue, f"away-{number}") for number in range(3)]
        judged_over = queue.table.events(types=(EventType.OUTAGE_OVER,))
        database.away = False
        settled = sum(result.settled for number in range(6) if (result := _go_on(queue, f"back-{number}")) is not None)
        rows = queue.rows()

    if not all(result is not None and result.outage is not None and result.outage["error"].startswith("ConnectionError") for result in found):
        return
    if judged_over:  # more than half of a probe was poison: then what else failed in it is charged
        return
    good = [number for number, body in enumerate(bodies, 1) if body in {"good", "free"}]
    assert sorted({*database.done} if getattr(policy, "max_batch_size", 0) else database.done) == good
    assert settled + sum(result.settled for result in found if result is not None) == len(good)
    assert {row["sub_queue"] for row in rows.values()} <= {"poison"}


def _go_on(queue: Queue, key: str) -> ReceiveResult | None:
    queue.clock.advance(timedelta(minutes=31))
    return_due(queue.table, queue.clock)
    try:
        return receive(queue, key)
    except QueueHaltedError:
        return None

"""RetryCycleTimetable as Airflow calls it: when a DAG is serialized, scheduled, backfilled and triggered by hand."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pendulum
import pytest
from airflow.sdk import DAG, DeltaTriggerTimetable
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction

from airflow_poison import Msmq3, Msmq4, ServiceBroker
from airflow_poison.operators.manage import QueueReturnOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.timetables import RetryCycleTimetable, retry_cycle_schedule
from airflow_poison.values.clock import SystemClock, show_instant
from airflow_poison.values.errors import SettingError
from tests.unit.rules.test_retry_schedule import at, drawn, drawn_runs

if TYPE_CHECKING:
    from airflow_poison import Message
    from airflow_poison.store import QueueStore

HALF_HOUR = timedelta(minutes=30)
POLICY = Msmq4(receive_retry_count=1, retry_window="22:10-06:00 Europe/Berlin", receive_error_handling="Move")
EACH_HALF_HOUR = RetryCycleTimetable(Msmq4(retry_cycle_delay=HALF_HOUR))
LATELY = TimeRestriction(None, None, catchup=False)


def floor(at: datetime) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // 1800 * 1800, UTC)


def following(last: DataInterval | None, restriction: TimeRestriction = LATELY, timetable: RetryCycleTimetable = EACH_HALF_HOUR) -> DagRunInfo:
    found = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
    assert found is not None
    assert found.data_interval is not None
    assert found.run_after == found.data_interval.end
    return found


def interval(start: datetime, end: datetime) -> DataInterval:
    return DataInterval(pendulum.instance(start), pendulum.instance(end))


def test_a_serialized_dag_has_the_timetable_again_with_delay_and_window() -> None:
    with DAG("cycles", schedule=RetryCycleTimetable(POLICY), max_active_runs=1) as dag:
        retry_cycle("orders", POLICY, "shop.orders:land")
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert again.timetable == RetryCycleTimetable(POLICY) != EACH_HALF_HOUR
    assert again.timetable.summary == "every 30 minutes, and when its window opens (22:10-06:00 Europe/Berlin)"
    assert again.timetable.description == f"E{again.timetable.summary[1:]}. A run while nothing waits starts no Spark."


def test_a_schedule_of_the_queue_has_its_asset_and_the_cycles() -> None:
    with DAG("when_due", schedule=retry_cycle_schedule("orders", POLICY)) as dag:
        retry_cycle("orders", POLICY, "shop.orders:land")
    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert [asset.uri for _, asset in again.timetable.asset_condition.iter_assets()] == ["poison://poison_default/orders?on=retry_due"]
    assert again.timetable.summary.startswith("Asset or every 30 minutes")
    found = again.timetable.next_dagrun_info(last_automated_data_interval=None, restriction=LATELY)
    assert found == RetryCycleTimetable(POLICY).next_dagrun_info(last_automated_data_interval=None, restriction=LATELY)


def test_the_first_run_is_the_cycle_that_has_just_ended_however_often_airflow_asks() -> None:
    before = datetime.now(UTC)
    asked = [following(None) for _ in range(3)]
    assert {info.run_after for info in asked} <= {floor(before), floor(datetime.now(UTC))}
    assert all(info.data_interval.end - info.data_interval.start == HALF_HOUR for info in asked if info.data_interval)


@pytest.mark.parametrize("last", [None, interval(floor(datetime.now(UTC)) - HALF_HOUR, floor(datetime.now(UTC)))])
@pytest.mark.parametrize("catchup", [True, False])
def test_a_start_date_to_come_is_waited_for(catchup: bool, last: DataInterval | None) -> None:  # noqa: FBT001
    start = pendulum.now("UTC").add(days=2).replace(minute=10, second=0, microsecond=0)
    found = following(last, TimeRestriction(start, None, catchup))
    assert found.data_interval == interval(start.replace(minute=30), start.replace(minute=30) + HALF_HOUR)


def test_the_next_cycle_begins_where_the_last_one_ended() -> None:
    now = floor(datetime.now(UTC))
    found = following(interval(now - HALF_HOUR, now))
    assert found.data_interval == interval(now, now + HALF_HOUR)


@pytest.mark.parametrize("catchup", [True, False])
def test_after_a_pause_one_run_stands_for_all_cycles_and_says_so(catchup: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001
    now = floor(datetime.now(UTC))
    last = interval(now - 12 * HALF_HOUR, now - 11 * HALF_HOUR)
    with caplog.at_level(logging.INFO, "airflow_poison.timetables"):
        found = following(last, TimeRestriction(None, None, catchup))
    assert found.data_interval is not None
    assert found.data_interval.start == now - 11 * HALF_HOUR
    assert found.run_after >= now
    assert "10 cycles between" in caplog.text or "11 cycles between" in caplog.text  # when the half hour has just begun
    assert following(found.data_interval).run_after == found.run_after + HALF_HOUR


def test_a_backfill_has_a_run_for_each_cycle() -> None:
    first, last = pendulum.datetime(2026, 3, 28, 20), pendulum.datetime(2026, 3, 29, 6)
    found, info = list[DataInterval](), None
    timetable = RetryCycleTimetable(POLICY)
    while info := timetable.next_dagrun_info(
        last_automated_data_interval=info and info.data_interval, restriction=TimeRestriction(first, last, catchup=True)
    ):
        assert info.data_interval is not None
        found.append(info.data_interval)
    assert found[0].start == first
    assert found[-1].start == last
    openings = {pendulum.datetime(2026, 3, 28, 21, 10)}  # 22:10 before clocks are set forward
    assert {each.start for each in found} == {first + number * HALF_HOUR for number in range(21)} | openings


def check_runs(seed: int | str) -> None:
    """The runs of a backfill of two weeks are those of a reckoning that looks at each minute; each begins where the one before has ended."""
    random = Random(seed)
    window = random.choice((drawn(random), None))
    every, first, runs = drawn_runs(random, window)
    policy = Msmq4(retry_cycle_delay=timedelta(minutes=every), retry_window=None if window is None else window.text)
    timetable = RetryCycleTimetable.deserialize(RetryCycleTimetable(policy).serialize())
    wanted = TimeRestriction(pendulum.instance(at(first)), pendulum.instance(at(first + 20_159)), catchup=True)
    found, info = list[DataInterval](), None
    while len(found) < 200 and (info := timetable.next_dagrun_info(last_automated_data_interval=info and info.data_interval, restriction=wanted)):
        assert info.data_interval is not None
        assert info.run_after == info.data_interval.end
        found.append(info.data_interval)
    assert [each.start for each in found] == [at(minute) for minute in sorted(runs)][:200], (every, window)
    assert all(earlier.end == later.start for earlier, later in pairwise(found))


@pytest.mark.parametrize("seed", range(10))
def test_a_backfill_has_the_runs_that_a_wall_clock_shows(seed: int) -> None:
    check_runs(seed)


@pytest.mark.campaign
@pytest.mark.timeout(1_800)
def test_backfills_of_a_thousand_policies_have_the_runs_that_a_wall_clock_shows() -> None:
    for seed in range(1_000):
        check_runs(f"long {seed}")


def test_a_run_by_hand_has_the_last_cycle_that_had_ended() -> None:
    found = EACH_HALF_HOUR.infer_manual_data_interval(run_after=pendulum.datetime(2026, 11, 27, 14, 47))
    assert found == interval(datetime(2026, 11, 27, 14, tzinfo=UTC), datetime(2026, 11, 27, 14, 30, tzinfo=UTC))


def test_a_dag_that_had_a_schedule_without_intervals_goes_on_with_another_logical_date() -> None:
    delta = coerce_to_core_timetable(DeltaTriggerTimetable(HALF_HOUR))
    earlier = delta.next_dagrun_info(last_automated_data_interval=None, restriction=LATELY)
    assert earlier is not None
    assert earlier.data_interval is not None
    assert earlier.data_interval.start == earlier.data_interval.end
    on_grid = DataInterval.exact(pendulum.instance(floor(datetime.now(UTC))))
    for last in (earlier.data_interval, on_grid):
        found = following(last)
        assert found.logical_date is not None
        assert last.end < found.logical_date < found.run_after


@pytest.mark.parametrize(
    ("policy", "named"),
    [(ServiceBroker(), "Msmq4"), (Msmq3(), "Msmq4"), (Msmq4(retry_cycle_delay=timedelta(0)), "a delay above 0"), (None, "Msmq4")],
)
def test_a_policy_without_cycles_is_refused(policy: Msmq4, named: str) -> None:
    with pytest.raises(SettingError, match=named):
        RetryCycleTimetable(policy)


def test_a_changed_delay_goes_on_from_the_last_run_without_making_up_for_others() -> None:
    """apache/airflow#45274: after a change of the schedule, runs of the new one were made for the past."""
    now = floor(datetime.now(UTC))
    daily = interval(now - timedelta(days=2, minutes=7), now - timedelta(days=1, minutes=7))
    found = following(daily)
    assert found.data_interval is not None
    assert found.data_interval.start == daily.end
    assert found.run_after >= now
    assert following(found.data_interval).run_after == found.run_after + HALF_HOUR


def test_a_late_scheduler_loses_no_run() -> None:
    """apache/airflow#27399: a run whose minute had passed when the scheduler came was lost."""
    now = floor(datetime.now(UTC))
    found = following(interval(now - 2 * HALF_HOUR, now - HALF_HOUR))
    assert found.run_after >= now  # at once, however late it is within the cycle
    assert found.data_interval is not None
    assert found.data_interval.start == now - HALF_HOUR


def test_a_pause_over_openings_of_a_window_makes_one_run() -> None:
    """apache/airflow#47566: a timetable of several schedules made the last run of each."""
    timetable = RetryCycleTimetable(Msmq4(retry_cycle_delay=timedelta(days=1), retry_window="00:05-00:10; 06:05-06:10; 12:05-12:10; 18:05-18:10"))
    before = pendulum.now("UTC").subtract(days=3)
    found = following(interval(before.subtract(hours=1), before), LATELY, timetable)
    assert found.data_interval is not None
    assert pendulum.now("UTC").subtract(hours=6, minutes=1) <= found.run_after <= pendulum.now("UTC")
    assert following(found.data_interval, LATELY, timetable).run_after > pendulum.now("UTC")


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Zurich", "Australia/Sydney", "Australia/Lord_Howe"])
@pytest.mark.parametrize("at", [pendulum.datetime(2024, 3, 10, 7, 30), pendulum.datetime(2024, 11, 3, 5, 30), pendulum.datetime(2024, 4, 6, 15, 15)])
def test_a_run_by_hand_has_an_interval_that_has_passed_when_clocks_are_set(zone: str, at: pendulum.DateTime) -> None:
    """apache/airflow#70089: on such days intervals had no length, or ended after the run."""
    timetable = RetryCycleTimetable(Msmq4(retry_cycle_delay=timedelta(days=1), retry_window=f"01:30-03:00 {zone}"))
    found = timetable.infer_manual_data_interval(run_after=at)
    assert found.start < found.end <= at


def test_runs_are_one_second_apart_at_least() -> None:
    assert RetryCycleTimetable(Msmq4(retry_cycle_delay=timedelta(milliseconds=1))).summary == "every second"


def never(message: Message) -> None:
    raise ValueError("no")


def test_a_return_leaves_waiting_what_is_not_due(store: QueueStore) -> None:
    policy = Msmq4(receive_retry_count=0, receive_error_handling="Move")
    table = declare(store, "orders", policy, SystemClock())
    send(table, messages_to_batches([b"bad"]), key="one", clock=SystemClock())
    ReceivePass(table=table, policy=policy, handler=never, engine=LocalEngine, clock=SystemClock(), isolation="none", store=store).run("one")
    returned = QueueReturnOperator(task_id="return", queue_name="orders").execute({})
    assert (returned["returned"], returned["waiting"]) == (0, 1)


def test_logs_show_instants_in_the_time_zone_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 11, 27, 20, tzinfo=UTC)
    assert show_instant(at) == "2026-11-27 20:00:00 UTC"
    monkeypatch.setenv("AIRFLOW__CORE__DEFAULT_TIMEZONE", "Asia/Kolkata")
    assert show_instant(at) == "2026-11-28 01:30:00 IST"

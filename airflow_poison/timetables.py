"""RetryCycleTimetable: a schedule of DAGs that follows a policy's RetryCycleDelay, and with a queue's asset the due times of its messages."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.timetables.base import DagRunInfo, DataInterval, Timetable
from pendulum import instance

from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.retry_schedule import LEAST, TICK, RetrySchedule, window_of
from airflow_poison.rules.settings import as_seconds
from airflow_poison.values.clock import in_words, show_instant
from airflow_poison.values.errors import SettingError
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import AssetOrTimeSchedule
    from airflow.timetables.base import TimeRestriction
    from pendulum import DateTime

    from airflow_poison.rules.policy import Policy

log = logging.getLogger(__name__)


class RetryCycleTimetable(Timetable):
    """Run once in each retry cycle: every RetryCycleDelay of a policy, and whenever its retry window opens.

    Runs are at multiples of the delay since 1970-01-01T00:00Z: with 30 minutes at the full and the half hour. The data interval is the cycle, from
    the run before to this one; a run is made when its interval ends. No message waits longer than the delay after it is due.

    After a pause there is one run for all cycles that were missed: its data interval begins where the last one ended, and the log says how many it
    stands for; one pass receives what many would have. So it is with ``catchup=True``, too, unless the range has an end: a backfill, or a DAG with an
    ``end_date``, has a run for each cycle. Give the DAG ``max_active_runs=1``: a run beside another finds nothing to do.

    Nothing is read but the clock. A DAG that is to run at the instants at which messages fall due has ``retry_cycle_schedule`` as its schedule.

    :param policy: the queue's rules: a system that has retry cycles. With a delay below one second, runs are one second apart.
    Raises SettingError for a policy without retry cycles.
    """

    def __init__(self, policy: Policy) -> None:
        if not isinstance(policy, Msmq4):
            raise SettingError(
                "policy", policy, "Msmq4(...): no other system has retry cycles; give the DAG a schedule of Airflow's, such as '@hourly'"
            )
        if not policy.retry_cycle_delay:
            raise SettingError(
                "retry_cycle_delay", policy.retry_cycle_delay, "a delay above 0 between two runs; give the DAG a schedule of Airflow's"
            )
        window = policy.retry_window
        self._schedule = RetrySchedule(max(policy.retry_cycle_delay, LEAST), None if window is None else window_of(window))
        self._stored: dict[str, Any] = {"retry_cycle_delay": as_seconds(policy.retry_cycle_delay), "retry_window": window}
        self.description = (
            f"{self.summary[:1].upper()}{self.summary[1:500]}. A run while nothing waits starts no Spark."  # Airflow keeps 1,000 characters
        )

    def serialize(self) -> dict[str, Any]:
        """Return the policy's delay, in seconds, and its window."""
        return dict(self._stored)

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Timetable:
        """Return the timetable of ``serialize``."""
        return cls(Msmq4.from_dict(data))

    def __eq__(self, other: object) -> bool:
        return self._stored == other._stored if isinstance(other, RetryCycleTimetable) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._stored.values()))

    @property
    def summary(self) -> str:
        """The schedule in words. Airflow keeps them from when it parses the DAG file, and shows the next run beside them."""
        window = self._stored["retry_window"]
        return f"every {in_words(self._schedule.every)}" + (f", and when its window opens ({window})" if window else "")

    def infer_manual_data_interval(self, *, run_after: DateTime) -> DataInterval:
        """Return the last cycle that had ended when the run was made."""
        return self._cycle(self._schedule.until(run_after))

    def next_dagrun_info(self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction) -> DagRunInfo | None:
        """Return the next run: the next cycle, or one for all that were missed, see above."""
        each = restriction.catchup and restriction.latest is not None
        cycle = self._first(restriction) if last_automated_data_interval is None else self._following(last_automated_data_interval)
        if restriction.earliest is not None and cycle.end <= restriction.earliest:
            cycle = self._beginning(restriction.earliest)
        now = self._schedule.until(datetime.now(UTC))
        if not each and now > cycle.end:
            cycle = DataInterval(cycle.start, instance(now))
            if last_automated_data_interval is not None:
                self._log_skipped(last_automated_data_interval.end, now)
        if restriction.latest is not None and cycle.start > restriction.latest:
            return None
        return DagRunInfo.interval(cycle.start, cycle.end)

    def _first(self, restriction: TimeRestriction) -> DataInterval:
        """Return the first cycle: after ``start_date``, and without catch-up or a start the one that has just ended."""
        last = self._cycle(self._schedule.until(datetime.now(UTC)))
        if restriction.earliest is None or (not restriction.catchup and last.start >= restriction.earliest):
            return last
        return self._beginning(restriction.earliest)

    def _beginning(self, earliest: datetime) -> DataInterval:
        """Return the first cycle that begins at an instant or later."""
        start = self._schedule.after(earliest - TICK)
        return DataInterval(instance(start), instance(self._schedule.after(start)))

    def _following(self, last: DataInterval) -> DataInterval:
        """Return the cycle after a run's interval. An instant, of a run of another schedule, is its own logical date: the cycle begins behind it."""
        start = last.end if last.end > last.start else last.end + TICK
        return DataInterval(start, instance(self._schedule.after(last.end)))

    def _cycle(self, end: datetime) -> DataInterval:
        return DataInterval(instance(self._schedule.before(end)), instance(end))

    def _log_skipped(self, last: datetime, now: datetime) -> None:
        skipped = self._schedule.count(last, now) - 1
        if skipped > 0:
            log.info(
                "Retry cycles (%s): %s between %s and %s have no run of their own. One pass receives all that fell due meanwhile.",
                self.summary,
                counted(skipped, "cycle"),
                show_instant(last),
                show_instant(now),
            )


def retry_cycle_schedule(
    queue_name: str,
    policy: Policy,
    *,
    on: Sequence[str] = ("retry_due",),
    conn_id: str = "poison_default",
    poll_interval: float = 5.0,
) -> AssetOrTimeSchedule:
    """Return the schedule of a DAG that runs at the instants at which a queue's messages fall due, and by RetryCycleTimetable besides.

    The triggerer watches the queue, so a run begins about a second after a message is due. Where no triggerer runs, each message is still retried
    within the policy's delay. Runs that find nothing due start no Spark.

    :param queue_name: the queue; it need not exist yet.
    :param policy: the queue's rules.
    :param on: what a run is made for besides the cycles, as in ``queue_asset``; with ``messages`` also for messages that arrive.
    :param conn_id: connection of type ``poison``.
    :param poll_interval: seconds between two looks at the store; a retry that falls due is seen at its instant.
    Raises SettingError for a policy without retry cycles and an unknown happening, QueueNameError.
    """
    from airflow.sdk import AssetOrTimeSchedule

    from airflow_poison.assets import queue_asset

    assets = queue_asset(queue_name, on=on, conn_id=conn_id, poll_interval=poll_interval)
    return AssetOrTimeSchedule(timetable=RetryCycleTimetable(policy), assets=assets)  # type: ignore[arg-type]  # a timetable of Airflow's core

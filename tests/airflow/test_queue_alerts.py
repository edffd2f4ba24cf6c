"""One DAG that alerts for many queues: what makes it run, and what its tasks tell, once, whatever fails."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk import AssetAny, AssetOrTimeSchedule, BaseNotifier, DeltaTriggerTimetable

from airflow_poison import Message, Msmq4, ServiceBroker
from airflow_poison.dags import queue_alerts
from airflow_poison.operators.manage import QueueAlertOperator
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import AlertError, QueueNameError, QueueNotFoundError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore

    from .conftest import Ran

CLOCK = SystemClock()
MOVE = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
HEARD: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def heard() -> list[dict[str, Any]]:
    HEARD.clear()
    return HEARD


def tell(context: Any) -> None:
    HEARD.append(context["poison_alert"])


def never(message: Message) -> None:
    raise ValueError("no")


def poison(store: QueueStore, name: str, policy: Policy = MOVE, key: str = "one") -> None:
    table = declare(store, name, policy, CLOCK)
    send(table, messages_to_batches([b"bad"]), key=key, clock=CLOCK)
    ReceivePass(table=table, policy=policy, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(key)


# What makes it run ------------------------------------------------------------------------------------------------------


def test_by_default_it_runs_when_what_is_told_has_happened_to_one_of_the_queues() -> None:
    dag = queue_alerts("events", ["orders", "bills"], on_poison=tell, on_stopped=tell, poll_interval=1)

    condition = cast("Any", dag.timetable).asset_condition
    assert isinstance(condition, AssetAny)
    assert [asset.uri for asset in cast("Any", condition.objects)] == [
        "poison://poison_default/orders?on=disabled&on=poisoned",
        "poison://poison_default/bills?on=disabled&on=poisoned",
    ]
    assert {watcher.trigger.poll_interval for asset in cast("Any", condition.objects) for watcher in asset.watchers} == {1}
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    assert [task.task_id for task in dag.tasks] == ["orders", "bills"]


def test_for_backlogs_it_looks_by_the_clock_too() -> None:
    both = queue_alerts("both", ["orders"], on_blocked=tell, on_backlog=tell, backlog_older_than=timedelta(hours=1), look_every=timedelta(minutes=2))
    alone = queue_alerts("alone", ["orders"], on_backlog=tell, backlog_older_than=timedelta(hours=1))

    assert isinstance(both.schedule, AssetOrTimeSchedule)
    assert both.schedule.timetable == DeltaTriggerTimetable(timedelta(minutes=2))
    assert [asset.uri for asset in cast("Any", both.schedule).asset_condition.objects] == ["poison://poison_default/orders?on=blocked"]
    assert alone.schedule == DeltaTriggerTimetable(timedelta(minutes=5))


def test_it_takes_any_schedule_and_what_a_dag_takes() -> None:
    dag = queue_alerts("daily", ["orders"], on_poison=tell, schedule="@daily", max_active_runs=2, tags=["team"], default_args={"retries": 3})
    assert str(dag.schedule) == "@daily"
    assert (dag.max_active_runs, dag.tags, dag.tasks[0].retries) == (2, {"team"}, 3)
    assert queue_alerts("never", ["orders"], on_poison=tell, schedule=None).schedule is None


@pytest.mark.parametrize(
    ("queues", "more", "error", "named"),
    [
        ([], {}, SettingError, "queues"),
        ("orders", {}, SettingError, "queues"),
        (["orders", "orders"], {}, SettingError, "named twice"),
        (["no/name"], {}, QueueNameError, "no/name"),
        (["orders"], {"on_poison": None}, SettingError, "at least one of on_queue_disabled"),
        (["orders"], {"on_backlog": tell}, SettingError, "backlog_older_than"),
        (["orders"], {"on_poison": "slack"}, SettingError, "on_poison"),
        (["orders"], {"look_every": timedelta(0)}, SettingError, "look_every"),
    ],
)
def test_what_cannot_work_is_refused_when_the_file_is_parsed(queues: Any, more: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        queue_alerts("wrong", queues, **{"on_poison": tell, **more})


# What it tells ----------------------------------------------------------------------------------------------------------


def test_each_queue_is_told_of_once_over_all_runs(store: QueueStore, run_dag: Callable[..., Ran], heard: list[dict[str, Any]]) -> None:
    poison(store, "orders")
    poison(store, "bills", ServiceBroker())
    dag = queue_alerts("tells", ["orders", "bills"], on_poison=[tell], on_queue_disabled=[tell])

    first, again = run_dag(dag), run_dag(dag)
    poison(store, "orders", key="two")
    run_dag(dag)

    assert first.tasks == {"orders": "success", "bills": "success"}
    assert {alert["key"] for alert in first.returned["orders"] + first.returned["bills"]} == {alert["key"] for alert in heard[:2]}
    assert again.returned == {"orders": [], "bills": []}
    assert sorted((alert["queue"], alert["event"], alert["lookup_ids"]) for alert in heard) == [
        ("bills", "QUEUE_DISABLED", [1]),
        ("orders", "MOVED_POISON", [1]),
        ("orders", "MOVED_POISON", [2]),
    ]


def test_another_place_in_the_list_makes_no_other_subscriber(store: QueueStore, run_dag: Callable[..., Ran], heard: list[dict[str, Any]]) -> None:
    poison(store, "orders")
    declare(store, "bills", MOVE, CLOCK)
    run_dag(queue_alerts("grows", ["orders"], on_poison=[tell]))
    run_dag(queue_alerts("grows", ["bills", "orders"], on_poison=[tell]))
    assert len(heard) == 1


def test_a_missing_queue_and_a_failing_notifier_fail_their_own_tasks(
    store: QueueStore, run_dag: Callable[..., Ran], heard: list[dict[str, Any]]
) -> None:
    def fails_for_bills(context: Any) -> None:
        if context["poison_alert"]["queue"] == "bills" and not broken:
            raise ValueError("no network")
        tell(context)

    broken: list[str] = []
    poison(store, "orders")
    poison(store, "bills")
    dag = queue_alerts("fails", ["nowhere", "bills", "orders"], on_poison=fails_for_bills)
    ran = run_dag(dag)
    assert ran.tasks == {"nowhere": "failed", "bills": "failed", "orders": "success"}
    assert (type(ran.errors["nowhere"]), type(ran.errors["bills"])) == (QueueNotFoundError, AlertError)
    broken.append("mended")
    assert run_dag(dag).tasks["bills"] == "success"
    assert [alert["queue"] for alert in heard] == ["orders", "bills"]


def test_a_backlog_and_a_stop_are_told(store: QueueStore, run_dag: Callable[..., Ran], heard: list[dict[str, Any]]) -> None:
    poison(store, "orders", Msmq4(receive_retry_count=0, max_retry_cycles=0))
    dag = queue_alerts("old", ["orders"], on_stopped=tell, on_backlog=tell, backlog_older_than=timedelta(microseconds=1))
    run_dag(dag)
    run_dag(dag)
    assert [(alert["event"], alert["kind"]) for alert in heard] == [("FAULTED", "queue_disabled"), ("BACKLOG_TOO_OLD", "backlog")]


# Notifiers --------------------------------------------------------------------------------------------------------------


class Asynchronous(BaseNotifier):
    """A notifier that can only be awaited, as some providers have them."""

    template_fields = ("text",)

    def __init__(self, text: str = "{{ poison_alert.queue }}: {{ poison_alert.event }}") -> None:
        super().__init__()
        self.text = text

    async def async_notify(self, context: Any) -> None:
        HEARD.append({"text": self.text, **context["poison_alert"]})


def test_a_notifier_that_is_only_asynchronous_is_awaited_with_its_fields_rendered(
    store: QueueStore, run_dag: Callable[..., Ran], heard: list[dict[str, Any]]
) -> None:
    poison(store, "orders")
    poison(store, "bills")
    assert run_dag(queue_alerts("awaits", ["orders", "bills"], on_poison=Asynchronous())).state == "success"
    assert {alert["text"] for alert in heard} == {"orders: MOVED_POISON", "bills: MOVED_POISON"}


def test_the_cycle_passes_on_who_is_told_of_stops_and_backlogs() -> None:
    from airflow.sdk import DAG

    with DAG("cycle", schedule=None) as dag:
        retry_cycle("orders", MOVE, never, on_stopped=tell, on_backlog=tell, backlog_older_than=timedelta(hours=1))
    alert = dag.get_task("retry_cycle.alert")
    assert isinstance(alert, QueueAlertOperator)
    assert (alert.alerts.stopped, alert.alerts.backlog, alert.alerts.backlog_older_than) == ((tell,), (tell,), timedelta(hours=1))

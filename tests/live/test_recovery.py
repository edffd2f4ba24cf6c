"""People decide in a real Airflow: users with and without the right answer over REST; also too late, with a refusal, and after a change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison import ActivationSpecification, Message, Msmq4, ServiceBroker
from airflow_poison.passes.alter import declare, enable
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import SystemClock
from tests.live.beside import beside

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.queue_table import QueueTable
    from tests.live.live_airflow import LiveAirflow
    from tools.airflow.client import Run

CLOCK = SystemClock()
DAGS = Path(__file__).parents[2] / "dags"
USERS = [(None, 401), ("viewer", 403), ("user", 200)]

ASK = """
from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_poison.taskgroups import recovery
from tests.live.alert_file import AlertFile

with DAG("{dag_id}", schedule=None):

    @task
    def go_on():
        return "received"

    alert = AlertFile("{{{{ poison_alert.event }}}}: {{{{ poison_alert.what_to_do }}}}")
    recovery("{queue}", on_asked=[alert], on_undecided=[alert], {parameters}) >> go_on()
"""


def never(message: Message) -> None:
    if message.text.startswith("bad"):
        raise ValueError("no such shop")


def halted(airflow: LiveAirflow, name: str, policy: Policy, *bodies: str, key: str = "one") -> QueueTable:
    """Let the first bad message halt a queue."""
    table = declare(airflow.store, name, policy, CLOCK)
    send(table, messages_to_batches([body.encode() for body in bodies or ("bad one", "good")]), key=key, clock=CLOCK)
    ReceivePass(table=table, policy=policy, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=airflow.store).run(key)
    assert table.snapshot().control.state is not QueueState.ENABLED
    return table


def places(table: QueueTable) -> dict[int, str]:
    rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    return {row["lookup_id"]: row["sub_queue"] for row in sorted(rows, key=lambda row: row["lookup_id"])}


def asked(airflow: LiveAirflow, queue: str, parameters: str = "") -> tuple[Run, dict[str, Any]]:
    """Run a DAG that asks about a queue; return the run, and the question as a viewer may read it."""
    dag_id = f"ask_{queue}_{len(airflow.client.dags())}"
    run = airflow.trigger(airflow.dag(ASK.format(dag_id=dag_id, queue=queue, parameters=parameters)))
    parked(airflow, run)
    return run, airflow.call("GET", path(run), user="viewer").body


def parked(airflow: LiveAirflow, run: Run, attempt: int = 1) -> None:
    """Wait until the question is asked, and its process has ended: an answer that comes before makes Airflow's scheduler fail the task."""
    airflow.wait_task(run, "recovery.ask", until="awaiting_input")
    ended = f"task_id='recovery.ask', run_id='{run.run_id}', try_number={attempt}, "
    airflow.until(
        lambda: any(ended in line for line in airflow.service_log("scheduler").splitlines() if "Received executor event" in line),
        "it is parked",
    )


def said(airflow: LiveAirflow, run: Run, task_id: str, text: str) -> None:
    airflow.until(lambda: any(text in str(entry) for entry in airflow.log_entries(run, task_id)), f"{task_id} says {text!r}", run=run)


def path(run: Run) -> str:
    return f"{run.path}/taskInstances/recovery.ask/-1/hitlDetails"


def answer(airflow: LiveAirflow, run: Run, chosen: str, user: str | None = "user") -> int:
    return airflow.call("PATCH", path(run), {"chosen_options": [chosen], "params_input": {}}, user=user).status


@pytest.mark.parametrize(
    ("name", "policy", "state"),
    [
        pytest.param("sb", ServiceBroker(), "disabled", id="Service Broker"),
        pytest.param("mq", ActivationSpecification(max_server_sessions=1), "stopped", id="activation specification"),
        pytest.param("ms", Msmq4(receive_retry_count=0, max_retry_cycles=0), "faulted", id="MSMQ 4"),
    ],
)
@beside
def test_a_user_with_the_right_decides_and_others_cannot(airflow: LiveAirflow, name: str, policy: Policy, state: str) -> None:
    queue = f"decided_{name}"
    table = halted(airflow, queue, policy)
    run, question = asked(airflow, queue)
    assert question["subject"] == f"Queue {queue} is {state} by message 1. What shall be done?"
    assert "```\nbad one\n```" in question["body"]

    for user, status in USERS[:2]:
        assert answer(airflow, run, "Remove message 1 and enable", user) == status
    assert answer(airflow, run, "Remove everything") == 400
    assert places(table) == {1: "main", 2: "main"}
    assert answer(airflow, run, "Remove message 1 and enable") == 200
    assert answer(airflow, run, f"Leave it {state}") == 409

    airflow.wait(run)
    assert airflow.result(run, "go_on") == "received"
    assert (airflow.result(run, "recovery.ask")["by"]["name"], airflow.result(run, "recovery.recover")["to"]) == ("user", f"{queue};poison")
    assert (places(table), table.snapshot().control.state) == ({1: "poison", 2: "main"}, QueueState.ENABLED)
    [told] = airflow.alerts(queue)
    assert told["event"] == "DECISION_WANTED"
    assert f"/dags/{run.dag_id}/runs/" in told["line"].replace("%3A", ":")


@beside
def test_only_the_users_that_are_named_decide(airflow: LiveAirflow) -> None:
    table = halted(airflow, "named", ServiceBroker())
    run, _ = asked(airflow, "named", 'assigned_users=[{"id": "op", "name": "op"}]')

    assert answer(airflow, run, "Return message 1 and enable", "user") == 403
    assert answer(airflow, run, "Return message 1 and enable", "op") == 200

    airflow.wait(run)
    assert (places(table), table.snapshot().control.state) == ({1: "main", 2: "main"}, QueueState.ENABLED)


@beside
def test_a_refusal_changes_nothing_and_skips_what_follows(airflow: LiveAirflow) -> None:
    table = halted(airflow, "refused", ServiceBroker())
    version = table.snapshot().version
    run, _ = asked(airflow, "refused")

    assert answer(airflow, run, "Leave it disabled") == 200

    airflow.wait(run)
    assert airflow.tasks(run) == {"recovery.ask": "success", "recovery.recover": "skipped", "go_on": "skipped"}
    assert table.snapshot().version == version
    assert [alert["event"] for alert in airflow.alerts("refused")] == ["DECISION_WANTED"]


@pytest.mark.parametrize(
    ("on_timeout", "ends", "place"), [("leave", "skipped", "main"), ("remove", "success", "poison"), ("fail", "upstream_failed", "main")]
)
@beside
def test_too_late_does_what_it_says(airflow: LiveAirflow, on_timeout: str, ends: str, place: str) -> None:
    queue = f"late_{on_timeout}"
    table = halted(airflow, queue, ServiceBroker())
    run, question = asked(airflow, queue, f'response_timeout=timedelta(seconds=15), on_timeout="{on_timeout}"')
    assert (question["defaults"] is None) == (on_timeout == "fail")

    airflow.wait(run, "failed" if on_timeout == "fail" else "success")

    assert airflow.tasks(run)["recovery.recover"] == ends
    assert places(table) == {1: place, 2: "main"}
    assert table.snapshot().control.state is (QueueState.ENABLED if on_timeout == "remove" else QueueState.DISABLED)
    assert [alert["event"] for alert in airflow.alerts(queue)] == ["DECISION_WANTED"] + ["UNDECIDED"] * (on_timeout != "fail")


@beside
def test_an_answer_about_a_message_that_is_no_suspect_any_more_fails_clearly(airflow: LiveAirflow) -> None:
    table = halted(airflow, "outdated", ServiceBroker())
    run, _ = asked(airflow, "outdated")
    enable(table, CLOCK)
    ReceivePass(
        table=table,
        policy=ServiceBroker(),
        handler=lambda message: never(message) if message.text == "bad two" else None,
        engine=LocalEngine,
        clock=CLOCK,
        isolation="none",
    ).run("x")
    halted(airflow, "outdated", ServiceBroker(), "bad two", key="two")
    assert table.snapshot().control.halted_by == 3

    assert answer(airflow, run, "Remove message 1 and enable") == 200

    airflow.wait(run, "failed")
    assert places(table) == {3: "main"}
    said(airflow, run, "recovery.recover", "was disabled by message 1 when people were asked")
    airflow.clear(run, "recovery.ask")  # Airflow shows the first question again
    parked(airflow, run, 2)
    assert answer(airflow, run, "Remove message 1 and enable") == 200
    airflow.wait(run, "failed")
    said(airflow, run, "recovery.ask", "Start a new run of the DAG")
    assert places(table) == {3: "main"}


@beside
def test_the_example_asks_when_its_queue_is_disabled_and_goes_on_when_people_have_decided(airflow: LiveAirflow) -> None:
    table = declare(airflow.store, "invoices", ServiceBroker(), CLOCK)
    pay, decide = sorted(airflow.dags_of(DAGS / "decide_by_people.py"), reverse=True)
    send(table, messages_to_batches([b'{"amount": 10}', b'{"amount": -1}', b'{"amount": 20}']), key="three", clock=CLOCK)

    run = airflow.wait_for_run(decide)
    parked(airflow, run)
    assert places(table) == {2: "main", 3: "main"}
    question = airflow.call("GET", path(run)).body
    assert '```json\n{"amount": -1}\n```' in question["body"]
    assert answer(airflow, run, question["options"][0]) == 200

    airflow.wait(run)
    airflow.until(lambda: places(table) == {2: "poison"}, "the invoice behind it is paid")
    airflow.client.pause(decide, paused=True)
    airflow.remove_dag(pay)

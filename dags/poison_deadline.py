"""A poison message must not lie for more than a day: who misses that deadline is told.

A run begins when messages of ``transfers`` become poison, and lasts until all of them have left ``transfers;poison``: put back, removed, sent
elsewhere, by whomever. Its task waits in the triggerer, so a thousand such runs cost nothing. The deadline is Airflow's: when a run is still there
a day after it was queued, Airflow awaits the notifier in the triggerer, and shows the missed deadline on its page.

The notifier must be in an installed package (this one comes with ``apache-airflow-providers-slack``), because the triggerer imports it by its name.

| variable | meaning |
|---|---|
| POISON_DEADLINE | seconds that a poison message may lie; default 86400 |
| POISON_DEADLINE_NOTIFIER | the notifier's name |
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference  # type: ignore[attr-defined]  # Airflow's stub lacks them

from airflow_poison.assets import queue_asset
from airflow_poison.sensors import QueuePoisonGoneSensor

LIMIT = timedelta(seconds=float(os.environ.get("POISON_DEADLINE", "86400")))
NOTIFIER = os.environ.get("POISON_DEADLINE_NOTIFIER", "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier")
TEXT = "A message has been in transfers;poison for too long: see the run {{ dag_run.dag_run_id }} of {{ dag_run.dag_id }}."

with DAG(
    "poison_deadline",
    schedule=[queue_asset("transfers", on=("poisoned",))],
    catchup=False,
    max_active_runs=1_000,  # each lasts as long as its messages are poison
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=LIMIT,
        callback=AsyncCallback(NOTIFIER, kwargs={"text": TEXT}),
    ),
):
    QueuePoisonGoneSensor(task_id="until_they_are_gone", queue_name="transfers", deferrable=True, timeout=timedelta(days=365).total_seconds())

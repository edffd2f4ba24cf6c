"""happened: what a run is to be told of a queue, each happening in one run and none left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Asset

KEPT = 1_000
"""How many keys are remembered; a repeated one comes soon after the first."""


def happened(context: Mapping[str, Any], asset: Asset) -> list[dict[str, Any]]:
    """Return the payloads of what has happened to a queue and no earlier run of the DAG was told, oldest first.

    ``triggering_asset_events`` alone may have a happening twice, when the triggerer was killed, and leave one out until the next one comes: Airflow
    gives a run the events up to the first that asked for it, not those that came while it waited for an earlier run to end. This reads on in the
    asset's events, and keeps in its state store which run was told what. So a run may also find that an earlier one was told everything.
    A task that is tried again in the same run is told the same again.

    Needs Airflow 3.3, the asset among the task's ``inlets``, and ``max_active_runs=1``. Returns nothing in a run that no event has made.

    :param context: the task's context.
    :param asset: the asset whose events make the runs, as ``queue_asset`` gave it.
    """
    made_by = context["triggering_asset_events"].get(asset, ())
    if not made_by:
        return []
    key, run_id = f"airflow_poison.runs.{context['ti'].dag_id}", str(context["run_id"])
    store = context["asset_state_store"][asset]
    runs: dict[str, str] = dict(store.get(key) or {})
    told: dict[str, dict[str, Any]] = {}
    for event in context["inlet_events"][asset].after(min(event.timestamp for event in made_by).isoformat()):
        payload = event.extra["payload"]
        if runs.setdefault(payload["key"], run_id) == run_id:
            told[payload["key"]] = payload
    store.set(key, dict(list(runs.items())[-KEPT:]))
    return list(told.values())

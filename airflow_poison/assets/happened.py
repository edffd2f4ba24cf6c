"""happened: what a run was told of a queue, each happening in one run only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Asset

KEPT = 1_000
"""How many keys are remembered; a repeated one comes soon after the first."""
_RUNS = "airflow_poison.runs"


def happened(context: Mapping[str, Any], asset: Asset) -> list[dict[str, Any]]:
    """Return the payloads of the events that made this run, without those that an earlier run was told already.

    Which run was told of which key is kept in the asset's state store (Airflow 3.3), so the task must have the asset among its ``inlets``, and the
    DAG ``max_active_runs=1``. A task that is tried again in the same run is told the same again.

    :param context: the task's context.
    :param asset: the asset whose events made the run, as ``queue_asset`` gave it.
    """
    store = context["asset_state_store"][asset]
    runs: dict[str, str] = dict(store.get(_RUNS) or {})
    run_id = str(context["run_id"])
    told: dict[str, dict[str, Any]] = {}
    for event in context["triggering_asset_events"].get(asset, ()):
        payload = event.extra["payload"]
        if runs.setdefault(payload["key"], run_id) == run_id:
            told[payload["key"]] = payload
    store.set(_RUNS, dict(list(runs.items())[-KEPT:]))
    return list(told.values())

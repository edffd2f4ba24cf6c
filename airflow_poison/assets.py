"""Assets: a queue that DAGs are scheduled by, and the events for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode

from airflow.sdk import Asset, AssetWatcher

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.lineage import queue_uri
from airflow_poison.rules.settings import choice
from airflow_poison.store import check_name
from airflow_poison.triggers import QueueEventTrigger
from airflow_poison.watching.queue_events import Happening


def queue_asset(
    queue_name: str,
    on: Sequence[str] = ("messages",),
    *,
    conn_id: str = QueueHook.default_conn_name,
    poll_interval: float = 5.0,
    group: str = "poison",
    extra: dict[str, Any] | None = None,
) -> Asset:
    """Return an asset that stands for a queue and what happens to it: a DAG whose schedule it is runs whenever it does.

    Its name and URI are ``poison://<conn_id>/<queue_name>?on=<happening>``. All DAGs share an asset and its watchers, so DAGs that want other
    events of a queue have other assets. With ``on=()`` it is the queue itself, ``poison://<conn_id>/<queue_name>``, without a watcher: for
    ``outlets`` and ``inlets``.

    A run finds what has happened in ``triggering_asset_events``: ``extra["payload"]`` of each has ``event``, ``queue``, ``key`` and facts.

    :param queue_name: the queue; it need not exist yet.
    :param on: what counts: any of ``messages``, ``retry_due``, ``poisoned``, ``blocked``, ``outage``, ``disabled``, ``enabled``.
    :param conn_id: connection of type ``poison``.
    :param poll_interval: seconds between two looks at the store; a retry that falls due is seen at its instant.
    :param group: the asset's group.
    :param extra: the asset's extra.
    Raises SettingError for an unknown happening, QueueNameError.
    """
    happenings = sorted({choice("on", happening, Happening) for happening in ((on,) if isinstance(on, str) else on)})
    uri = queue_uri(conn_id, check_name(queue_name)) + (f"?{urlencode([('on', found.value) for found in happenings])}" if happenings else "")
    watchers = []
    for happening in happenings:
        trigger = QueueEventTrigger(queue_name, happening.value, conn_id=conn_id, poll_interval=poll_interval, asset=uri)
        watchers.append(AssetWatcher(name=f"{uri} {happening.value}", trigger=trigger))
    return Asset(name=uri, uri=uri, group=group, extra=extra or {}, watchers=watchers)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the normal form of ``poison://<conn_id>/<queue>?on=<happening>``. Raises ValueError for anything else.

    Airflow asks this of every URI of the scheme.
    """
    queue_name = uri.path.strip("/")
    on = parse_qsl(uri.query, keep_blank_values=True)
    known = set(Happening)
    if not uri.netloc or uri.fragment or "/" in queue_name or any(key != "on" or value not in known for key, value in on):
        expected = f"poison://<conn_id>/<queue>, and then ?on= with one of {', '.join(Happening)}"
        raise ValueError(f"{uri.geturl()!r} names no queue; expected {expected}. For example poison://poison_default/orders.")
    return uri._replace(path=f"/{check_name(queue_name)}", query=urlencode(sorted(set(on))))


KEPT = 1_000
"""How many keys are remembered; a repeated one comes soon after the first."""


def happened(context: Mapping[str, Any], asset: Asset) -> list[dict[str, Any]]:
    """Return the payloads of a queue's events that no earlier run of the DAG got, oldest first.

    ``triggering_asset_events`` alone may have a happening twice, when the triggerer was killed, and leave one out until the next one comes: Airflow
    gives a run the events up to the first that asked for it, not those that came while it waited for an earlier run to end. This reads on in the
    asset's events, and keeps in its state store which run got which. So a run may also find that an earlier one got all of them.
    A task that is tried again in the same run gets the same again.

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
    found: dict[str, dict[str, Any]] = {}
    for event in context["inlet_events"][asset].after(min(event.timestamp for event in made_by).isoformat()):
        payload = event.extra["payload"]
        if runs.setdefault(payload["key"], run_id) == run_id:
            found[payload["key"]] = payload
    store.set(key, dict(list(runs.items())[-KEPT:]))
    return list(found.values())

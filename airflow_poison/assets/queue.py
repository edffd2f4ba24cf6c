"""queue_asset: an asset that is a queue, with watchers of what happens to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from airflow.sdk import Asset, AssetWatcher

from airflow_poison.core.policies.settings import choice
from airflow_poison.core.store import check_name
from airflow_poison.core.watching.news import Happening
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.triggers.events import QueueEventTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from urllib.parse import SplitResult


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
    happenings of a queue have other assets. With ``on=()`` it is the queue itself, ``poison://<conn_id>/<queue_name>``, watched by nobody: for
    ``outlets`` and ``inlets``.

    A run finds what has happened in ``triggering_asset_events``: ``extra["payload"]`` of each has ``event``, ``queue``, ``key`` and facts.

    :param queue_name: the queue; it need not exist yet.
    :param on: what counts: any of ``messages``, ``retry_due``, ``poisoned``, ``blocked``, ``disabled``, ``enabled``.
    :param conn_id: connection of type ``poison``.
    :param poll_interval: seconds between two looks at the store; a retry that falls due is seen at its instant.
    :param group: the asset's group.
    :param extra: the asset's extra.
    Raises SettingError for an unknown happening, QueueNameError.
    """
    happenings = sorted({choice("on", happening, Happening) for happening in ((on,) if isinstance(on, str) else on)})
    uri = f"poison://{conn_id}/{check_name(queue_name)}" + (f"?{urlencode([('on', found.value) for found in happenings])}" if happenings else "")
    watchers = [
        AssetWatcher(
            name=f"{uri} {happening.value}",
            trigger=QueueEventTrigger(queue_name, happening.value, conn_id=conn_id, poll_interval=poll_interval, asset=uri),
        )
        for happening in happenings
    ]
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

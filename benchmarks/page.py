"""Measure the page of queues in the API server: ``python -m benchmarks.page 1000000``. 100 queues; one has so many poison messages of 30 kinds.

``page_api_s``: the slowest of the views (all queues, one queue, its groups, a page of messages, a page of a group), warm, the median of five;
``page_first_s``: the slowest when it is asked for first. ``page_memory_mib``: how much the process grows by all of them, and by eight people at once;
``page_libraries_mib``: what it has grown by a look at a small queue before, which loads Arrow, deltalake and DuckDB.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.desk import make

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

_QUEUES, _PEOPLE, _TIMES = 100, 8, 5
_SMALL = "queue-001"


def page_figures(number: int) -> dict[str, float]:
    """Return all figures by name. Making the queues and serving them are processes of their own."""
    with tempfile.TemporaryDirectory() as home:
        connection = {"conn_type": "poison", "extra": {"store": f"{home}/store"}}
        environment = os.environ | {
            "AIRFLOW_HOME": home,
            "AIRFLOW_CONN_POISON_DEFAULT": json.dumps(connection),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "true",
        }
        for what in ("make", "serve"):
            command = [sys.executable, "-W", "ignore", "-m", __spec__.name, str(number), what, f"{home}/store"]
            printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        figures: dict[str, float] = json.loads(printed.splitlines()[-1])
        return figures


def make_queues(uri: str, number: int) -> None:
    """Make the queues."""
    import pyarrow as pa

    from airflow_poison import Msmq4, SystemClock, declare, open_store, send

    store, clock = open_store(uri), SystemClock()
    for each in range(1, _QUEUES):
        table = declare(store, f"queue-{each:03}", Msmq4(), clock)
        send(table, [pa.RecordBatch.from_pydict({"body": pa.array([b"{}"] * 10, pa.binary())})], key="ten", clock=clock)
    make(store, number)


def serve() -> dict[str, float]:
    """Return the figures of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own
        from airflow.api_fastapi.app import create_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from airflow.api_fastapi.core_api import security
        from fastapi.testclient import TestClient

        from airflow_poison.ui.app import app

    create_auth_manager()

    async def somebody(token_str: str | None) -> BaseUser:
        del token_str
        return SimpleAuthManagerUser(username="somebody", role="admin")

    security.resolve_user_from_token = somebody
    with TestClient(app(), headers={"Authorization": "Bearer somebody"}) as client:

        def ask(path: str, **query: Any) -> Any:
            answer = client.get(path, params=query)
            assert answer.status_code == 200, answer.text
            return answer.json()

        return _figures(ask)


def _figures(ask: Callable[..., Any]) -> dict[str, float]:
    before = _memory()
    for path in ("/api/queue", "/api/groups", "/api/messages"):
        ask(path, queue=_SMALL)
    loaded = _memory()
    seconds, queue = _seconds, {"queue": "orders", "sub_queue": "poison"}
    first, groups = seconds(lambda: ask("/api/groups", queue="orders"))
    [group, *_] = groups["groups"]
    views: Mapping[str, Callable[[], Any]] = {
        "queues": lambda: ask("/api/queues"),
        "queue": lambda: ask("/api/queue", queue="orders"),
        "groups": lambda: ask("/api/groups", queue="orders"),
        "messages": lambda: ask("/api/messages", **queue),
        "group": lambda: ask("/api/messages", queue="orders", selection=json.dumps({"error": group["error"]})),
    }
    firsts = {name: seconds(view)[0] for name, view in views.items()} | {"groups": first}
    assert views["group"]()["total"] == group["messages"]
    warm = {name: statistics.median(seconds(view)[0] for _ in range(_TIMES)) for name, view in views.items()}
    with ThreadPoolExecutor(_PEOPLE) as people:
        for done in [people.submit(view) for view in list(views.values()) * _TIMES]:
            done.result()
    shown = {f"page_{name}_s": value for name, value in warm.items()} | {f"page_first_{name}_s": value for name, value in firsts.items()}
    return shown | {
        "page_api_s": max(warm.values()),
        "page_first_s": max(firsts.values()),
        "page_memory_mib": _memory() - loaded,
        "page_libraries_mib": loaded - before,
    }


def _seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    done = act()
    return time.perf_counter() - started, done


def _memory() -> float:
    """Return the resident memory of this process, MiB."""
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**20


def main() -> None:
    """Measure and print one line of JSON."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    match sys.argv[2:]:
        case ["make", uri]:
            make_queues(uri, number)
        case ["serve", _]:
            print(json.dumps({name: round(value, 3) for name, value in serve().items()}))
        case _:
            print(json.dumps(page_figures(number)))


if __name__ == "__main__":
    main()

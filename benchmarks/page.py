"""Measure the page of queues in the API server: ``python -m benchmarks.page 1000000``. 100 queues; one has so many poison messages of 30 kinds.

A process that loads Arrow, deltalake and DuckDB by a look at a small queue is then asked for the large one. Each figure is the median of five:

* ``page_groups_cold_s``: its error groups, asked for first in each of five processes; ``page_groups_anew_s``: after each of five commits;
  ``page_groups_s``: of a version that was asked for before. ``page_group_cold_s``: the first page of a group, asked for next in each process;
* ``page_sql_s``: the first page of a condition on the JSON bodies, another one each time; ``page_plan_s``: a plan to put those back that meet it;
* ``page_queues_s``, ``page_queue_s``, ``page_messages_s``: views that read little, warm.

``page_airflow_ratio``: Airflow's own list of DAGs, while four people ask for two large reads each, to what it takes alone; ``page_refused``: how
many of these eight were told to ask again.

``page_peak_mib``: how much more memory the process has at most, and ``page_left_mib``: at the end, than with the libraries, which take
``page_libraries_mib``.
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
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.desk import make
from benchmarks.memory import Peak

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from fastapi.testclient import TestClient

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

        def run(what: str) -> dict[str, float]:
            command = [sys.executable, "-W", "ignore", "-m", __spec__.name, str(number), what, f"{home}/store"]
            printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            found: dict[str, float] = json.loads((printed.splitlines() or ["{}"])[-1])
            return found

        run("make")
        cold = [run("first") for _ in range(_TIMES)]
        return {name: statistics.median(each[name] for each in cold) for name in cold[0]} | run("serve")


def make_queues(uri: str, number: int) -> None:
    """Make the queues."""
    import pyarrow as pa
    from airflow.utils.db import initdb

    from airflow_poison import Msmq4, SystemClock, declare, open_store, send

    with redirect_stdout(sys.stderr):
        initdb()
    store, clock = open_store(uri), SystemClock()
    for each in range(1, _QUEUES):
        table = declare(store, f"queue-{each:03}", Msmq4(), clock)
        send(table, [pa.RecordBatch.from_pydict({"body": pa.array([b"{}"] * 10, pa.binary())})], key="ten", clock=clock)
    make(store, number)


def serve(measure: Callable[[TestClient], dict[str, float]]) -> dict[str, float]:
    """Return the figures of this process, which serves Airflow and the page."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own
        from airflow.api_fastapi.app import create_app
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from airflow.api_fastapi.core_api import security
        from fastapi.testclient import TestClient

    async def somebody(token_str: str | None) -> BaseUser:
        return SimpleAuthManagerUser(username=token_str or "", role="admin")

    security.resolve_user_from_token = somebody
    with TestClient(create_app("core"), headers={"Authorization": "Bearer somebody"}) as client:
        for path in ("queue", "groups", "messages"):
            _ask(client, path, queue=_SMALL)
        return measure(client)


def _ask(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(f"/poison/api/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _group(client: TestClient, group: Mapping[str, Any]) -> None:
    found = _ask(client, "messages", queue="orders", selection=json.dumps({"error": group["error"]}))
    assert (found["total"], len(found["messages"])) == (group["messages"], 50)


def _first(client: TestClient) -> dict[str, float]:
    """Return what is asked for first."""
    groups, found = _seconds(lambda: _ask(client, "groups", queue="orders"))
    return {"page_groups_cold_s": groups, "page_group_cold_s": _seconds(lambda: _group(client, found["groups"][0]))[0]}


def _where(number: int) -> str:
    return json.dumps({"where": f"body.carrier = 'VX' and body.dep_delay > {number}"})


def _figures(client: TestClient) -> dict[str, float]:
    from airflow_poison.store import open_store

    loaded, queue = _memory(), {"queue": "orders"}
    orders = open_store(sys.argv[-1]).open("orders")

    def anew() -> float:
        orders.alter(lambda control: control.with_counters({"asked": control.counters.get("asked", 0) + 1}))
        return _seconds(lambda: _ask(client, "groups", **queue))[0]

    def plan(number: int) -> None:
        body = {"queue": "orders", "selection": json.loads(_where(number)), "action": {"verb": "put_back"}}
        answer = client.post("/poison/api/plan", json=body)
        assert answer.status_code == 200, answer.text

    with Peak().watch() as peak:
        figures = {
            "page_groups_anew_s": statistics.median(anew() for _ in range(_TIMES)),
            "page_sql_s": _median(lambda turn: _ask(client, "messages", **queue, selection=_where(turn))),
            "page_plan_s": _median(lambda turn: plan(50 + turn)),
            "page_groups_s": _median(lambda _: _ask(client, "groups", **queue)),
            "page_queues_s": _median(lambda _: _ask(client, "queues")),
            "page_queue_s": _median(lambda _: _ask(client, "queue", **queue)),
            "page_messages_s": _median(lambda _: _ask(client, "messages", **queue, sub_queue="poison")),
        }
        figures |= _beside(client)
    return figures | {"page_peak_mib": peak.mebibytes - loaded, "page_left_mib": _memory() - loaded, "page_libraries_mib": loaded}


def _beside(client: TestClient) -> dict[str, float]:
    """Return what Airflow's own page takes while people ask for large reads, to what it takes alone, and how many of these were refused."""

    def dags() -> float:
        seconds, answer = _seconds(lambda: client.get("/api/v2/dags"))
        assert answer.status_code == 200, answer.text
        return seconds

    alone = statistics.median(dags() for _ in range(4 * _TIMES))
    ask = [
        partial(client.get, "/poison/api/messages", params={"queue": "orders", "selection": _where(100 + turn)}, headers=_is(turn // 2))
        for turn in range(_PEOPLE)
    ]
    with ThreadPoolExecutor(_PEOPLE) as people:
        asked = [people.submit(each) for each in ask]
        meanwhile = [dags()]
        while not all(each.done() for each in asked):
            meanwhile.append(dags())
    return {"page_airflow_ratio": statistics.median(meanwhile) / alone, "page_refused": sum(each.result().status_code != 200 for each in asked)}


def _is(person: int) -> dict[str, str]:
    return {"Authorization": f"Bearer person-{person}"}


def _median(act: Callable[[int], Any]) -> float:
    act(_TIMES)
    return statistics.median(_seconds(partial(act, turn))[0] for turn in range(_TIMES))


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
        case ["first" | "serve" as what, _]:
            print(json.dumps({name: round(value, 3) for name, value in serve(_first if what == "first" else _figures).items()}))
        case _:
            print(json.dumps(page_figures(number)))


if __name__ == "__main__":
    main()

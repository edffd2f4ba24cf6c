"""What the demo asks the Airflow that it started, over its public REST API."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

DAG = "flight_arrivals"
PAGE = 100
ENDED = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True)
class Run:
    """A DAG run."""

    run_id: str
    state: str

    @property
    def ended(self) -> bool:
        """Whether nothing of it will run any more."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Task:
    """A task instance of a run."""

    run_id: str
    task_id: str
    state: str | None
    try_number: int


class Airflow:
    """A client of the REST API.

    :param url: for example ``http://127.0.0.1:8080``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._token = ""
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def ready(self) -> bool:
        """Whether it answers, and the scheduler and the DAG processor are alive."""
        try:
            health = self._call("GET", "/api/v2/monitor/health")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return all(health[part]["status"] == "healthy" for part in ("metadatabase", "scheduler", "dag_processor"))

    def has_dag(self) -> bool:
        """Whether the DAG has been parsed."""
        try:
            self._call("GET", f"/api/v2/dags/{DAG}")
        except urllib.error.HTTPError as error:
            if error.code == 404:  # noqa: PLR2004  (not found)
                return False
            raise
        return True

    def import_errors(self) -> list[str]:
        """Return why DAG files could not be parsed."""
        return [entry["stack_trace"] for entry in self._call("GET", "/api/v2/importErrors")["import_errors"]]

    def pause(self, *, paused: bool) -> None:
        """Stop or start the scheduling of new runs."""
        self._call("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": paused})

    def runs(self) -> list[Run]:
        """Return all runs, oldest first."""
        found: list[Run] = []
        while True:
            query = urlencode({"order_by": "run_after", "limit": PAGE, "offset": len(found)})
            page = self._call("GET", f"/api/v2/dags/{DAG}/dagRuns?{query}")
            found += [Run(entry["dag_run_id"], entry["state"]) for entry in page["dag_runs"]]
            if len(found) >= page["total_entries"] or not page["dag_runs"]:
                return found

    def give_up(self, run: Run) -> None:
        """Mark a run as failed, since nobody works on it any more."""
        self._call("PATCH", f"/api/v2/dags/{DAG}/dagRuns/{quote(run.run_id)}", {"state": "failed"})

    def forget(self, run: Run) -> None:
        """Delete a run, but for one that is running: that Airflow refuses."""
        try:
            self._call("DELETE", f"/api/v2/dags/{DAG}/dagRuns/{quote(run.run_id)}")
        except urllib.error.HTTPError as error:
            if error.code != 409:  # noqa: PLR2004  (conflict)
                raise

    def tasks(self, run: Run) -> list[Task]:
        """Return the task instances of a run."""
        entries = self._call("GET", f"/api/v2/dags/{DAG}/dagRuns/{quote(run.run_id)}/taskInstances")["task_instances"]
        return [Task(run.run_id, entry["task_id"], entry["state"], entry["try_number"]) for entry in entries]

    def result(self, run: Run, task_id: str) -> dict[str, Any] | None:
        """Return what a task returned, None when it has not."""
        path = f"/api/v2/dags/{DAG}/dagRuns/{quote(run.run_id)}/taskInstances/{quote(task_id)}/xcomEntries/return_value?deserialize=true"
        try:
            value = self._call("GET", path)["value"]
        except urllib.error.HTTPError as error:
            if error.code == 404:  # noqa: PLR2004  (not found)
                return None
            raise
        return dict(json.loads(value)) if isinstance(value, str) else value

    def _call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if path.startswith(("/api/v2/dags", "/api/v2/importErrors")):
            headers["Authorization"] = f"Bearer {self._sign_in()}"
        return self._request(method, path, headers, body)

    def _sign_in(self) -> str:
        if not self._token:
            self._token = self._request("GET", "/auth/token", {}, None)["access_token"]
        return self._token

    def _request(self, method: str, path: str, headers: dict[str, str], body: object, tries: int = 3) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._open(request, timeout=30) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except (TimeoutError, urllib.error.HTTPError) as error:
            if tries == 1 or (isinstance(error, urllib.error.HTTPError) and error.code < 500):  # noqa: PLR2004  (server errors)
                raise
            time.sleep(1)
            return self._request(method, path, headers, body, tries - 1)

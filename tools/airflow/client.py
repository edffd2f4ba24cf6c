"""A client of Airflow's public REST API, with what the demo and the tests ask."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

API = "/api/v2"
PAGE = 100
ENDED = frozenset({"success", "failed"})
TRIES = 10
"""With SQLite as its database, Airflow answers 500 when it has waited for others that write."""
NOT_FOUND, CONFLICT, SERVER_ERROR = 404, 409, 500
HEALTH = ("metadatabase", "scheduler", "dag_processor")


@dataclass(frozen=True, slots=True)
class Run:
    """A DAG run."""

    dag_id: str
    run_id: str
    state: str

    @property
    def ended(self) -> bool:
        """Whether nothing of it will run any more."""
        return self.state in ENDED

    @property
    def path(self) -> str:
        """Where the API has it."""
        return f"{API}/dags/{quote(self.dag_id)}/dagRuns/{quote(self.run_id)}"


@dataclass(frozen=True, slots=True)
class Task:
    """A task instance of a run; ``map_index`` is -1 for one that is not mapped."""

    run_id: str
    task_id: str
    state: str | None
    try_number: int
    map_index: int = -1


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API answered: the status and the body, read as JSON."""

    status: int
    body: Any


class Airflow:
    """A client of the REST API.

    :param url: for example ``http://127.0.0.1:8080``.
    :param user: name and password; None where everybody is an administrator.
    """

    def __init__(self, url: str, user: tuple[str, str] | None = None) -> None:
        self.url = url
        self._user = user
        self._token = ""
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def ready(self, parts: Sequence[str] = HEALTH) -> bool:
        """Whether it answers, and these parts are alive."""
        try:
            health = self._json("GET", f"{API}/monitor/health", {}, None)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return all(health[part]["status"] == "healthy" for part in parts)

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG has been parsed."""
        return self.find(f"{API}/dags/{quote(dag_id)}") is not None

    def dags(self) -> list[dict[str, Any]]:
        """Return all DAGs that have been parsed."""
        return list(self.pages(f"{API}/dags", "dags"))

    def import_errors(self) -> list[dict[str, Any]]:
        """Return why DAG files could not be parsed."""
        return list(self.pages(f"{API}/importErrors", "import_errors"))

    def pause(self, dag_id: str, *, paused: bool) -> None:
        """Stop or start the scheduling of new runs."""
        self.call("PATCH", f"{API}/dags/{quote(dag_id)}", {"is_paused": paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> Run:
        """Make a run."""
        run_id = f"manual__{uuid.uuid4()}"  # so that a request which is repeated after a time-out makes no second run
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        try:
            return _run(self.call("POST", f"{API}/dags/{quote(dag_id)}/dagRuns", body))
        except urllib.error.HTTPError as error:
            if error.code != CONFLICT:
                raise
            return self.run(Run(dag_id, run_id, "queued"))

    def run(self, run: Run) -> Run:
        """Return a run as it is now."""
        return _run(self.call("GET", run.path))

    def runs(self, dag_id: str) -> list[Run]:
        """Return all runs of a DAG, oldest first."""
        return [_run(entry) for entry in self.pages(f"{API}/dags/{quote(dag_id)}/dagRuns", "dag_runs", order_by="run_after")]

    def set_run_state(self, run: Run, state: str) -> None:
        """Mark a run, as a person does."""
        self.call("PATCH", run.path, {"state": state})

    def forget(self, run: Run) -> None:
        """Delete a run, but for one that is running: that Airflow refuses."""
        try:
            self.call("DELETE", run.path)
        except urllib.error.HTTPError as error:
            if error.code != CONFLICT:
                raise

    def tasks(self, run: Run) -> list[Task]:
        """Return the task instances of a run."""
        return [
            Task(run.run_id, entry["task_id"], entry["state"], entry["try_number"], entry["map_index"])
            for entry in self.pages(f"{run.path}/taskInstances", "task_instances")
        ]

    def set_task_state(self, run: Run, task_id: str, state: str) -> None:
        """Mark a task instance, as a person does."""
        self.call("PATCH", f"{run.path}/taskInstances/{quote(task_id)}", {"new_state": state})

    def result(self, run: Run, task_id: str, map_index: int = -1) -> Any:
        """Return what a task returned, None when it has not."""
        query = urlencode({"map_index": map_index})
        entry = self.find(f"{run.path}/taskInstances/{quote(task_id)}/xcomEntries/return_value?{query}")
        value = entry and entry["value"]
        return json.loads(value) if isinstance(value, str) and value.startswith(("{", "[")) else value

    def pages(self, path: str, name: str, **query: str) -> Iterator[dict[str, Any]]:
        """Return all entries of a listing."""
        seen = 0
        while True:
            page = self.call("GET", f"{path}?{urlencode({**query, 'limit': PAGE, 'offset': seen})}")
            yield from page[name]
            seen += len(page[name])
            if seen >= page["total_entries"] or not page[name]:
                return

    def find(self, path: str) -> Any:
        """Return what is there, None when nothing is."""
        try:
            return self.call("GET", path)
        except urllib.error.HTTPError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Return what the API answers. Raises urllib.error.HTTPError for a status of 400 and above."""
        return self._json(method, path, self._signed(), body)

    def answer(self, method: str, path: str, body: object = None, *, anonymous: bool = False) -> Answer:
        """Return what the API answers, whatever the status is."""
        try:
            return self._request(method, path, {} if anonymous else self._signed(), body)
        except urllib.error.HTTPError as error:
            return Answer(error.code, _read(error.read()))

    def _signed(self) -> dict[str, str]:
        if not self._token:
            name, password = self._user or ("", "")
            answer = (
                self._json("POST", "/auth/token", {}, {"username": name, "password": password})
                if self._user
                else self._json("GET", "/auth/token", {}, None)
            )
            self._token = answer["access_token"]
        return {"Authorization": f"Bearer {self._token}"}

    def _json(self, method: str, path: str, headers: Mapping[str, str], body: object) -> Any:
        return self._request(method, path, headers, body).body

    def _request(self, method: str, path: str, headers: Mapping[str, str], body: object, tries: int = TRIES) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **headers}, method=method)
        try:
            with self._open(request, timeout=30) as answer:
                return Answer(answer.status, _read(answer.read()))
        except (TimeoutError, urllib.error.HTTPError) as error:
            if tries == 1 or (isinstance(error, urllib.error.HTTPError) and error.code < SERVER_ERROR):
                raise
            time.sleep(1)
            return self._request(method, path, headers, body, tries - 1)


def _run(entry: Mapping[str, Any]) -> Run:
    return Run(entry["dag_id"], entry["dag_run_id"], entry["state"])


def _read(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode(errors="replace")

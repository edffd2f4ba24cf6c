"""A real Airflow for tests: DAG files go into its folder, runs are made over its REST API, and what happened is asked of it."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import psutil
import pytest

from tools.airflow.client import API, Airflow, Answer, Run, Task
from tools.airflow.home import Home
from tools.airflow.left_over import processes
from tools.airflow.services import WITH_TRIGGERER, Services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_poison.store import QueueStore
    from tests.live.statsd_listener import Listener

T = TypeVar("T")

CLONE = Path(__file__).resolve().parents[2]
LOOK_SECONDS = 0.3
PATIENCE = float(os.environ.get("POISON_LIVE_PATIENCE", "1"))
"""All time-outs are multiplied by it; a machine that does much else at the same time wants more."""
START_SECONDS = 300.0 * PATIENCE
PARSE_SECONDS = 300.0 * PATIENCE
RUN_SECONDS = 900.0 * PATIENCE
END_SECONDS = 120.0 * PATIENCE
"""So long may a process take that was told to end."""
TAIL = 60
HEALTH = ("metadatabase", "scheduler", "dag_processor", "triggerer")
LINEAGE = "lineage.jsonl"
JOBS = {"scheduler": "SchedulerJob", "dag-processor": "DagProcessorJob", "triggerer": "TriggererJob"}
USERS = {"admin": "ADMIN", "op": "OP", "user": "USER", "viewer": "VIEWER"}
"""Names of the users and their roles; the password of each is its name and ``-password``."""

SETTINGS = {
    "CORE__AUTH_MANAGER": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
    "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
    "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
    "CORE__PARALLELISM": "8",
    "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
    "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",  # asset watchers start at the first parse
    "CORE__KILLED_TASK_CLEANUP_TIME": "20",
    "DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
    "METRICS__STATSD_ON": "True",
    "METRICS__STATSD_HOST": "127.0.0.1",
    "OPENLINEAGE__EXECUTION_TIMEOUT": "120",
    "OPENLINEAGE__SELECTIVE_ENABLE": "True",  # for DAGs that say so
    "DAG_PROCESSOR__REFRESH_INTERVAL": "0",
    "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
    "DAG_PROCESSOR__PARSING_PROCESSES": "2",
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # a new file is parsed at once
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
}


def settings_of(home: Home, port: int, dags: Path, store: Path, metrics: Listener, *, java_options: str) -> dict[str, str]:
    """Return the environment of the processes."""
    own = {
        "CORE__DAGS_FOLDER": str(dags),
        "METRICS__STATSD_PORT": str(metrics.port),
        "OPENLINEAGE__TRANSPORT": json.dumps({"type": "file", "log_file_path": str(home.path / LINEAGE), "append": True}),
    }
    spark = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": java_options}
    poison = {"conn_type": "poison", "extra": {"store": str(store), "spark": "local[2]", "spark_conf": spark}}
    others = {
        "AIRFLOW_CONN_POISON_DEFAULT": json.dumps(poison),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(CLONE), *filter(None, [os.environ.get("PYTHONPATH")])]),  # DAG files import from tests.live
    }
    return home.environment(port, {**SETTINGS, **own}, others)


def write_passwords(home: Home) -> None:
    """Give the users their passwords."""
    passwords = {name: f"{name}-password" for name in USERS}
    (home.path / "simple_auth_manager_passwords.json.generated").write_text(json.dumps(passwords) + "\n")


@dataclass(frozen=True)
class LiveAirflow:
    """What a test does with the Airflow.

    Everything that waits looks at states again and again until they are there; a process of Airflow that ends meanwhile fails the test.

    :param home: AIRFLOW_HOME; task logs are below its ``logs``.
    :param url: of the API server.
    :param dags: the folder of the DAG files.
    :param store_root: the store behind the connection ``poison_default``.
    :param metrics: the StatsD server that its processes send to.
    """

    home: Path
    url: str
    dags: Path
    store_root: Path
    metrics: Listener
    services: Services
    _numbers: Iterator[int] = field(default_factory=partial(count, 1))

    @cached_property
    def clients(self) -> dict[str, Airflow]:
        """A client for each user."""
        return {name: Airflow(self.url, (name, f"{name}-password")) for name in USERS}

    @cached_property
    def client(self) -> Airflow:
        """The administrator's client."""
        return self.clients["admin"]

    @property
    def store(self) -> QueueStore:
        """The store behind the connection ``poison_default``."""
        from airflow_poison.store import open_store

        return open_store(str(self.store_root))

    # DAG files

    def dag(self, source: str | Path, *, environment: Mapping[str, str] | None = None, timeout: float = PARSE_SECONDS) -> str:
        """Put a file of one DAG into the folder, wait until it has been parsed, unpause it, and return the DAG's id.

        :param source: the text of the file, or a file to copy. Its DAG's id must be new in this Airflow.
        :param environment: variables that the file sets before all else, while it is parsed and in its tasks, for example
            ``{"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "true"}``.
        Fails the test with the text of the import error when there is one.
        """
        (dag_id,) = self.dags_of(source, environment=environment, timeout=timeout)
        return dag_id

    def dags_of(self, source: str | Path, *, environment: Mapping[str, str] | None = None, timeout: float = PARSE_SECONDS) -> list[str]:
        """Do the same with a file of several DAGs; return their ids."""
        text = source.read_text() if isinstance(source, Path) else source
        name = f"{source.stem if isinstance(source, Path) else 'dag'}_{next(self._numbers)}.py"
        part = self.dags / f"{name}.part"
        part.write_text(_with_environment(text, environment or {}))
        written = datetime.now(UTC)
        part.rename(self.dags / name)
        found = self.until(lambda: self._parsed(name, written), f"the file {name} is parsed, and has a DAG as a global variable", timeout)
        for dag_id in found:
            if self.client.call("GET", f"{API}/dags/{quote(dag_id)}")["is_paused"]:
                self.client.pause(dag_id, paused=False)
        return found

    def _parsed(self, name: str, written: datetime) -> list[str]:
        for error in self.client.import_errors():
            if error["filename"].endswith(name):
                (self.dags / name).unlink()
                pytest.fail(f"Airflow cannot parse {name}:\n{error['stack_trace']}")
        return [dag["dag_id"] for dag in self.client.dags() if dag["relative_fileloc"] == name and _moment(dag["last_parsed_time"]) >= written]

    def remove_dag(self, dag_id: str) -> None:
        """Remove a DAG's file, so that nothing of it is scheduled any more, and wait until Airflow knows."""
        name = self.client.call("GET", f"{API}/dags/{quote(dag_id)}")["relative_fileloc"]
        self.client.pause(dag_id, paused=True)
        (self.dags / name).unlink()
        self.until(lambda: all(dag["dag_id"] != dag_id or dag["is_stale"] for dag in self.client.dags()), f"{dag_id} is gone", PARSE_SECONDS)

    # Runs

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> Run:
        """Make a run."""
        return self.client.trigger(dag_id, conf)

    def runs(self, dag_id: str) -> list[Run]:
        """Return all runs of a DAG, oldest first."""
        return self.client.runs(dag_id)

    def wait(self, run: Run, until: str = "success", timeout: float = RUN_SECONDS) -> Run:
        """Wait until a run is in a state; fail with the logs of the tasks that failed when it ends in another."""

        def there() -> Run | None:
            now = self.client.run(run)
            if now.ended and now.state != until:
                pytest.fail(f"The run {run.run_id} of {run.dag_id} ended as {now.state}, not {until}.\n{self.account(run)}")
            return now if now.state == until else None

        return self.until(there, f"the run {run.run_id} of {run.dag_id} is {until}", timeout, run)

    def wait_for_run(self, dag_id: str, number: int = 1, timeout: float = RUN_SECONDS) -> Run:
        """Wait until Airflow has made a run by itself, the ``number``-th of the DAG, and return it."""
        return self.until(lambda: self.runs(dag_id)[number - 1 : number], f"{dag_id} has {number} runs", timeout)[0]

    def wait_task(self, run: Run, task_id: str, until: str, timeout: float = RUN_SECONDS, map_index: int = -1) -> Task:
        """Wait until a task of a run is in a state; fail when it ends in another."""

        def there() -> Task | None:
            task = self.task(run, task_id, map_index)
            if task.state in {"success", "failed", "skipped", "upstream_failed", "removed"} - {until}:
                pytest.fail(f"The task {task_id} of {run.dag_id} ended as {task.state}, not {until}.\n{self.account(run)}")
            return task if task.state == until else None

        return self.until(there, f"the task {task_id} of {run.dag_id} is {until}", timeout, run)

    def tasks(self, run: Run) -> dict[str, str | None]:
        """Return the states of a run's tasks by id; a mapped one as ``id[index]``."""
        return {task.task_id + (f"[{task.map_index}]" if task.map_index >= 0 else ""): task.state for task in self.client.tasks(run)}

    def task(self, run: Run, task_id: str, map_index: int = -1) -> Task:
        """Return a task of a run."""
        return next(task for task in self.client.tasks(run) if (task.task_id, task.map_index) == (task_id, map_index))

    def result(self, run: Run, task_id: str, map_index: int = -1) -> Any:
        """Return what a task returned."""
        return self.client.result(run, task_id, map_index)

    def mark(self, run: Run, task_id: str, state: str) -> None:
        """Mark a task as ``failed``, ``success`` or ``skipped``, as a person does in the UI."""
        self.client.set_task_state(run, task_id, state)

    def clear(self, run: Run, *task_ids: str) -> None:
        """Clear tasks of a run, as a person does in the UI; they run again."""
        body = {"dry_run": False, "dag_run_id": run.run_id, "task_ids": list(task_ids), "only_failed": False, "reset_dag_runs": True}
        self.client.call("POST", f"{API}/dags/{quote(run.dag_id)}/clearTaskInstances", body)

    # Logs

    def log(self, run: Run, task_id: str, map_index: int = -1, attempt: int | None = None) -> str:
        """Return the log of a task's last try, or of that attempt, as it is on disk: a line of JSON for each entry."""
        folder = self.home / "logs" / f"dag_id={run.dag_id}" / f"run_id={run.run_id}" / f"task_id={task_id}"
        number = self.task(run, task_id, map_index).try_number if attempt is None else attempt
        file = (folder / f"map_index={map_index}" if map_index >= 0 else folder) / f"attempt={number}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def log_entries(self, run: Run, task_id: str, map_index: int = -1, attempt: int | None = None) -> list[dict[str, Any]]:
        """Return the same, read."""
        return [entry for line in self.log(run, task_id, map_index, attempt).splitlines() if (entry := _entry(line))]

    def service_log(self, part: str) -> str:
        """Return the log of a process: ``scheduler``, ``dag-processor``, ``api-server``, ``triggerer``."""
        return (self.home / "logs" / f"{part}.log").read_text(errors="replace")

    def account(self, run: Run) -> str:
        """Return what a person wants to read of a run that did not do what it should: its tasks, and the logs of those that failed."""
        states = self.tasks(run)
        lines = [f"{task_id}: {state}" for task_id, state in states.items()]
        for task in self.client.tasks(run):
            if task.state in {"failed", "up_for_retry", "running"}:
                entries = self.log_entries(run, task.task_id, task.map_index)
                lines += [f"\nLog of {task.task_id}, try {task.try_number}:", *[_shown(entry) for entry in entries[-TAIL:]]]
        return "\n".join(lines)

    # Alerts and lineage

    def alerts(self, queue: str) -> list[dict[str, Any]]:
        """Return what ``tests.live.alert_file.AlertFile`` was told of a queue, oldest first."""
        file = self.home / "alerts.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [alert for line in lines if (alert := json.loads(line))["queue"] == queue]

    def lineage(self) -> list[dict[str, Any]]:
        """Return the OpenLineage events of DAGs that have ``enable_lineage``, oldest first."""
        file = self.home / LINEAGE
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    # Rights

    def call(self, method: str, path: str, body: object = None, user: str | None = "admin") -> Answer:
        """Return what the server answers to a user, whatever the status is; ``user=None`` asks without signing in."""
        return self.clients[user or "admin"].answer(method, path, body, anonymous=user is None)

    # Processes

    def kill(self, part: str, number: int = signal.SIGKILL, *, whole: bool = False) -> None:
        """Send a signal to ``scheduler``, ``triggerer``, ``dag-processor`` or ``api-server``, and wait for its end.

        :param whole: to all processes that it has started, too, as when its machine dies; with the scheduler's die the tasks that run.
        The test must ``restart`` it.
        """
        self.services.kill(part, number, whole=whole)

    def restart(self, part: str, timeout: float = START_SECONDS) -> None:
        """Start a part again, after asking it to end when it still runs, and wait until it works."""
        if part in self.services.pids:
            self.kill(part, signal.SIGTERM)
        before = datetime.now(UTC)
        self.services.start_one(part)
        self.until(lambda: self._works(part, before), f"the {part} works", timeout)

    def _works(self, part: str, since: datetime) -> bool:
        if part == "api-server":
            return self.client.ready(())
        query = urlencode({"job_type": JOBS[part], "job_state": "running", "limit": 100})
        jobs = self.client.call("GET", f"{API}/jobs?{query}")["jobs"]
        return any(_moment(job["start_date"]) >= since and job["latest_heartbeat"] for job in jobs)

    def until_ready(self) -> None:
        """Wait until all parts work."""
        self.until(lambda: self.client.ready(HEALTH), "Airflow has started", START_SECONDS)

    def process_names(self) -> dict[int, str]:
        """Return the names of all living processes of this Airflow by process id: its parts, their tasks, and what these have started."""
        found: dict[int, str] = {}
        for process in processes(Home(self.home)):
            with contextlib.suppress(psutil.Error):
                found[process.pid] = process.name()
        return found

    # Waiting

    def until(self, condition: Callable[[], T | None], what: str, timeout: float = RUN_SECONDS, run: Run | None = None) -> T:
        """Look until a condition holds, and return what it returned; fail after ``timeout`` seconds, or when a process of Airflow has ended.

        :param run: what the failure gives an account of.
        """
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            self.services.check()
            if time.monotonic() > deadline:
                self._too_late(what, timeout, run)
            time.sleep(LOOK_SECONDS)
        return found

    def _too_late(self, what: str, timeout: float, run: Run | None) -> NoReturn:
        pytest.fail(f"Not within {timeout:.0f} s: {what}. Logs are in {self.home / 'logs'}.\n{self.account(run) if run else ''}")


def _with_environment(source: str, environment: Mapping[str, str]) -> str:
    """Return a DAG file that sets variables after its docstring and its ``from __future__``, before all else."""
    if not environment:
        return source
    lines, at = source.splitlines(keepends=True), 0
    for statement in ast.parse(source).body:
        if not (isinstance(statement, ast.Expr) or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")):
            break
        at = statement.end_lineno or at
    return "".join([*lines[:at], f"\nimport os; os.environ.update({dict(environment)!r})\n", *lines[at:]])


def _moment(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else datetime.min.replace(tzinfo=UTC)


def _entry(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return {"event": line}
    return found if isinstance(found, dict) else {"event": line}


def _shown(entry: Mapping[str, Any]) -> str:
    causes = [f"\n    {error.get('exc_type')}: {error.get('exc_value')}" for error in entry.get("error_detail") or ()]
    return f"  {entry.get('level', '')} {entry.get('event')}{''.join(causes)}"


def live_airflow(folder: Path, port: int, metrics: Listener, java_options: str = "") -> LiveAirflow:
    """Return an Airflow with its home in a folder, its database made, not started yet.

    :param metrics: a listener for its metrics.
    :param java_options: of the JVMs that tasks start.
    """
    home, dags, store = Home(folder / "home"), folder / "dags", folder / "store"
    dags.mkdir(parents=True)
    store.mkdir()
    home.logs.mkdir(parents=True)
    write_passwords(home)
    services = Services(home, settings_of(home, port, dags, store, metrics, java_options=java_options), port, WITH_TRIGGERER)
    services.prepare()
    return LiveAirflow(home.path, f"http://127.0.0.1:{port}", dags, store, metrics, services)

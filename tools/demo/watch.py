"""Following the DAG's runs until every message is settled or in poison."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.demo.account import Pass
from tools.demo.place import DemoError
from tools.demo.readings import Reading
from tools.demo.screen import Sight

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from tools.airflow.client import Airflow, Run, Task
    from tools.airflow.services import Services
    from tools.demo.account import Taken
    from tools.demo.place import Place
    from tools.demo.readings import Queue
    from tools.demo.screen import Screen

DAG = "flight_arrivals"
RECEIVE = "retry_cycle.receive"
BUSY = frozenset({"queued", "running", "restarting"})
LOOK_SECONDS = 0.5
START_SECONDS = 180.0


@dataclass(slots=True)
class Watch:
    """One demo's view of its Airflow and its queue.

    :ivar taken: from the source, in all demos of this folder; ``before``: so many takes are of earlier ones.
    """

    place: Place
    services: Services
    airflow: Airflow
    queue: Queue
    screen: Screen
    taken: Sequence[Taken] = ()
    before: int = 0
    version: int = -1
    earlier: frozenset[str] = frozenset()

    def until_ready(self) -> None:
        """Wait until Airflow answers and has parsed the DAG. Raises DemoError."""
        deadline = time.monotonic() + START_SECONDS
        self._wait(self.airflow.ready, "starting Airflow", deadline)
        self._wait(self._parsed, "parsing the DAG", deadline)
        runs = self.airflow.runs(DAG)
        for run in runs:
            if not run.ended:  # of a demo that was interrupted: nobody works on it any more
                self.airflow.set_run_state(run, "failed")
        self.earlier = frozenset(run.run_id for run in runs)
        self.taken = self.queue.taken()
        self.before = len(self.taken)

    def until_done(self) -> None:
        """Let runs follow each other until nothing waits in main and retry. Raises DemoError when one fails."""
        self.airflow.pause(DAG, paused=False)
        while not self._look():
            time.sleep(LOOK_SECONDS)
        self.airflow.pause(DAG, paused=True)
        while active := [run for run in self.airflow.runs(DAG) if not run.ended]:
            self._look()
            if all(self._rests(run) for run in active):
                return
            time.sleep(LOOK_SECONDS)

    def _rests(self, run: Run) -> bool:
        """Forget a run that began when all was done, and return whether nobody works on it: of a paused DAG no further task starts."""
        if any(task.state in BUSY for task in self.airflow.tasks(run)):
            return False
        self.airflow.forget(run)
        return True

    def passes(self) -> list[Pass]:
        """Return what all passes of this folder's demos said, oldest first, those that received something."""
        results = [self.airflow.result(run, RECEIVE) for run in self.airflow.runs(DAG)]
        return [Pass.of(result) for result in results if result and result["received"]]

    def _look(self) -> bool:
        """Show what is; return whether all is done."""
        self.services.check()
        runs = [run for run in self.airflow.runs(DAG) if run.run_id not in self.earlier]
        active = [run for run in runs if not run.ended]
        for run in runs:
            if run.state == "failed":
                raise DemoError(self._why(run))
        reading = self.queue.reading() or Reading()
        if reading.version != self.version:
            self.taken, self.version = self.queue.taken(), reading.version
        depth, read = reading.depth, sum(each.read for each in self.taken)
        self.screen.show(Sight(self._what(runs, active, reading.next_due), read, depth, reading.working))
        return bool(runs and read and not active and depth.main == depth.retry == 0)

    def _what(self, runs: list[Run], active: list[Run], due: datetime | None) -> str:
        if not runs:
            return "waiting for the first run"
        if not active:
            return f"waiting for the next run{f' (retry is due at {due.astimezone():%H:%M:%S})' if due else ''}"
        running = [task.task_id for task in self.airflow.tasks(active[0]) if task.state == "running"]
        return f"run {runs.index(active[0]) + 1}{': ' if running else ''}{', '.join(running)}"

    def _wait(self, condition: object, what: str, deadline: float) -> None:
        assert callable(condition)
        while not condition():
            self.services.check()
            if time.monotonic() > deadline:
                raise DemoError(f"Airflow was not ready after {START_SECONDS:.0f} s ({what}). See {self.place.shown(self.place.logs)}.")
            self.screen.show(Sight(what))
            time.sleep(LOOK_SECONDS)

    def _parsed(self) -> bool:
        errors = self.airflow.import_errors()
        if errors:
            raise DemoError(f"Airflow cannot parse the DAG:\n{errors[0]['stack_trace']}")
        return self.airflow.has_dag(DAG)

    def _why(self, run: Run) -> str:
        failed = [task for task in self.airflow.tasks(run) if task.state == "failed"]
        lines = [f"The DAG run {run.run_id} failed."]
        for task in failed:
            log = self._log(task)
            lines.append(f"Task {task.task_id}: {_last_error(log)}\n  its log: {self.place.shown(log)}")
        return "\n".join(lines)

    def _log(self, task: Task) -> Path:
        folder = self.place.logs / f"dag_id={DAG}" / f"run_id={task.run_id}" / f"task_id={task.task_id}"
        return folder / f"attempt={task.try_number}.log"


def _last_error(log: Path) -> str:
    """Return the last exception in a task's log (a line of JSON for each entry)."""
    if not log.exists():
        return "it left no log"
    for line in reversed(log.read_text(errors="replace").splitlines()):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("error_detail"):
            last = entry["error_detail"][-1]
            return f"{last.get('exc_type')}: {last.get('exc_value')}"
    return "no exception is in its log"

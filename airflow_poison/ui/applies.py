"""Plans that this server applies or undoes: few at the same time, the others wait their turn. Everything that counts is in the queue's table.

When the server ends, a plan stays as far as it is, and can be resumed here or in a shell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock, Timer
from typing import TYPE_CHECKING

from airflow_poison.store.files import PlanState
from airflow_poison.values.errors import PoisonError

if TYPE_CHECKING:
    from airflow_poison.desk.plans import PlanView

log = logging.getLogger(__name__)

AT_ONCE = 2
"""So many plans are applied or undone at the same time in each worker of the API server."""
MOST = 20
"""So many go on, wait for their turn, or wait for passes."""
AGAIN_SECONDS = 10.0
"""After so long a plan is tried again that waits for passes: they have claimed the rest of its messages, or have to receive its canary."""
REMEMBERED = 100
_WAITS = frozenset({PlanState.RUNNING.value, PlanState.CANARY.value})

Key = tuple[str, str, str]
"""Connection, queue, plan."""
Work = Callable[[Callable[[], bool]], "PlanView"]
"""Goes on with a plan until the function that it is given says that the server ends; returns the plan."""


@dataclass(slots=True)
class _Task:
    work: Work
    turn: int
    state: str = "waiting"
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class Applies:
    """What goes on, by plan.

    :param again: seconds until a plan is tried again that waits for passes.
    """

    again: float = AGAIN_SECONDS
    _tasks: dict[Key, _Task] = field(default_factory=dict)
    _errors: dict[Key, str] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _stop: Event = field(default_factory=Event)
    _turns: int = 0
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "poison-apply"))

    @property
    def full(self) -> bool:
        """Whether no further plan is taken."""
        return len(self._tasks) >= MOST

    def begin(self, key: Key, work: Work) -> None:
        """Go on with a plan as soon as it is its turn; nothing happens when this server does so already."""
        with self._lock:
            if key in self._tasks or self._stop.is_set():
                return
            self._errors.pop(key, None)
            self._turns += 1
            self._tasks[key] = _Task(work, self._turns)
            self._pool.submit(self._run, key)

    def told(self, key: Key) -> dict[str, object]:
        """Return what this server does with a plan: ``running``, ``waiting`` (behind so many), ``later`` (for passes), or nothing; its last error."""
        with self._lock:
            task = self._tasks.get(key)
            before = 0 if task is None else sum(each.state == "waiting" and each.turn < task.turn for each in self._tasks.values())
            return {"state": "" if task is None else task.state, "before": before, "error": self._errors.get(key, "")}

    def close(self) -> None:
        """End everything soon; what is begun is ended with its chunk."""
        self._stop.set()
        with self._lock:
            for task in self._tasks.values():
                if task.timer is not None:
                    task.timer.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, key: Key) -> None:
        with self._lock:
            task = self._tasks[key]
            task.state = "running"
        state, error = "", ""
        try:
            state = task.work(self._stop.is_set).state
        except PoisonError as refused:
            log.warning("Plan %s of queue %r, connection %r, does not go on: %s", key[2], key[1], key[0], refused)
            error = f"{type(refused).__name__}. The log of the API server says why."
        except Exception as failed:
            log.exception("Plan %s of queue %r, connection %r, does not go on", key[2], key[1], key[0])
            error = f"{type(failed).__name__}. The log of the API server says why."
        with self._lock:
            if state in _WAITS and not self._stop.is_set():
                task.state, task.timer = "later", Timer(self.again, self._once_more, [key])
                task.timer.daemon = True
                task.timer.start()
                return
            del self._tasks[key]
            if error:
                self._errors[key] = error
                while len(self._errors) > REMEMBERED:
                    self._errors.pop(next(iter(self._errors)))

    def _once_more(self, key: Key) -> None:
        with self._lock:
            if key in self._tasks and not self._stop.is_set():
                self._turns += 1
                self._tasks[key].state, self._tasks[key].turn = "waiting", self._turns
                self._pool.submit(self._run, key)

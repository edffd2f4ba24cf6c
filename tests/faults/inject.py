"""Faults: what happens to a run, and where. The run itself fires them, so a point is met exactly; only late kills come from outside."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_poison.values import fault_points
from tests.faults.ledger import note
from tests.faults.points import NEVER_RAISE

if TYPE_CHECKING:
    from collections.abc import Callable


class What(StrEnum):
    """What happens."""

    NOTHING = "nothing"
    KILL = "kill"  # SIGKILL at a point
    LATE = "late"  # SIGKILL from outside, some time after the start
    CHILD = "child"  # SIGKILL of the child of a server session, from outside
    BOTH = "both"  # the same, of its parent, too
    STOP = "stop"  # SIGSTOP at a point; woken when somebody has taken over
    ERROR = "error"  # an OSError at a point
    CALL = "call"  # an OSError in place of a system call
    FULL = "full"  # the kernel refuses to let files grow


ERRORS = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT)
CALLS = ("fsync", "link", "rename", "mkdir", "replace")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen to one run.

    :param point: where; empty: wherever the visit counts.
    :param visit: at the how many-th visit (of the point, of any point, or of a system call), from 1.
    :param seconds: after how long, for a late kill.
    :param number: the error's, or the largest size of a file.
    """

    what: What = What.NOTHING
    point: str = ""
    visit: int = 1
    seconds: float = 0.0
    number: int = 0


class Injector:
    """Carries a plan out in this process, once, and counts the points that were reached."""

    def __init__(self, plan: Plan) -> None:
        self.visited: Counter[str] = Counter()
        self._plan, self._fired, self._calls = plan, False, 0

    def install(self) -> None:
        fault_points.install(self._reached)
        if self._plan.what is What.CALL:
            for name in CALLS:
                setattr(os, name, self._failing(getattr(os, name)))
        elif self._plan.what is What.FULL:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            note("fault", what="full", point=str(self._plan.number))
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._plan.number, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def _reached(self, point: str) -> None:
        self.visited[point] += 1
        plan = self._plan
        if self._fired or plan.what not in {What.KILL, What.STOP, What.ERROR} or (plan.what is What.ERROR and point in NEVER_RAISE):
            return
        visits = self.visited[point] if plan.point else self.visited.total()
        if plan.point in {"", point} and visits == plan.visit:
            self._fired = True
            note("fault", what=plan.what.value, point=point, visited=dict(self.visited))
            self._fire()

    def _fire(self) -> None:
        match self._plan.what:
            case What.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case What.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                raise OSError(self._plan.number, os.strerror(self._plan.number), "injected")

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **named: Any) -> Any:
            self._calls += 1
            if not self._fired and self._calls == self._plan.visit:
                self._fired = True
                note("fault", what="call", point=call.__name__)
                raise OSError(self._plan.number, os.strerror(self._plan.number), "injected")
            return call(*arguments, **named)

        return instead

"""Chances: which task is begun next, and which fault it meets; a seed fixes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.actor import Task
from tests.faults.inject import ERRORS, Plan, What
from tests.faults.score import HOLDING
from tests.faults.world import Strangers

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actor import Place
    from tests.faults.score import Score

_ROLES = {
    "send": 24,
    "receive": 46,
    "return": 8,
    "alert": 8,
    "administer": 22,
    "redrive": 20,
    "declare": 1,
    "maintain": 9,
    "repair": 0.5,
    "intrude": 0,
    "damage": 0,
    "recover": 0,
}
_STRANGERS = 4
"""The weight of strangers, where there are any."""
_DAMAGERS = 12
"""The weight of those who damage files, where there are any."""
_FAULTS = {What.NOTHING: 14, What.KILL: 34, What.LATE: 14, What.STOP: 10, What.ERROR: 8, What.CALL: 4, What.FULL: 3}
_OF_RECEIVERS = _FAULTS | {What.STOP: 100}
_OF_SESSIONS = _FAULTS | {What.STOP: 70, What.CHILD: 30, What.BOTH: 15}
"""Of receivers whose handlers run in a process of their own."""
_IN_SESSIONS = 0.25
"""The share of such receivers."""
_OF_POISON = 0.6
"""The share of plans for the queue that has poison."""


class Chances:
    """What an episode tries.

    :param random: says what happens.
    :param score: asked which points have been met least.
    """

    def __init__(self, random: Random, place: Place, score: Score) -> None:
        self._random, self._queues, self._score = random, place.queues, score
        self._roles = _ROLES | {"intrude": _STRANGERS * (place.strangers is not Strangers.NONE), "damage": _DAMAGERS * place.damaged}
        self._installation = "one" if place.shared else ""

    def task(self, number: int) -> Task:
        """Return a new task."""
        role = self._random.choices([*self._roles], [*self._roles.values()])[0]
        returning = [name for name in self._queues if name in {"move", "reject"}]
        queue = self._random.choice(returning if role == "return" and returning else self._queues)
        queue = "move" if role == "redrive" and "move" in self._queues and self._random.random() < _OF_POISON else queue
        isolation = "process" if role == "receive" and self._random.random() < _IN_SESSIONS else "none"
        return Task(role, queue, f"{role}-{number}", self._random.getrandbits(40), isolation, self._installation)

    def plan(self, task: Task) -> Plan:
        """Return the fault that a try of a task meets."""
        chance, role = self._random, task.role
        faults = _FAULTS if role != "receive" else _OF_RECEIVERS if task.isolation == "none" else _OF_SESSIONS
        what = chance.choices([*faults], [*faults.values()])[0]
        match what:
            case What.LATE | What.CHILD | What.BOTH:
                return Plan(what, seconds=chance.uniform(0, 0.35))
            case What.CALL:
                return Plan(what, visit=chance.randint(1, 30), number=chance.choice(ERRORS))
            case What.FULL:
                return Plan(what, number=chance.choice([0, 1, 2_000, 5_000, 40_000]))
            case _:
                holding = what is What.STOP and role == "receive" and chance.random() < 0.9
                point = self._point(task, HOLDING if holding else ("",))
                return Plan(what, point, 1 if point else chance.randint(1, 9), number=chance.choice(ERRORS))

    def _point(self, task: Task, parts: tuple[str, ...]) -> str:
        """Return a point that such tasks reach, rather one where little has happened yet."""
        reached = sorted(point for point in self._score.visits_of(task) if point.startswith(parts))
        if not reached:
            return ""
        return self._random.choices(reached, [1 / (1 + self._score.faulted[point]) for point in reached])[0]

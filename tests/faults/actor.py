"""An actor: a task in the hands of a process of its own, and the place where it is done."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.passes import runs
from airflow_poison.store import open_store
from tests.faults.powerloss import Disk
from tests.faults.talks import TALKERS
from tests.faults.world import LEASE, TRANSFORMED, FastClock, Strangers, queues

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class Task:
    """What Airflow would run again under the same key.

    :param key: the DAG's, the run's and its own name: the same in two Airflows that run the same.
    :param seed: decides what it does; the same for every try.
    :param installation: the id of the Airflow that runs it; empty: of a version that had none.
    """

    role: str
    queue: str
    key: str
    seed: int
    isolation: str = "none"
    installation: str = ""

    @property
    def run_key(self) -> str:
        """Under what the store remembers it."""
        return runs.installed(self.installation, self.key)

    @property
    def name(self) -> str:
        """What no other task is called, whatever the product makes of its key."""
        return f"{self.key}~{self.installation}" if self.installation else self.key

    @property
    def kind(self) -> str:
        """What tasks have in common that reach the same points."""
        return f"{self.role} of a talker" if self.queue in TALKERS else f"{self.role} of rows" * (self.queue == TRANSFORMED) or self.role


@dataclass(frozen=True, slots=True)
class Place:
    """Where an episode takes place.

    :param origin: when its clock began.
    :param power: whether the power will fail.
    :param strangers: what writers that are not ours do.
    :param damaged: whether people damage files below its queues.
    :param shared: whether two Airflows use it that run the same DAGs.
    :param queues: those that it has.
    :param bucket: the URI of its store, where that is in an object store; its processes run on several nodes then.
    :param options: the storage options of that store.
    """

    folder: str
    origin: float
    power: bool = False
    strangers: Strangers = Strangers.NONE
    damaged: bool = False
    shared: bool = False
    queues: tuple[str, ...] = field(default_factory=lambda: (*queues(),))
    bucket: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def clock(self) -> FastClock:
        return FastClock(self.origin)

    @property
    def store(self) -> QueueStore:
        return open_store(self.bucket or f"{self.folder}/store", self.options)

    @property
    def lease(self) -> timedelta:
        """For how long a pass claims: requests to a bucket take their time, and are made again where they are harmed."""
        return 2 * LEASE if self.bucket else LEASE

    def node(self, name: str) -> Path:
        """Return the folder of a node, for what a machine loses with its disk."""
        return Path(self.folder, "nodes", name)

    @property
    def disk(self) -> Disk:
        return Disk(Path(self.folder, "store"), Path(self.folder, "memory"))


@dataclass(frozen=True)
class Actor:
    """A task in the hands of a process."""

    task: Task
    place: Place
    chance: random.Random

    @classmethod
    def of(cls, task: Task, place: Place) -> Actor:
        return cls(task, place, random.Random(task.seed))

    @property
    def clock(self) -> FastClock:
        return self.place.clock

    @cached_property
    def store(self) -> QueueStore:
        return self.place.store

    @cached_property
    def table(self) -> QueueTable:
        """The queue, opened when it is first asked for: a repair must not open what is refused."""
        return self.store.open(self.task.queue)

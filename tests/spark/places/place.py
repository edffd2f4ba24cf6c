"""Where Spark is: ``local[2]``, a standalone cluster, a Spark Connect server; each with a driver process that the tests call."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from airflow_poison.spark.session import get_session
from tests.given.drivers import SMALL
from tools.servers.spark import APPLICATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
LOCAL, CLUSTER, CONNECT = "local[2]", "standalone cluster", "Spark Connect"
NAMES = (LOCAL, CLUSTER, CONNECT)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Where:
    """What a driver is told of its Spark.

    :param name: one of ``NAMES``.
    :param master: as a connection's field ``spark`` says it.
    :param conf: as its field ``spark_conf``.
    """

    name: str
    master: str
    conf: Mapping[str, str]

    @classmethod
    def of(cls, name: str, url: str = "local[2]") -> Where:
        """A place of this name."""
        return cls(name, url, {LOCAL: SMALL, CLUSTER: {**SMALL, **APPLICATION}, CONNECT: {}}[name])

    def session(self) -> SparkSession:
        """Return the session of this process."""
        return get_session(self.master, self.conf)

    def start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a driver of its own, a module that is told its place first."""
        place = json.dumps([self.name, self.master])
        command = [sys.executable, "-m", module, place, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=os.environ | LOOPBACK)


LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@dataclass(frozen=True)
class Place:
    """A place with its driver process."""

    where: Where
    driver: ProcessPoolExecutor

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the driver, where ``session()`` gives the session; return what it returns, raise what it raises."""
        return self.begin(function, *args, **kwargs).result()

    def begin(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in the driver and do not wait for it."""
        return self.driver.submit(function, *args, **kwargs)


_where: Where | None = None


def session() -> SparkSession:
    """Return the session of the driver process that this is called in."""
    assert _where is not None, "called in a driver"
    return _where.session()


@contextmanager
def driven(where: Where, folder: Path) -> Iterator[Place]:
    """Start a place's driver process; end it, and its session, at the end.

    :param folder: its working directory, and that of its JVM.
    """
    os.environ.update(LOOPBACK)  # what is spawned has the environment of this process
    if where.name == LOCAL:
        del os.environ["SPARK_LOCAL_IP"]  # a local Spark keeps to loopback by itself
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (where, folder)) as driver:
        try:
            yield Place(where, driver)
        finally:
            driver.submit(_stop).result()


def _begin(where: Where, folder: Path) -> None:
    os.chdir(folder)
    _set_place(where)


def _set_place(where: Where) -> None:
    global _where  # noqa: PLW0603  (one place a process)
    _where = where


def _stop() -> None:
    session().stop()

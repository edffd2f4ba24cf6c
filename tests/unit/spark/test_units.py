"""How long a unit may take: what units before it took tells, where they had enough messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.delivery.units import Broke, Ran
from airflow_poison.spark import units
from airflow_poison.spark.units import ALLOWANCE, ENOUGH, TIMES_SLOWER, SparkUnits
from airflow_poison.values.failures import FailureKind

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

LIMIT = 60.0


def same(df: DataFrame) -> DataFrame:
    return df


class Clock:
    """Seconds that pass when a unit works."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Watched:
    """A job that works until it is cancelled."""

    cancelled = False

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def works(self) -> bool:
        return True

    def cancel(self) -> None:
        self.cancelled = True


class Stub:
    """Stands for Spark's jobs, the queue's table and the claim."""

    local, key, name, root, files = True, "run", "orders", "", ()

    def __init__(self, *_: object, **__: object) -> None:
        self.watched: list[Watched] = []

    def watch(self, *_: str, **__: bool) -> Watched:
        self.watched.append(Watched())
        return self.watched[-1]

    def stage(self, _claim: object) -> str:
        return ""

    def unread(self, _error: Exception) -> None:
        """Say that each file can be read."""

    def raw(self, *_: object, spread: bool) -> None:
        del spread


@pytest.mark.parametrize("times", [0.98, 1.05], ids=["in time", "late"])
@pytest.mark.parametrize(
    ("before", "allowed"),
    [
        ([], ALLOWANCE),
        ([(ENOUGH, 0.1)], TIMES_SLOWER * 0.1 / ENOUGH),
        ([(ENOUGH, 0.1), (1, 0.5)], TIMES_SLOWER * 0.1 / ENOUGH),
        ([(ENOUGH, 50.0)], ALLOWANCE),
    ],
    ids=["nothing is known", "a quick one", "a single message says nothing", "a slow one"],
)
def test_a_unit_may_take_some_times_what_one_before_it_took(
    before: list[tuple[int, float]], allowed: float, times: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, stub, takes = Clock(), Stub(), list[float]()
    monkeypatch.setattr(units, "time", clock)
    monkeypatch.setattr(units, "ClaimFrames", Stub)
    monkeypatch.setattr(SparkUnits, "_with_strict_bodies", lambda _self, *_, **_named: works())

    def works() -> Ran:
        """Work in steps of a hundredth of the time, and be looked at after each."""
        for _ in range(100):
            clock.now += takes[-1] / 100
            running.beat()
            if stub.watched[-1].cancelled:
                raise RuntimeError("cancelled")
        return Ran()

    any_of, ids = cast("Any", stub), np.arange(1, 10_001)
    running = SparkUnits(any_of, any_of, any_of, any_of, lookup_ids=ids, transformation=Transformation(same), folder=tmp_path, limit=LIMIT)
    for number, seconds in [*before, (len(ids), times * (LIMIT + allowed * len(ids)))]:
        takes.append(seconds)
        end = running.run(ids[:number], np.zeros(number, np.int32), lands=None)

    assert isinstance(end, Ran) if times < 1 else isinstance(end, Broke) and end.failure.kind is FailureKind.TIMEOUT

"""What runs units: the seam between their delivery and Spark, and its reports of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_poison.values.errors import SparkJobError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from airflow_poison.values.failures import Failure


@dataclass(frozen=True, slots=True)
class Ran:
    """A unit's job has ended.

    :param verdicts: the messages that its result names, by lookup id.
    :param unparsed: whose bodies do not parse, by lookup id; the transformation was not given them.
    """

    verdicts: Mapping[int, Failure] = field(default_factory=dict)
    unparsed: Mapping[int, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broke:
    """A unit's job has failed.

    :param failure: what its messages would be charged with.
    :param suspects: lookup ids of messages that were worked on when it did; empty: not known.
    :param traceable: they will be known when the unit fails again, with a trace.
    """

    failure: Failure
    suspects: tuple[int, ...] = ()
    traceable: bool = False


class UnitRunner(Protocol):
    """Transforms units. Several threads ask."""

    def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
        """Transform these messages.

        :param lookup_ids: ascending.
        :param attempts: rollbacks of each that are counted since its row was written.
        :param lands: keep the result under this number, without the rows of messages that are named; None: only see whether there is one.
        :param traced: keep in mind which messages are worked on, where that can be done: it takes time, and is only read when the unit fails.
        Raises PoisonError when that is no message's fault: none is charged.
        """
        ...

    def drop(self, lands: int) -> None:
        """Forget the result that was kept under a number."""
        ...

    def beat(self) -> None:
        """End what takes too long. Called every half second while units run."""
        ...

    def cancel(self) -> None:
        """End whatever runs."""
        ...

    def leave(self) -> None:
        """Let go of what the calling thread holds; it asks no more."""
        ...


class SparkLostError(SparkJobError):
    """Spark has ended while units ran: what was in flight may have done it."""

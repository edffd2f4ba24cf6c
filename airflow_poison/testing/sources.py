"""What every source has to hold, as tests: subclass ``SourceContract`` for a source of yours, and let pytest find it."""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_poison.passes.alter import declare
from airflow_poison.passes.take import TakeResult, positions, reset_position, take
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.sources.source import Position, Source
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.fault_points import install

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.mapping import ColumnMapping


class _StoppedError(BaseException):
    """Stands for the death of the process: nothing of ours catches it."""


class SourceContract(ABC):
    r"""Tests of a source. A subclass says how to make it, and how records come into it.

    ::

        class TestMyFeed(SourceContract):
            def source(self):
                return MyFeed(self.path)

            def add(self, bodies):
                self.path.open("a").writelines(f"{body}\n" for body in bodies)
    """

    mapping: ColumnMapping | None = None
    """Which columns become which parts of messages, for a source that has columns."""

    @abstractmethod
    def source(self) -> Source:
        """Return the source, anew for each call; it has nothing at the beginning of a test."""

    @abstractmethod
    def add(self, bodies: Sequence[str]) -> None:
        """Put records into what the source reads; each has a body of its own. The records of one call are there all together or not at all."""

    def body_of(self, message: bytes) -> str:
        """Return the body that a message was made of: as it is, unless the source makes something else of it."""
        return message.decode()

    # The tests --------------------------------------------------------------------------------------------------------

    def test_it_is_made_without_reading_and_travels(self) -> None:
        """A source can be pickled, and has the same name then."""
        assert pickle.loads(pickle.dumps(self.source())).name == self.source().name  # noqa: S301  (ours)

    def test_nothing_new_is_nothing(self) -> None:
        """An empty source yields nothing, and nothing is committed."""
        table = _queue()
        before = table.snapshot().version
        assert self._take(table).sent == 0
        assert table.snapshot().version == before

    def test_each_record_comes_once(self) -> None:
        """What was taken does not come again; what came since does."""
        table = _queue()
        for new in (["1", "2"], [], ["3"], ["4", "5"]):
            if new:
                self.add(new)
            assert self._take(table).sent == len(new)
        assert self._bodies(table) == ["1", "2", "3", "4", "5"]

    def test_a_position_is_plain_json(self) -> None:
        """A position survives JSON, and has a description in words."""
        table = _queue()
        self.add(["1"])
        self._take(table)
        (found,) = positions(table)
        assert json.loads(json.dumps(found.at)) == found.at
        assert found.position
        assert found.messages == 1

    def test_the_same_position_yields_the_same(self) -> None:
        """Planning changes nothing: two plans from one position have the same records, and come to the same position."""
        self.add(["1", "2", "3"])
        first, second = (self.source().plan(Position(), limit=None) for _ in range(2))
        assert first is not None
        assert second is not None
        taken = [[batch.to_pydict() for batch in each.batches()] for each in (first, second)]
        assert taken[0] == taken[1]
        assert first.reached().at == second.reached().at

    def test_a_limit_loses_nothing(self) -> None:
        """With a limit, several takes bring all."""
        table = _queue()
        for number in range(5):
            self.add([str(number)])
        while self._take(table, limit=2).sent:
            pass
        assert self._bodies(table) == ["0", "1", "2", "3", "4"]

    def test_died_before_the_commit_it_is_taken_again(self) -> None:
        """Dying at each point of a take loses nothing and doubles nothing."""
        for point in ("store.append.after_files", "store.append.after_position", "store.append.before_commit", "store.append.after_commit"):
            table = _queue()
            install(_dying_at(point))
            self.add([point])
            try:
                self._take(table)
            except _StoppedError:
                pass
            else:
                raise AssertionError(point)
            finally:
                install(None)
            self._take(table)
            assert self._bodies(table).count(point) == 1, point

    def test_two_at_once_take_each_record_once(self) -> None:
        """While one reads, another one takes the same: one commits, the other one looks again."""
        table = _queue()
        self.add(["1", "2"])
        taken: list[int] = []

        def meanwhile(point: str) -> None:
            if point == "store.append.after_files":
                install(None)
                taken.append(self._take(table).sent)

        install(meanwhile)
        try:
            taken.append(self._take(table).sent)
        finally:
            install(None)
        assert sorted(taken) == [0, 2]
        assert self._bodies(table) == ["1", "2"]

    def test_a_reset_position_begins_anew(self) -> None:
        """After a reset everything that the source still has comes again."""
        table = _queue()
        self.add(["1", "2"])
        self._take(table)
        assert reset_position(table, self.source().name, VirtualClock())
        self._take(table)
        assert self._bodies(table) == ["1", "1", "2", "2"]

    # Help -------------------------------------------------------------------------------------------------------------

    def _take(self, table: QueueTable, *, limit: int | None = None) -> TakeResult:
        _keys.append("")
        return take(table, self.source(), key=f"take-{len(_keys)}", clock=VirtualClock(), mapping=self.mapping, limit=limit)

    def _bodies(self, table: QueueTable) -> list[str]:
        rows: list[dict[str, Any]] = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
        return sorted(self.body_of(row["body"]) for row in rows)


_keys: list[str] = []


def _queue() -> QueueTable:
    return declare(MemoryStore(), "taken", Msmq4(), VirtualClock())


def _dying_at(point: str) -> Any:
    def reached(name: str) -> None:
        if name == point:
            raise _StoppedError

    return reached

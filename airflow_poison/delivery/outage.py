"""Outages: from the deliveries of one task to a verdict that all tasks of a pass, and a pass that takes it over, find beside its journals.

A task judges by its own last deliveries. What counts is an exception, by its fingerprint: a crash or a timeout ends a process, as a message does
that is poison, and is charged as ever. Deliveries of messages that were charged with the same type of exception in an earlier pass prove nothing:
poison that comes back from ``retry`` fails alike, and alone. Before it is sure a task tries other messages, once each and uncounted: poison lies
in heaps, an outage is everywhere. The verdict is a file in the folder of the journals; with it the pass is settled from the journals, as after a
death, without the attempts that failed so.
"""

from __future__ import annotations

import json
import os
import random
import secrets
from collections import Counter, deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.rules.outage import LEAST_MESSAGES
from airflow_poison.values.errors import BodyError
from airflow_poison.values.failures import FailureKind, PoisonRows, origin
from airflow_poison.values.fault_points import reach
from airflow_poison.values.machine import private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from airflow_poison.rules.outage import Outage
    from airflow_poison.values.failures import Failure

NOTE = "outage.json"
"""The name of the verdict's file in a folder of journals."""
_LONGEST_ERROR, _MOST_ERRORS, _MOST_REMEMBERED = 200, 1_000, 10_000
_OF_THE_MESSAGE = {f"{error.__module__}.{error.__qualname__}" for error in (PoisonRows, BodyError)}
_MOST_DOUBLINGS = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """What failed is no poison.

    :param fingerprint: that the failures share.
    :param error: the first of them, one line.
    :param at: when it was found, ISO 8601 in UTC.
    """

    fingerprint: str
    error: str
    at: str

    def write(self, folder: Path) -> None:
        """Put it beside the journals, whole; a later one takes the place of an earlier one. Nobody has to be told who has shut this holder out."""
        hidden = folder / f".{NOTE}.{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            with open(hidden, "w", encoding="utf-8", opener=private) as file:
                json.dump(asdict(self), file)
                file.flush()
                os.fsync(file.fileno())
            reach("delivery.outage.before_name")
            hidden.rename(folder / NOTE)
            reach("delivery.outage.after_name")

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the verdict in a folder of journals; None where there is none. One that cannot be read is none: its messages are charged."""
        try:
            told = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            datetime.fromisoformat(told["at"])
            int(told["fingerprint"], 16)
            return cls(str(told["fingerprint"]), str(told["error"]), str(told["at"]))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, LookupError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Detection:
    """The settings for outages that the tasks of a pass get; picklable.

    :param folder: of the journals: where the verdict is.
    :param expects: the fingerprint of the outage that the pass probes; empty: it probes none.
    """

    outage: Outage
    folder: str
    expects: str = ""

    @property
    def found(self) -> bool:
        """Whether some task has found an outage: nothing more is delivered."""
        return os.path.exists(f"{self.folder}/{NOTE}")  # noqa: PTH110  (asked for every failure)


class Window:
    """The last deliveries of a task, at most ``at_least``."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._ended: deque[tuple[str | None, bool]] = deque()
        self._alike = Counter[str]()
        self._first = Counter[str | None]()
        self._failing: dict[int, str] = {}
        self._succeeded = 0

    def succeeded(self, messages: int = 1) -> None:
        """Note messages that went well when they were delivered first."""
        self._succeeded += messages

    def failed(self, mark: str, lookup_id: int) -> None:
        """Note a delivery that failed.

        :param mark: the failure's fingerprint.
        """
        for _ in range(min(self._succeeded, self._outage.at_least)):
            self._add(None, first=True)
        self._succeeded = 0
        if len(self._failing) > _MOST_REMEMBERED:
            self._failing.clear()
        self._add(mark, first=lookup_id not in self._failing)
        self._failing[lookup_id] = mark

    def suspect(self, others: int) -> str | None:
        """Return the fingerprint that the last deliveries share, when they are enough to judge; None when they are not.

        The share counts messages, by their first deliveries: one bad message that is tried six times weighs as much as one good one.

        :param others: how many messages could be tried besides.
        """
        ended, outage = len(self._ended), self._outage
        if self._succeeded or not self._alike or ended + min(others, outage.tried_besides) < outage.at_least:
            return None
        mark, number = self._alike.most_common(1)[0]
        firsts = self._first.total()
        is_shared = self._first[mark] >= outage.share * firsts if firsts else number >= outage.share * ended
        return mark if is_shared else None

    def messages(self, mark: str) -> int:
        """Return how many messages have failed with a fingerprint."""
        return sum(each == mark for each in self._failing.values())

    def has_failed(self, lookup_id: int) -> bool:
        """Whether an earlier delivery of a message has failed."""
        return lookup_id in self._failing

    @property
    def all_alike(self) -> bool:
        """Whether every delivery failed with one fingerprint."""
        return len(self._alike) == 1 and self._alike.total() == len(self._ended) and not self._succeeded

    def clear(self) -> None:
        """Begin anew."""
        for counted in (self._ended, self._alike, self._first, self._failing):
            counted.clear()
        self._succeeded = 0

    def _add(self, mark: str | None, *, first: bool) -> None:
        if len(self._ended) == self._outage.at_least:
            gone, was_first = self._ended.popleft()
            _count(self._first, gone, -was_first)
            if gone is not None:
                _count(self._alike, gone, -1)
        self._ended.append((mark, first))
        _count(self._first, mark, first)
        if mark is not None:
            _count(self._alike, mark, 1)


def _count(numbers: Counter[Any], name: object, more: int) -> None:
    """Add to a number; what is zero is not there."""
    numbers[name] += more
    if not numbers[name]:
        del numbers[name]


class Watch:
    """Judges the deliveries of one delivering process.

    :param now: returns the time.
    :ivar hide: removes hidden values of the claimed messages from the text of a failure.
    :ivar probing: the task has not tried its first messages yet, to see whether the outage is over.
    """

    def __init__(self, detection: Detection, now: Callable[[], datetime]) -> None:
        self.detection, self._now = detection, now
        self.window = Window(detection.outage)
        self.hide: Callable[[str], str] = str
        self.probing = bool(detection.expects)
        self.over = detection.found
        self._errors: dict[str, str] = {}
        self._refuted = Counter[str]()

    def stopped(self) -> bool:
        """Whether an outage was found, here or in another task."""
        self.over = self.over or self.detection.found
        return self.over

    def mark(self, failure: Failure) -> str:
        """Return the fingerprint of a failure that may be an outage's; empty for one that is charged whatever others do."""
        if failure.kind is not FailureKind.EXCEPTION or failure.type in _OF_THE_MESSAGE:
            return ""
        found = origin(failure)
        if found not in self._errors:
            if len(self._errors) >= _MOST_ERRORS:
                self._errors.clear()
            self._errors[found] = f"{failure.type}: {self.hide(failure.text)}".splitlines()[0][:_LONGEST_ERROR]
        return found

    def ended(self, batch: pa.RecordBatch, row: int, lookup_id: int, failure: Failure | None) -> None:
        """Note the end of a delivery."""
        if failure is None:
            self.window.succeeded(not self.window.has_failed(lookup_id))
        elif (mark := self.mark(failure)) and not was_charged(batch, row, failure):
            self.window.failed(mark, lookup_id)

    def begin(self, rows: Sequence[int], attempt: Callable[[int], Failure | None]) -> bool:
        """Try the first messages of a task that probes; whether the outage goes on.

        :param rows: of a batch, which may be received now.
        :param attempt: delivers the message of a row, uncounted when it fails.
        """
        if not rows:
            return False
        self.probing = False
        tried, alike = self._try(rows[: self.detection.outage.probe], attempt, self.detection.expects)
        if alike >= self.detection.outage.share * tried:
            return self._found(self.detection.expects)
        self.window.clear()
        return False

    def judge(self, others: Sequence[int], attempt: Callable[[int], Failure | None]) -> bool:
        """Return whether this is an outage, as the last deliveries say and as other messages do that are tried now.

        :param others: rows of the batch that may be received now, in their order.
        """
        mark = self.window.suspect(len(others))
        return False if mark is None else self._confirm(mark, others, attempt, alone=self.window.all_alike)

    def judge_batch(self, failure: Failure, messages: int, others: Sequence[int], attempt: Callable[[int], Failure | None]) -> bool:
        """Return whether a batch of many has failed for an outage. Other messages decide, one by one: first one, and more where that fails, too.

        :param messages: in the batch; with fewer than are enough to judge, the search decides.
        """
        return messages >= self.detection.outage.at_least and bool(self.mark(failure)) and self._confirm("", others, attempt, alone=False)

    def doubt(self, failure: Failure | None, others: Sequence[int], attempt: Callable[[int], Failure | None], *, resumed: bool = False) -> bool:
        """Return whether a failure for which the endpoint would halt, or block its queue, is an outage's: other messages are tried now.

        :param failure: the last one of the message; None: it had none in this process.
        :param resumed: it had some in one that died, which are not known here: the failures of others decide.
        """
        if failure is None and resumed and not self.stopped():
            return self._confirm("", others, attempt, alone=False)
        mark = "" if failure is None else self.mark(failure)
        if mark and self.stopped():
            verdict = Verdict.read(Path(self.detection.folder))
            return verdict is not None and verdict.fingerprint == mark
        return bool(mark) and self._confirm(mark, others, attempt, alone=False)

    def _confirm(self, mark: str, others: Sequence[int], attempt: Callable[[int], Failure | None], *, alone: bool) -> bool:
        """Try other messages, twice as many as the last time: what was poison before in this pass, rather is it again."""
        outage, failed = self.detection.outage, max(1, self.window.messages(mark))
        if len(others) < LEAST_MESSAGES - 1:
            return self._found(mark) if alone and failed >= LEAST_MESSAGES else False
        most = max(outage.tried_besides, LEAST_MESSAGES - 1) << min(self._refuted[mark], _MOST_DOUBLINGS)
        chosen = some(others, most)
        if not mark:
            first = attempt(chosen[0])
            mark, chosen = "" if first is None else self.mark(first), chosen[1:]
            if not mark:
                return False
        tried, alike = self._try(chosen, attempt, mark)
        if alike >= outage.share * tried and failed + alike >= LEAST_MESSAGES:
            return self._found(mark)
        self._refuted[mark] += 1
        self.window.clear()
        return False

    def _try(self, rows: Sequence[int], attempt: Callable[[int], Failure | None], mark: str) -> tuple[int, int]:
        """Deliver messages, uncounted when they fail, until too few fail alike for the share; return how many there are, and how many failed so."""
        alike, enough = 0, self.detection.outage.share * len(rows)
        for number, row in enumerate(rows):
            failure = attempt(row)
            alike += failure is not None and self.mark(failure) == mark
            if alike + len(rows) - number - 1 < enough:
                break
        return len(rows), alike

    def _found(self, mark: str) -> bool:
        self.over = True
        Verdict(mark, self._errors.get(mark, ""), self._now().isoformat()).write(Path(self.detection.folder))
        return True


def some(rows: Sequence[int], most: int) -> list[int]:
    """Return at most so many rows, from all over, in their order. By chance: what is bad may come at regular distances."""
    if len(rows) <= most:
        return list(rows)
    return [rows[place] for place in sorted(random.Random(len(rows)).sample(range(len(rows)), most))]  # noqa: S311  (no secret)


def was_charged(batch: pa.RecordBatch, row: int, failure: Failure) -> bool:
    """Whether an earlier pass has charged a message with the same type of exception."""
    before = batch.column("last_error")[row].as_py()
    return before is not None and (before["kind"], before["type"]) == (failure.kind.value, failure.type)

"""The search for culprits of a unit: it is cut and halved until a message fails alone. No other one is charged; successes are kept."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from airflow_poison.delivery.handlers import VERDICT
from airflow_poison.delivery.outage import Watch, some
from airflow_poison.delivery.sessions.search import unstable
from airflow_poison.delivery.units.delivery import Broke, Ran
from airflow_poison.values.errors import ReceiveStoppedError
from airflow_poison.values.failures import FailureKind
from airflow_poison.values.fault_points import reach
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.delivery.units.counts import ClaimCounts, Rows
    from airflow_poison.delivery.units.delivery import UnitRunner
    from airflow_poison.values.failures import Failure

    Charge = Callable[[Mapping[int, Failure]], None]
    Landed = list[tuple[int, Rows]]  # numbers of results that are kept, with the rows of their messages

PIECE_ROWS, PIECES = 4_000, 16
"""A larger unit that fails is cut into so many pieces before culprits are searched for: what a search repeats is small then."""
MOST_SEARCHES = 1_000
"""So many culprits are looked for in a pass. What is left of the units that failed stays in the queue for the next one, uncounted."""
WAYS_AFTER_HANG = 16
"""Into so many parts a unit that took too long is cut: each step costs a timeout."""
FEW = 4
"""So many suspects are tried alone; of more, fewer are found first."""
ASKED = 5
"""So many messages of a unit that fails are tried alone to see whether it is an outage: each is a job."""
TOLD_SECONDS, TOLD_ALIKE_SECONDS = 10.0, 60.0
"""Between two lines about how far a claim is, and between two that say the same."""


class _Unit(NamedTuple):
    """A unit that is delivered, whole or in parts.

    :param charge: called with messages that were named or have failed alone.
    :param landed: takes the results that are kept.
    """

    charge: Charge
    landed: Landed


class OutageFound(Exception):  # noqa: N818  (no error: it ends the delivery)
    """Messages fail alike, and not for what they are."""


class UnitSearch:
    """Runs units of a claim, and looks for culprits where one fails. Several threads ask.

    :param piece_rows: a larger unit that fails is cut before it is searched.
    :param tell: called with lines for people.
    :param watch: for outages; None: every failure counts for a message.
    :ivar units: how many have begun.
    :ivar unstable: reports of units that failed although their parts did not.
    """

    def __init__(
        self, counts: ClaimCounts, runner: UnitRunner, tell: Callable[[str], None], piece_rows: int = PIECE_ROWS, watch: Watch | None = None
    ) -> None:
        self._counts, self._runner, self._tell, self._piece_rows, self._watch = counts, runner, tell, piece_rows, watch
        self._judging = threading.Lock()
        self.units = self._searches = 0
        self.unstable: list[Mapping[str, str]] = []
        self._lock, self._stopping = threading.Lock(), False
        self._alone, self._searched_for = set[int](), set[str]()
        self._began = self._told_at = time.monotonic()
        self._told: tuple[int, int] | None = None

    def stop(self) -> None:
        """Run no further unit."""
        self._stopping = True

    def run(self, rows: Rows, *, lands: bool = False, traced: bool = False) -> tuple[int, Ran | Broke]:
        """Run a unit, whose messages are marked as in flight meanwhile; return its number and what became of it.

        :param lands: its result is kept under that number.
        :param traced: when it fails, it says who was worked on.
        """
        if self._stopping:
            raise ReceiveStoppedError("The pass was left. Its claim stays: run it again.")
        with self._lock:
            self.units += 1
            number = self.units
        self._counts.begin(rows)
        reach("frames.unit.before")
        rows = rows[np.argsort(self._counts.lookup_ids[rows])]
        end = self._runner.run(self._counts.lookup_ids[rows], self._counts.attempts(rows), lands=number if lands else None, traced=traced)
        reach("frames.unit.after")
        self._counts.end(rows)
        return number, end

    def deliver(self, rows: Rows, charge: Charge) -> Landed:
        """Deliver each message of a unit once, and keep the results of those that succeed.

        :param charge: called with messages that were named or have failed alone, as soon as that is known.
        """
        unit = _Unit(charge, [])
        self._deliver(rows, unit)
        return unit.landed

    def _deliver(self, rows: Rows, unit: _Unit, *, traced: bool = False) -> bool:
        """Deliver a unit or a part of it; return whether a culprit was found, or may be.

        :param traced: it, or what it is a part of, has failed.
        """
        found = False
        while len(rows):
            began = time.monotonic()
            number, end = self.run(rows, lands=True, traced=traced)
            if isinstance(end, Broke):
                self.judge(rows, end.failure)
                self._tell_search(rows, end.failure, time.monotonic() - began)
                if end.traceable:
                    untraced, traced = end.failure, True
                    number, end = self.run(rows, lands=True, traced=True)
                    if isinstance(end, Ran):
                        self.tell_unstable(rows, self._counts.said(untraced))
            if isinstance(end, Ran):
                self._keep(rows, number, end, unit)
                return found
            if len(rows) == 1:
                self._alone.add(int(rows[0]))
                unit.charge({int(rows[0]): end.failure})
                return True
            if self._searches >= MOST_SEARCHES:
                self._tell(
                    f"{MOST_SEARCHES:,} messages have failed alone in this pass. {counted(len(rows), 'message')} of a unit that failed stay in the "
                    f"queue for the next pass, uncounted. Where so many fail, let the transformation name them in a column {VERDICT}: that is one job"
                )
                return True
            if len(rows) > self._piece_rows and (found or not end.suspects):  # one culprit is taken out of it, with marks; then it is cut
                return self._in_parts(rows, PIECES, end.failure, unit) or found
            culprits = self.culprits(rows, end)
            if not culprits:
                return self._in_parts(rows, 2, end.failure, unit) or found
            self._alone |= culprits.keys()
            unit.charge(culprits)
            found, rows = True, rows[~np.isin(rows, list(culprits))]
        return found

    def _in_parts(self, rows: Rows, parts: int, failure: Failure, unit: _Unit) -> bool:
        found = [self._deliver(part, unit, traced=True) for part in np.array_split(rows, parts)]
        if not any(found):
            self.tell_unstable(rows, self._counts.said(failure))
        return any(found)

    def _keep(self, rows: Rows, number: int, ran: Ran, unit: _Unit) -> None:
        told = {**ran.unparsed, **ran.verdicts}
        named = {row: told[lookup_id] for lookup_id, row in self._counts.rows_of(told).items()}
        good = rows[~np.isin(rows, list(named))]
        self._counts.good[good] = True
        unit.landed.append((number, good))
        if named:
            unit.charge(named)

    def culprits(self, rows: Rows, broke: Broke) -> dict[int, Failure]:
        """Return messages of a failed unit that fail alone, with their failures: of the suspects all, else one; none where none does.

        Of a unit that is cut in two, the second part must be it when the first one succeeds.
        """
        self._searches += 1
        suspects, rows = self._fewer(rows, broke)
        found = {row: why for row in suspects if (why := self._failure_alone(row)) is not None}
        if found:
            return found
        ways = WAYS_AFTER_HANG if broke.failure.kind is FailureKind.TIMEOUT else 2
        failure: Failure | None = None
        while len(rows) > 1:
            *parts, last = np.array_split(rows, min(ways, len(rows)))
            rows, failure = last, None
            for part in parts:
                _, end = self.run(part)
                if isinstance(end, Broke):
                    rows, failure = part, end.failure
                    break
        row = int(rows[0])
        failure = failure or self._failure_alone(row)
        return {} if failure is None else {row: failure}

    def _fewer(self, rows: Rows, broke: Broke) -> tuple[list[int], Rows]:
        """Return the suspects that are left when units of them have named fewer, and the rows among which a culprit is."""
        suspects = self._among(rows, broke)
        while len(suspects) > FEW:
            _, end = self.run(suspects, traced=True)
            if isinstance(end, Ran):
                return [], rows
            rows, before, suspects = suspects, len(suspects), self._among(suspects, end)
            if len(suspects) == before:
                break
        return suspects.tolist(), rows

    def _among(self, rows: Rows, broke: Broke) -> Rows:
        """Return the suspects of a unit."""
        return rows[np.isin(self._counts.lookup_ids[rows], broke.suspects)]

    def judge(self, rows: Rows, failure: Failure) -> None:
        """Raise OutageFound when other messages of a unit that has failed do so alone, and alike. A pass that probes tries all it has."""
        watch = self._watch
        if watch is None:
            return
        with self._judging:
            if watch.probing:
                found = watch.begin(rows.tolist(), self._failure_alone)
            else:
                found = watch.stopped() or (len(rows) > 1 and watch.doubt(failure, some(rows.tolist(), ASKED), self._evidence))
        if found:
            raise OutageFound

    def _failure_alone(self, row: int) -> Failure | None:
        _, end = self.run(np.array([row]))
        return end.failure if isinstance(end, Broke) else None

    def _evidence(self, row: int) -> Failure | None:
        """Try a message alone; return its evidence of an outage."""
        failure = self._failure_alone(row)
        return None if failure is None or self._counts.was_charged(row, failure) else failure

    def tell_unstable(self, rows: Rows, error: str) -> None:
        """Note that a unit failed, and its parts did not."""
        self._tell(f"{counted(len(rows), 'message')} failed together ({error}), and none of them alone: nobody is charged")
        self.unstable.append(unstable(np.sort(self._counts.lookup_ids[rows]).tolist(), error))

    def _tell_search(self, rows: Rows, failure: Failure, seconds: float) -> None:
        """Say, once for each error, that culprits are looked for, why, what would name them, and what finding one costs."""
        with self._lock:
            if len(rows) == 1 or failure.type in self._searched_for:
                return
            self._searched_for.add(failure.type)
        self._tell(
            f"{counted(len(rows), 'message')} failed together ({self._counts.said(failure)}): the pass looks for those that fail alone. Each takes "
            f"up to {2 * len(rows).bit_length()} jobs; the one that failed took {seconds:.1f} s. A column {VERDICT} that says why a row is bad (for "
            "a cast, where try_cast is null) names all of them in one job, without a search"
        )

    def tell_progress(self) -> None:
        """Say how far the claim is when it is time to, and how long the rest takes where it goes on so."""
        now, good, alone = time.monotonic(), int(self._counts.good.sum()), len(self._alone)
        since, found = now - self._told_at, (good, alone)
        if since < TOLD_SECONDS or (found == self._told and since < TOLD_ALIKE_SECONDS):
            return
        self._told_at, self._told = now, found
        seconds, done, every = now - self._began, good + alone, len(self._counts.good)
        fail = f", {alone:,} found that fail alone" if alone else ""
        rest = f"; the rest may take {seconds * max(every - done, 0) / done:.0f} s" if done else ""
        self._tell(f"{good:,} of {every:,} messages transformed after {seconds:.0f} s and {counted(self.units, 'unit')}{fail}{rest}")

"""Delivery by data frames: which messages are transformed together, who is a culprit when that fails, and what is counted. Knows no Spark.

A *unit* is a set of messages that are transformed in one job. When the job ends, its messages are delivered but those that it names (by a verdict,
or because a body does not parse). When it fails, its culprits are looked for: suspects that the runner names are tried alone, else the unit is
halved. Only a message that was named, or that failed alone, is charged; what the policy makes of it is asked of the policy (``shared_ends``).

What has to survive a death stands in an attempt journal (sessions/journal.py), whose one section holds all messages of the claim, and which is
forced to disk at each step: a unit's messages are in flight while it runs, and an attempt is counted as soon as it is known. A success is not noted:
a transformation has no effects, so whoever takes the claim over runs it again. So what was in flight at a death is what may have caused it; the
next holder runs it in smaller and smaller units, one after the other, until a single message is in flight when everything dies.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from airflow_poison.core.delivery.ends import Delivered, Stay, shared_ends
from airflow_poison.core.delivery.sessions.failurelog import FailureLog, Rollback
from airflow_poison.core.delivery.sessions.journal import (
    COUNT_MASK,
    MAX_ATTEMPTS,
    SETTLED,
    MessageState,
    attempts_of,
    counted,
    states_of,
)
from airflow_poison.core.delivery.sessions.rows import BatchEntry
from airflow_poison.core.delivery.sessions.session import BatchReport, report_words
from airflow_poison.core.delivery.sessions.verdicts import type_name
from airflow_poison.core.delivery.settlement import Settler
from airflow_poison.core.delivery.stage import Tally, landing, tally_row
from airflow_poison.core.delivery.transform import VERDICT
from airflow_poison.core.errors import BodyError, ReceiveStoppedError, SparkJobError
from airflow_poison.core.failures import Failure, FailureKind
from airflow_poison.core.fault_points import reach
from airflow_poison.core.policies.decisions import Counts, Deliver, Halt
from airflow_poison.core.texts import counted as number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from airflow_poison.core.delivery.sessions.journal import Journal
    from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts
    from airflow_poison.core.delivery.stage import StageJob

    Rows = NDArray[np.intp]

T = TypeVar("T")

CHUNK_ROWS = 64_000
"""About so many messages are transformed in one job: what a failure repeats."""
PIECE_ROWS, PIECES = 4_000, 16
"""A larger unit that fails is cut into so many pieces before culprits are searched for: what a search repeats is small then."""
MOST_SEARCHES = 1_000
"""So many culprits are looked for in a pass. What is left of the units that failed stays in the queue for the next one, uncounted."""
CAREFUL_PARTS = 64
"""Into so many units the suspects of a death are cut."""
WAYS_AFTER_HANG = 16
"""Into so many parts a unit that took too long is cut: each step costs a timeout."""
BEAT_SECONDS = 0.5
TOLD_SECONDS = 10.0
"""Between two lines about how far a claim is."""
LAST_SECONDS = 10.0
"""How long a delivery that is ended waits for its units."""
UNPARSED = type_name(BodyError(""))
"""The type of failures of bodies that do not parse."""
NAMED = frozenset({VERDICT, UNPARSED})
"""Types of failures that a unit tells of its messages, without failing itself."""


# What a runner of units tells


@dataclass(frozen=True, slots=True)
class Ran:
    """A unit's job has ended.

    :param verdicts: whom its result names, by lookup id.
    :param unparsed: whose bodies do not parse, by lookup id; the transformation was not given them.
    """

    verdicts: Mapping[int, Failure] = field(default_factory=dict)
    unparsed: Mapping[int, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broke:
    """A unit's job has failed.

    :param failure: what its messages would be charged with.
    :param suspects: lookup ids of messages that were worked on when it did; empty: nobody knows.
    """

    failure: Failure
    suspects: tuple[int, ...] = ()


class UnitRunner(Protocol):
    """Transforms units. Several threads ask."""

    def run(self, lookup_ids: NDArray[np.int64], *, lands: int | None) -> Ran | Broke:
        """Transform these messages.

        :param lookup_ids: ascending.
        :param lands: keep the result under this number, without the rows of messages that are named; None: only see whether there is one.
        Raises PoisonError when that is no message's fault: nobody is charged.
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


# The delivery


@dataclass(frozen=True, slots=True)
class FrameRules:
    """How a claim is transformed.

    :param side_by_side: how many units run at the same time.
    :param mixes_rows: the claim is one unit.
    :param chunk_rows: messages of a unit, about.
    :param piece_rows: a larger unit that fails is cut before it is searched.
    """

    side_by_side: int = 1
    mixes_rows: bool = False
    chunk_rows: int = CHUNK_ROWS
    piece_rows: int = PIECE_ROWS


@dataclass(frozen=True, slots=True)
class FrameOutcome:
    """What became of the messages of a claim.

    :param lookup_ids: of all its messages.
    :param words: one for each, as server sessions report them.
    :param failures: the last failure by lookup id, of messages that are not committed.
    :param before: whether an earlier try had delivered each to a handler, whose rows land.
    :param timeouts: deliveries that took too long.
    :param units: jobs that ran.
    """

    lookup_ids: NDArray[np.int64]
    words: NDArray[np.int32]
    failures: Mapping[int, Failure]
    before: NDArray[np.bool_]
    timeouts: int = 0
    units: int = 0


class FrameDelivery:
    """Delivers the messages of a claim to a transformation, once.

    :param messages: all messages of the claim: columns of ``message_schema()`` and ``move_count``; null may be what the policy does not read.
    :param carry: what earlier holders of the claim had counted and ended.
    :param journal: forced to disk.
    :param deaths: of the suspects of earlier deaths, by lookup id: at how many each was in flight.
    :param tell: told lines for people.
    """

    def __init__(
        self,
        job: StageJob,
        messages: pa.RecordBatch,
        runner: UnitRunner,
        journal: Journal,
        *,
        carry: RecoveredAttempts,
        rules: FrameRules = FrameRules(),
        deaths: Mapping[int, int] | None = None,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._job, self._messages, self._runner, self._rules, self._tell = job, messages, runner, rules, tell
        self._ids: NDArray[np.int64] = messages.column("lookup_id").to_numpy(zero_copy_only=False).astype(np.int64)
        self._sorted = np.argsort(self._ids, kind="stable")
        self._deaths = deaths or {}
        self._journal, self._log = journal, FailureLog(journal.log_descriptor)
        initial = carry.words_for(self._ids)
        self._section = journal.append(self._ids, initial)
        self._words = self._section.as_array()
        self._failures: dict[int, Failure] = {row: carry.failures[number] for number, row in self._rows_of(carry.failures).items()}
        self._good = np.zeros(len(self._ids), bool)
        self._once = np.zeros(len(self._ids), bool)
        self._places = _places(self._ids, _numbers(messages, "priority"))
        self._lock, self._stopping = threading.Lock(), False
        self._units = self._searches = self._timeouts = 0
        self._told_at = time.monotonic()
        self._halted = False

    def run(self, keep_alive: Callable[[], None]) -> FrameOutcome:
        """Deliver.

        :param keep_alive: called twice a second; what it raises ends the delivery.
        Raises what a unit raises, and SparkJobError where the claim fails as one and none of its messages does.
        """
        try:
            rows, ending = self._received()
            if self._rules.mixes_rows:
                self._decide(ending, before=True)
                self._supervised([partial(self._as_one, rows)], 1, keep_alive)
            elif self._job.policy.halting:
                self._supervised([partial(self._one_after_the_other, rows, ending)], 1, keep_alive)
            else:
                self._decide(ending, before=True)
                self._side_by_side(rows, keep_alive)
        except SparkLostError as lost:
            raise SparkJobError(str(lost)) from lost  # the marks stay
        except BaseException:
            self._give_back()
            raise
        self._give_back()
        return self._outcome()

    def _give_back(self) -> None:
        """Mark nothing as in flight any more; what was counted stays so."""
        self._words[states_of(self._words) == MessageState.IN_FLIGHT] &= COUNT_MASK
        self._journal.force()

    def _outcome(self) -> FrameOutcome:
        words = self._words.copy()
        words[self._good] = words[self._good] & COUNT_MASK | MessageState.COMMITTED
        words = report_words(words)
        failed = np.flatnonzero(states_of(words) != MessageState.COMMITTED)
        failures = {int(self._ids[row]): self._failures[row] for row in failed.tolist() if row in self._failures}
        before = states_of(np.asarray(self._words)) == MessageState.CARRIED
        return FrameOutcome(self._ids, words, failures, before, self._timeouts, self._units)

    # What a receive makes of a message before any delivery ------------------------------------------------------------

    def _received(self) -> tuple[Rows, Rows]:
        """Return the rows that are delivered, and those whose receive ends them without a delivery; in queue order.

        The policy is asked once for messages with the same facts. What is behind a message that had halted the endpoint is not received.
        """
        halts = np.flatnonzero(states_of(self._words) == MessageState.HALTED)
        rows = np.flatnonzero(~np.isin(states_of(self._words), SETTLED))
        if len(halts):
            self._halted = True
            rows = rows[self._places[rows] < self._places[halts].min()]
        rows = rows[np.argsort(self._places[rows], kind="stable")]
        ending = np.zeros(len(self._ids), bool)
        for alike in self._alike(rows):
            first = int(alike[0])
            if attempts_of(int(self._words[first])):
                ending[alike] = not self._goes_on(alike[:1])
                continue
            decision = self._unreadable(first) or self._before(first)
            ending[alike] = not isinstance(decision, Deliver)
            self._once[alike] = isinstance(decision, Deliver) and decision.at_most_once
        return rows[~ending[rows]], rows[ending[rows]]

    def _unreadable(self, row: int) -> Failure | None:
        """Ask the policy whether the message can be handed over at all (spec WCF-29)."""
        why = self._job.policy.unreadable(self._entry(row))
        if why is None:
            return None
        failure = self._failures[row] = Failure(FailureKind.UNREADABLE, "unreadable", why)
        return failure

    def _before(self, row: int) -> object:
        job = self._job
        return job.policy.open(job.opening).before(self._entry(row), job.clock.now())

    def _entry(self, row: int) -> BatchEntry:
        return Delivered(self._messages, self._words, {}, self._job.clock.now()).entry(row)

    def _alike(self, rows: Rows) -> Iterator[Rows]:
        """Yield rows whose messages have the same facts: their decisions are the same."""
        if not len(rows):
            return
        words = np.asarray(self._words)[rows].astype(np.int64)
        columns = [words, _numbers(self._messages, "abort_count")[rows], _numbers(self._messages, "move_count")[rows]]
        expire = self._messages.column("expires_at").null_count < self._messages.num_rows
        limited = self._job.policy.unreadable(BatchEntry(0, 0, LARGEST_BODY, None, Counts())) is not None
        each = expire or limited or self._job.policy.reads_properties
        columns.append(rows.astype(np.int64) if each else np.where(words > MessageState.HALTED, rows, -1))
        _, which = np.unique(np.stack(columns), axis=1, return_inverse=True)
        order = np.argsort(which, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
            yield rows[np.sort(part)]

    # Side by side: nothing depends on anything else -------------------------------------------------------------------

    def _side_by_side(self, rows: Rows, keep_alive: Callable[[], None]) -> None:
        """Deliver suspects of earlier deaths, then all others, then who may be tried again, until nobody is left."""
        charged: list[Rows] = []
        suspects, rest = self._suspects(rows)
        for unit in suspects:
            charged += self._supervised([partial(self._settle, unit)], 1, keep_alive)
        known = attempts_of(np.asarray(self._words)[rest]) > 0
        charged.append(rest[known])
        units = self._chunks(rest[~known])
        while units or (units := self._again(charged)):
            charged += self._supervised([partial(self._settle, unit) for unit in units], self._rules.side_by_side, keep_alive)
            units = []

    def _suspects(self, rows: Rows) -> tuple[list[Rows], Rows]:
        """Return the units of suspects, those who were in flight at most deaths first, and the other rows."""
        if not self._deaths:
            return [], rows
        deaths = np.array([self._deaths.get(number, 0) for number in self._ids[rows].tolist()])
        units: list[Rows] = []
        for most in sorted({*deaths.tolist()} - {0}, reverse=True):
            members = rows[deaths == most]
            size = -(-len(members) // CAREFUL_PARTS)
            units += [members[start : start + size] for start in range(0, len(members), size)]
        careful = number_of(int((deaths > 0).sum()), "message")
        self._tell(f"{careful} were worked on when everything died: they are transformed first, in {number_of(len(units), 'small unit')}")
        return units, rows[deaths == 0]

    def _chunks(self, rows: Rows) -> list[Rows]:
        parts = -(-len(rows) // self._rules.chunk_rows)
        return np.array_split(rows[np.argsort(self._ids[rows], kind="stable")], parts) if parts else []

    def _again(self, charged: list[Rows]) -> list[Rows]:
        """Return the units of a further delivery, and forget them: who was named is delivered together, who failed alone is alone again."""
        rows = np.unique(np.concatenate([np.empty(0, np.intp), *charged]))
        charged.clear()
        rows = rows[self._is_open(rows)]
        alone = np.array([self._failures[row].type not in NAMED for row in rows.tolist()], bool)
        if not len(rows):
            return []
        return [*self._chunks(rows[~alone]), *np.split(rows[alone], int(alone.sum()))] if alone.any() else self._chunks(rows)

    def _is_open(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a further delivery follows."""
        words = np.asarray(self._words)[rows]
        is_open: NDArray[np.bool_] = ~np.isin(states_of(words), SETTLED) & (attempts_of(words) < MAX_ATTEMPTS) & ~self._good[rows]
        return is_open

    def _settle(self, rows: Rows) -> Rows:
        """Deliver each message of a unit once; return who was charged."""
        charged: list[int] = []

        def failed(some: Mapping[int, Failure]) -> None:
            self._charge(some)
            charged.extend(some)

        self._deliver(rows, failed)
        return np.array(charged, np.intp)

    # In queue order, where a message may halt the endpoint ------------------------------------------------------------

    def _one_after_the_other(self, rows: Rows, ending: Rows) -> Rows:
        """Deliver unit after unit. Within one, culprits are charged in queue order; what is behind one that halts is as if never delivered."""
        both = np.concatenate([rows, ending])
        both = both[np.argsort(self._places[both], kind="stable")]
        ends = np.isin(both, ending)
        for run in np.split(both, np.flatnonzero(ends[1:] | ends[:-1]) + 1):
            if len(run) and run[0] in ending:
                self._decide(run, before=True)
            elif len(run):
                parts = -(-len(run) // self._rules.chunk_rows)
                for unit in np.array_split(run, parts):
                    self._in_turn(unit)
                    if self._halted:
                        break
            if self._halted:
                break
        return rows

    def _in_turn(self, unit: Rows) -> None:
        failed: dict[int, Failure] = {}
        landed = self._deliver(unit, failed.update)
        for row in unit[np.isin(unit, list(failed))].tolist():
            self._until_it_ends(row, failed[row])
            if self._halted:
                self._undo_behind(self._places[row], landed)
                return

    def _until_it_ends(self, row: int, failure: Failure) -> None:
        """Charge a message, and deliver it alone until it succeeds or has ended."""
        while True:
            self._charge({row: failure})
            if not self._is_open(np.array([row]))[0]:
                return
            failed: dict[int, Failure] = {}
            self._deliver(np.array([row]), failed.update)
            if row not in failed:
                return
            failure = failed[row]

    def _undo_behind(self, place: int, landed: Sequence[tuple[int, Rows]]) -> None:
        """Let what was delivered behind a place be undelivered: its results go, those of messages before the place are made again."""
        for number, rows in landed:
            behind = self._places[rows] > place
            if behind.any():
                self._runner.drop(number)
                self._good[rows] = False
                self._deliver(rows[~behind], lambda _failed: None)

    # All as one unit --------------------------------------------------------------------------------------------------

    def _as_one(self, rows: Rows) -> Rows:
        """Deliver all or nothing: who fails alone, or is named, is charged; once it has ended, the rest is one unit again."""
        while len(rows):
            number = self._next_unit()
            end = self._run(rows, number)
            if isinstance(end, Ran):
                named = {row: end.verdicts[lookup_id] for lookup_id, row in self._rows_of(end.verdicts).items()}
                unparsed = {row: end.unparsed[lookup_id] for lookup_id, row in self._rows_of(end.unparsed).items()}
                for row, failure in unparsed.items():
                    while self._is_open(np.array([row]))[0]:  # its body is the same at each delivery
                        self._charge({row: failure})
                rows = rows[~np.isin(rows, list(unparsed))]
                if not named:
                    self._good[rows] = True
                    return rows
                self._runner.drop(number)
                self._charge(named)
            else:
                culprits = {int(rows[0]): end.failure} if len(rows) == 1 else self._culprits(rows, end)
                if not culprits:
                    raise SparkJobError(
                        f"The transformation of {number_of(len(rows), 'message')} as one unit failed: {end.failure.type}: {end.failure.text}\n"
                        "None of them fails alone, so nobody is charged, and nothing was committed. Look for what the unit as a whole needs: memory, "
                        "time (the policy's transaction timeout), a table that it joins with; then run the task again."
                    )
                for row, failure in culprits.items():
                    self._alone_until_it_ends(row, failure)
            rows = rows[self._is_open(rows)]
        return rows

    def _alone_until_it_ends(self, row: int, failure: Failure) -> None:
        """Charge a message, and try it alone until it succeeds or has ended; where it succeeds it is in the unit again."""
        self._charge({row: failure})
        while self._is_open(np.array([row]))[0]:
            end = self._run(np.array([row]), None)
            if isinstance(end, Ran):
                return
            self._charge({row: end.failure})

    # One unit ---------------------------------------------------------------------------------------------------------

    def _deliver(self, rows: Rows, failed: Callable[[Mapping[int, Failure]], None]) -> list[tuple[int, Rows]]:
        """Deliver each message of a unit once, and keep the results of those that succeed. Return the numbers of the results, with their rows.

        :param failed: told who was named or has failed alone, as soon as that is known.
        """
        landed: list[tuple[int, Rows]] = []
        units, large = [rows], len(rows)
        while units:
            rows = units.pop()
            if not len(rows):
                continue
            number = self._next_unit()
            end = self._run(rows, number)
            if isinstance(end, Ran):
                told = {**end.unparsed, **end.verdicts}
                named = {row: told[lookup_id] for lookup_id, row in self._rows_of(told).items()}
                good = rows[~np.isin(rows, list(named))]
                self._good[good] = True
                landed.append((number, good))
                self._tell_progress()
                if named:
                    failed(named)
            elif len(rows) == 1:
                failed({int(rows[0]): end.failure})
            elif self._searches >= MOST_SEARCHES:
                self._tell(
                    f"{MOST_SEARCHES:,} messages have failed alone in this pass. {number_of(len(rows), 'message')} of a unit that failed stay in the "
                    f"queue for the next pass, uncounted. Where so many fail, let the transformation name them in a column {VERDICT}: that is one job"
                )
            elif len(rows) > self._rules.piece_rows and (not end.suspects or len(rows) < large):  # marks name one culprit of a whole unit
                units += reversed(np.array_split(rows, PIECES))
            else:
                culprits = self._culprits(rows, end)
                failed(culprits)
                rest = rows[~np.isin(rows, list(culprits))]
                if not culprits:
                    self._tell(f"a unit of {number_of(len(rows), 'message')} failed ({end.failure.type}), and none of them alone: its halves follow")
                units += [rest] if culprits else [rest[len(rest) // 2 :], rest[: len(rest) // 2]]
        return landed

    def _culprits(self, rows: Rows, broke: Broke) -> dict[int, Failure]:
        """Return messages of a failed unit that fail alone, with their failures: of the suspects all, else one; none where none does.

        Of a unit that is cut in two, the second part must be it when the first one succeeds.
        """
        self._searches += 1
        suspects = self._rows_of(broke.suspects).values()
        found = {row: end.failure for row in suspects if row in rows and isinstance(end := self._run(np.array([row]), None), Broke)}
        if found:
            return found
        ways = WAYS_AFTER_HANG if broke.failure.kind is FailureKind.TIMEOUT else 2
        failure: Failure | None = None
        while len(rows) > 1:
            *parts, last = np.array_split(rows, min(ways, len(rows)))
            rows, failure = last, None
            for part in parts:
                end = self._run(part, None)
                if isinstance(end, Broke):
                    rows, failure = part, end.failure
                    break
        if failure is None:
            end = self._run(rows, None)
            failure = end.failure if isinstance(end, Broke) else None
        return {} if failure is None else {int(rows[0]): failure}

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= TOLD_SECONDS:
            self._told_at = now
            self._tell(f"{int(self._good.sum()):,} of {len(self._ids):,} messages transformed, {self._units:,} units")

    def _next_unit(self) -> int:
        with self._lock:
            self._units += 1
            return self._units

    def _run(self, rows: Rows, lands: int | None) -> Ran | Broke:
        """Run a unit whose messages are marked as in flight meanwhile."""
        if self._stopping:
            raise ReceiveStoppedError("The pass was left. Its claim stays: run it again.")
        if lands is None:
            self._next_unit()
        with self._lock:
            self._words[rows] = self._words[rows] & COUNT_MASK | MessageState.IN_FLIGHT
            self._journal.force()
        reach("frames.unit.before")
        end = self._runner.run(np.sort(self._ids[rows]), lands=lands)
        reach("frames.unit.after")
        self._words[rows] &= COUNT_MASK
        return end

    def _rows_of(self, lookup_ids: Mapping[int, object] | Sequence[int]) -> dict[int, int]:
        """Return the rows of those lookup ids that are in the claim."""
        wanted = np.array(list(lookup_ids), np.int64)
        if not len(wanted) or not len(self._ids):
            return {}
        places = np.minimum(np.searchsorted(self._ids, wanted, sorter=self._sorted), len(self._ids) - 1)
        rows = self._sorted[places]
        hits = self._ids[rows] == wanted
        return dict(zip(wanted[hits].tolist(), rows[hits].tolist(), strict=True))

    # What is counted --------------------------------------------------------------------------------------------------

    def _charge(self, failed: Mapping[int, Failure]) -> None:
        """Count a rollback of each message; the texts come before the words that need them. Who is delivered at most once has been."""
        with self._lock:
            charged = []
            for row, failure in failed.items():
                if self._once[row]:
                    self._good[row] = True
                    continue
                attempts = attempts_of(int(self._words[row]))
                self._log.append(Rollback(self._section.number, row, int(self._ids[row]), attempts, failure))
                self._timeouts += failure.kind is FailureKind.TIMEOUT
                charged.append(row)
            self._journal.force()
            for row in charged:
                died = failed[row].kind in {FailureKind.CRASH, FailureKind.TIMEOUT}
                self._words[row] = counted(int(self._words[row]), MessageState.UNTOUCHED, crash=died)
                self._failures[row] = failed[row]
        reach("frames.charge.after")
        self._decide(np.array(charged, np.intp))

    def _goes_on(self, rows: Rows) -> bool:
        return not any(True for _ in self._ends(rows))

    def _ends(self, rows: Rows) -> Iterator[tuple[Rows, MessageState]]:
        """Yield the rows of messages that no delivery follows, with the state that says so."""
        if not len(rows):
            return
        words = np.asarray(self._words)[rows] & COUNT_MASK | MessageState.HALTED
        failures = {place: self._failures[row] for place, row in enumerate(rows.tolist()) if row in self._failures}
        batch = self._messages.take(pa.array(rows, pa.int64()))
        delivered = Delivered(batch, words.astype(np.int32), failures, self._job.clock.now())
        for end, members, _ in shared_ends(delivered, self._job.policy, self._job.opening):
            if not isinstance(end, Stay):
                yield rows[members], MessageState.HALTED if isinstance(end, Halt) else MessageState.ENDED

    def _decide(self, rows: Rows, *, before: bool = False) -> None:
        """End the messages that no delivery follows, as the policy says of their counts.

        :param before: they have not been delivered; what was unreadable is logged.
        """
        for row in rows.tolist() if before else ():
            if row in self._failures and not attempts_of(int(self._words[row])):
                self._log.append(Rollback(self._section.number, row, int(self._ids[row]), 0, self._failures[row]))
        for ended, state in self._ends(rows):
            with self._lock:
                self._words[ended] = self._words[ended] & COUNT_MASK | state
                self._halted = self._halted or state is MessageState.HALTED
        with self._lock:
            self._journal.force()

    # Threads ----------------------------------------------------------------------------------------------------------

    def _supervised(self, tasks: Sequence[Callable[[], T]], most: int, keep_alive: Callable[[], None]) -> list[T]:
        """Do all tasks, so many at a time, while the claim is kept alive. Raises what a task raises, and what ``keep_alive`` raises."""
        todo, results, raised = deque(tasks), list[T](), list[BaseException]()

        def work() -> None:
            try:
                while not raised and not self._stopping:
                    try:
                        task = todo.popleft()
                    except IndexError:
                        break
                    results.append(task())
            except BaseException as error:  # noqa: BLE001  (raised again on the caller's thread)
                raised.append(error)
            finally:
                self._runner.leave()

        threads = [threading.Thread(target=copy_context().run, args=(work,), name="poison-unit", daemon=True) for _ in range(min(most, len(tasks)))]
        for thread in threads:
            thread.start()
        try:
            while not raised and (alive := [thread for thread in threads if thread.is_alive()]):
                alive[0].join(BEAT_SECONDS)
                self._runner.beat()
                keep_alive()
            if raised:
                keep_alive()  # who has been asked to stop says so, and not what became of Spark meanwhile
        except BaseException:
            self._stopping = True
            self._wait_for_the_last(threads)
            raise
        if raised:
            self._stopping = True
            self._wait_for_the_last(threads)
            raise next((error for error in raised if isinstance(error, SparkLostError)), raised[0])
        return results

    def _wait_for_the_last(self, threads: Sequence[threading.Thread]) -> None:
        until = time.monotonic() + LAST_SECONDS
        while any(thread.is_alive() for thread in threads) and time.monotonic() < until:
            self._runner.cancel()  # again and again: a job may not have begun
            next(thread for thread in [*filter(threading.Thread.is_alive, threads), threads[0]]).join(BEAT_SECONDS)


LARGEST_BODY = 1 << 40


def _numbers(messages: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    found: NDArray[np.int64] = messages.column(name).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _places(lookup_ids: NDArray[np.int64], priorities: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the place of each row in queue order: by priority, then by arrival."""
    places = np.empty(len(lookup_ids), np.intp)
    places[np.lexsort((lookup_ids, -priorities))] = np.arange(len(lookup_ids))
    return places


# The account: the same settlement as that of messages which are delivered one by one


def open_ids(job: StageJob, outcome: FrameOutcome) -> NDArray[np.int64]:
    """Return the lookup ids of the messages that have to be read for their settlement: all but those that succeeded at once."""
    wanted = (outcome.words != MessageState.COMMITTED) | outcome.before
    return outcome.lookup_ids if job.record_all else outcome.lookup_ids[wanted]


def settled(
    job: StageJob, outcome: FrameOutcome, carry: RecoveredAttempts, batches: Iterator[pa.RecordBatch], landing_frames: Iterator[pa.Table]
) -> Iterator[pa.RecordBatch]:
    """Yield what remains of the messages and what lands, as batches of ``table_schema()``, the tally last.

    :param landing_frames: what the transformation made, as rows of the partition ``_output``.
    :param batches: the messages of ``open_ids``: columns of ``message_schema()`` and ``move_count``.
    """
    settler, total = Settler(job.policy, job.read_from, opening=job.opening, record_all=job.record_all), Tally()
    plain = len(outcome.lookup_ids) - len(open_ids(job, outcome))
    total.counts.update(received=plain, committed=plain, deliveries=plain, timeouts=outcome.timeouts)
    order = np.argsort(outcome.lookup_ids, kind="stable")
    for batch in batches:
        ids = batch.column("lookup_id").to_numpy(zero_copy_only=False).astype(np.int64)
        words = outcome.words[order[np.searchsorted(outcome.lookup_ids, ids, sorter=order)]]
        failures = {place: outcome.failures[number] for place, number in enumerate(ids.tolist()) if number in outcome.failures}
        returned = [*carry.returned_by(batch, BatchReport(words, failures)).items()] if job.outputs else []
        delivered = Delivered(batch, words, failures, job.clock.now(), returned=returned)
        rows, tally = settler.settle(delivered)
        total.add(tally)
        rows += landing(job, delivered, total)
        for table in rows:
            yield from table.combine_chunks().to_batches()
    for table in landing_frames:
        total.counts["landings"] += table.num_rows
        yield from table.to_batches()
    yield tally_row(total)

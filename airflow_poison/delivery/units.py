"""The delivery of a claim in units, each a set of messages that are transformed in one job.

When the job ends, its messages are delivered but those that it names (by a verdict, or because a body does not parse). When it fails, its culprits
are searched for (``delivery.culprits``): in parts of one plan, each part by itself, where the runner can do that, and else in jobs, one for each
part. Only a message that was named, or that failed alone, is charged; successes are kept.

What was in flight at a death runs first, in smaller and smaller units, one after the other, until a single message is in flight when everything dies.

``UnitRunner`` is the interface to what runs units, which is Spark; ``Ran`` and ``Broke`` are its reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from airflow_poison.delivery.culprits import Failed, all_culprits, one_culprit, unstable
from airflow_poison.delivery.handlers import POISON_COLUMN
from airflow_poison.delivery.outage import Watch, some
from airflow_poison.delivery.unit_counts import ClaimCounts
from airflow_poison.delivery.verdicts import type_name
from airflow_poison.values.errors import BodyError, OutputRowError, ReceiveStoppedError, SparkJobError
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.fault_points import reach
from airflow_poison.values.masking import HIDDEN
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.journal import Journal
    from airflow_poison.delivery.recovered import RecoveredAttempts
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.delivery.unit_counts import Rows, UnitOutcome

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
PROGRESS_SECONDS, PROGRESS_ALIKE_SECONDS = 10.0, 60.0
"""Between two lines about how far a claim is, and between two that say the same."""


class _Sinks(NamedTuple):
    """A unit that is delivered, whole or in parts.

    :param charge: called with messages that were named or have failed alone.
    :param landed: takes the results that are kept.
    :param done: takes the rows of units and sets that have succeeded.
    """

    charge: Charge
    landed: Landed
    done: list[Rows]

    def rest(self, rows: Rows) -> Rows:
        """Return those of some rows that are not done."""
        return rows[~np.isin(rows, np.concatenate([np.empty(0, np.intp), *self.done]))]


class OutageFound(Exception):  # noqa: N818  (no error: it ends the delivery)
    """Messages fail alike, and not for what they are."""


class UnitSearch:
    """Runs units of a claim, and looks for culprits where one fails. Several threads ask.

    :param piece_rows: a larger unit that fails is cut before it is searched.
    :param report: called with lines for people.
    :param watch: for outages; None: every failure counts for a message.
    :ivar units: how many have begun.
    :ivar unstable: reports of units that failed although their parts did not.
    """

    def __init__(
        self,
        key: str,
        counts: ClaimCounts,
        runner: UnitRunner,
        report: Callable[[str], None],
        *,
        piece_rows: int = PIECE_ROWS,
        watch: Watch | None = None,
    ) -> None:
        self._key = key
        self._counts, self._runner, self._report, self._piece_rows, self._watch = counts, runner, report, piece_rows, watch
        self._judging = threading.Lock()
        self.units = 0
        self.unstable: list[Mapping[str, str]] = []
        self._lock, self._stopping, self._traced, self._catches = threading.Lock(), False, False, False
        self._alone, self._searched_for, self._numbers = set[int](), set[str](), count(1)
        self._began = self._reported_at = time.monotonic()
        self._reported: tuple[int, int] | None = None

    @property
    def catches(self) -> bool:
        """Whether units do not fail for messages that raise."""
        return self._catches and self._runner.catches

    def stop(self) -> None:
        """Run no further unit."""
        self._stopping = True

    def run(self, rows: Rows, *, lands: bool = False, traced: bool = False, catches: bool = False) -> tuple[int, Ran | Broke]:
        """Run a unit, whose messages are marked as in flight meanwhile; return its number and its end.

        :param lands: its result is kept under that number.
        :param traced: when it fails, it says which messages were worked on.
        :param catches: it does not fail for messages that raise, but names them.
        """
        if self._stopping:
            raise ReceiveStoppedError.of(self._key)
        with self._lock:
            self.units += 1
        number = next(self._numbers)
        self._counts.begin(rows)
        reach("frames.unit.before")
        rows = rows[np.argsort(self._counts.lookup_ids[rows])]
        ids, attempts = self._counts.lookup_ids[rows], self._counts.attempts(rows)
        if catches:
            end = self._runner.caught(ids, attempts, lands=number)
        else:
            end = self._runner.run(ids, attempts, lands=number if lands else None, traced=traced)
        reach("frames.unit.after")
        self._counts.end(rows)
        return number, end

    def deliver(self, rows: Rows, charge: Charge) -> Landed:
        """Deliver each message of a unit once, and keep the results of those that succeed.

        :param charge: called with messages that were named or have failed alone, as soon as that is known.
        """
        unit = _Sinks(charge, [], [])
        self._deliver(rows, unit)
        return unit.landed

    def deliver_alone(self, rows: Rows, charge: Charge) -> dict[int, Failure]:
        """Deliver messages, each alone, and keep the results of those that succeed; return those that fail.

        :param charge: called with messages that were named.
        """
        unit = _Sinks(charge, [], [])
        failed = self.alone(rows, unit) if self._runner.parts else {}
        for row in unit.rest(rows[~np.isin(rows, list(failed))]):
            self._deliver(np.array([row]), _Sinks(failed.update, unit.landed, unit.done))
        return failed

    def _deliver(self, rows: Rows, unit: _Sinks, *, traced: bool = False) -> bool:
        """Deliver a unit or a part of it; return whether a culprit was found, or may be.

        :param traced: it, or what it is a part of, has failed.
        """
        found = False
        while len(rows):
            number, end = self._ran(rows, traced=traced or (self._traced and self._runner.parts > 0))
            if isinstance(end, Ran):
                self._keep(rows, number, end, unit)
                if end.raised:
                    found, rows = True, self._without_raised(unit.rest(rows), end, unit)
                    continue
                return found
            if len(rows) == 1:
                self._alone.add(int(rows[0]))
                unit.charge({int(rows[0]): end.failure})
                return True
            if not self._searches_left(rows):
                return True
            if len(rows) > self._piece_rows and not self._runner.parts and (found or not end.suspects):
                return self._in_parts(rows, PIECES, end.failure, unit) or found  # with marks, one culprit is taken out of it before
            culprits = self.culprits(rows, end, unit)
            failed, rows = rows, unit.rest(rows[~np.isin(rows, list(culprits))])
            if culprits:
                self._alone |= culprits.keys()
                unit.charge(culprits)
            elif len(rows):
                return self._in_parts(rows, 2, end.failure, unit) or found
            else:
                self.report_unstable(failed, self._counts.text_of(end.failure))
            found, traced = True, True
        return found

    def _searches_left(self, rows: Rows) -> int:
        """Return how many messages may still be tried alone; say so where there are none."""
        if left := max(MOST_SEARCHES - len(self._alone), 0):
            return left
        self._report(
            f"{MOST_SEARCHES:,} messages have failed alone in this pass. {counted(len(rows), 'message')} of a unit that failed stay in the "
            f"queue for the next pass, uncounted. Where so many fail, let the transformation name them in a column {POISON_COLUMN}: that is one job"
        )
        return 0

    def _without_raised(self, rows: Rows, ran: Ran, unit: _Sinks) -> Rows:
        """Try messages that have raised, each alone; return the other ones that are not settled by that."""
        raised = np.isin(self._counts.lookup_ids[rows], ran.raised)
        suspects, others = rows[raised], rows[~raised]
        if self._watch is not None and (failure := self.failure_alone(int(suspects[0]))) is not None:
            self.judge(np.concatenate([suspects, others]), failure)
        while len(suspects) and (left := self._searches_left(suspects)):
            some, suspects = suspects[:left], suspects[left:]
            failed = self.alone(some, unit) if self._runner.parts else {}
            self._alone |= failed.keys()
            unit.charge(failed)
            for row in unit.rest(some[~np.isin(some, list(failed))]):
                self._deliver(np.array([row]), unit)
        return others

    def _ran(self, rows: Rows, *, traced: bool) -> tuple[int, Ran | Broke]:
        """Run a unit whose result is kept; once more where that catches its errors, or says more of its failure. Raises OutageFound."""
        began, catches = time.monotonic(), self.catches and len(rows) > 1
        number, end = self.run(rows, lands=True, traced=traced, catches=catches)
        if catches and not self._runner.catches:  # nor could it
            number, end = self.run(rows, lands=True, traced=traced)
        if isinstance(end, Broke):
            self._traced = True
            self.judge(rows, end.failure)
            self._report_search(rows, end.failure, time.monotonic() - began)
            if self._runner.catches and not catches and len(rows) > 1 and end.failure.kind is FailureKind.EXCEPTION:
                self._catches = True
                caught, again = self.run(rows, lands=True, catches=True)
                if isinstance(again, Ran):
                    return caught, again
            if end.traceable and not self._runner.parts:
                number, again = self.run(rows, lands=True, traced=True)
                if isinstance(again, Ran):
                    self.report_unstable(rows, self._counts.text_of(end.failure))
                end = again
        return number, end

    def _in_parts(self, rows: Rows, parts: int, failure: Failure, unit: _Sinks) -> bool:
        found = [self._deliver(part, unit, traced=True) for part in np.array_split(rows, parts)]
        if not any(found):
            self.report_unstable(rows, self._counts.text_of(failure))
        return any(found)

    def _keep(self, rows: Rows, number: int, ran: Ran, unit: _Sinks) -> None:
        errors = {**ran.unparsed, **ran.verdicts}
        named = {row: errors[lookup_id] for lookup_id, row in self._counts.rows_of(errors).items()}
        if ran.raised:
            rows = rows[~np.isin(self._counts.lookup_ids[rows], (*ran.raised, *ran.spoiled))]
        good = rows[~np.isin(rows, list(named))]
        self._counts.good[good] = True
        unit.landed.append((number, good))
        unit.done.append(rows)
        if named:
            unit.charge(named)

    def culprits(self, rows: Rows, broke: Broke, unit: _Sinks | None = None) -> dict[int, Failure]:
        """Return messages of a failed unit that fail alone, with their failures: in parts of one plan all, else of the suspects all, or one.

        :param unit: takes what is made of sets that succeed in parts of one plan.
        """
        if ways := self._runner.parts:
            parts = np.array_split(rows, min(max(ways, -(-len(rows) // self._piece_rows)), len(rows)))
            found = all_culprits(parts, partial(self._try_all, unit=unit), ways=ways, most=MOST_SEARCHES - len(self._alone))
            if found or self._runner.parts:
                return found
            rows = rows if unit is None else unit.rest(rows)
        suspects = self._among(rows, broke)
        if len(suspects) > FEW:
            suspects, rows = self._fewer(rows, broke)
        found = self.alone(suspects)
        ways = WAYS_AFTER_HANG if broke.failure.kind is FailureKind.TIMEOUT else 2
        return found or one_culprit(rows, self._try, ways=ways)

    def alone(self, rows: Rows, unit: _Sinks | None = None) -> dict[int, Failure]:
        """Try messages, each alone; return those that fail, with their failures.

        :param unit: see ``culprits``.
        """
        if not len(rows):
            return {}
        sets = np.split(rows, len(rows))
        ends = self._try_all(sets, unit) if self._runner.parts else map(self._try, sets)
        return {int(row): end.failure for row, end in zip(rows, ends, strict=True) if end is not None}

    def _try(self, rows: Rows) -> Failed | None:
        """Try a set in a job of its own."""
        _, end = self.run(rows)
        return Failed(end.failure, self._among(rows, end).tolist()) if isinstance(end, Broke) else None

    def _try_all(self, sets: Sequence[Rows], unit: _Sinks | None = None) -> Sequence[Failed | None]:
        """Try each set by itself, in parts of one plan where that can be done; else in jobs.

        :param unit: takes what parts of a plan make.
        """
        if self._stopping:
            raise ReceiveStoppedError.of(self._key)
        sets = [rows[np.argsort(self._counts.lookup_ids[rows])] for rows in sets]
        every = np.concatenate([*sets, np.empty(0, np.intp)])
        numbers = [next(self._numbers) for _ in sets]
        self._counts.begin(every)
        reach("frames.parts.before")
        lookup_ids, attempts = [self._counts.lookup_ids[rows] for rows in sets], [self._counts.attempts(rows) for rows in sets]
        ends = self._runner.each(lookup_ids, attempts, lands=None if unit is None else numbers)
        reach("frames.parts.after")
        self._counts.end(every)
        if ends is None:
            return [self._try(rows) for rows in sets]
        found: list[Failed | None] = []
        for rows, number, end in zip(sets, numbers, ends, strict=True):
            found.append(Failed(end.failure, self._among(rows, end).tolist()) if isinstance(end, Broke) else None)
            if isinstance(end, Ran) and unit is not None:
                self._keep(rows, number, end, unit)
        return found

    def _fewer(self, rows: Rows, broke: Broke) -> tuple[Rows, Rows]:
        """Return the suspects that are left when units of them have named fewer, and the rows among which a culprit is."""
        suspects = self._among(rows, broke)
        while len(suspects) > FEW:
            _, end = self.run(suspects, traced=True)
            if isinstance(end, Ran):
                return suspects[:0], rows
            rows, before, suspects = suspects, len(suspects), self._among(suspects, end)
            if len(suspects) == before:
                break
        return suspects, rows

    def _among(self, rows: Rows, broke: Broke) -> Rows:
        return rows[np.isin(self._counts.lookup_ids[rows], broke.suspects)]

    def judge(self, rows: Rows, failure: Failure) -> None:
        """Raise OutageFound when other messages of a unit that has failed do so alone, and alike. A pass that probes tries all it has."""
        watch = self._watch
        if watch is None:
            return
        with self._judging:
            if watch.probing:
                found = watch.begin(rows.tolist(), self.failure_alone)
            else:
                found = watch.stopped() or (len(rows) > 1 and watch.doubt(failure, some(rows.tolist(), ASKED), self._evidence))
        if found:
            raise OutageFound

    def failure_alone(self, row: int) -> Failure | None:
        """Try a message alone; return why it has failed."""
        _, end = self.run(np.array([row]))
        return end.failure if isinstance(end, Broke) else None

    def _evidence(self, row: int) -> Failure | None:
        """Try a message alone; return its evidence of an outage."""
        failure = self.failure_alone(row)
        return None if failure is None or self._counts.was_charged(row, failure) else failure

    def report_unstable(self, rows: Rows, error: str) -> None:
        """Note that a unit failed, and its parts did not."""
        self._report(f"{counted(len(rows), 'message')} failed together ({error}), and none of them alone: no message is charged")
        self.unstable.append(unstable(np.sort(self._counts.lookup_ids[rows]).tolist(), error))

    def _report_search(self, rows: Rows, failure: Failure, seconds: float) -> None:
        """Say, once for each error, that culprits are looked for, why, what would name them, and what finding one costs."""
        with self._lock:
            if len(rows) == 1 or failure.type in self._searched_for:
                return
            self._searched_for.add(failure.type)
        each = "" if self._runner.parts else f" Each takes up to {2 * len(rows).bit_length()} jobs; the one that failed took {seconds:.1f} s."
        self._report(
            f"{counted(len(rows), 'message')} failed together ({self._counts.text_of(failure)}): the pass looks for those that fail alone.{each} "
            f"A column {POISON_COLUMN} that says why a row is bad (for a cast, where try_cast is null) names all of them in one job, without a search"
        )

    def report_progress(self) -> None:
        """Say how far the claim is when it is time to, and how long the rest takes where it goes on so."""
        now, good, alone = time.monotonic(), int(self._counts.good.sum()), len(self._alone)
        since, found = now - self._reported_at, (good, alone)
        if since < PROGRESS_SECONDS or (found == self._reported and since < PROGRESS_ALIKE_SECONDS):
            return
        self._reported_at, self._reported = now, found
        seconds, done, every = now - self._began, good + alone, len(self._counts.good)
        fail = f", {alone:,} found that fail alone" if alone else ""
        rest = f"; the rest may take {seconds * max(every - done, 0) / done:.0f} s" if done else ""
        self._report(f"{good:,} of {every:,} messages transformed after {seconds:.0f} s and {counted(self.units, 'unit')}{fail}{rest}")


@dataclass(frozen=True, slots=True)
class Ran:
    """A unit's job has ended.

    :param verdicts: the messages that its result names, by lookup id.
    :param unparsed: whose bodies do not parse, by lookup id; the transformation was not given them.
    :param raised: lookup ids of messages for which an expression or a function has raised: nothing of them is kept.
    :param spoiled: lookup ids of messages of which nothing is kept because they were transformed together with such a one.
    """

    verdicts: Mapping[int, Failure] = field(default_factory=dict)
    unparsed: Mapping[int, Failure] = field(default_factory=dict)
    raised: tuple[int, ...] = ()
    spoiled: tuple[int, ...] = ()


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
    """Transforms units. Several threads ask.

    :ivar parts: into how many sets messages are cut that ``each`` tries; 0: it cannot, as far as is known.
    :ivar catches: ``caught`` can be had, as far as is known.
    """

    parts: int
    catches: bool

    def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
        """Transform these messages.

        :param lookup_ids: ascending.
        :param attempts: rollbacks of each that are counted since its row was written.
        :param lands: keep the result under this number, without the rows of messages that are named; None: only see whether there is one.
        :param traced: keep in mind which messages are worked on, where that can be done: it takes time, and is only read when the unit fails.
        Raises PoisonError when that is no message's fault: none is charged.
        """
        ...

    def caught(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int) -> Ran | Broke:
        """Transform these messages, as ``run`` does; those that raise are named, and what is made of the others is kept."""
        ...

    def each(
        self, sets: Sequence[NDArray[np.int64]], attempts: Sequence[NDArray[np.int32]], *, lands: Sequence[int] | None
    ) -> Sequence[Ran | Broke] | None:
        """Transform each set of messages by itself.

        :param sets: lookup ids, each set ascending.
        :param attempts: of each set, as for ``run``.
        :param lands: keep the result of each set under its number, as ``run`` does; None: keep nothing.
        Return the end of each; None for all, with ``parts`` at 0 and nothing kept, where this transformation cannot be tried so.
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


T = TypeVar("T")

CHUNK_ROWS, LARGEST_CHUNK_ROWS = 64_000, 512_000
"""So many messages are transformed in the first jobs, and in all behind one that failed; and in any."""
CHUNK_SECONDS = 10.0
"""So long later jobs shall take: what a failure repeats, beside what a job costs that has nothing to do."""
CAREFUL_PARTS = 64
"""Into so many units the suspects of a death are cut."""
BEAT_SECONDS = 0.5
LAST_SECONDS = 10.0
"""How long a delivery that is ended waits for its units."""
NAMED = frozenset({POISON_COLUMN, type_name(BodyError("")), type_name(OutputRowError(""))})
"""Types of failures that a unit reports for its messages, without failing itself."""
_DIED = "Spark, or the process that drove it, ended"


@dataclass(frozen=True, slots=True)
class UnitRules:
    """How a claim is transformed.

    :param side_by_side: how many units run at the same time.
    :param mixes_rows: the claim is one unit.
    :param chunk_rows: messages of the first units.
    :param largest_rows: of later ones, at most.
    :param piece_rows: a larger unit that fails is cut before it is searched.
    """

    side_by_side: int = 1
    mixes_rows: bool = False
    chunk_rows: int = CHUNK_ROWS
    largest_rows: int = LARGEST_CHUNK_ROWS
    piece_rows: int = PIECE_ROWS


def on_threads(
    tasks: Iterable[Callable[[], T]], most: int, leave: Callable[[], None]
) -> tuple[list[threading.Thread], dict[int, T], list[BaseException]]:
    """Begin tasks on threads of their own, so many at a time; return the threads, what becomes of tasks by number, and what they raise.

    No further task begins behind one that raises.

    :param leave: called at the end of each thread.
    """
    todo, taking, results, raised = enumerate(tasks), threading.Lock(), dict[int, T](), list[BaseException]()

    def work() -> None:
        try:
            while not raised:
                with taking:
                    place, task = next(todo, (-1, None))
                if task is None:
                    break
                results[place] = task()
        except BaseException as error:  # noqa: BLE001  (raised again on the caller's thread)
            raised.append(error)
        finally:
            leave()

    threads = [threading.Thread(target=copy_context().run, args=(work,), name="poison-unit", daemon=True) for _ in range(most)]
    for thread in threads:
        thread.start()
    return threads, results, raised


class UnitDelivery:
    """Delivers the messages of a claim to a transformation, once.

    :param messages: all messages of the claim: columns of ``message_schema()`` and ``move_count``; null may be what the policy does not read.
    :param journal: forced to disk.
    :param recovered: what earlier holders of the claim had counted and ended.
    :param report: called with lines for people.
    """

    def __init__(
        self,
        job: StageJob,
        messages: pa.RecordBatch,
        runner: UnitRunner,
        journal: Journal,
        *,
        recovered: RecoveredAttempts,
        rules: UnitRules,
        report: Callable[[str], None],
    ) -> None:
        self._halting, self._runner, self._rules, self._report = job.policy.halting, runner, rules, report
        self._counts = ClaimCounts(job, messages, journal, recovered)
        watch = None if job.detection is None else Watch(job.detection, job.clock.now)
        if watch is not None and job.masking is not None:
            watch.hide = lambda _text: HIDDEN
        self._search, self._closed = UnitSearch(job.key, self._counts, runner, report, piece_rows=rules.piece_rows, watch=watch), job.closed
        self._deaths, self._named = job.deaths, {} if job.transform is None else job.transform.named
        self._chunk_rows, self._largest_rows = rules.chunk_rows, rules.largest_rows

    def run(self, keep_alive: Callable[[], None]) -> UnitOutcome:
        """Deliver, until an outage is found.

        :param keep_alive: called twice a second; what it raises ends the delivery.
        Raises what a unit raises, and SparkJobError where the claim fails as one and none of its messages does.
        """
        try:
            if not self._closed:
                self._deliver(keep_alive)
        except OutageFound:
            pass  # its verdict stands beside the journal
        except SparkLostError as lost:
            raise SparkJobError(str(lost)) from lost  # the marks stay
        except BaseException:
            self._counts.give_back()
            raise
        self._counts.give_back()
        return self._counts.outcome(self._search.units, self._search.unstable)

    def _deliver(self, keep_alive: Callable[[], None]) -> None:
        rows, ending = self._counts.received()
        if self._halting and not self._rules.mixes_rows:
            self._supervised([partial(self._one_after_the_other, rows, ending)], 1, keep_alive)
            return
        self._counts.end_undelivered(ending)
        if self._rules.mixes_rows:
            self._supervised([partial(self._as_one, rows)], 1, keep_alive)
        else:
            self._side_by_side(rows, keep_alive)

    # Side by side: nothing depends on anything else -------------------------------------------------------------------

    def _side_by_side(self, rows: Rows, keep_alive: Callable[[], None]) -> None:
        """Deliver suspects of earlier deaths, then all others, then messages that may be tried again, until none is left."""
        charged = [self._named_before(rows)]
        suspects, rest = self._suspects(rows[~np.isin(rows, charged[0])])
        for unit in suspects:
            charged += self._supervised([partial(self._settle, unit)], 1, keep_alive)
        if len(suspects) > 1 and not any(map(len, charged)):
            self._search.report_unstable(np.concatenate(suspects), _DIED)
        known = self._counts.attempts(rest) > 0
        charged.append(rest[known])
        together, alone = (rest[~known], rest[:0]) if not known.all() else self._again(charged)
        while len(together) or len(alone):
            at_once = bool(self._runner.parts) and len(alone) > 0
            units = chain(self._chunks(self._by_lookup_id(together)), () if at_once else (np.array([row]) for row in alone))
            first = (partial(self._settle, alone, alone=True),) if at_once else ()
            charged += self._supervised(chain(first, (partial(self._settle, unit) for unit in units)), self._rules.side_by_side, keep_alive)
            together, alone = self._again(charged)

    def _named_before(self, rows: Rows) -> Rows:
        """Charge messages that the transformation has named when they were rows, unless something has been done with them since; return them."""
        named = {row: self._named[number] for number, row in self._counts.rows_of(self._named).items()}
        mine = rows[np.isin(rows, list(named)) & self._counts.is_untouched(rows)]
        if len(mine):
            self._counts.charge({row: named[row] for row in mine.tolist()})
        return mine

    def _suspects(self, rows: Rows) -> tuple[list[Rows], Rows]:
        """Return the units of suspects, the rows that were in flight at most deaths first, and the other rows."""
        if not self._deaths:
            return [], rows
        deaths = np.array([self._deaths.get(number, 0) for number in self._counts.lookup_ids[rows].tolist()])
        units: list[Rows] = []
        for most in sorted({*deaths.tolist()} - {0}, reverse=True):
            members = rows[deaths == most]
            size = -(-len(members) // CAREFUL_PARTS)
            units += [members[start : start + size] for start in range(0, len(members), size)]
        careful = counted(int((deaths > 0).sum()), "message")
        self._report(f"{careful} were worked on when everything died: they are transformed first, in {counted(len(units), 'small unit')}")
        return units, rows[deaths == 0]

    def _by_lookup_id(self, rows: Rows) -> Rows:
        return rows[np.argsort(self._counts.lookup_ids[rows], kind="stable")]

    def _chunks(self, rows: Rows) -> Iterator[Rows]:
        """Yield units, as many alike as run side by side.

        They are about as large as what has run until the first of them is asked for suggests: a small one at the end costs a job of its own.
        """
        while len(rows):
            rounds = max(1, round(len(rows) / self._rules.side_by_side / self._chunk_rows))
            size = min(max(-(-len(rows) // self._rules.side_by_side // rounds), self._rules.chunk_rows), self._largest_rows)
            for _ in range(self._rules.side_by_side):
                if len(rows):
                    yield rows[:size]
                rows = rows[size:]

    def _again(self, charged: list[Rows]) -> tuple[Rows, Rows]:
        """Return the messages of a further delivery, and forget them: named ones are delivered together, ones that failed alone are alone again."""
        rows = np.unique(np.concatenate([np.empty(0, np.intp), *charged]))
        charged.clear()
        rows = rows[self._counts.is_open(rows)]
        alone = np.array([self._counts.last_failure(row).type not in NAMED for row in rows.tolist()], bool)
        return rows[~alone], rows[alone]

    def _settle(self, rows: Rows, *, alone: bool = False) -> Rows:
        """Deliver each message of a unit once, those that failed alone before each alone; what succeeds lands. Return which were charged."""
        charged: list[int] = []

        def charge(some: Mapping[int, Failure]) -> None:
            self._counts.charge(some)
            charged.extend(some)

        if alone:
            charge(self._search.deliver_alone(rows, charge))
        else:
            self._paced(rows, charge)
        return np.array(charged, np.intp)

    def _paced(self, rows: Rows, charge: Charge) -> Landed:
        """Deliver a unit, and learn how large the next one may be."""
        alone, began = False, time.monotonic()

        def noted(some: Mapping[int, Failure]) -> None:
            nonlocal alone
            alone |= any(failure.type not in NAMED for failure in some.values())
            charge(some)

        landed = self._search.deliver(rows, noted)
        if (len(landed) != 1 or alone) and not self._search.catches:
            self._largest_rows = self._rules.chunk_rows
        size = int(len(rows) * CHUNK_SECONDS / max(time.monotonic() - began, 0.001))
        self._chunk_rows = max(self._rules.chunk_rows, min(size, self._largest_rows))
        return landed

    # In queue order, where a message may halt the endpoint ------------------------------------------------------------

    def _one_after_the_other(self, rows: Rows, ending: Rows) -> None:
        """Deliver unit after unit. Within one, culprits are charged in queue order; what is behind one that halts is as if never delivered."""
        both = np.concatenate([rows, ending])
        both = both[np.argsort(self._counts.places[both], kind="stable")]
        ends = np.isin(both, ending)
        for run in np.split(both, np.flatnonzero(ends[1:] | ends[:-1]) + 1):
            if len(run) and run[0] in ending:
                self._counts.end_undelivered(run)
            elif len(run):
                for unit in self._chunks(run):
                    self._in_turn(unit)
                    if self._counts.halted:
                        return
            if self._counts.halted:
                return

    def _in_turn(self, unit: Rows) -> None:
        failed: dict[int, Failure] = {}
        landed = self._paced(unit, failed.update)
        for row in unit[np.isin(unit, list(failed))].tolist():
            self._until_it_ends(row, failed[row], self._delivered_again)
            if self._counts.halted:
                self._undo_behind(self._counts.places[row], landed)
                return

    def _until_it_ends(self, row: int, failure: Failure | None, again: Callable[[int], Failure | None]) -> None:
        """Charge a message, and deliver it alone until it succeeds or has ended.

        :param again: delivers it; returns why it has failed.
        """
        while failure is not None:
            self._counts.charge({row: failure})
            failure = again(row) if self._is_open(row) else None

    def _is_open(self, row: int) -> bool:
        return bool(self._counts.is_open(np.array([row]))[0])

    def _delivered_again(self, row: int) -> Failure | None:
        failed: dict[int, Failure] = {}
        failed |= self._search.deliver_alone(np.array([row]), failed.update)
        return failed.get(row)

    def _undo_behind(self, place: int, landed: Sequence[tuple[int, Rows]]) -> None:
        """Let what was delivered behind a place be undelivered: its results go, results of messages before the place are made again."""
        for number, rows in landed:
            behind = self._counts.places[rows] > place
            if behind.any():
                self._runner.drop(number)
                self._counts.good[rows] = False
                self._search.deliver(rows[~behind], lambda _failed: None)

    # All as one unit --------------------------------------------------------------------------------------------------

    def _as_one(self, rows: Rows) -> None:
        """Deliver all or nothing: who fails alone, or is named, is charged; once it has ended, the rest is one unit again."""
        while len(rows):
            number, end = self._search.run(rows, lands=True, traced=True)
            if isinstance(end, Ran):
                named = {row: end.verdicts[lookup_id] for lookup_id, row in self._counts.rows_of(end.verdicts).items()}
                unparsed = {row: end.unparsed[lookup_id] for lookup_id, row in self._counts.rows_of(end.unparsed).items()}
                for row, failure in unparsed.items():
                    self._until_it_ends(row, failure if self._is_open(row) else None, unparsed.get)  # its body is the same at each delivery
                rows = rows[~np.isin(rows, list(unparsed))]
                if not named:
                    self._counts.good[rows] = True
                    return
                self._runner.drop(number)
                self._counts.charge(named)
            else:
                self._search.judge(rows, end.failure)
                culprits = {int(rows[0]): end.failure} if len(rows) == 1 else self._search.culprits(rows, end)
                if not culprits:
                    raise SparkJobError(
                        f"The transformation of {counted(len(rows), 'message')} as one unit failed: {self._counts.text_of(end.failure)}\n"
                        "None of them fails alone, so no message is charged, and nothing was committed. Look for what the unit as a whole needs: "
                        "memory, time (the policy's transaction timeout), a table that it joins with; then run the task again."
                    )
                for row, failure in culprits.items():
                    self._until_it_ends(row, failure, self._search.failure_alone)  # where it succeeds it is in the unit again
            rows = rows[self._counts.is_open(rows)]

    # Threads ----------------------------------------------------------------------------------------------------------

    def _supervised(self, tasks: Iterable[Callable[[], T]], most: int, keep_alive: Callable[[], None]) -> list[T]:
        """Do all tasks, so many at a time, while the claim is kept alive. Raises what a task raises, and what ``keep_alive`` raises."""
        threads, results, raised = on_threads(tasks, most, self._runner.leave)
        try:
            while not raised and (alive := [thread for thread in threads if thread.is_alive()]):
                alive[0].join(BEAT_SECONDS)
                self._runner.beat()
                self._search.report_progress()
                keep_alive()
            if raised:
                keep_alive()  # who has been asked to stop says so, and not what became of Spark meanwhile
        except BaseException:
            self._leave(threads)
            raise
        if raised:
            self._leave(threads)
            raise next((error for error in raised if isinstance(error, SparkLostError)), raised[0])
        return [*results.values()]

    def _leave(self, threads: Sequence[threading.Thread]) -> None:
        self._search.stop()
        until = time.monotonic() + LAST_SECONDS
        while any(thread.is_alive() for thread in threads) and time.monotonic() < until:
            self._runner.cancel()  # again and again: a job may not have begun
            next(thread for thread in [*filter(threading.Thread.is_alive, threads), threads[0]]).join(BEAT_SECONDS)

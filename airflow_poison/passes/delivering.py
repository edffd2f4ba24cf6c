"""Delivering: keep a claim alive while its messages are handed to the handler, going on where earlier holders of the claim stopped.

A pass that ends before its commit releases its claim: any later pass goes on at once, from what was journalled. The claim is not taken back, for its
journals hold attempts that count. It only expires now instead of in two minutes, and only when no process can write to its journals any more; else it
expires by itself. Where its tasks are on nodes that share no folder, it shuts them out and expires in half a minute.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_poison.delivery import platform
from airflow_poison.delivery.handlers import HandlerRef, Transformation
from airflow_poison.delivery.outage import Detection, OutageVerdict
from airflow_poison.delivery.progress import ForwardedLog, JournalProgress, Progress
from airflow_poison.delivery.recovered import BEGUN, ClaimHistory, Forced, RecoveredAttempts, TryNote, is_quiet, read_history, read_journals
from airflow_poison.delivery.returned import LearnedColumns
from airflow_poison.delivery.stage import Order, StageJob
from airflow_poison.passes.conversations import dialog_state
from airflow_poison.store.disk import named
from airflow_poison.values.errors import ClaimLostError, OutputError, PoisonError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from airflow_poison.outputs.output import Output
    from airflow_poison.passes.engines import Engine
    from airflow_poison.passes.receive import ReceivePass
    from airflow_poison.rules.policy import Opening, Policy
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock
    from airflow_poison.values.masking import Masking


class ClaimKeeper:
    """A claim that is renewed when a third of its lease (``LEASE``) is over."""

    def __init__(self, receiving: ReceivePass, claim: Claim) -> None:
        self.receiving, self.claim = receiving, claim

    def keep_alive(self) -> None:
        """Renew it when that is due. Raises ClaimLostError, and what ``check_stopped`` of the pass raises."""
        receiving = self.receiving
        receiving.check_stopped()
        now = receiving.clock.now()
        if self.claim.expires_at - now < receiving.lease * 2 / 3:
            self.claim = receiving.table.renew(self.claim, lease=receiving.lease, now=now)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a delivery ended.

    :param known: what had happened before the tasks began whose tallies count.
    :param verdict: an outage has ended it.
    :param given_back: messages that failed as the outage does.
    """

    known: RecoveredAttempts
    verdict: OutageVerdict | None = None
    given_back: int = 0


@dataclass(frozen=True, slots=True)
class Delivering:
    """What a pass does between its claim and its account.

    :param converses: whether messages of conversations may be among the claimed.
    :param outputs: with the columns that their tables have.
    :param expects: the fingerprint of the outage that the pass probes; empty: it probes none.
    :param masking: which values of messages the queue hides; None: none.
    :param parks: messages wait behind earlier ones of their groups.
    """

    engine: Engine
    keeper: ClaimKeeper
    handler: HandlerRef | Transformation
    opening: Opening
    converses: bool
    outputs: Sequence[Output]
    expects: str
    masking: Masking | None
    parks: bool

    def run(self) -> Ended:
        """Deliver; return what the earlier tries, and the messages that were delivered alone, had come to."""
        receiving, claim = self.keeper.receiving, self.keeper.claim
        stage = Path(receiving.table.stage(claim))
        folders = [Path(path) for path in receiving.table.journals(claim)]
        story = read_history(folders, node=receiving.table.node)
        job = self._job(story, stage)
        self._begin_with_columns(job.outputs, job.journal_folder)
        engine, reporting = self.engine, PassProgress(job.journal_folder, receiving.endpoint, claim.messages, receiving.progress)
        with self._begun(job), reporting:
            receiving.check_stopped()
            keep_alive = self.keeper.keep_alive if job.transform is not None else reporting.beating(self.keeper.keep_alive)
            recovered = story.recovered
            if verdicts := [*filter(None, map(OutageVerdict.read, folders))]:
                return self._closed(job, recovered, verdicts, keep_alive)
            if story.alone and not job.sections and job.order is Order.NONE and job.transform is None:
                receiving.progress(f"delivering alone what was with its handler when everything died: {counted(len(story.alone), 'message')}")
                alone = replace(job, only=story.alone, singly=True, forced=True, detection=None, recovered=_saved(recovered, stage))
                engine.run(receiving.table, claim, alone, keep_alive=keep_alive)
                recovered = recovered.merged(read_journals([Path(job.journal_folder)]))
                reach("pass.receive.after_alone")
                receiving.check_stopped()
            engine.run(receiving.table, claim, replace(job, recovered=_saved(recovered, stage)), keep_alive=keep_alive)
            verdict = OutageVerdict.read(Path(job.journal_folder))
            if verdict is not None:
                reach("pass.outage.after_verdict")
                return self._closed(job, recovered.merged(read_journals([Path(job.journal_folder)])), [verdict], keep_alive)
        return Ended(recovered)

    def _closed(self, job: StageJob, known: RecoveredAttempts, verdicts: Sequence[OutageVerdict], keep_alive: Callable[[], None]) -> Ended:
        """Settle without a delivery what an outage has ended: as the journals say, but for what failed as the outage does."""
        receiving, claim = self.keeper.receiving, self.keeper.claim
        recovered, given_back = known.without({verdict.fingerprint for verdict in verdicts})
        receiving.progress(
            f"an outage ({verdicts[-1].error}): {counted(given_back, 'message')} that failed so are given back uncounted, nothing more is delivered"
        )
        receiving.table.unstage(claim)
        reach("pass.outage.after_unstaging")
        closed = replace(job, closed=True, detection=None, forced=False, recovered=_saved(recovered, Path(receiving.table.stage(claim))))
        self.engine.run(receiving.table, claim, closed, keep_alive=keep_alive)
        reach("pass.outage.after_settling")
        return Ended(recovered, verdicts[-1], given_back)

    def _job(self, story: ClaimHistory, stage: Path) -> StageJob:
        """Return what the engine is to deliver; singly where the culprit must not be in doubt."""
        receiving, dialogs = self.keeper.receiving, self._dialogs(stage)
        order = _order(receiving.policy)
        if (dialogs is not None or self.parks) and order is Order.NONE:
            order = Order.GROUPS  # the messages of a conversation, or of a group that is parked, are in one task
        ordered = order is not Order.NONE
        transform = self.handler if isinstance(self.handler, Transformation) else None
        forced = transform is not None or story.careful or (ordered and bool(story.alone) and story.outdated)
        singly = forced or (ordered and bool(story.alone))
        return StageJob(
            queue=receiving.table.name,
            policy=receiving.policy,
            handler=HandlerRef(self.handler.name) if isinstance(self.handler, Transformation) else self.handler,
            journal_folder=str(stage / "journal"),  # made with the claim: a fenced holder must not make it again
            clock=receiving.clock,
            read_from=receiving.policy.reads,
            isolation=receiving.isolation,
            unprocessable=receiving.unprocessable,
            record_all=receiving.record_all,
            opening=self.opening,
            order=Order.QUEUE if ordered and singly else order,
            stop_file=str(stage / "halted") if receiving.policy.spreads_groups else None,
            alone=story.alone,
            singly=singly,
            forced=forced,
            dialogs=dialogs,
            outputs=tuple(self.outputs),
            key=self.keeper.claim.key,
            batching=receiving.batching,
            detection=None if receiving.outage is None else Detection(receiving.outage, str(stage / "journal"), self.expects),
            masking=self.masking,
            parks=self.parks,
            transform=transform,
            deaths=story.deaths if transform is not None else {},
            share=receiving.table.sharing(self.keeper.claim),
            sections=_sections(story) if receiving.table.node else {},
        )

    def _begin_with_columns(self, outputs: Sequence[Output], folder: str) -> None:
        """Write down the columns of the outputs; those that an earlier try of the claim has learned hold, for its rows land too.

        Raises OutputError when an earlier try returned rows for an output that is not declared any more.
        """
        names = {output.name for output in outputs}
        for path in self.keeper.receiving.table.journals(self.keeper.claim):
            earlier = LearnedColumns(Path(path))
            if (other := next((name for name in earlier.names() if name not in names), None)) is not None:
                raise OutputError(
                    f"An earlier run of this pass may have returned rows for the output {other!r}, which this run does not declare. Nothing was "
                    "delivered: declare it as before, with columns that its rows fit, and run the task again."
                )
            for output in outputs:
                if (learned := earlier.known(output.name)) is not None and output.columns is None:
                    LearnedColumns(Path(folder)).write(output.name, learned)
        for output in outputs:
            if output.columns is not None:
                LearnedColumns(Path(folder)).write(output.name, output.columns)

    def _dialogs(self, stage: Path) -> str | None:
        """Write what tasks have to know of conversations into the stage; return where, None when the queue has none."""
        if not self.converses:
            return None
        path = stage / "dialogs.json"
        with named(str(stage)):
            dialog_state(self.keeper.receiving.table, self.keeper.claim).save(path)
        return str(path)

    @contextmanager
    def _begun(self, job: StageJob) -> Iterator[None]:
        """Write down that a delivery begins, before it does; take that back where this process lives to see that no journal was lost."""
        folder, local, receiving = Path(job.journal_folder), self.engine.local, self.keeper.receiving
        machine = platform.machine() if local else ""
        sections = job.policy.stateless and job.dialogs is None and job.transform is None
        unforced = Forced.NOTHING if job.share is None else Forced.SHARED
        forced = (Forced.SECTIONS if sections else Forced.MARKS) if job.forced else unforced
        receiving.table.begin(self.keeper.claim, TryNote(machine, forced, receiving.table.node).to_json())
        try:
            yield
        except BaseException:
            journals = [*folder.glob("*.journal")]
            if (local or not (journals or receiving.table.node)) and (
                not receiving.table.node or _wait_until_quiet(folder)
            ):  # what others are given must not change any more
                with suppress(PoisonError, OSError):  # it stays then, and others ask themselves what became of this try
                    platform.force_files(folder, [*folder.glob("*.log"), *folder.glob("*.rows"), *journals])  # words last: they need the others
                    receiving.table.leave(self.keeper.claim)
            raise


MOST_ALONE = 32
"""So many suspects of a lost node are delivered alone; more are cut into so many parts first."""


def _sections(story: ClaimHistory) -> dict[int, int]:
    """Return how many messages a section with a suspect may have, by lookup id. None: they come alone.

    The ones with most losses are cut finest, and one that has been charged comes alone.
    """
    if len(story.alone) <= MOST_ALONE:
        return {}
    together = Counter(story.deaths.values())
    return {number: -(-together[story.deaths[number]] // MOST_ALONE) if number in story.deaths else 1 for number in story.alone}


def _saved(recovered: RecoveredAttempts, stage: Path) -> str | None:
    if not len(recovered.lookup_ids):
        return None
    path = stage / "carry"
    with named(str(stage)):
        recovered.save(path)
    reach("pass.receive.after_carry")
    return str(path)


def _order(policy: Policy) -> Order:
    if policy.spreads_groups:
        return Order.GROUPS
    return Order.QUEUE if policy.halting else Order.NONE


# How far it is ---------------------------------------------------------------------------------------------------------


EVERY = 10.0
"""Seconds between two lines of a pass that gets on."""
AT_LEAST_EVERY = 60.0
"""Seconds between two lines of one that does not."""


class PassProgress:
    """Prints the progress of a pass while its block runs.

    :param seconds: what time it is, in seconds that never go back.
    """

    def __init__(
        self, journal_folder: str, queue: str, messages: int, progress: Callable[[str], None], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._output = ForwardedLog(journal_folder, queue)
        self._journals = JournalProgress(Path(journal_folder))
        self._queue, self._messages, self._progress, self._seconds = queue, messages, progress, seconds
        self._began = self._reported_at = seconds()
        self._reported = 0

    def beat(self) -> None:
        """Hand on what handlers have printed; say how far the pass is when it is time to."""
        self._output.drain()
        now = self._seconds()
        if now - self._reported_at < EVERY:
            return
        found = self._journals.look()
        percent = 100 * found.done // max(1, self._messages)
        if percent > self._reported or now - self._reported_at >= AT_LEAST_EVERY:
            self._reported, self._reported_at = percent, now
            self._progress(_line(self._queue, self._messages, found, percent, now - self._began))

    def beating(self, keep_alive: Callable[[], None]) -> Callable[[], None]:
        """Return what keeps a claim and then prints."""

        def beat() -> None:
            keep_alive()
            self.beat()

        return beat

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Hand on the rest."""
        self._output.drain()


def _line(queue: str, messages: int, found: Progress, percent: int, seconds: float) -> str:
    return (
        f"queue {queue}: {found.done:,} of {messages:,} messages ({percent} %) after {seconds:.0f} s: {found.settled:,} settled, "
        f"{found.ended:,} rolled back for good, {found.rollbacks:,} rollbacks"
    )


# How a claim is released -----------------------------------------------------------------------------------------------


PATIENCE_SECONDS = 4.0
"""How long to wait for the end of what still writes. Airflow kills a task five seconds after it has asked it to end."""
_LOOK_SECONDS = 0.05
ENDED_WITHIN = timedelta(seconds=30)
"""So long after its holder was fenced no task works on another node any more, if that reaches the store: it looks every 5 seconds, and ends 20
seconds later (``spark/nodes.py``)."""


INTERRUPTS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)


@contextmanager
def released_on_error(keeper: ClaimKeeper) -> Iterator[None]:
    """Give the claim up when an error or an interrupt ends the block. Raises ClaimLostError where a missing file means that."""
    receiving = keeper.receiving
    ends: tuple[type[BaseException], ...] = (Exception, *receiving.interrupts)
    try:
        yield
    except ClaimLostError:
        raise
    except ends as error:
        if isinstance(error, FileNotFoundError):
            receiving.table.stage(keeper.claim)  # raises ClaimLostError when a later holder has taken the claim over
        expire_now(receiving.table, keeper.claim, receiving.clock, receiving.progress)
        raise


def expire_now(table: QueueTable, claim: Claim, clock: Clock, report: Callable[[str], None]) -> None:
    """Let a claim expire now, when no process works on it any more; else it expires by itself.

    It is not known here whether tasks on other nodes have ended. They are fenced now, and not only by the next holder, and have the time that they
    need to see that: who waits for it meets none that can reach the store.
    """
    with suppress(PoisonError, OSError):  # the error that ended the pass is raised
        begun = TryNote.read(Path(table.stage(claim), BEGUN))
        leaving = replace(claim, given_up=True)
        given_up = f"the claim of {counted(claim.messages, 'message')} is given up"
        if table.node and begun is not None and not begun.machine:
            table.close(claim)
            reach("pass.release.after_close")
            table.renew(leaving, lease=ENDED_WITHIN, now=clock.now())
            report(
                f"{given_up}: what its tasks still do on other nodes ends within {ENDED_WITHIN.seconds} s, and any pass goes on then, with all "
                "attempts counted"
            )
        elif _wait_until_quiet(Path(table.stage(claim), "journal")):
            table.renew(leaving, lease=timedelta(0), now=clock.now())
            report(f"{given_up}: the next pass goes on at once, with all attempts counted")


def _wait_until_quiet(folder: Path) -> bool:
    """Wait until no process can write to the journals any more; False when that takes too long."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not all(map(is_quiet, folder.glob("*.journal"))):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True

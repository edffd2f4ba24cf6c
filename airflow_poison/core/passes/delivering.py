"""Delivering: hand a claim's messages to the handler, going on where earlier holders of the claim stopped.

A pass that ends before its commit releases its claim: any later pass goes on at once, from what was journalled. The claim is not taken back, for its
journals hold attempts that count. It only expires now instead of in two minutes, and only when nobody can write to its journals any more; else it
expires by itself.
"""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_poison.core.delivery.progress import ForwardedLog, JournalProgress, Progress
from airflow_poison.core.delivery.sessions import platform
from airflow_poison.core.delivery.sessions.crash_attribution import BEGUN, ClaimHistory, Forced, TryNote, read_history, read_journals
from airflow_poison.core.delivery.stage import Order, StageJob
from airflow_poison.core.errors import ClaimLostError, PoisonError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.passes.conversations import dialog_state
from airflow_poison.core.store.disk import named
from airflow_poison.core.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.delivery.sessions.recovered import RecoveredAttempts
    from airflow_poison.core.passes.engine import Engine
    from airflow_poison.core.passes.receive import ReceivePass
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.store.files import Claim
    from airflow_poison.core.store.queue_table import QueueTable


class Held:
    """A claim that is renewed when a third of its lease is over."""

    def __init__(self, table: QueueTable, claim: Claim, lease: timedelta, clock: Clock) -> None:
        self.claim = claim
        self._table, self._lease, self._clock = table, lease, clock

    def keep_alive(self) -> None:
        """Renew it when that is due. Raises ClaimLostError."""
        now = self._clock.now()
        if self.claim.expires_at - now < self._lease * 2 / 3:
            self.claim = self._table.renew(self.claim, lease=self._lease, now=now)


@dataclass(frozen=True, slots=True)
class Delivering:
    """What a pass does between its claim and its account.

    :param engine: the pass's.
    :param handler: checked.
    :param opening: what the endpoint finds.
    :param converses: whether messages of conversations may be among the claimed.
    """

    receiving: ReceivePass
    engine: Engine
    held: Held
    handler: HandlerRef
    opening: Opening
    converses: bool

    def run(self) -> RecoveredAttempts:
        """Deliver; return what the earlier tries, and the messages that were delivered alone, had come to."""
        of, claim = self.receiving, self.held.claim
        stage = Path(of.table.stage(claim))
        story = read_history([Path(path) for path in of.table.journals(claim)])
        job = self._job(story, stage)
        engine, telling = self.engine, PassProgress(job.journal_folder, of.endpoint, claim.messages, of.progress)
        with self._begun(job), telling:
            keep_alive = telling.beating(self.held.keep_alive)
            carry = story.carry
            if story.alone and job.order is Order.NONE:
                of.progress(f"delivering alone what was with its handler when everything died: {counted(len(story.alone), 'message')}")
                alone = replace(job, only=story.alone, singly=True, forced=True, carry=_saved(carry, stage))
                engine.run(of.table, claim, alone, keep_alive=keep_alive)
                carry = carry.merged(read_journals([Path(job.journal_folder)]))
                reach("pass.receive.after_alone")
            engine.run(of.table, claim, replace(job, carry=_saved(carry, stage)), keep_alive=keep_alive)
        return carry

    def _job(self, story: ClaimHistory, stage: Path) -> StageJob:
        """Return what the engine is to deliver; singly where it must not be in doubt whom to blame."""
        of, dialogs = self.receiving, self._dialogs(stage)
        order = _order(of.policy)
        if dialogs is not None and order is Order.NONE:
            order = Order.GROUPS  # the messages of a conversation are in one task
        ordered = order is not Order.NONE
        forced = story.careful or (ordered and bool(story.alone) and story.outdated)
        singly = forced or (ordered and bool(story.alone))
        return StageJob(
            queue=of.table.name,
            policy=of.policy,
            handler=self.handler,
            journal_folder=str(stage / "journal"),  # made with the claim: a holder that was shut out must not make it anew
            clock=of.clock,
            read_from=of.policy.reads,
            isolation=of.isolation,
            unprocessable=of.unprocessable,
            record_all=of.record_all,
            opening=self.opening,
            order=Order.QUEUE if ordered and singly else order,
            stop_file=str(stage / "halted") if of.policy.spreads_groups else None,
            alone=story.alone,
            singly=singly,
            forced=forced,
            dialogs=dialogs,
        )

    def _dialogs(self, stage: Path) -> str | None:
        """Write what tasks have to know of conversations into the stage; return where, None when the queue has none."""
        if not self.converses:
            return None
        path = stage / "dialogs.json"
        with named(str(stage)):
            dialog_state(self.receiving.table, self.held.claim).save(path)
        return str(path)

    @contextmanager
    def _begun(self, job: StageJob) -> Iterator[None]:
        """Write down that a delivery begins, before it does; take that back where this process lives to see that no journal was lost."""
        folder, local = Path(job.journal_folder), self.engine.local
        machine = platform.machine() if local else ""
        forced = (Forced.SECTIONS if job.policy.stateless and job.dialogs is None else Forced.MARKS) if job.forced else Forced.NOTHING
        self.receiving.table.begin(self.held.claim, TryNote(machine, forced).to_json())
        try:
            yield
        except BaseException:
            journals = [*folder.glob("*.journal")]
            if local or not journals:
                with suppress(OSError):  # it stays then, and others ask themselves what became of this try
                    platform.force_files(folder, journals)
                    (folder.parent / BEGUN).unlink()
            raise


def _saved(carry: RecoveredAttempts, stage: Path) -> str | None:
    """Write what tasks have to know into the stage; return where, None when there is nothing."""
    if not len(carry.lookup_ids):
        return None
    path = stage / "carry.npy"
    with named(str(stage)):
        carry.save(path)
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
    """Tells of a pass while its block runs.

    :param journal_folder: of the claim's holder.
    :param messages: of the claim.
    :param progress: told a line now and then.
    :param seconds: what time it is, in seconds that never go back.
    """

    def __init__(
        self, journal_folder: str, queue: str, messages: int, progress: Callable[[str], None], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._output = ForwardedLog(journal_folder, queue)
        self._journals = JournalProgress(Path(journal_folder))
        self._queue, self._messages, self._progress, self._seconds = queue, messages, progress, seconds
        self._began = self._told_at = seconds()
        self._told = 0

    def beat(self) -> None:
        """Hand on what handlers have printed; say how far the pass is when it is time to."""
        self._output.drain()
        now = self._seconds()
        if now - self._told_at < EVERY:
            return
        found = self._journals.look()
        percent = 100 * found.done // max(1, self._messages)
        if percent > self._told or now - self._told_at >= AT_LEAST_EVERY:
            self._told, self._told_at = percent, now
            self._progress(_line(self._queue, self._messages, found, percent, now - self._began))

    def beating(self, keep_alive: Callable[[], None]) -> Callable[[], None]:
        """Return what keeps a claim and then tells."""

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


INTERRUPTS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)


@contextmanager
def released_on_error(
    table: QueueTable, claim: Callable[[], Claim], clock: Clock, tell: Callable[[str], None], interrupts: tuple[type[BaseException], ...] = INTERRUPTS
) -> Iterator[None]:
    """Give the claim up when an error or an interrupt ends the block.

    :param claim: returns it as it was renewed last.
    :param tell: told a line.
    :param interrupts: what is no Exception.
    Raises ClaimLostError where a missing file means that.
    """
    ends: tuple[type[BaseException], ...] = (Exception, *interrupts)
    try:
        yield
    except ClaimLostError:
        raise
    except ends as error:
        if isinstance(error, FileNotFoundError):
            table.stage(claim())  # says so when a later holder has shut this one out, and its folder is gone with that
        release(table, claim(), clock, tell)
        raise


def release(table: QueueTable, claim: Claim, clock: Clock, tell: Callable[[str], None]) -> None:
    """Let a claim expire now, when nobody works on it any more; else it expires by itself."""
    with suppress(PoisonError, OSError):  # what ended the pass is what is told
        if _quiet(Path(table.stage(claim), "journal")):
            table.renew(claim, lease=timedelta(0), now=clock.now())
            tell(f"the claim of {counted(claim.messages, 'message')} is given up: the next pass goes on at once, with all attempts counted")


def _quiet(folder: Path) -> bool:
    """Wait until nobody can write to the journals any more; False when that takes too long."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not all(map(_is_left, folder.glob("*.journal"))):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _is_left(journal: Path) -> bool:
    with journal.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True

"""Delivering: hand a claim's messages to the handler, going on where earlier holders of the claim stopped."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.counted import counted
from airflow_poison.core.delivery.sessions import platform
from airflow_poison.core.delivery.sessions.begun import Begun, Forced
from airflow_poison.core.delivery.sessions.blame import Story, read_journals, read_story
from airflow_poison.core.delivery.sessions.tries import BEGUN
from airflow_poison.core.delivery.stage import Order, StageJob
from airflow_poison.core.fault_points import reach
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.conversations.at_hand import at_hand, has_conversations
from airflow_poison.core.passes.telling import Telling
from airflow_poison.core.store.disk import named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.delivery.sessions.carry import Carry
    from airflow_poison.core.passes.engine import Engine
    from airflow_poison.core.passes.receive import ReceivePass
    from airflow_poison.core.policies.opening import Opening
    from airflow_poison.core.policies.seam import Policy
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
    """

    receiving: ReceivePass
    engine: Engine
    held: Held
    handler: HandlerRef
    opening: Opening

    def run(self) -> Carry:
        """Deliver; return what the earlier tries, and the messages that were delivered alone, had come to."""
        of, claim = self.receiving, self.held.claim
        stage = Path(of.table.stage(claim))
        story = read_story([Path(path) for path in of.table.journals(claim)])
        job = self._job(story, stage)
        engine, telling = self.engine, Telling(job.journal_folder, of.endpoint, claim.messages, of.progress)
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

    def _job(self, story: Story, stage: Path) -> StageJob:
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
        of = self.receiving
        if of.policy.reads is not SubQueue.MAIN or not has_conversations(of.table.snapshot()):
            return None
        path = stage / "dialogs.json"
        with named(str(stage)):
            at_hand(of.table, self.held.claim).save(path)
        return str(path)

    @contextmanager
    def _begun(self, job: StageJob) -> Iterator[None]:
        """Write down that a delivery begins, before it does; take that back where this process lives to see that no journal was lost."""
        folder, local = Path(job.journal_folder), self.engine.local
        machine = platform.machine() if local else ""
        forced = (Forced.SECTIONS if job.policy.stateless and job.dialogs is None else Forced.MARKS) if job.forced else Forced.NOTHING
        self.receiving.table.begin(self.held.claim, Begun(machine, forced).told())
        try:
            yield
        except BaseException:
            journals = [*folder.glob("*.journal")]
            if local or not journals:
                with suppress(OSError):  # it stays then, and others ask themselves what became of this try
                    platform.force_files(folder, journals)
                    (folder.parent / BEGUN).unlink()
            raise


def _saved(carry: Carry, stage: Path) -> str | None:
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

"""Bugs that tests plant in the processes of a campaign, to see that it finds them. The product knows nothing of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_poison.delivery import dialogs, host, journal, recovered, work
from airflow_poison.delivery.journal import MessageState, word
from airflow_poison.delivery.recovered import RecoveredAttempts
from airflow_poison.delivery.unit_counts import ClaimCounts
from airflow_poison.desk import actions, applying
from airflow_poison.dialogs.transaction import Conversation
from airflow_poison.passes import relay, runs, take
from airflow_poison.passes.messages import with_columns
from airflow_poison.store import disk, entries, log_damage, stage
from airflow_poison.store import queue_table as tables
from airflow_poison.values.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.store.files import Commit


def plant(bug: str) -> None:
    """Put a bug into this process; none for an empty name."""
    if bug:
        BUGS[bug]()


def replace(owner: Any, name: str, instead: Any) -> None:
    """Put something else in the place of a function, in this process."""
    setattr(owner, name, instead)


def _no_claim_check() -> None:
    """Nobody asks whether a holder still has its claim, and nobody shuts the earlier holder out."""
    replace(tables.View, "held", lambda _self, _claim: True)
    replace(stage, "fence", lambda _root, _claim: None)


def _no_held_check() -> None:
    """Nobody asks whether a holder still has its claim; earlier holders are shut out of their stage as ever."""
    replace(tables.View, "held", lambda _self, _claim: True)


def _no_fence() -> None:
    """Nobody shuts the earlier holder out of its stage; claims are checked as ever."""
    replace(stage, "fence", lambda _root, _claim: None)


def _no_revalidation() -> None:
    """A commit that lost its race is made for the next version as it was planned, without a second look."""

    def change(self: tables.Table, plan: Callable[[tables.View], tuple[Commit | None, Any]]) -> Any:
        commit, answer = plan(self.view())
        while commit is not None and not self.log.commit(self.log.load(), commit):
            pass
        return answer

    replace(tables.Table, "change", change)


def _no_sync() -> None:
    """The data files of a commit are not forced to disk before it."""
    replace(disk, "sync_files", lambda _root, _names: None)


def _charge_the_batch() -> None:
    """Where a process died, every message of its batch that was not settled is charged."""
    read = journal.sections

    def sections(*content: Any) -> Iterator[Any]:
        for section in read(*content):
            words = section.words
            if (words & 0xFF == MessageState.IN_FLIGHT).any():
                words[words & 0xFF == MessageState.UNTOUCHED] += np.int32(word(MessageState.UNTOUCHED, 1, 1))
            yield section

    replace(recovered, "sections", sections)


def _ghosts() -> None:
    """What a delivery that was rolled back did in its conversation counts all the same."""
    rolled_back = host.EndpointHost.rolled_back

    def call(self: Any, message: Any, begun: Any, services: Any) -> Any:
        conversation = Conversation(begun, services, self.job.clock.now)
        failure = self.call(message.within(conversation))
        return failure, conversation.close()

    def applied(self: Any, entries: Any, culprit: Any, failure: Any) -> None:
        for entry in entries if self._dialogs is not None else ():
            self._dialogs.done(entry.row, self._done.pop(entry.row, None))
        rolled_back(self, entries, culprit, failure)

    replace(work.Endpoint, "call_in_dialog", call)
    replace(host.EndpointHost, "rolled_back", applied)


def _remove_first() -> None:
    """What leaves for the partner is taken from the sender's side before the partner's queue has it."""
    holds = relay._holds

    def removing(target: Any, table: Any, messages: Any) -> bool:
        if holds(target, table, messages):
            return True
        table.remove_transmissions(table.snapshot().transmissions[:1])
        return False

    replace(relay, "_holds", removing)


def _no_effects() -> None:
    """The effects of earlier deliveries are not looked for: a pass that goes on does not know what they did."""
    replace(dialogs.Dialogs, "_counts", lambda _self, _told: False)
    replace(dialogs.Dialogs, "_is_lost", lambda _self, _id: False)


def _no_marks() -> None:
    """A newest entry that is cut is taken for one that a loss of power has cut short, whatever its mark says."""
    diagnose = log_damage.diagnose

    def forgetful(root: str) -> log_damage.Diagnosis:
        found = diagnose(root)
        if not found.unmarked:
            return found
        torn = Path(root, entries.LOG, f"{found.version:020d}.json")
        return log_damage.Diagnosis(found.version - 1, (torn,), found.shortcuts)

    replace(entries, "read_marks", lambda _root: {})
    replace(entries, "note", lambda *_, **__: None)
    replace(log_damage, "diagnose", forgetful)


def _one_airflow() -> None:
    """The keys of two Airflows that run the same are the same."""
    replace(runs, "installed", lambda _installation, key: key)


def _skip_a_row() -> None:
    """What reads sources leaves the last record of a batch out."""
    joined = take._joined
    replace(take, "_joined", lambda batches: (batch.slice(0, max(1, batch.num_rows - 1)) for batch in joined(batches)))


def _patch_by_values() -> None:
    """A patch writes a body anew: numbers go through doubles, and of two equal names one stays."""

    def careless(action: Any, plan: str) -> Callable[[Any], Any]:
        edit = actions.editor(action, plan)

        def made(before: Any) -> Any:
            after = edit(before)
            return after if action.patch is None else actions.Edited(json.dumps(json.loads(after.body)).encode(), after.properties)

        return made

    replace(applying, "editor", careless)


def _bodies_as_text() -> None:
    """Handlers are given bodies as text that was encoded again: bytes that are no text are others then."""
    body = Message.__dict__["body"]
    replace(Message, "body", property(lambda message: body.fget(message).decode(errors="replace").encode()))


def _outcomes_as_text() -> None:
    """Messages that a pass moves or leaves are written as text."""
    write = stage.OutcomeWriter.write

    def as_text(writer: Any, rows: Any) -> None:
        cells = zip(rows["sub_queue"].to_pylist(), rows["body"].to_pylist(), strict=True)
        bodies = [body if place.startswith("_") else body.decode(errors="replace").encode() for place, body in cells]
        write(writer, with_columns(rows, body=bodies))

    replace(stage.OutcomeWriter, "write", as_text)


def _outage_takes_commits_back() -> None:
    """What has committed before a pass finds an outage is given back, too."""
    without = RecoveredAttempts.without

    def careless(known: RecoveredAttempts, fingerprints: Any) -> tuple[RecoveredAttempts, int]:
        found, given_back = without(known, fingerprints)
        return dataclasses.replace(found, words=np.zeros_like(found.words)), given_back

    replace(RecoveredAttempts, "without", careless)


def _charge_the_next() -> None:
    """A message of a transformation is charged for the one before it."""
    charge = ClaimCounts.charge

    def careless(counts: Any, failed: Any) -> None:
        charge(counts, {min(row + 1, len(counts.lookup_ids) - 1): failure for row, failure in failed.items()} | failed)

    replace(ClaimCounts, "charge", careless)


BUGS: dict[str, Callable[[], None]] = {
    "no-claim-check": _no_claim_check,
    "no-held-check": _no_held_check,
    "no-fence": _no_fence,
    "no-revalidation": _no_revalidation,
    "no-sync": _no_sync,
    "charge-the-batch": _charge_the_batch,
    "ghosts": _ghosts,
    "remove-first": _remove_first,
    "no-effects": _no_effects,
    "no-marks": _no_marks,
    "one-airflow": _one_airflow,
    "skip-a-row": _skip_a_row,
    "patch-by-values": _patch_by_values,
    "bodies-as-text": _bodies_as_text,
    "outcomes-as-text": _outcomes_as_text,
    "outage-takes-commits-back": _outage_takes_commits_back,
    "charge-the-next": _charge_the_next,
}

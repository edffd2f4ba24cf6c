"""Changes outside a pass, each in one commit: files move, are split, replaced or go; dialogs change (transactions)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_poison.store import data_files, plans
from airflow_poison.store.data_files import commit_prefix
from airflow_poison.store.files import Commit, DataFile, PlanStep, Replacement, Returned, Snapshot, Transaction
from airflow_poison.values.errors import ConservationError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.schema import CONVERSATION, OUTBOX, TRANSMISSION_QUEUE, SubQueue

if TYPE_CHECKING:
    from airflow_poison.store.control import Control
    from airflow_poison.store.queue_table import Table, View

_UNCOUNTED = frozenset({SubQueue.POSTPONED.value, SubQueue.TRANSMISSION.value})
_EVENT = {SubQueue.MAIN: EventType.RETURNED, SubQueue.RETRY: EventType.MOVED_RETRY, SubQueue.POISON: EventType.MOVED_POISON}
_PLACES = frozenset({*(place.value for place in SubQueue), OUTBOX})
_OF_DIALOGS = (CONVERSATION, TRANSMISSION_QUEUE)


def alter(
    table: Table, change: Callable[[Control], Control], events: Callable[[Control, Control], Sequence[Event]] = lambda _before, _after: ()
) -> Control:
    """Replace the control row by ``change(current)`` by compare-and-swap, writing ``events(before, after)`` in the same commit.

    When the queue is not disabled any more, this commit also moves the messages in ``transmission`` to ``main``, without a move count or event.
    """

    def plan(view: View) -> tuple[Commit | None, Control]:
        before = view.snapshot.control
        after = change(before)
        part = table.control_change(view, lambda _: after)
        added = [*part.add, *data_files.write_events(table.folder, view.state.version + 1, events(before, after))]
        return (replace(part, add=added, scratch=added) if added else None), after

    return table.change(plan)


# Whole files ----------------------------------------------------------------------------------------------------------


def move_files(table: Table, pick: Callable[[Snapshot], Sequence[DataFile]], target: SubQueue, now: datetime, *, count_move: bool = True) -> Returned:
    """Move whole unclaimed files to another sub-queue, as metadata, in one commit with a RETURNED (or MOVED_POISON) event a file.

    Each gets a second name: no row is written again, and every reader sees the new place and count. ``pick`` is asked again for each try against
    the newest snapshot; files of live claims are left out. Events are written in the order of the picked files.
    """

    def plan(view: View) -> tuple[Commit | None, Returned]:
        free = view.live.keys() - view.snapshot.claimed_paths
        wanted = {file.path: view.live[file.path] for file in pick(view.snapshot) if file.path in free and file.sub_queue != target}
        if not wanted:
            return None, Returned(messages=0, files=0)
        moved = [(file, data_files.moved(table.folder, file, target, file.move_count + count_move)) for file in wanted.values()]
        reach("store.move.after_links")
        # One event per file; ``history`` expands it to one per message. A move from or to an ``_UNCOUNTED`` sub-queue writes none.
        events = [_event(old, new, target, now) for old, new in moved if _UNCOUNTED.isdisjoint({old.sub_queue, target.value})]
        added = [*(new for _, new in moved), *data_files.write_events(table.folder, view.state.version + 1, events)]
        details = {"to": target.value, "files": len(moved)}
        commit = Commit("move", add=added, remove=[old for old, _ in moved], details=details, scratch=added)
        return commit, Returned(messages=sum(new.rows for _, new in moved), files=len(moved))

    return table.change(plan)


def _event(old: DataFile, new: DataFile, target: SubQueue, now: datetime) -> Event:
    details = {"count": str(new.rows), "max_lookup_id": str(new.max_lookup_id), "path": new.path, "place": target.value}
    if old.sub_queue == SubQueue.POISON:
        details["origin"] = SubQueue.POISON.value
    return Event(type=_EVENT[target], at=now, lookup_id=new.min_lookup_id, move_count=new.move_count, details=details)


def split_file(table: Table, file: DataFile, pieces: Iterable[pa.Table]) -> None:
    """Replace one unclaimed file by pieces that together hold exactly its rows: see ``split_files``."""
    split_files(table, [(file, pieces)])


def split_files(table: Table, splits: Iterable[tuple[DataFile, Iterable[pa.Table]]]) -> None:
    """Replace unclaimed files by pieces that together hold exactly their rows, in one commit (``data_change=False``).

    Raises ConservationError, and TableChangedError when one of the files is claimed or gone; nothing has changed then.
    """
    written: list[DataFile] = []
    whole: list[DataFile] = []
    for file, pieces in splits:
        added = [data_files.write_new(table.folder, file.sub_queue, file.move_count, piece) for piece in pieces if piece.num_rows]
        written += added
        whole.append(file)
        if sum(piece.rows for piece in added) != file.rows:
            table.discard(written)
            message = f"The pieces of {file.path} hold {sum(piece.rows for piece in added)} rows instead of {file.rows}; nothing was changed."
            raise ConservationError(message)
    reach("store.split.after_files")

    def plan(view: View) -> tuple[Commit | None, str | None]:
        if (found := obstacle(view, whole)) is not None:
            return None, found
        written[:] = [data_files.renamed(table.folder, piece) for piece in written]
        return Commit("split", add=tuple(written), remove=[view.live[file.path] for file in whole], data_change=False), None

    found = table.change(plan)
    if found is not None:
        table.discard(written)
        message = f"{found} of queue {table.name!r} cannot be split: another pass has claimed or removed it. Look at the newest snapshot."
        raise TableChangedError(message)


def remove_outbox(table: Table, sent: Sequence[DataFile]) -> None:
    """Remove outbox files whose messages have been sent on."""
    _remove_files(table, sent, operation="remove_outbox")


def remove_transmissions(table: Table, taken: Sequence[DataFile]) -> None:
    """Remove files of dialog messages that their target queues have taken."""
    _remove_files(table, taken, operation="remove_transmissions")


def remove_landings(table: Table, landed: Sequence[DataFile], back: pa.Table, events: Sequence[Event]) -> None:
    """Remove files of returned rows that are in their outputs; nothing happens when they are gone.

    :param back: settled messages (``table_schema()``) whose rows are not, which come back, with the ``events`` that say so.
    """

    def plan(view: View) -> tuple[Commit | None, None]:
        present = [view.live[file.path] for file in landed if file.path in view.live]
        if not present:
            return None, None
        written = [*_written_anew(table, back)]
        added = [*written, *data_files.write_events(table.folder, view.state.version + 1, events)]
        details = {"brought_back": back.num_rows} if written else {}
        return Commit("remove_landings", add=added, remove=present, details=details, scratch=added), None

    table.change(plan)


def _remove_files(table: Table, sent: Sequence[DataFile], *, operation: str) -> None:

    def plan(view: View) -> tuple[Commit | None, None]:
        present = [view.live[file.path] for file in sent if file.path in view.live]
        return (Commit(operation, remove=present) if present else None), None

    table.change(plan)


# Other rows in the place of files -------------------------------------------------------------------------------------


def replace_file(table: Table, file: DataFile, rows: pa.Table, events: Sequence[Event]) -> None:
    """Replace one unclaimed file by other rows (none: the file goes): see ``replace_files``."""
    replace_files(table, [Replacement(file, rows, removed=file.rows - rows.num_rows)], events)


def replace_files(
    table: Table,
    replacements: Iterable[Replacement],
    events: Sequence[Event],
    *,
    change: Callable[[Control], Control] | None = None,
    alone: bool = False,
    moves: Sequence[tuple[DataFile, SubQueue]] = (),
    step: PlanStep | None = None,
) -> None:
    """Replace unclaimed files by other rows, record what that means and change the control row, all in one commit.

    The new files are written once, one after the other.

    :param replacements: asked for one by one, so that only one file's rows are in memory; ``events`` are looked at afterwards.
    :param alone: require that the queue has no claims at all.
    :param moves: whole files that come to other sub-queues by a second name, each with one more move; no row of them is written again.
    :param step: counts for a plan. Raises PlanStateError when the plan is not in one of its states any more.
    Raises TableChangedError when one of the files was claimed, moved or removed meanwhile, and ConservationError when the rows differ from
    the rows of the file. After an error nothing has changed.
    """
    replaced: list[DataFile] = [file for file, _ in moves]
    written: list[DataFile] = []
    gone = 0
    try:
        for replacement in replacements:
            replaced.append(replacement.file)
            gone += replacement.removed
            written += _write_replacement(table, replacement)
    except BaseException:
        table.discard(written)
        raise
    reach("store.replace.after_files")

    def plan(view: View) -> tuple[Commit | None, str | None]:
        """Return the commit; or the path of a file that is not free any more."""
        found = obstacle(view, replaced, alone=alone)
        if found is not None:
            return None, found
        numbers = {} if step is None else plans.counted(table, view.state, step)
        written[:] = [data_files.renamed(table.folder, file) for file in written]
        moved = [data_files.moved(table.folder, file, target, file.move_count + 1) for file, target in moves]
        control = table.control_change(view, change)
        record = data_files.write_events(table.folder, view.state.version + 1, events)
        added, removed = [*written, *moved, *record, *control.add], [*(view.live[file.path] for file in replaced), *control.remove]
        if not added and not removed:
            return None, None
        details = {"removed": gone} | ({} if step is None else {"plan": step.plan})
        scratch = [*moved, *record, *control.scratch]
        return Commit("replace", add=added, remove=removed, numbers=numbers, details=details, scratch=scratch), None

    found = table.change(plan)  # files stay when this raises: the commit may have happened
    if found is not None:
        table.discard(written)
        raise _refusal(table, found)


def obstacle(view: View, wanted: Sequence[DataFile], *, alone: bool = False) -> str | None:
    """Return the path of a wanted file that is no longer free; with ``alone``, the path of any claimed file."""
    claimed = view.snapshot.claimed_paths
    if alone and claimed:
        return min(claimed)
    return next((file.path for file in wanted if file.path not in view.live or file.path in claimed), None)


def _refusal(table: Table, path: str) -> TableChangedError:
    message = f"{path} of queue {table.name!r} cannot be changed: a pass has claimed, moved or removed it. Look at the newest snapshot."
    return TableChangedError(message)


def _write_replacement(table: Table, replacement: Replacement) -> Iterator[DataFile]:
    file, stays = replacement.file, replacement.rows
    distinct = len(stays.column("lookup_id").unique())
    if not file.rows - replacement.removed == stays.num_rows == distinct:
        message = (
            f"{file.path} of queue {table.name!r} holds {file.rows} messages; {replacement.removed} were to go, "
            f"and {stays.num_rows} rows of {distinct} messages were to stay. Nothing was changed."
        )
        raise ConservationError(message)
    yield from _written_anew(table, stays)


def _written_anew(table: Table, rows: pa.Table) -> Iterator[DataFile]:
    for place in rows.group_by(["sub_queue", "move_count"]).aggregate([]).to_pylist():
        yield data_files.write_new(table.folder, place["sub_queue"], place["move_count"], _rows_of(rows, place))


def _rows_of(found: pa.Table, place: Mapping[str, Any]) -> pa.Table:
    if place["sub_queue"] not in _PLACES:
        message = f"Messages cannot be put into {place['sub_queue']!r}; expected one of {', '.join(sorted(_PLACES))}. Nothing was changed."
        raise ConservationError(message)
    return found.filter(pc.and_(pc.equal(found["sub_queue"], place["sub_queue"]), pc.equal(found["move_count"], place["move_count"])))


# Transactions -----------------------------------------------------------------------------------------------------------


def transact(table: Table, plan: Callable[[Snapshot], Transaction | None], key: str, now: datetime) -> bool:
    """Commit what ``plan`` makes of the newest snapshot, once per key; False when a transaction with this key was committed before.

    ``plan`` is asked again for each try, so what it reads and decides holds in the version that is made. When it gives None, nothing is
    committed, and the key stays free.
    Raises TableChangedError when a named file is claimed or gone, or when the queue has a claim and ``alone`` is required;
    ConservationError when rows differ from the rows of their file or belong to another partition. After an error nothing has changed.
    """
    done = f"transact:{key}"

    def attempt(view: View) -> tuple[Commit | None, bool]:
        if view.state.number(done) is not None:
            return None, False
        wanted = plan(view.snapshot)
        return (None, True) if wanted is None else (_transaction(table, view, wanted, key, now), True)

    return table.change(attempt)


def _transaction(table: Table, view: View, wanted: Transaction, key: str, now: datetime) -> Commit:
    """Write what comes, for this try alone. Raises TableChangedError, ConservationError; then nothing of it is left."""
    named = [*(replacement.file for replacement in wanted.replacements), *wanted.remove]
    _check_transaction(table, view, wanted, named)
    version = view.state.version + 1
    written: list[DataFile] = []
    reach("store.transact.before_files")
    try:
        if wanted.rows is not None:
            written += _write_rows(table, wanted.rows, version, now)
        for replacement in wanted.replacements:
            written += _write_replacement(table, replacement)
        written += data_files.write_events(table.folder, version, wanted.events)
    except BaseException:
        table.discard(written)
        raise
    reach("store.transact.after_files")
    return Commit(
        "transact",
        add=written,
        remove=[view.live[file.path] for file in named],
        numbers={f"transact:{key}": version},
        details={"key": key, "removed": sum(replacement.removed for replacement in wanted.replacements)},
        scratch=written,
    )


def _check_transaction(table: Table, view: View, wanted: Transaction, named: list[DataFile]) -> None:
    found = obstacle(view, named, alone=wanted.alone)
    if found is not None:
        raise _refusal(table, found)
    if len({file.path for file in named}) < len(named):
        raise ConservationError(f"A transaction in queue {table.name!r} names a file twice. Nothing was changed.")
    replaced = next((replacement.file.path for replacement in wanted.replacements if replacement.file.sub_queue in _OF_DIALOGS), None)
    if replaced is not None:
        raise ConservationError(f"{replaced} of queue {table.name!r} can only go whole: give it to the transaction's 'remove'. Nothing was changed.")
    others = ({file.sub_queue for file in wanted.remove} | set(_places(wanted.rows))) - set(_OF_DIALOGS)
    if others:
        other = ", ".join(repr(place) for place in sorted(others))
        message = f"A transaction in queue {table.name!r} adds rows to {other}, or removes a file there; expected {' or '.join(_OF_DIALOGS)}."
        raise ConservationError(message + " Messages go by its replacements. Nothing was changed.")


def _places(found: pa.Table | None) -> list[str]:
    return [] if found is None else [str(place) for place in found.column("sub_queue").unique().to_pylist()]


def _write_rows(table: Table, given: pa.Table, version: int, now: datetime) -> Iterator[DataFile]:
    at = given.schema.get_field_index("enqueued_at")
    given = given.set_column(at, given.schema.field(at), pc.fill_null(given.column(at), pa.scalar(now, given.schema.field(at).type)))
    for place in _places(given):
        prefix = commit_prefix(version) if place == TRANSMISSION_QUEUE else ""
        yield data_files.write_new(table.folder, place, 0, given.filter(pc.equal(given["sub_queue"], pa.scalar(place))), prefix)

"""A pass's claim: the durable, expiring right to a set of files, from its taking to the final commit that ends it.

It takes the next files of a sub-queue; those that have messages of later claims, too, are split or parted before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from airflow_poison.store import compaction, data_files, parking, stage
from airflow_poison.store.changing import obstacle, split_file, split_files
from airflow_poison.store.control import Control, QueueState
from airflow_poison.store.data_files import CLAIM, STAGE, commit_prefix, new_path
from airflow_poison.store.files import Claim, Commit, DataFile, Manifest
from airflow_poison.store.parking import parks
from airflow_poison.values.errors import ClaimLostError, QueueHaltedError, SettingError, TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import np, pa
from airflow_poison.values.schema import EVENT, LANDING, TRANSMISSION_QUEUE, SubQueue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.store.queue_table import Table, View
    from airflow_poison.values.events import Event

_BY_LOOKUP_ID: Sequence[tuple[str, Literal["ascending", "descending"]]] = (("lookup_id", "ascending"),)
_QUEUE_ORDER: Sequence[tuple[str, Literal["ascending", "descending"]]] = (("priority", "descending"), *_BY_LOOKUP_ID)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim asks for."""

    key: str
    expires_at: datetime
    max_messages: int
    exclusive: bool
    sub_queue: SubQueue
    probe: bool

    @property
    def size(self) -> int | None:
        """How many messages a piece of a parted file has at most, that a later claim takes; None: all, since a probe wants few."""
        return None if self.probe else self.max_messages


@dataclass(frozen=True, slots=True)
class ToSplit:
    """A file that has to be split before it can be claimed.

    :param cut: gives the pieces of its messages, in the order in which they are received.
    """

    file: DataFile
    cut: Callable[[pa.Table], Iterable[pa.Table]]


@dataclass(frozen=True, slots=True)
class ToPart:
    """Files that have to be parted before they can be claimed: only some of their messages come next.

    :param parts: each with its messages by kind, in the order of its rows: those that come next; those that wait behind others of their groups, where
        some do; and those that a later claim takes.
    :param size: how many of these a piece has at most; None: all.
    :param order: in which they are received.
    """

    parts: Sequence[tuple[DataFile, Sequence[NDArray[np.bool_]]]]
    size: int | None
    order: Sequence[tuple[str, Literal["ascending", "descending"]]]


def pick(table: Table, view: View, wanted: Wanted) -> tuple[DataFile, ...] | ToSplit | ToPart | None:
    """Return the next free files in queue order while they fit; the first of them when it is too large alone.

    Where order is kept, no file may bring messages along in front of others that stay: files that interleave are parted. Messages of one conversation
    have one priority (spec SB-48), and come in the order in which they were sent.
    """
    claimed = view.snapshot.claimed_paths
    free = [file for file in view.snapshot.files if file.sub_queue == wanted.sub_queue and file.path not in claimed]
    if not free:
        return None
    if wanted.probe:
        if not wanted.exclusive:  # no order is kept: what has been split off once is probed again
            free.sort(key=lambda file: file.rows > wanted.max_messages)
        if free[0].rows > wanted.max_messages:
            return ToSplit(free[0], lambda rows: _split_off(rows, wanted.max_messages, first=wanted.exclusive))
    if free[0].rows > wanted.max_messages:
        return ToSplit(free[0], lambda rows: (rows.slice(start, wanted.max_messages) for start in range(0, rows.num_rows, wanted.max_messages)))
    picked: list[DataFile] = []
    room = wanted.max_messages
    for file in free:
        if file.rows > room:
            break
        picked.append(file)
        room -= file.rows
    stays = free[len(picked) :]
    if wanted.exclusive and any(_first(file) < max(map(_last, picked)) for file in stays):
        return _next(table, free, wanted)
    return tuple(picked)


def _first(file: DataFile) -> tuple[int, int]:
    """Return a lower bound of the order of a file's messages, as far as statistics show."""
    return -file.max_priority, file.min_lookup_id


def _last(file: DataFile) -> tuple[int, int]:
    return -file.min_priority, file.max_lookup_id


def _next(table: Table, free: Sequence[DataFile], wanted: Wanted) -> tuple[DataFile, ...] | ToPart:
    """Return the files of the next messages of a claim; those that have others, too, to be parted before. Two columns are read.

    :param free: in queue order.
    """
    most = wanted.max_messages
    found: list[DataFile] = []
    priorities, lookup_ids = np.empty(0, np.int64), np.empty(0, np.int64)
    for number, file in enumerate(free):
        table.bring([file])
        rows = data_files.read_columns(table.folder, file.path, ["priority", "lookup_id"])
        found.append(file)
        priorities = np.concatenate([priorities, -rows["priority"].to_numpy().astype(np.int64)])
        lookup_ids = np.concatenate([lookup_ids, rows["lookup_id"].to_numpy()])
        if number + 1 < len(free):
            priority, lookup_id = _first(free[number + 1])
            if np.count_nonzero((priorities < priority) | ((priorities == priority) & (lookup_ids < lookup_id))) >= most:
                break
    chosen = np.zeros(len(lookup_ids), bool)
    chosen[np.lexsort((lookup_ids, priorities))[:most]] = True
    of_files = np.split(chosen, np.cumsum([file.rows for file in found])[:-1])
    parts = [(file, some) for file, some in zip(found, of_files, strict=True) if some.any()]
    mixed = [(file, [some, ~some]) for file, some in parts if not some.all()]
    return ToPart(mixed, wanted.size, _QUEUE_ORDER) if mixed else tuple(file for file, _ in parts)


def pick_unparked(table: Table, view: View, wanted: Wanted) -> tuple[DataFile, ...] | ToPart | None:
    """Return the files of the first messages that do not wait behind others of their groups; those that have others, too, to be parted before.

    First by lookup id alone, so that no message is left out before a later one of its group. A file whose messages all wait is left as it is.
    """
    parts = parking.parts(table, view.snapshot)
    free = np.concatenate([part.lookup_ids[~part.waits] for part in parts]) if parts else ()
    if not len(free):
        return None
    last = np.partition(free, wanted.max_messages - 1)[wanted.max_messages - 1] if len(free) > wanted.max_messages else max(free)
    chosen = [(part, ~part.waits & (part.lookup_ids <= last)) for part in parts]
    mixed = [(part.file, [rows, part.waits, ~part.waits & ~rows]) for part, rows in chosen if rows.any() and not rows.all()]
    if mixed:
        return ToPart(mixed, wanted.size, _BY_LOOKUP_ID)
    return tuple(part.file for part, rows in chosen if rows.all())


def split(table: Table, found: ToSplit) -> None:
    """Split a file in a commit of its own."""
    whole = data_files.read(table.folder, found.file).sort_by(list(_QUEUE_ORDER))
    try:
        split_file(table, found.file, found.cut(whole))
    except TableChangedError:
        return  # another pass has claimed or split it: the next look at the table shows it


def _split_off(rows: pa.Table, number: int, *, first: bool) -> Iterator[pa.Table]:
    """Yield so many messages, the first ones or some from all over, and then the others."""
    chosen = np.zeros(rows.num_rows, bool)
    chosen[np.arange(number) if first else np.random.default_rng(rows.num_rows).choice(rows.num_rows, number, replace=False)] = True
    yield rows.take(np.flatnonzero(chosen))
    yield rows.take(np.flatnonzero(~chosen))


def part(table: Table, found: ToPart) -> None:
    """Part files in one commit: what comes next, and what waits, is then in files of its own."""

    def pieces(file: DataFile, kinds: Sequence[NDArray[np.bool_]]) -> Iterator[pa.Table]:
        rows = data_files.read(table.folder, file)
        *first, last = (rows.filter(kind) for kind in kinds)
        yield from first
        later = last.sort_by(list(found.order))
        size = found.size or max(1, later.num_rows)
        yield from (later.slice(start, size) for start in range(0, later.num_rows, size))

    table.bring([file for file, _ in found.parts])
    try:
        split_files(table, ((file, pieces(file, kinds)) for file, kinds in found.parts))
    except TableChangedError:
        if obstacle(table.view(), [file for file, _ in found.parts]) is None:
            raise  # a file is damaged


_MANY = 64  # files
_SMALL = 1024 * 1024  # bytes


def claim(
    table: Table,
    key: str,
    *,
    lease: timedelta,
    now: datetime,
    max_messages: int,
    exclusive: bool = False,
    sub_queue: SubQueue = SubQueue.MAIN,
    probe: bool = False,
) -> Claim | None:
    """Claim whole files of a sub-queue (``main``; ``poison`` for its reader) in queue order up to ``max_messages``.

    None when there is nothing to receive: no file, another pass has an exclusive claim (or any, when this one wants to be
    exclusive), or this key's pass has finished (ask ``result``).
    A claim of the same key that still exists is taken over (epoch + 1, new attempt) instead. A first file that is larger
    than ``max_messages`` is split once, in a commit of its own. Expired claims of others are left alone: see ``expired``.
    A ``probe`` splits only ``max_messages`` off: the first ones where order is kept, else some from all over the file.
    Where messages wait behind others of their groups (``store.parking``), the claim is exclusive, and has none that waits in this very version: the
    first others, by lookup id.
    Raises QueueHaltedError when the endpoint that reads the sub-queue is not enabled.
    """
    wanted = Wanted(key, now + lease, max_messages, exclusive, sub_queue, probe)
    if wanted.max_messages < 1:
        raise SettingError("max_messages", wanted.max_messages, "1 or more")
    attempt = stage.HolderFolder(table.root, wanted.key)
    join = True

    def plan(view: View) -> tuple[Commit | None, Claim | ToSplit | ToPart | _TooMany | None]:
        return _plan(table, view, wanted, attempt, join=join)

    while isinstance(answer := table.change(plan), ToSplit | ToPart | _TooMany):
        if isinstance(answer, ToSplit):
            split(table, answer)
        elif isinstance(answer, ToPart):
            part(table, answer)
        else:
            compaction.compact(table, min_files=_MANY, sub_queues=[wanted.sub_queue.value])
            join = False
    return _fenced(table, answer, attempt)


def _fenced(table: Table, claim: Claim | None, attempt: stage.HolderFolder) -> Claim | None:
    """Shut earlier holders out before anything of theirs is looked at; forget the folder when there is no claim."""
    if claim is None:
        attempt.drop()
        return None
    reach("store.claim.before_fence")
    stage.fence(table.folder, claim)
    reach("store.claim.after_fence")
    return claim


class _TooMany:
    """The next files are so many and so small that it is worth joining them before they are claimed: they are read anyway."""


def _plan(
    table: Table, view: View, wanted: Wanted, attempt: stage.HolderFolder, *, join: bool
) -> tuple[Commit | None, Claim | ToSplit | ToPart | _TooMany | None]:
    state, why = view.snapshot.control.endpoint(wanted.sub_queue)
    if state is not QueueState.ENABLED:
        reason = f" ({why})" if why else ""
        message = f"Queue {table.name!r} is {state.value}{reason}: it does not receive. Find the cause, then enable it."
        raise QueueHaltedError(message)
    if view.state.number(f"run:{wanted.key}") is not None:
        return None, None  # a claim under a finished key could never be finished again
    before = view.claim_of(wanted.key)
    if before is not None:
        return _successor(table, view, before, wanted.expires_at, attempt)
    groups_wait = parks(view.snapshot.control.desk, wanted.sub_queue)
    exclusive = wanted.exclusive or groups_wait
    if any(other.exclusive or exclusive for other in view.snapshot.claims if other.sub_queue == wanted.sub_queue):
        return None, None
    picked = pick_unparked(table, view, wanted) if groups_wait else pick(table, view, wanted)
    if picked is None or isinstance(picked, ToSplit | ToPart):
        return None, picked
    if groups_wait and len(picked) < sum(file.sub_queue == wanted.sub_queue for file in view.snapshot.files):
        join = False  # what waits would come with them
    if join and len(picked) > _MANY and sum(file.size for file in picked) < len(picked) * _SMALL:
        return None, _TooMany()
    table.bring(picked)
    data_files.check_whole(table.folder, picked)
    made = Claim(wanted.key, epoch=1, attempt=attempt.made(), expires_at=wanted.expires_at, files=picked, exclusive=exclusive)
    return _record(table, made, replaced=None), made


def take_over(table: Table, known: Claim, *, lease: timedelta, now: datetime) -> Claim | None:
    """Become the holder of an expired claim (or one of one's own run key); None when it changed since it was seen (taken over, renewed, finished)."""
    attempt = stage.HolderFolder(table.root, known.key)

    def plan(view: View) -> tuple[Commit | None, Claim | None]:
        before = view.claim_of(known.key)
        if before is None or (before.epoch, before.attempt, before.expires_at) != (known.epoch, known.attempt, known.expires_at):
            return None, None
        return _successor(table, view, before, now + lease, attempt)

    return _fenced(table, table.change(plan), attempt)


def _successor(table: Table, view: View, before: Claim, expires_at: datetime, attempt: stage.HolderFolder) -> tuple[Commit, Claim]:
    earlier = (*before.earlier, before.attempt)
    after = replace(before, epoch=before.epoch + 1, attempt=attempt.made(), expires_at=expires_at, earlier=earlier, given_up=False)
    return _record(table, after, replaced=view.claim_rows[before.key]), after


def renew(table: Table, claim: Claim, *, lease: timedelta, now: datetime) -> Claim:
    """Extend a claim. Raises ClaimLostError when this holder (key, epoch) does not hold it any more."""
    renewed = replace(claim, expires_at=now + lease)

    def plan(view: View) -> tuple[Commit | None, Claim]:
        if not view.held(claim):
            raise ClaimLostError(stage.lost(claim))
        return _record(table, renewed, replaced=view.claim_rows[claim.key], operation="renew"), renewed

    return table.change(plan)


def release(table: Table, claim: Claim) -> None:
    """Give claimed files back as they are, and forget the stage. Nothing happens when the claim is not held any more.

    For a claim without work, also by earlier holders (``fsck.files.worked``): their records are forgotten.
    """

    def plan(view: View) -> tuple[Commit | None, bool]:
        if not view.held(claim):
            return None, False
        return Commit("release", remove=[view.claim_rows[claim.key]], details={"key": claim.key}), True

    if table.change(plan):
        reach("store.release.before_clearing")
        stage.clear(table.folder, claim.key)


def expired(table: Table, now: datetime) -> Sequence[Claim]:
    """Return the claims whose holder has not renewed them in time."""
    return [held for held in table.view().snapshot.claims if held.expires_at <= now]


def _record(table: Table, made: Claim, *, replaced: DataFile | None, operation: str = "claim") -> Commit:
    row = data_files.write_new(table.folder, CLAIM, 0, data_files.claim_to_row(made))
    reach(f"store.{operation}.after_row")
    gone = [replaced] if replaced else []
    return Commit(operation, add=[row], remove=gone, details={"key": made.key, "epoch": made.epoch}, scratch=[row])


# The final commit: what was staged comes in, what was claimed goes out, all or nothing, once --------------------------


_NOTHING_COMMITTED = " Nothing was committed; the outcomes of the pass are kept in its stage folder."
_IN_COMMIT_ORDER = frozenset({EVENT, LANDING, TRANSMISSION_QUEUE})


def finish(
    table: Table,
    claim: Claim,
    manifest: Manifest,
    *,
    change: Callable[[Control], Control] | None = None,
    events: Callable[[Control], Sequence[Event]] | Sequence[Event] = (),
    now: datetime,
) -> bool:
    """The final commit: add what was staged, remove what was claimed and the claim, all or nothing; False when it was done before.

    ``change`` does with ``transmission`` what it does in ``alter``. ``events`` may depend on what the control row said before.
    Raises ClaimLostError (nothing committed) or TableChangedError (nothing committed, stage kept).
    """
    reach("store.finish.before_links")

    def plan(view: View) -> tuple[Commit | None, bool]:
        if view.state.number(f"run:{claim.key}") is not None:
            return None, False
        inputs = _inputs(table, view, claim)
        version = view.state.version + 1
        added = [_linked(table, claim, staged, file, version, part) for part, (staged, file) in enumerate(manifest.files)]
        happened = events(view.snapshot.control) if callable(events) else events
        record = data_files.write_events(table.folder, version, happened, part=len(manifest.files))
        control = table.control_change(view, change)
        commit = Commit(
            "finish",
            add=[*added, *record, *control.add],
            remove=[*inputs, view.claim_rows[claim.key], *control.remove],
            numbers={f"run:{claim.key}": version},
            details={"key": claim.key, "epoch": claim.epoch, "at": now.isoformat(), "result": dict(manifest.result)},
            scratch=[*(file for file in (*added, *record) if file.sub_queue in _IN_COMMIT_ORDER), *control.scratch],
        )
        reach("store.finish.after_links")
        return commit, True

    done = table.change(plan)
    reach("store.finish.before_clearing")
    stage.clear(table.folder, claim.key)
    reach("store.finish.after_clearing")
    return done


def result(table: Table, key: str) -> Mapping[str, object] | None:
    """Return the result that the final commit of this run key recorded; None when it has not finished."""
    version = table.log.load().number(f"run:{key}")
    if version is None:
        return None
    found = (table.log.details(version) or {}).get("result", {})
    assert isinstance(found, dict)
    return found


def has_number(table: Table, names: Iterable[str]) -> bool:
    """Whether one of these names has a number: ``send:<key>``, ``run:<pass key>``, ``transact:<key>``. The log forgets them after 30 days."""
    state = table.log.load()
    return any(state.number(name) is not None for name in names)


def _inputs(table: Table, view: View, claim: Claim) -> list[DataFile]:
    """Return what the claim consumes, after checking that it is all still ours to consume."""
    if not view.held(claim):
        raise ClaimLostError(stage.lost(claim))
    missing = [file.path for file in claim.files if file.path not in view.live]
    if missing:
        raise TableChangedError(data_files.gone(table.uri, missing[0]) + _NOTHING_COMMITTED)
    return [view.live[file.path] for file in claim.files]


def _linked(table: Table, claim: Claim, staged: str, file: DataFile, version: int, part: int) -> DataFile:  # noqa: PLR0917
    """Give an unharmed staged file its final name. In the names of events, of returned rows and of dialog messages is the version: their order."""
    listed = file
    if file.sub_queue in _IN_COMMIT_ORDER:
        file = replace(file, path=new_path(file.sub_queue, file.move_count, commit_prefix(version, part)))
    try:
        table.folder.link(f"{STAGE}/{staged}", file.path)
    except FileNotFoundError as error:
        if not table.view().held(claim):  # a later holder has renamed the stage since we looked
            raise ClaimLostError(stage.lost(claim)) from error
        raise TableChangedError(data_files.gone(table.uri, f"{STAGE}/{staged}") + _NOTHING_COMMITTED) from error
    _check_unharmed(table, file, f"{STAGE}/{staged}", listed)
    return file


def _check_unharmed(table: Table, file: DataFile, staged: str, listed: DataFile) -> None:
    """Read the footer once more: a file that was damaged since it was sealed must not take the place of the messages that are claimed."""
    try:
        found = data_files.describe(table.folder.here(file.path), file.path)
    except (pa.ArrowInvalid, OSError) as error:
        why: object = error
    else:
        if (found.rows, found.size) == (listed.rows, listed.size):
            return
        why = f"it has {found.rows} rows and {found.size} bytes instead of {listed.rows} and {listed.size}"
    if file.path not in table.view().live:
        table.discard([file])
    raise TableChangedError(data_files.damaged(table.uri, staged, why) + _NOTHING_COMMITTED)

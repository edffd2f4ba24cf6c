"""Land: put the rows that handlers returned into their outputs, once, after the final commit that settled their messages.

That commit wrote them into the queue's own table. They are added to an output under the number of that commit, so a pass that dies between the two
steps is finished by the next pass without a second copy; then they are removed here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.delivery.landing_rows import NO_OWNER, Landing, landings_of
from airflow_poison.delivery.verdicts import type_name
from airflow_poison.outputs import output_table
from airflow_poison.outputs.output import CORRECTIONS, PROVENANCE, Output, corrections_field
from airflow_poison.outputs.table_rules import TableRules, refused_rows, trial
from airflow_poison.outputs.values import delta_type, fits_type, nullable, same_name
from airflow_poison.passes.history import BY_HAND
from airflow_poison.passes.messages import with_columns
from airflow_poison.passes.move import moved_events, moved_rows
from airflow_poison.rules.settings import whole_ids
from airflow_poison.store.data_files import commit_version
from airflow_poison.store.history import as_ranges, from_ranges
from airflow_poison.values.ddl import ddl_type
from airflow_poison.values.errors import MessageNotFoundError, OutputError, OutputRowError, PlanStateError, SettingError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.failures import Failure, FailureKind, error_cell
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import LANDING, LAST_ERROR, LOOKUP_ID, SubQueue, table_schema
from airflow_poison.values.texts import Plain, counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.store import QueueStore
    from airflow_poison.store.files import DataFile
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

    Deliver = Callable[[pa.Table, str], object]

_REFUSED = "The output refused a row that fitted when the message was settled: "
_TAKEN_OUT = "Somebody has taken its rows out of those that wait for an output."
_UNNAMED = 1 << 62
"""From here on numbers stand for rows that do not name their message, in the place of a lookup id."""
_MOST_TEXT = 500
"""Characters of why a row was refused, in the history of its output."""
RECEIVED = frozenset({SubQueue.MAIN, SubQueue.POISON})
"""Where passes receive from."""


def land(
    table: QueueTable,
    clock: Clock,
    deliver: Deliver | None = None,
    store: QueueStore | None = None,
    report: Callable[[str], object] = lambda _line: None,
) -> dict[str, int]:
    """Put everything that has not landed yet where it belongs; return how many rows each output got, by its name.

    A row that its output refuses, although it fitted when its message was settled, leaves the others alone: its message comes back, into poison. An
    output that fails leaves the other tables alone: what is for it waits, and what is for them lands.

    :param deliver: takes the rows that go to a function, with a key that is the same whenever they are given again; None: they wait.
    :param store: has the options of outputs in an object store; None: they come from the environment.
    :param report: called with a line when messages come back.
    Raises OutputError, and what ``deliver`` raises; then the rows wait for the next call.
    """
    landed, failed = Counter[str](), dict[str, Exception]()
    for version, files in _by_commit(table):
        landed.update(_land_commit(table, version, files, clock, deliver, store=store, report=report, failed=failed))
    if failed:
        raise next(iter(failed.values()))
    return dict(landed)


def _land_commit(
    table: QueueTable,
    version: int,
    files: Sequence[DataFile],
    clock: Clock,
    deliver: Deliver | None,
    *,
    store: QueueStore | None,
    report: Callable[[str], object],
    failed: dict[str, Exception],
    by_hand: TakenOut | None = None,
) -> Counter[str]:
    """Put the rows of one commit where they belong.

    :param failed: gets outputs that have failed, by name: later rows of theirs wait, too, since the order of rows with keys matters.
    :param by_hand: messages whose rows are left out because people want that.

    The commit of an output decides which messages' rows are left out, and says so; the queue's commit follows the decisions of all outputs. So each
    lander that goes on after a death between them, and each of two at the same time, does the same, also where a later output had its rows first.
    """
    landed, waits = Counter[str](), False
    decided: dict[int, str] | None = None
    wanted = {} if by_hand is None else by_hand.left_out
    found: dict[Output, Landing] = {}
    for landing in _landings(table, files):
        of_output = found.setdefault(landing.output, Landing(landing.output, [], [], []))
        of_output.batches.extend(landing.batches)
        of_output.owners.extend(landing.owners)
        of_output.files.extend(landing.files)
    key = hashlib.sha256("|".join(sorted(file.path for file in files)).encode()).hexdigest()[:32]
    for place, (output, landing) in enumerate(found.items()):
        if output.name in failed or (not output.uri and deliver is None):
            waits = True
            continue
        landing = _numbered(landing, place)  # noqa: PLW2901
        try:
            if output.uri:
                application = f"poison:{table.name}:{table.identity()}:{output.name}"
                to = partial(
                    output_table.land, output, application=application, number=version, key=f"{key}:{output.name}", options=options_of(output, store)
                )
                left_out = _added(table, version, landing, to, options_of(output, store), wanted if decided is None else decided, by_hand)
                decided = {**(decided or {}), **left_out}
                landing = _without(landing, left_out)  # noqa: PLW2901
            elif deliver is not None:
                reach("pass.land.before_deliver")
                deliver(_joined(landing.batches), f"{table.name}-{version}-{key}-{output.name}")
        except Exception as error:  # noqa: BLE001  (of whatever type a function or a store raises; it is raised after the others)
            failed[output.name], waits = error, True
            continue
        landed[output.name] += landing.rows
        reach("pass.land.after_write")
    if not waits:
        _take_out(table, version, files, wanted if decided is None else decided, clock.now(), report, by_hand)
    return landed


def _numbered(landing: Landing, place: int) -> Landing:
    """Return rows with numbers in the place of owners that are not known.

    :param place: of the output among those of its commit.
    """
    first, owners = _UNNAMED + (place << 40), list["NDArray[np.int64]"]()
    for each in landing.owners:
        owners.append(np.where(each == NO_OWNER, first + np.arange(len(each)), each))
        first += len(each)
    return landing._replace(owners=owners)


def _without(landing: Landing, left_out: Collection[int]) -> Landing:
    """Return the rows of other messages. ``NO_OWNER``: without each row that names none."""
    unnamed = {int(number) for each in landing.owners for number in each if number >= _UNNAMED} if NO_OWNER in left_out else set[int]()
    return landing.without({*left_out} | unnamed)


def _added(  # noqa: PLR0917  (the parts of one commit)
    table: QueueTable,
    version: int,
    landing: Landing,
    to: Callable[..., str],
    options: Mapping[str, str],
    refused: Mapping[int, str],
    by_hand: TakenOut | None,
) -> dict[int, str]:
    """Add rows to the table of their output; return which were left out, as the commit that counts has decided, and why."""
    landing = _without(landing, refused)  # no part of a message that has failed lands
    try:
        return _read(to(landing.batches, files=landing.files, left_out=_written(refused)))
    except OutputError as error:
        if landing.files:
            raise  # they were checked when they were written; what the table wants since then is no fault of a message
        more = _culprits(table, version, landing, options, error, may_be_unnamed=by_hand is not None and by_hand.refused)
        return _read(to(landing.without(more).batches, left_out=_written({**refused, **more})))


# Rows that an output refuses -------------------------------------------------------------------------------------------


def _culprits(
    table: QueueTable, version: int, landing: Landing, options: Mapping[str, str], error: OutputError, *, may_be_unnamed: bool
) -> dict[int, str]:
    """Return the messages whose rows an output refuses, and why. Raises the error where it is the fault of no row, or of no message.

    :param may_be_unnamed: rows that name no message are returned by their numbers.
    """
    found: dict[int, str] = {}
    there = output_table.table_of(landing.output.uri, options)
    if there is None:
        raise error
    for batch, owners in zip(landing.batches, landing.owners, strict=True):
        try:
            refused = refused_rows(there[1], batch, evolve=landing.output.evolve)
        except OSError as full:
            raise OutputError(
                f"{error} Which rows it refuses could not be tried on this machine: {full}. Free some space in its temporary folder, or name another "
                "one with TMPDIR, then run the task again."
            ) from full
        for place, why in refused.items():
            if owners[place] >= _UNNAMED and not may_be_unnamed:
                raise OutputError(
                    f"{error} It refuses a row ({why}) that does not say which message it is of, so no message can be charged. To remove such rows "
                    f"and have the others land: airflow poison waiting-rows {table.name} refused --remove. Return rows with {LOOKUP_ID} in future."
                ) from error
            found.setdefault(int(owners[place]), f"{_REFUSED}{why}"[:_MOST_TEXT])
    if not found:
        raise error
    if _settled(table, version, found).num_rows < sum(number < _UNNAMED for number in found):
        raise OutputError(
            f"{error} It refuses rows of {counted(len(found), 'message')}, whose bodies are gone: the queue's table was vacuumed."
        ) from error
    return found


def _settled(table: QueueTable, version: int, lookup_ids: Collection[int]) -> pa.Table:
    """Return the messages that a pass's final commit has settled, as they were before; those that are still known."""
    with suppress(PlanStateError, TableChangedError):
        after = {file.path for file in table.files_at(version)}
        gone = [file for file in table.files_at(version - 1) if file.path not in after and file.sub_queue in RECEIVED]
        wanted = pa.array(sorted(lookup_ids), pa.int64())
        table.bring(gone)
        return pa.concat_tables([table_schema().empty_table(), *(rows.filter(pc.is_in(rows[LOOKUP_ID], wanted)) for rows in map(table.read, gone))])
    return table_schema().empty_table()


def _take_out(  # noqa: PLR0917  (the parts of one commit)
    table: QueueTable,
    version: int,
    files: Sequence[DataFile],
    left_out: Mapping[int, str],
    now: datetime,
    report: Callable[[str], object],
    by_hand: TakenOut | None = None,
) -> None:
    """Remove rows that are where they belong; messages whose rows were left out come back in the same commit."""
    wanted = {number for number in left_out if by_hand is not None and number in by_hand.left_out and left_out[number] == _TAKEN_OUT}
    refused = {number: why for number, why in left_out.items() if number not in wanted | {NO_OWNER} and number < _UNNAMED}
    unnamed = sum(number >= _UNNAMED for number in left_out)
    parts, events = [table_schema().empty_table()], list[Event]()
    if by_hand is not None and wanted:
        came_back, happened = by_hand.changes(table, version, wanted, now)
        parts, events = [*parts, came_back], [*events, *happened]
        by_hand.taken = len(wanted - {NO_OWNER})
    if unnamed:
        facts = {"place": "", "by": BY_HAND, "of": LANDING, "rows": str(unnamed)}
        events.append(Event(EventType.DROPPED, now, details=facts))
    if by_hand is not None and by_hand.refused:
        by_hand.taken = unnamed + len(refused)
    if refused:
        poison = _poisoned(table, version, refused)
        parts, events = [*parts, poison], [*events, *_poison_events(poison, now)]
    reach("pass.land.before_removal")
    table.remove_landings(files, pa.concat_tables(parts), events)
    if refused:
        came = f"{counted(len(refused), 'message')} came back, into poison: an output refused their rows"
        report(f"queue {table.name}: {came}; {next(iter(refused.values()))}")


def _poisoned(table: QueueTable, version: int, refused: Mapping[int, str]) -> pa.Table:
    """Return messages as they come into poison: as they were, for no policy has judged them. Raises OutputError where bodies are gone."""
    rows = _settled(table, version, refused)
    if rows.num_rows < len(refused):
        raise OutputError(
            f"The outputs of queue {table.name!r} refused rows of {counted(len(refused), 'message')}, and the bodies of some of these are gone: the "
            "queue's table was vacuumed. All other rows have landed; 'airflow poison waiting-rows' removes these."
        )
    failures = [Failure(FailureKind.EXCEPTION, type_name(OutputRowError("")), refused[number or 0]) for number in rows[LOOKUP_ID].to_pylist()]
    reasons = [f"{OutputRowError.__name__}: {failure.text}".partition("\n")[0] for failure in failures]
    return with_columns(rows, sub_queue=SubQueue.POISON.value, last_error=[error_cell(failure) for failure in failures], reason=reasons)


def _poison_events(poison: pa.Table, now: datetime) -> Iterator[Event]:
    columns = (poison[name].to_pylist() for name in (LOOKUP_ID, "abort_count", "move_count", "reason", LAST_ERROR))
    for number, aborts, moves, reason, error in zip(*columns, strict=True):
        facts = {"place": SubQueue.POISON.value, "error": reason or ""}
        yield Event(EventType.MOVED_POISON, now, number, aborts or 0, moves or 0, facts, error["fingerprint"])


# Rows that wait, and people ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaitingRows(Plain):
    """Returned rows of one commit that are not in an output yet.

    :param version: of that commit.
    :param uri: of the output's table; empty: they go to a function.
    :param lookup_ids: the messages that they are of, in ranges like ``1-3,7``.
    :param unnamed: so many of the rows do not say which message they are of.
    """

    version: int
    output: str
    uri: str
    rows: int
    lookup_ids: str
    unnamed: int


@dataclass(slots=True)
class TakenOut:
    """What people want of messages whose rows wait.

    :param left_out: their lookup ids, ``NO_OWNER`` for rows that name none, and what the output's history says of them.
    :param target: where the messages come back to; None: they stay settled, and their rows are gone.
    :param refused: rows that their output refuses are left out, those that name no message among them.
    :ivar taken: of so many messages rows were taken out; of ``refused``, with the rows that name none.
    """

    left_out: dict[int, str]
    target: SubQueue | None
    refused: bool = False
    taken: int = 0

    def changes(self, table: QueueTable, version: int, messages: Collection[int], now: datetime) -> tuple[pa.Table, list[Event]]:
        """Return the messages that come back, and the events. Raises MessageNotFoundError for bodies that are gone."""
        ids = sorted({*messages} - {NO_OWNER})
        if self.target is None:
            facts = {"place": "", "by": BY_HAND, "of": LANDING}
            return table_schema().empty_table(), [Event(EventType.DROPPED, now, number, details=facts) for number in ids or (None,)]
        rows = _settled(table, version, ids)
        if rows.num_rows < len(ids):
            raise MessageNotFoundError(
                f"The bodies of {counted(len(ids) - rows.num_rows, 'message')} of queue {table.name!r} are gone: its table was vacuumed. Nothing has "
                "changed; remove the rows, or repair the output."
            )
        return moved_rows(rows, self.target), list(moved_events(rows, self.target, now))


def waiting_rows(table: QueueTable) -> tuple[WaitingRows, ...]:
    """Return the rows that wait for their outputs, the oldest first."""
    return tuple(
        WaitingRows(version, each.output.name, each.output.uri, each.rows, as_ranges(sorted({*owners} - {NO_OWNER})), unnamed)
        for version, files in _by_commit(table)
        for each in _landings(table, files)
        if each.rows
        for owners in [[int(number) for part in each.owners for number in part]]
        for unnamed in [owners.count(NO_OWNER) + sum(file.rows for file in each.files)]
    )


def take_out(
    table: QueueTable,
    clock: Clock,
    lookup_ids: Collection[int] | None = None,
    target: SubQueue | str | None = None,
    *,
    store: QueueStore | None = None,
    force: bool = False,
) -> int:
    """Take rows out that wait for their outputs, and have their messages come back; return of how many messages.

    The other rows of the same commits land. The history of the output says first that these rows never will, so no pass can put them there meanwhile.

    :param lookup_ids: of which messages; None: all rows.
    :param target: ``main`` or ``poison``, where the messages come back to as they were sent; None: they stay settled, and their rows are gone.
    :param store: has the options of outputs in an object store.
    :param force: the output is not asked, since it is away for good, or is a function. All messages of a commit have to be taken out then, no
        pass may be under way, and the rows may be there already.
    Raises MessageNotFoundError, SettingError and OutputError; then nothing has changed.
    """
    if target not in {None, SubQueue.MAIN, SubQueue.POISON}:
        raise SettingError("target", str(target), "main or poison; none removes the rows")
    place, wanted, taken = None if target is None else SubQueue(target), None if lookup_ids is None else whole_ids(lookup_ids), 0
    commits = [(version, files, {n for each in _landings(table, files) for n in _owners(each)}) for version, files in _by_commit(table)]
    missing = sorted((wanted or set()) - {number for _, _, owners in commits for number in owners})
    if missing or not commits:
        raise MessageNotFoundError(f"No rows of {f'message {missing[0]}' if missing else 'any message'} of queue {table.name!r} wait for an output.")
    for version, files, owners in commits:
        chosen = owners if wanted is None else owners & wanted
        if place is not None and NO_OWNER in chosen:
            raise SettingError("target", str(target), "no target: some of these rows do not say which message they are of; they can only be removed")
        if not chosen:
            continue
        by_hand = TakenOut(dict.fromkeys(sorted(chosen), _TAKEN_OUT), place)
        by_hand.changes(table, version, chosen, clock.now())
        if force and chosen != owners:
            raise SettingError(
                "lookup_ids", as_ranges(sorted(chosen)), f"with force all messages of the commit: {as_ranges(sorted(owners - {NO_OWNER}))}"
            )
        if force:
            _take_out(table, version, files, by_hand.left_out, clock.now(), str, by_hand)
        else:
            if not all(each.output.uri for each in _landings(table, files)):
                raise OutputError(f"Rows of queue {table.name!r} go to a function, which cannot be asked whether it has them: force takes them out.")
            _land_by_hand(table, version, files, clock, by_hand, store=store)
        taken += by_hand.taken
    return taken


def _owners(landing: Landing) -> set[int]:
    return {int(number) for part in landing.owners for number in part} | ({NO_OWNER} if landing.files else set())


def take_out_refused(table: QueueTable, clock: Clock, *, store: QueueStore | None = None) -> int:
    """Take rows out that their outputs refuse, those that name no message among them, and have all others land.

    Messages of rows that name them come into ``poison``, as when they land by themselves. Rows that name none are gone, and an event says so.
    Returns how many messages came back and rows are gone. Raises OutputError for an output that takes no row, whatever it is; then its rows wait.
    """
    taken = 0
    for version, files in _by_commit(table):
        if all(each.output.uri for each in _landings(table, files)):
            by_hand = TakenOut({}, None, refused=True)
            _land_by_hand(table, version, files, clock, by_hand, store=store)
            taken += by_hand.taken
    return taken


def _land_by_hand(table: QueueTable, version: int, files: Sequence[DataFile], clock: Clock, by_hand: TakenOut, *, store: QueueStore | None) -> None:
    failed = dict[str, Exception]()
    _land_commit(table, version, files, clock, None, store=store, report=str, failed=failed, by_hand=by_hand)
    if failed:
        raise next(iter(failed.values()))


def _by_commit(table: QueueTable) -> list[tuple[int, list[DataFile]]]:
    return [(version, list(files)) for version, files in groupby(table.snapshot().landings, lambda file: commit_version(file.path) or 0)]


def _landings(table: QueueTable, files: Sequence[DataFile]) -> list[Landing]:
    return [landing for file in files for landing in landings_of(table.read(file))]


def _written(refused: Mapping[int, str]) -> str:
    """Return messages and why their rows are left out, as an output's history keeps it; empty for none."""
    by_reason: dict[str, list[int]] = {}
    for number in sorted(refused):
        by_reason.setdefault(refused[number], []).append(number)
    return json.dumps({why: as_ranges(numbers) for why, numbers in by_reason.items()}) if refused else ""


def _read(left_out: str) -> dict[int, str]:
    return {number: why for why, numbers in json.loads(left_out or "{}").items() for number in from_ranges(numbers)}


# Before anything is claimed --------------------------------------------------------------------------------------------


def options_of(output: Output, store: QueueStore | None) -> Mapping[str, str]:
    """Return the options of the object store that an output is in; none: they come from the environment."""
    return {} if store is None else store.options_for(output.uri)


def prepared(outputs: Sequence[Output], store: QueueStore | None = None) -> tuple[Output, ...]:
    """Return outputs with the columns that their tables have, and with what these want of rows; asked before anything is claimed.

    :param store: see ``land``.
    Raises OutputError for a table that does not take rows, and for a place where none can be; SettingError for columns of other types.
    """
    return tuple(_prepared(output, store) if output.uri else output for output in outputs)


def _prepared(output: Output, store: QueueStore | None) -> Output:
    if store is not None:
        _refuse_place(output, store)
    found = output_table.table_of(output.uri, options_of(output, store))
    if found is None:
        return output
    there, rules, is_append_only = found
    declared = output.columns
    _refuse_names(output, there)
    if declared is not None:
        other = next((field for field in declared if field.name in there.names and not _same(there.field(field.name).type, field.type)), None)
        if other is not None:
            raise SettingError("output_schema", f"{other.name} {other.type}", f"the type that the output has: {there.field(other.name).type}")
    own = [field for field in there if field.name not in rules.generated and not (output.provenance and field.name in PROVENANCE)]
    more = [field for field in declared or () if field.name not in there.names]
    if output.keys and (is_append_only or rules.generated):
        why: str | None = f"{'it is append-only' if is_append_only else f'it computes {rules.generated[0]!r}'}, and output_keys replace rows"
    else:
        why = _refusal(there, rules)
    if why is not None:
        raise OutputError(f"The output {output.uri!r} cannot be written to: {why}. Nothing was claimed: change the table, or declare another output.")
    return replace(output, schema=_schema([*own, *more]), rules=rules)


def _refuse_place(output: Output, store: QueueStore) -> None:
    """Raise OutputError for an output in a queue's folder, at the store's root or above it: maintenance of one would remove files of the other."""
    root = str(getattr(store, "uri", "")).removeprefix("file://").rstrip("/")
    if not root:
        return
    place = output.uri if "://" in output.uri else str(Path(output.uri).absolute())
    root = root if "://" in root else str(Path(root).absolute())
    queue = place.removeprefix(f"{root}/").partition("/")[0] if place.startswith(f"{root}/") else ""
    if f"{root}/".startswith(f"{place}/") or (queue and queue in set(store.names())):
        of = f"in the folder of the queue {queue!r}" if queue else f"where the store {root!r} is"
        raise OutputError(f"The output {output.uri!r} is {of}: maintenance of one would remove files of the other. Nothing was claimed: move it.")


def _refuse_names(output: Output, there: pa.Schema) -> None:
    """Raise OutputError for declared columns that a table does not have, or has in another case."""
    names, declared = set(there.names), output.columns
    wanted = [
        *(declared.names if declared is not None else ()),
        *output.keys,
        *(PROVENANCE if output.provenance else ()),
        *([CORRECTIONS] if output.nulls else ()),
    ]
    missing = [name for name in wanted if name not in names]
    if output.nulls and CORRECTIONS in names and not fits_type(corrections_field().type, nullable(there.field(CORRECTIONS).type)):
        wrong, right = (ddl_type(field.type) for field in (there.field(CORRECTIONS), corrections_field()))
        raise OutputError(
            f"The output {output.uri!r} has a column {CORRECTIONS!r} of type {wrong}; on_bad_cell='null' fills one of type {right}. "
            "Nothing was claimed: rename the table's column, or leave on_bad_cell out."
        )
    if missing and not output.evolve:
        raise OutputError(
            f"The output {output.uri!r} has no column {missing[0]!r}; it has {', '.join(there.names)}. Nothing was "
            f"claimed: declare evolve=True to add it, or {_add(missing[0])}."
        )
    if twice := same_name([*there.names, *dict.fromkeys(missing)]):
        raise OutputError(
            f"The output {output.uri!r} has a column {twice[0]!r}, and {twice[1]!r} differs by case alone. Nothing was claimed: correct the "
            "declaration."
        )


def _add(missing: str) -> str:
    if missing != CORRECTIONS:
        return "correct the declaration"
    return f"add it to the table, which on_bad_cell='null' needs: ALTER TABLE … ADD COLUMNS ({CORRECTIONS} {ddl_type(corrections_field().type)})"


def _refusal(there: pa.Schema, rules: TableRules) -> str | None:
    """Return why a table takes no row at all; None: it takes some."""
    if binary := [name for name in rules.partitions if name in there.names and pa.types.is_binary(there.field(name).type)]:
        return f"it is partitioned by {binary[0]!r}, and bytes do not come back from the names of folders as they were"
    try:
        return trial(rules, pa.RecordBatch.from_pylist([], schema=pa.schema([])))
    except OSError as full:
        return f"whether it takes rows could not be tried on this machine ({full})"


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a table has a declared type; it may have names and nulls of its own in there."""
    try:
        return str(delta_type(one)).replace(" not null", "") == str(delta_type(other)).replace(" not null", "")
    except ValueError:
        return one.equals(other)


def _schema(fields: Sequence[pa.Field]) -> pa.Schema:  # type: ignore[type-arg]
    return pa.schema(list(fields))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")

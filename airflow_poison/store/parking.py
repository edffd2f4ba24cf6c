"""Parking behind a message of the same group (`park_group`): which messages wait, and with which policies. Pure.

A message *waits behind* an earlier one of its group while that one is unresolved: in ``retry``, ``poison`` or ``postponed``, or failed earlier in the
same pass. It is not delivered and not charged, and stays where it is. Earlier means: a smaller lookup id.
It is read from two columns of the table's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.store import data_files
from airflow_poison.values.errors import SettingError
from airflow_poison.values.libraries import np
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import Table

_COLUMNS = ("lookup_id", "group_id")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A file of ``main``.

    :param waits: which of its messages wait, in the order of its rows.
    """

    file: DataFile
    lookup_ids: NDArray[np.int64]
    waits: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Behind:
    """How many messages wait behind others of their groups, and how many groups they are of."""

    messages: int = 0
    groups: int = 0


def parts(table: Table, snapshot: Snapshot) -> list[Part]:
    """Return the unclaimed files of ``main`` in queue order, with which of their messages wait."""
    there = {file.path for file in snapshot.files}
    for path in [path for path in table.groups if path not in there]:
        del table.groups[path]
    claimed, unresolved = snapshot.claimed_paths, _unresolved(table, snapshot)
    free = [file for file in _main(snapshot) if file.path not in claimed]
    columns = _columns(table, free)
    return [Part(file, ids, waiting(ids, groups, unresolved)) for file, (ids, groups) in zip(free, columns, strict=True)]


def behind(table: Table) -> Behind:
    """Return how many messages of ``main`` wait now, claimed ones included; none unless the queue is set so. Bodies are not read."""
    snapshot = table.view().snapshot
    unresolved = _unresolved(table, snapshot) if parks(snapshot.control.desk) else {}
    messages, found = 0, set[str]()
    for ids, groups in _columns(table, _main(snapshot)) if unresolved else ():
        waits = waiting(ids, groups, unresolved)
        messages += int(np.count_nonzero(waits))
        found.update(first_of_groups(ids[waits], groups.filter(waits)))
    return Behind(messages, len(found))


def _main(snapshot: Snapshot) -> list[DataFile]:
    return [file for file in snapshot.files if file.sub_queue == SubQueue.MAIN]


def _unresolved(table: Table, snapshot: Snapshot) -> dict[str, int]:
    """Return the smallest lookup id of the unresolved messages of each group, those that a reader of ``poison`` has claimed included."""
    found: dict[str, int] = {}
    for ids, groups in _columns(table, [file for file in snapshot.files if file.sub_queue in UNRESOLVED]):
        for group, first in first_of_groups(ids, groups).items():
            found[group] = min(first, found.get(group, first))
    return found


def _columns(table: Table, wanted: Sequence[DataFile]) -> list[tuple[NDArray[np.int64], pa.Array[Any]]]:
    """Return the lookup ids and the groups of files; groups of an earlier look stay known, since files are immutable."""
    known = table.groups
    table.bring([file for file in wanted if file.path not in known])
    for file in wanted:
        if file.path not in known:
            rows = data_files.read_columns(table.folder, file.path, _COLUMNS).combine_chunks()
            known[file.path] = rows["lookup_id"].to_numpy(), rows["group_id"].combine_chunks()
    return [known[file.path] for file in wanted]


SETTING = "park_group"
"""The part of a queue's desk that says so."""
UNRESOLVED = frozenset({SubQueue.RETRY, SubQueue.POISON, SubQueue.POSTPONED})
"""The sub-queues whose messages have others of their groups wait."""


def parks(desk: Mapping[str, object], reads: SubQueue = SubQueue.MAIN) -> bool:
    """Whether passes over a sub-queue have messages wait behind earlier ones of their groups: never passes of the reader of ``poison``."""
    return reads is SubQueue.MAIN and bool(desk.get(SETTING))


def parking(desk: Mapping[str, object], park_group: bool) -> dict[str, object]:  # noqa: FBT001  (the setting's value)
    """Return the parts of a queue's desk with this setting: True, or not there."""
    return {**{name: value for name, value in desk.items() if name != SETTING}, **({SETTING: True} if park_group else {})}


def check_parking(queue: str, policy: Policy, *, converses: bool = False, transforms: bool = False) -> None:
    """Refuse what cannot have messages wait behind others of their group. Raises SettingError.

    :param converses: the queue has, or had, services.
    :param transforms: what receives is a transformation of a DataFrame.
    """
    if (why := _obstacle(policy, converses=converses, transforms=transforms)) is not None:
        raise SettingError(SETTING, value=True, allowed=f"off for queue {queue!r}: {why}. Nothing was changed or received")


def _obstacle(policy: Policy, *, converses: bool, transforms: bool) -> str | None:
    if policy.locks_groups or converses:
        return f"{policy.system} with conversations locks their groups itself. Switch {SETTING} off, or use a policy without locks, for example Msmq4"
    if policy.halting or policy.strict_order:
        return f"the settings of {policy.system} have an order of their own. Switch {SETTING} off, or choose settings that neither halt nor block"
    if not policy.stateless:
        return f"{policy.system} remembers more than the message with these settings. Switch {SETTING} off, or receive messages one at a time"
    if transforms:
        return f"a transformation settles the good rows of a group at once. Switch {SETTING} off, or use a handler of messages or of batches"
    return None


# The rule -------------------------------------------------------------------------------------------------------------


def waiting(lookup_ids: NDArray[np.int64], groups: pa.Array[Any], unresolved: Mapping[str, int]) -> NDArray[np.bool_]:
    """Return which messages wait: messages of a group with an unresolved one before them. One without a group never does.

    :param groups: of the messages; null or empty: none.
    :param unresolved: the smallest lookup id of the unresolved messages of each group.
    """
    codes, names = _coded(groups)
    if not unresolved or not names:
        return np.zeros(len(lookup_ids), bool)
    last = np.iinfo(np.int64).max
    limits = np.array([*(unresolved.get(name, last) for name in names), last], np.int64)  # the last one is of those without a group
    return lookup_ids > limits[codes]


def first_of_groups(lookup_ids: NDArray[np.int64], groups: pa.Array[Any]) -> dict[str, int]:
    """Return the smallest lookup id of each group."""
    codes, names = _coded(groups)
    firsts = np.full(len(names) + 1, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(firsts, codes, lookup_ids)
    return {name: int(first) for name, first in zip(names, firsts[:-1], strict=True)}


def waves(lookup_ids: NDArray[np.int64], groups: pa.Array[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield rows so that none has two of a group, and the messages of each group come in the order of their lookup ids."""
    codes, names = _coded(groups)
    by_group = np.lexsort((lookup_ids, codes))
    sorted_codes = codes[by_group]
    begins = np.searchsorted(sorted_codes, sorted_codes)
    ranks = np.empty(len(codes), np.int64)
    ranks[by_group] = np.arange(len(codes)) - begins
    ranks[codes == len(names)] = 0  # without a group
    ordered = np.argsort(ranks, kind="stable")
    ends = np.flatnonzero(np.diff(ranks[ordered])) + 1
    yield from np.split(ordered, ends)


def _coded(groups: pa.Array[Any]) -> tuple[NDArray[np.int64], list[str]]:
    """Return a number for the group of each message, and the groups; the number behind the last one says that it has none."""
    coded = groups.dictionary_encode()
    names = cast("list[str]", coded.dictionary.to_pylist())
    codes = np.asarray(coded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False), np.int64)
    if "" in names:
        codes = np.where(codes == names.index(""), len(names), codes)
        empty = names.index("")
        codes = np.where(codes > empty, codes - 1, codes)
        names.remove("")
    return codes, names

"""Parking behind a message of the same group (`park_group`): which messages wait, and with which policies. Pure.

A message *waits behind* an earlier one of its group while that one is unresolved: in ``retry``, ``poison`` or ``postponed``, or failed earlier in the
same pass. It is not delivered and not charged, and stays where it is. Earlier means: a smaller lookup id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.rules.policy import Policy

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
    import numpy as np

    codes, names = _coded(groups)
    if not unresolved or not names:
        return np.zeros(len(lookup_ids), bool)
    last = np.iinfo(np.int64).max
    limits = np.array([*(unresolved.get(name, last) for name in names), last], np.int64)  # the last one is of those without a group
    return lookup_ids > limits[codes]


def first_of_groups(lookup_ids: NDArray[np.int64], groups: pa.Array[Any]) -> dict[str, int]:
    """Return the smallest lookup id of each group."""
    import numpy as np

    codes, names = _coded(groups)
    firsts = np.full(len(names) + 1, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(firsts, codes, lookup_ids)
    return {name: int(first) for name, first in zip(names, firsts[:-1], strict=True)}


def waves(lookup_ids: NDArray[np.int64], groups: pa.Array[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield rows so that none has two of a group, and the messages of each group come in the order of their lookup ids."""
    import numpy as np

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
    import numpy as np

    coded = groups.dictionary_encode()
    names = cast("list[str]", coded.dictionary.to_pylist())
    codes = np.asarray(coded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False), np.int64)
    if "" in names:
        codes = np.where(codes == names.index(""), len(names), codes)
        empty = names.index("")
        codes = np.where(codes > empty, codes - 1, codes)
        names.remove("")
    return codes, names

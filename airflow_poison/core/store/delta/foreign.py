"""Foreign commits: versions of a queue table that no verb of this package has made, and what they changed.

A commit of the package carries its mark, and whoever made it had looked at every version before. So the newest version alone tells whether
somebody else has written there: it is ours, or we walk back to the last one that is. What strangers did and undid again (a RESTORE of that
version), and what changes nothing (the notes of a VACUUM, a description), is no reason to stop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.store.delta import actions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import DeltaTable

LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A version by somebody else.

    :param operation: what its writer calls it: ``DELETE``, ``OPTIMIZE``, ``RESTORE``.
    :param writer: what it says of itself; empty when it says nothing.
    """

    version: int
    operation: str
    writer: str

    def __str__(self) -> str:
        return f"version {self.version} ({', '.join(word for word in (self.operation, self.writer) if word)})"


@dataclass(frozen=True, slots=True)
class ForeignHands:
    """What somebody else has committed since the last version of ours.

    :param commits: theirs, oldest first.
    :param last_own: the last version before them; None when the log keeps it no longer.
    """

    commits: Sequence[ForeignCommit]
    last_own: int | None


def json_path(root: str, version: int) -> Path:
    """Return where a version's commit lies."""
    return Path(root, LOG, f"{version:020d}.json")


def commit_info(path: Path) -> Mapping[str, object] | None:
    """Return what a commit says of itself, from its first lines; None when it was cleaned up."""
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                info = json.loads(line).get("commitInfo")
                if info is not None:
                    found: Mapping[str, object] = info
                    return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return {}
    return {}


def details_of(info: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the details of a commit of ours; None for somebody else's."""
    try:
        details = json.loads(str(info.get("userMetadata") or "null"))
    except ValueError:
        return None
    return details if isinstance(details, dict) and {"operation", "mark"} <= details.keys() else None


def find(root: str, version: int, trusted: int) -> ForeignHands | None:
    """Return who else has committed after ``trusted`` and up to ``version`` since our last commit; None: nobody.

    A table of which no version is ours yet is one that is being made.
    """
    commits: list[ForeignCommit] = []
    for number in range(version, trusted, -1):
        info = commit_info(json_path(root, number))
        if info is None:  # cleaned up behind a checkpoint
            return ForeignHands(commits[::-1], None) if commits else None
        if details_of(info) is not None:
            return ForeignHands(commits[::-1], number) if commits else None
        commits.append(ForeignCommit(number, str(info.get("operation", "")), str(info.get("engineInfo", ""))))
    return ForeignHands(commits[::-1], trusted) if commits and trusted >= 0 else None


def changes(before: DeltaTable, after: DeltaTable) -> Sequence[str]:
    """Return what differs between two versions, in words; nothing when they are equal for us."""
    return list(_changes(before, after))


def _changes(before: DeltaTable, after: DeltaTable) -> Iterator[str]:
    then, now = set(actions.files_of(before)), set(actions.files_of(after))
    for verb, found in (("removed", then - now), ("added", now - then)):
        for place in sorted({file.sub_queue for file in found}):
            here = [file for file in found if file.sub_queue == place]
            yield f"{verb} {len(here)} file(s) with {sum(file.rows for file in here)} row(s) of {place!r}, such as {min(file.path for file in here)}"
    if before.schema().to_json() != after.schema().to_json() or before.metadata().partition_columns != after.metadata().partition_columns:
        yield "changed the columns"
    old, new = before.metadata().configuration, after.metadata().configuration
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if changed:
        yield f"changed the table's properties {', '.join(changed)}"
    if before.protocol() != after.protocol():
        yield "changed the protocol"
    if before.transaction_version("seq") != after.transaction_version("seq"):
        yield "changed the last lookup id"


def told(root: str, hands: ForeignHands, what: Sequence[str]) -> str:
    """Return the words for what somebody else did."""
    who = ", ".join(str(commit) for commit in hands.commits[:3]) + (", …" if len(hands.commits) > 3 else "")  # noqa: PLR2004
    since = "an unknown version" if hands.last_own is None else f"version {hands.last_own}"
    undo = "" if hands.last_own is None else f"RESTORE the table to version {hands.last_own}, or let 'airflow poison check --repair' do it; or "
    return (
        f"Somebody else has committed to the queue table {root}: {who}. Expected: commits of airflow-poison alone. Since {since}, the last of ours, "
        f"that {'; '.join(what)}. Nothing was committed by this verb. Find who writes there and stop that. Then {undo}"
        "go on with the table as it is: 'airflow poison check --accept'."
    )

"""What the queue is told: its control row, blocks, subscriptions, held messages, and the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.errors import NewerFormatError, PoisonError, SettingError
from airflow_poison.core.passes.checking.findings import REPAIR, REPORT, RESTORE, Finding, Kind, Severity
from airflow_poison.core.policies import policy_from_dict
from airflow_poison.core.schema import OUTBOX, SubQueue
from airflow_poison.core.store.control import BLOCKED_BY, BLOCKED_UNTIL, FORMAT_VERSION, Control
from airflow_poison.core.store.table import files, rows
from airflow_poison.core.store.table.layout import CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from airflow_poison.core.store.files import DataFile


def read_control(root: str, name: str, live: Mapping[str, DataFile]) -> Control | Finding:
    """Return the control row, or why there is none."""
    import pyarrow as pa

    paths = [file.path for file in live.values() if file.sub_queue == CONTROL]
    if len(paths) != 1:
        what = f"the queue has {len(paths)} control rows instead of one: verbs cannot tell its policy and state"
        return Finding(Kind.CONTROL_ROWS, Severity.ERROR, what, f"sub_queue={CONTROL}", RESTORE)
    try:
        return rows.control_from_row(files.read_columns(root, paths[0], rows.CONTROL_COLUMNS), name)
    except NewerFormatError as error:
        todo = "install the version that wrote it, or a newer one, wherever the queue is used"
        return Finding(Kind.FORMAT_NEWER, Severity.ERROR, str(error).partition(";")[0], paths[0], todo)
    except (PoisonError, OSError, ValueError, KeyError, TypeError, IndexError, pa.ArrowException) as error:
        what = f"the control row cannot be read ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        return Finding(Kind.CONTROL_UNREADABLE, Severity.ERROR, what, paths[0], RESTORE)


def check_state(control: Control, live: Mapping[str, DataFile], version: int, now: datetime) -> Iterator[Finding]:
    """Yield what the control row says that cannot be."""
    if control.format_version < FORMAT_VERSION:
        what = f"the table has format {control.format_version}; this version writes format {FORMAT_VERSION}"
        yield Finding(Kind.FORMAT_OLDER, Severity.NOTE, what, "", f"{REPAIR}, or let the next verb upgrade it", mendable=True)
    try:
        policy_from_dict(control.policy)
    except SettingError as error:
        what = f"the recorded policy is none that this version knows ({error})"
        yield Finding(Kind.POLICY_UNKNOWN, Severity.WARNING, what, "", "run the receive task: it records its own policy")
    yield from _check_block(control, live, now)
    yield from _check_subscriptions(control, version)
    held = sum(file.rows for file in live.values() if file.sub_queue == SubQueue.TRANSMISSION)
    if held and not control.holds_sends:
        what = f"{held} message(s) wait in {SubQueue.TRANSMISSION} although the queue is {control.state.value}: nothing brings them to main"
        yield Finding(Kind.HELD_MESSAGES, Severity.ERROR, what, f"sub_queue={SubQueue.TRANSMISSION}", REPAIR, mendable=True)


def _check_block(control: Control, live: Mapping[str, DataFile], now: datetime) -> Iterator[Finding]:
    """Yield half a block, and a block by a message that has left."""
    until, by = control.counters.get(BLOCKED_UNTIL), control.counters.get(BLOCKED_BY)
    if (until is None) != (by is None):
        what = f"the queue has half a block ({BLOCKED_UNTIL}={until}, {BLOCKED_BY}={by})"
        yield Finding(Kind.BLOCK_INCONSISTENT, Severity.ERROR, what, "", "enable the queue, or restart its broker")
    elif by is not None and control.blocked_until(now) is not None and not _may_hold(live, by):
        what = f"the queue is blocked by message {by}, which is not in it any more"
        yield Finding(Kind.BLOCK_INCONSISTENT, Severity.ERROR, what, "", "enable the queue, or restart its broker")


def _may_hold(live: Mapping[str, DataFile], lookup_id: int) -> bool:
    """Whether statistics allow a message to be in the queue."""
    places = set(SubQueue)
    return any(file.sub_queue in places and file.min_lookup_id <= lookup_id <= file.max_lookup_id for file in live.values())


def _check_subscriptions(control: Control, version: int) -> Iterator[Finding]:
    for name, told in control.counters.items():
        if name.startswith(("told:", "telling:")) and told > version:
            what = f"{name} says version {told}, and the newest is {version}: nobody is told of what happens until then"
            yield Finding(Kind.SUBSCRIPTION_AHEAD, Severity.ERROR, what, "", f"the log lost versions, or the table is a copy; {REPORT}")


def check_outbox(live: Mapping[str, DataFile]) -> Iterator[Finding]:
    """Yield what waits in the outbox: whoever should have sent it on has died, or does so right now."""
    waiting = [file for file in live.values() if file.sub_queue == OUTBOX]
    if waiting:
        what = f"{sum(file.rows for file in waiting)} message(s) wait in the outbox: the relay that should have sent them on has died"
        yield Finding(Kind.OUTBOX_LEFT, Severity.WARNING, what, f"sub_queue={OUTBOX}", f"run the receive task, or {REPAIR}", mendable=True)

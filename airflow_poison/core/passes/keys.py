"""Run keys: the name under which a pass or a send is remembered, so that running it again is safe."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from airflow_poison.core.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_poison.core.store.queue_table import QueueTable


def run_key(*parts: object) -> str:
    """Return 32 hexadecimal digits for what identifies a run: store, queue, DAG, run, task, map index. Never the try number."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_key(key: str) -> str:
    """Return a key that the table's log can keep. Raises SettingError."""
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise SettingError("key", key, "text that UTF-8 can hold (no lone surrogate)") from error
    return key


def installed(installation: str, key: str) -> str:
    """Return a run key that says which Airflow installation it is of. Without one it is the key of the versions that did not say it."""
    return f"by-{installation}.{key}" if installation else key


def is_known(table: QueueTable, key: str, handle: str = "") -> bool:
    """Whether a queue has a send, a pass, a claim or a transaction of a run key.

    :param handle: the conversation that a transaction is about.
    """
    done = (f"send:{key}", f"run:{pass_key(key, 0)}", f"transact:begin:{key}", f"transact:send:{key}:{handle}", f"transact:end:{key}:{handle}")
    return table.has_number(done) or any(claim.key.startswith(f"{key}-") for claim in table.snapshot().claims)


def pass_key(key: str, ordinal: int) -> str:
    """Return the key of one pass of a run; a run that is started again after its pass has finished makes another one."""
    return f"{key}-{ordinal}"


def finished(table: QueueTable, key: str) -> int:
    """Return how many passes of a run key have finished."""
    ordinal = 0
    while table.result(pass_key(key, ordinal)) is not None:
        ordinal += 1
    return ordinal


def check_named_once(queues: Iterable[str]) -> None:
    """Raise SettingError for a queue of a task that is named twice: both passes would have the same run key."""
    seen: set[str] = set()
    for queue in queues:
        if queue in seen:
            raise SettingError("queues", queue, "every queue once; this one is named twice")
        seen.add(queue)

"""Which names a queue can have."""

from __future__ import annotations

import re

from airflow_poison.core.errors import QueueNameError

MAX_NAME = 100
_ALLOWED = re.compile(r"_?[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_TAKEN = frozenset({"_delta_log"})  # a folder of this name would make the store's root look like a table


def check_name(name: str) -> str:
    """Return the name when it can be a queue's. Raises QueueNameError.

    A name is also a folder's; and ``;`` separates a queue from its sub-queue (``orders;retry``), so neither that nor ``/`` is allowed.
    Names of the system's own queues begin with ``_`` (``_SYSTEM.Exception.Destination.ME1``, spec DMP-6).
    """
    if not isinstance(name, str) or len(name) > MAX_NAME or not _ALLOWED.fullmatch(name) or name in _TAKEN:
        message = (
            f"{name!r} cannot be a queue's name: use 1 to {MAX_NAME} letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit, or with one '_' before it."
        )
        if isinstance(name, str) and ";" in name:
            queue = name.partition(";")[0]
            message += f" Name the queue alone, {queue!r}: --sub-queue shows its sub-queues, and the policy PoisonSubQueue receives from poison."
        raise QueueNameError(message)
    return name

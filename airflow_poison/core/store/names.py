"""Which names a queue can have."""

from __future__ import annotations

import re

from airflow_poison.core.errors import QueueNameError

MAX_NAME = 100
_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


def check_name(name: str) -> str:
    """Return the name when it can be a queue's. Raises QueueNameError.

    A name is also a folder's; and ``;`` separates a queue from its sub-queue (``orders;retry``), so neither that nor ``/`` is allowed.
    """
    if len(name) > MAX_NAME or not _ALLOWED.fullmatch(name):
        message = f"{name!r} cannot be a queue's name: use 1 to {MAX_NAME} letters, digits, '.', '_' or '-', beginning with a letter or a digit."
        raise QueueNameError(message)
    return name

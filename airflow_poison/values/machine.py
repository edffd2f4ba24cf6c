"""Which machine this is."""

from __future__ import annotations

import socket


def machine() -> str:
    """Name this machine since it was last started: as long as that is the same, no file has lost what was stored in it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123  (as small as the rest)
            return file.read().strip()
    except OSError:
        return socket.gethostname()

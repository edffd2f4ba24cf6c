"""The processes that fork children for this one, and those children; nobody else's."""

from __future__ import annotations

import psutil


def zygotes() -> list[psutil.Process]:
    """Return the zygotes of this process, which has other children, too."""
    return [child for child in psutil.Process().children() if _is_zygote(child)]


def _is_zygote(process: psutil.Process) -> bool:
    try:
        return any("delivery.zygote" in word for word in process.cmdline())
    except psutil.NoSuchProcess:  # also of one that has ended and is still in the list of processes
        return False


def living_sessions() -> list[psutil.Process]:
    """Return the children of its zygotes."""
    return [child for zygote in zygotes() for child in zygote.children()]

"""Named points in the protocol where a test may stop or kill the process; nothing happens at them otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "AIRFLOW_POISON_FAULT"
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

_hook: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Call the hook: the protocol stands at a point, named ``<part>.<operation>.<before or after what>``."""
    if _hook is not None:
        _hook(point)


def install(hook: Callable[[str], None] | None) -> None:
    """Call ``hook`` with every point that is reached from now on in this process; None ends it."""
    global _hook  # noqa: PLW0603  (one hook a process is the purpose of this module)
    _hook = hook


def _from_environment(setting: str) -> Callable[[str], None]:
    """Return the hook that ``<point>:<action>`` asks for; actions: kill, stop. Raises ValueError for others."""
    wanted, _, action = setting.rpartition(":")
    if not wanted or action not in _SIGNALS:
        message = f"{VARIABLE}={setting!r} is not <point>:<action> with an action of {', '.join(sorted(_SIGNALS))}."
        raise ValueError(message)

    def act(point: str) -> None:
        if point == wanted:
            os.kill(os.getpid(), _SIGNALS[action])

    return act


if VARIABLE in os.environ:  # once, at process start: a child gets it before it begins
    install(_from_environment(os.environ[VARIABLE]))

"""Stop: how passes are ended from outside."""

from __future__ import annotations

from airflow_poison.core.errors import ReceiveStoppedError


class Stop:
    """Ends passes; any thread may ask for it, and a signal handler: it takes no lock."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked = False

    def ask(self) -> None:
        """End every pass that heeds this, soon; their claims stay."""
        self._asked = True

    def check(self) -> None:
        """Raise ReceiveStoppedError when somebody has asked."""
        if self._asked:
            raise ReceiveStoppedError(
                "The pass was stopped, because its task ends. Its claim stays: run the task again, it goes on where this one stopped."
            )

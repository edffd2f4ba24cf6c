"""What an asset's watcher has told, kept in the asset's state store, so that a triggerer that starts again goes on where the last one was."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from airflow_poison.core.errors import SettingError
from airflow_poison.core.watching.news import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.core.watching.news import News

QUIET_VERSIONS = 50
"""How many versions without news may pass before the position is stored."""


class StateStore(Protocol):
    """What is used of Airflow's ``AssetStateStoreAccessors``."""

    async def aget(self, key: str, default: Any = None) -> Any:
        """Return what is stored under a key."""
        ...

    async def aset(self, key: str, value: Any) -> None:
        """Store a JSON value under a key."""
        ...


class Ledger:
    """The position of one watcher, and what it has told since without knowing whether Airflow has recorded it.

    What is told is written down first. Whoever starts again tells the outstanding ones again, word for word: the same keys.

    :param state: the asset's state store; None: everything is forgotten with the process.
    :param key: the watcher's own key in it.
    """

    def __init__(self, state: StateStore | None, key: str) -> None:
        self._state = state
        self._key = key
        self._lock = asyncio.Lock()
        self._stored: Position | None = None
        self.position: Position | None = None
        self.outstanding: list[dict[str, Any]] = []

    async def read(self) -> None:
        """Read what an earlier triggerer has written. Raises SettingError when several assets share the watcher."""
        try:
            told = None if self._state is None else await self._state.aget(self._key)
        except ValueError as error:  # what Airflow says of a watcher of several assets
            raise SettingError("asset", None, "the asset's name, where several assets are watched alike; queue_asset gives it") from error
        if told is not None:
            self.position = self._stored = Position.from_dict(told["position"])
            self.outstanding = list(told["outstanding"])

    async def tell(self, told: News) -> None:
        """Write down what is about to be told, and up to where."""
        self.position = told.position
        self.outstanding += told.payloads
        stored = self._stored
        if told.payloads or stored is None or stored.marks != told.position.marks or told.position.version - stored.version >= QUIET_VERSIONS:
            await self._write()

    async def recorded(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Cross out what Airflow has recorded."""
        keys = {payload["key"] for payload in payloads}
        self.outstanding = [payload for payload in self.outstanding if payload["key"] not in keys]
        await self._write()

    async def _write(self) -> None:
        async with self._lock:
            position = self.position
            assert position is not None
            if self._state is not None:
                await self._state.aset(self._key, {"position": position.to_dict(), "outstanding": self.outstanding})
            self._stored = position

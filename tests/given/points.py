"""Signals at fault points: a race is forced, never waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class AtPoint:
    """Calls an action the first time a point is reached; the points that the action itself reaches count no more."""

    def __init__(self) -> None:
        self._actions: dict[str, Callable[[], object]] = {}
        self.reached: list[str] = []

    def do(self, point: str, action: Callable[[], object]) -> None:
        self._actions[point] = action

    def __call__(self, point: str) -> None:
        self.reached.append(point)
        action = self._actions.pop(point, None)
        if action is not None:
            action()

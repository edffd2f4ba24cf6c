"""What the tests of outputs begin with: settings, hooks at fault points, and messages whose rows wait for an output that refuses some."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from airflow_poison.outputs.output import outputs_of
from airflow_poison.values import fault_points
from tests.given.passes import DiedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.values.message import Message
    from tests.given.passes import Queue

BODIES = ("5", "-1", "7", "-2", "9")


def of(output: Path | str | dict[str, Path], **settings: Any) -> dict[str, Any]:
    return {"outputs": outputs_of(output, **settings)}


class reached:  # noqa: N801  (a context)
    def __init__(self, hook: Callable[[str], None]) -> None:
        self._hook = hook

    def __enter__(self) -> None:
        fault_points.install(self._hook)

    def __exit__(self, *_: object) -> None:
        fault_points.install(None)


def number(message: Message) -> Any:
    return {"n": int(message.text)}


def constrain(out: Path) -> None:
    DeltaTable(str(out)).alter.add_constraint({"positive": "n > 0"})


def once(at: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Return a hook that acts the first time that a point is reached."""
    done: list[object] = []

    def reach(point: str) -> None:
        if point == at and not done:
            done.append(point)
            act()

    return reach


def receive(queue: Queue, out: Path, key: str = "run", **settings: Any) -> None:
    given = {"handler": number, "isolation": "none"} | settings
    queue.receive(key, **given, **of(out))


def settle(queue: Queue, out: Path, **settings: Any) -> Queue:
    """Settle messages whose rows wait; the output has a constraint by then."""
    queue = queue.sent(*BODIES)

    def die() -> None:
        constrain(out)
        raise DiedError

    with reached(once("output.land.before_write", die)), pytest.raises(DiedError):
        receive(queue, out, **settings)
    assert len(queue.table.snapshot().landings) == 1
    return queue


def both_outputs(message: Message) -> Any:
    return {name: [{"n": int(message.text)}] for name in ("first", "second")}


def broken(out: Path) -> None:
    """Let a table be unreadable for a while."""
    log = out / "_delta_log"
    shutil.copytree(log, out / "away")
    max(log.glob("*.json")).write_text("{")


def mended(out: Path) -> None:
    shutil.rmtree(out / "_delta_log")
    (out / "away").rename(out / "_delta_log")

"""Handlers of the tests of commands."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.values.failures import PoisonRows

if TYPE_CHECKING:
    from airflow_poison import Message


def take(message: Message) -> None:
    if message.body.startswith(b"bad"):
        raise LookupError(f"unknown plane {message.body.decode()}")


def take_many(frame: Any) -> None:
    bad = [tailnum == "bad" for tailnum in frame["tailnum"].to_pylist()]
    if any(bad):
        raise PoisonRows(bad, "unknown plane")


def land(message: Message) -> dict[str, Any]:
    take(message)
    return {"tailnum": message.text}


def chat(message: Message) -> None:
    print("taken", message.lookup_id)  # noqa: T201  (what handlers do)
    os.system("echo said by another process")


def linger(message: Message) -> None:
    """Say that the message is here, and stay with it, but for the first one."""
    with Path("taken").open("a") as file:
        file.write(f"{message.lookup_id}\n")
    if message.lookup_id > 1 and not Path("quick").exists():
        time.sleep(60)


def linger_a_little(message: Message) -> None:
    """Say that the message is here, and return soon after."""
    with Path("taken").open("a") as file:
        file.write(f"{message.lookup_id}\n")
    if message.lookup_id > 1:
        time.sleep(3)


def refuse(message: Message) -> None:
    raise LookupError(f"unknown part {message.text}")

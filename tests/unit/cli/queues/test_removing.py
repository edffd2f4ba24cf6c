"""What is removed from the shell: asked for, shown, and saved before it goes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.values.clock import SystemClock
from tests.unit.cli.queues.given import MOVE, answer, messages, orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.given.command import Ran


def asked(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: said))


def test_a_removal_asks_and_takes_nothing_but_yes(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    poison(f"send orders one two {MOVE}")
    for said in ("", "\n", "n\n", "yesterday\n"):
        asked(monkeypatch, said)
        ran = poison("remove orders 1", code=1)
        assert ran.err == "Remove 1 message from orders for good? [y/N] nothing: was removed.\n"
    assert len(messages(poison)) == 2
    asked(monkeypatch, "Y\n")
    assert "    one\nRemoved 1 message from orders.\n" in poison("remove orders 1").out
    assert [each["lookup_id"] for each in messages(poison)] == [2]


@pytest.mark.parametrize("line", ["remove orders 1", "remove orders 1 --conversation", "recover orders --lookup-id 1"])
def test_a_removal_that_a_pass_prevents_prints_and_saves_nothing(poison: Callable[..., Ran], line: str) -> None:
    poison(f"send orders one two {MOVE} --conversation d1")
    orders().claim("run", lease=timedelta(minutes=2), now=SystemClock().now(), max_messages=10)
    ran = poison(f"{line} --yes --save kept", code=2)
    assert ran.err.endswith("being received. Try again when that pass has ended. Nothing has changed.\n")
    assert (ran.out, Path("kept").exists()) == ("", False)


def test_what_is_removed_is_saved_whole_and_can_be_sent_again(poison: Callable[..., Ran], here: Path) -> None:
    large, binary = b"x" * 100_000, b"\xff" * 70_000
    (here / "in").write_bytes(large + b"\n" + binary)
    poison(f"send orders --file in --group g --priority 2 --property a=b --conversation d1 --expires-after 1h {MOVE}")
    before = messages(poison)
    assert (
        poison("remove orders 2 --conversation --yes --save kept.jsonl").out == "Saved 2 messages in kept.jsonl.\nRemoved 2 messages from orders.\n"
    )
    assert messages(poison) == []
    poison("send orders --file kept.jsonl --format saved")
    same = ("message_id", "body_bytes", "group_id", "conversation_id", "priority", "properties", "expires_at", "body")
    assert [[each[name] for name in same] for each in messages(poison)] == [[each[name] for name in same] for each in before]
    assert orders().read(orders().snapshot().files[0])["body"].to_pylist() == [large, binary]


def test_a_file_that_is_there_is_never_written_over(poison: Callable[..., Ran], here: Path) -> None:
    (here / "kept").write_text("old")
    poison(f"send orders one {MOVE}")
    assert "there is such a file already" in poison("remove orders 1 --yes --save kept", code=2).err
    assert (here / "kept").read_text() == "old"
    assert poison("remove orders 1 --yes --save none/kept", code=2).err == "error: none/kept: No such file or directory.\n"
    assert len(messages(poison)) == 1


def test_json_shows_the_whole_messages_before_they_go(poison: Callable[..., Ran], here: Path) -> None:
    (here / "in").write_bytes(b"x" * 100_000)
    poison(f"send orders --file in {MOVE}")
    found = answer(poison("remove orders 1 --yes -o json"))
    assert (found["queue"], len(found["messages"][0]["body"]), found["saved"]) == ("orders", 100_000, None)
    assert messages(poison) == []


def test_a_message_that_is_being_received_stays(poison: Callable[..., Ran], here: Path) -> None:
    poison(f"send orders one {MOVE}")
    orders().claim("run", lease=timedelta(minutes=1), now=SystemClock().now(), max_messages=10)
    assert "is being received" in poison("remove orders 1 --yes", code=2).err
    assert "being received" in poison("show orders").out
    assert "cannot be restarted from outside" in poison("restart orders endpoint", code=2).err
    assert "A pass still finishes 1 message that it has claimed." in poison("disable orders").out

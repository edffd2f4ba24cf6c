"""Hidden values and old poison from the shell."""

from __future__ import annotations

import getpass
import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from airflow_poison.values.clock import SystemClock, VirtualClock
from tests.unit.cli.queues.given import FAULT, MOVE, TAKE, answer, messages, orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.given.command import Ran

CARD = "4111-1111"
BODY = f"""'{{"card": "{CARD}", "n": 1}}'"""


def masked_queue(poison: Callable[..., Ran], system: str = MOVE) -> None:
    poison(f"send orders {BODY} {system} --property token=t0ps3cret")
    poison("mask orders $.card properties.token")


def test_a_mask_is_set_said_and_taken_off(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE}")
    assert poison("mask orders").out == "orders hides nothing.\n"
    assert poison("mask orders $.card properties.token").out == "orders hides $.card, properties.token.\n"
    assert answer(poison("mask orders -o json")) == {"queue": "orders", "mask": ["$.card", "properties.token"]}
    [event] = [each for each in answer(poison("history orders -o json"))["events"] if "desk" in each["details"]]
    assert event["details"]["desk"] == "mask"
    assert event["details"]["who"].startswith(f"shell:{getpass.getuser()}@")
    assert poison("mask orders --off").out == "orders hides nothing.\n"
    assert "mask='card' is not allowed; allowed: $.name" in poison("mask orders card", code=2).err
    assert "--off: expected without paths" in poison("mask orders $.card --off", code=2).err


@pytest.mark.parametrize("command", ["show orders --body", "show orders --lookup-id 1", "show orders --body -o json", "inspect orders --lookup-id 1"])
def test_messages_are_shown_without_hidden_values_unless_that_is_asked_for(poison: Callable[..., Ran], command: str) -> None:
    masked_queue(poison)
    shown = poison(command).out
    assert CARD not in shown
    assert "t0ps3cret" not in shown
    assert "***" in shown
    assert CARD in poison(f"{command} --unmask").out


def test_what_a_pass_says_has_no_hidden_values(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {FAULT}")
    poison("mask orders $.card")
    poison('send orders \'{"card": "bad card", "n": 2}\' \'{"card": "bad card"}\'')
    poison("remove orders 1 --yes --unmask")
    Path("cards.py").write_text("def charge(message):\n    raise LookupError('no ' + message.json()['card'])\n")
    ran = poison("receive orders --handler cards:charge --engine local --isolation none", code=1)
    assert "bad card" not in ran.out + ran.err
    assert "LookupError: no ***" in ran.out + ran.err


def test_what_is_removed_is_printed_without_hidden_values_and_saved_whole(poison: Callable[..., Ran]) -> None:
    masked_queue(poison)
    poison(f"send orders {BODY} {BODY}")
    ran = poison("remove orders 1 --yes")
    assert CARD not in ran.out
    assert ran.err == "note: what the queue hides is printed as ***: --save FILE keeps the whole messages, --unmask prints them.\n"
    assert CARD in poison("remove orders 2 --yes --unmask").out
    ran = poison("remove orders 3 --yes --save kept.jsonl -o json")
    assert (CARD in ran.out, ran.err) == (False, "")
    assert json.loads(json.loads(Path("kept.jsonl").read_text())["body"])["card"] == CARD


# Old poison -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def old(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two poison messages, 31 days ago."""
    poison(f"send orders bad1 bad2 good {MOVE}")
    poison(f"receive orders {TAKE}")
    later = VirtualClock(SystemClock().now() + timedelta(days=31))
    monkeypatch.setattr("airflow_poison.queue.SystemClock", lambda: later)


@pytest.mark.usefixtures("old")
def test_old_poison_is_reported(poison: Callable[..., Ran]) -> None:
    assert poison("retain orders --after 30d").out == "2 messages of orders are old poison.\n"
    assert poison("retain orders --after 32d").out == "0 messages of orders are old poison.\n"
    assert "--after is missing" in poison("retain orders --export-to here --remove", code=2).err
    assert "no retention is recorded in 'orders'" in poison("retain orders", code=1).err
    assert "is not allowed; allowed: None without remove=True" in poison("retain orders --after 30d --export-to here", code=2).err
    assert len(messages(poison)) == 2


@pytest.mark.usefixtures("old")
def test_old_poison_is_written_and_removed_as_it_is_recorded(poison: Callable[..., Ran]) -> None:
    told = answer(poison("retain orders --after 30d --export-to kept --remove --record -o json"))
    assert (told["older"], told["removed"], told["waiting"]) == (2, 2, 0)
    [file] = told["files"]
    assert [row["body"] for row in pq.read_table(file).to_pylist()] == [b"bad1", b"bad2"]
    assert messages(poison) == []
    assert orders().snapshot().control.desk["retention"] == {"after": 2_592_000.0, "export_to": str(Path("kept").absolute()), "remove": True}
    assert poison("retain orders").out == "0 messages of orders are old poison.\n"


@pytest.mark.usefixtures("old")
def test_maintenance_does_what_is_recorded(poison: Callable[..., Ran]) -> None:
    assert answer(poison("maintain orders -o json"))["retained"] is None
    poison("retain orders --after 30d --record")
    assert "2 messages of old poison, 0 of them written elsewhere and removed." in poison("maintain orders").out
    poison("retain orders --after 30d --export-to kept --remove --record")
    assert answer(poison("maintain orders -o json"))["retained"]["older"] == 0
    assert poison("retain orders --off").out == "orders has no retention.\n"
    assert answer(poison("maintain orders -o json"))["retained"] is None

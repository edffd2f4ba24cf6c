"""Hidden values and old poison from the shell."""

from __future__ import annotations

import getpass
import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
def test_a_rule_writes_and_removes_old_poison(poison: Callable[..., Ran], tmp_path: Path) -> None:
    rule = {"name": "old", "verb": "remove", "after": 2_592_000, "export_to": str(tmp_path / "kept")}
    Path("rules.json").write_text(json.dumps([rule]))
    [told] = answer(poison("rules orders --declare rules.json -o json"))["rules"]
    assert (told["messages"], told["now"], told["done"], told["waiting"]) == (2, 2, 2, 0)
    [file] = told["files"]
    assert [row["body"] for row in pq.read_table(file).to_pylist()] == [b"bad1", b"bad2"]
    assert messages(poison) == []
    recorded: Any = orders().snapshot().control.desk["rules"]
    assert [dict(each) for each in recorded] == [rule]
    Path("rules.json").write_text(json.dumps([rule | {"export_to": "kept"}]))
    assert "rules['old'].export_to='kept' is not allowed; allowed: a whole path" in poison("rules orders --declare rules.json", code=2).err

"""``airflow poison rules``: the table of a queue, tried and run from the shell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.queues.given import MOVE, TAKE, answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.given.command import Ran

RULES = [
    {"name": "again", "verb": "put_back", "when": {"text": "bad1"}, "at_most": 2},
    {"name": "rest", "verb": "ask", "proposes": "remove", "after": 3600},
]


@pytest.fixture(autouse=True)
def three(poison: Callable[..., Ran], here: Path) -> None:
    """A queue with three poison messages, and a file of rules."""
    poison(f"send orders bad1 bad2 bad3 {MOVE}")
    poison(f"receive orders {TAKE}")
    (here / "rules.json").write_text(json.dumps(RULES))


def test_rules_are_tried_declared_and_run(poison: Callable[..., Ran]) -> None:
    tried = poison("rules orders --dry-run --declare rules.json").out
    assert "orders: 3 messages in poison, 0 meet no rule. Nothing was changed." in tried
    assert [line.split()[:5] for line in tried.splitlines() if line.startswith(("again", "rest"))] == [
        ["again", "put_back", "1", "1", "0"],
        ["rest", "ask", "2", "0", "2"],
    ]
    assert "0 meet no rule" not in poison("rules orders --dry-run").out  # nothing was recorded
    ran = answer(poison("rules orders --declare rules.json -o json"))
    assert [(each["rule"], each["done"], each["waiting"]) for each in ran["rules"]] == [("again", 1, 0), ("rest", 0, 2)]
    assert "orders: 2 messages in poison, 0 meet no rule. 0 messages done." in poison("rules orders").out


def test_a_try_of_rules_names_a_queue_that_is_not_there(poison: Callable[..., Ran], here: Path) -> None:
    (here / "rules.json").write_text(json.dumps([{"name": "elsewhere", "verb": "send_to", "target": "nowhere"}]))
    assert "There is no queue 'nowhere'" in poison("rules orders --dry-run --declare rules.json", code=2).err


def test_a_redrive_for_new_handlers_is_switched_on_and_off(poison: Callable[..., Ran]) -> None:
    assert poison("rules orders --redrive-on-new-handler 1:0.5").out
    assert "redrive for a new handler" not in poison(f"receive orders {TAKE} --handler-version 1").err
    found = poison("receive orders --engine local --handler builtins:len --handler-version 2", code=0)
    assert "redrive for a new handler" in found.err
    poison("rules orders --redrive-on-new-handler off")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("rules orders --declare nothing.json", "nothing.json"),
        ("rules orders --redrive-on-new-handler some", "N"),
        ("rules orders --redrive-on-new-handler 5:x", "expected N, N:SHARE or off"),
        ("rules orders --redrive-on-new-handler 5 --dry-run", "expected without --dry-run"),
        ("rules nobody", "nobody"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(poison: Callable[..., Ran], line: str, says: str) -> None:
    assert says in poison(line, code=2).err


def test_a_file_of_no_rules_is_refused(poison: Callable[..., Ran], here: Path) -> None:
    (here / "rules.json").write_text("[")
    assert "expected a JSON list of rules" in poison("rules orders --declare rules.json", code=2).err
    (here / "rules.json").write_bytes('[{"name": "\u00e9"}]'.encode("latin-1"))
    assert "--declare rules.json: expected a JSON list of rules; byte 11 is no UTF-8." in poison("rules orders --declare rules.json", code=2).err
    (here / "rules.json").write_text('[{"name": "a", "verb": "drop"}]')
    assert "put_back, send_to, remove, tell, ask" in poison("rules orders --declare rules.json", code=2).err
    (here / "rules.json").write_text('[{"name": "a", "verb": "remove", "when": {"error_type": "KeyError", "error_type": "ValueError"}}]')
    assert "the name 'error_type' stands twice in one object" in poison("rules orders --declare rules.json", code=2).err


def test_a_file_of_rules_may_begin_with_a_byte_order_mark(poison: Callable[..., Ran], here: Path) -> None:
    (here / "rules.json").write_text('[{"name": "a", "verb": "tell"}]', encoding="utf-8-sig")
    poison("rules orders --declare rules.json --dry-run")

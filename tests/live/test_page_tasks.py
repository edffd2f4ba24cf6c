"""The tasks of an on-call engineer at the page, on a queue of 1,000,000 poison messages in a real browser: clicks, or keys alone, and seconds."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison import Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.messages import with_columns
from airflow_poison.passes.send import send
from airflow_poison.store.files import Replacement
from airflow_poison.values.clock import SystemClock
from benchmarks.desk import _record
from tests.given.tables import places
from tests.live.test_night import page, receive
from tests.live.test_recovery import asked, halted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from airflow_poison.store.queue_table import QueueTable
    from tests.live.chromium import Page
    from tests.live.live_airflow import LiveAirflow

__all__ = ["page"]

MESSAGES, WRONG, NEW = int(os.environ.get("POISON_PAGE_MESSAGES", "1000000")), 41_234, 1_200
QUEUE, CLOCK = "million", SystemClock()
_AT_ONCE, _MOST_TABS = 50_000, 500
_TAB = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
_ENTER = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}


@dataclass
class Person:
    """Presses links and buttons, with a mouse or with the keys alone."""

    page: Page
    keys_alone: bool
    presses: int = 0

    def press(self, named: str) -> None:
        """Press the first link, button or field whose text or label matches; in a dialog where one is open."""
        within = "(document.querySelector('[role=dialog]') ?? document.querySelector('.poison'))"
        text = "each.ariaLabel ?? each.labels?.[0]?.innerText ?? each.innerText"
        fits = f"[...{within}.querySelectorAll('a, button, textarea')].filter((each) => /{named}/.test({text}))"
        self.page.until(f"{fits}.some((each) => !each.disabled)")
        if not self.keys_alone:
            self.page.run(f"{fits}[0].focus() ?? {fits}[0].click()")
        else:
            for _ in range(_MOST_TABS):
                if self.page.run(f"document.activeElement === {fits}[0]"):
                    break
                self._key(_TAB)
            else:
                pytest.fail(f"no Tab reaches {named}")
            if self.page.run("document.activeElement.tagName !== 'TEXTAREA'"):
                self._key(_ENTER)
        self.presses += 1

    def write(self, text: str) -> None:
        """Write a text in the place of what the focused field has."""
        self.page.run("document.activeElement.select()")
        self.page.protocol.call("Input.insertText", text=text)

    def _key(self, key: dict[str, object]) -> None:
        self.page.protocol.call("Input.dispatchKeyEvent", type="keyDown", **key)
        self.page.protocol.call("Input.dispatchKeyEvent", type="keyUp", **{name: value for name, value in key.items() if name != "text"})

    @contextmanager
    def task(self, name: str, most: int) -> Iterator[None]:
        """Count the presses of a task, which are at most so many, and its seconds."""
        before, began = self.presses, time.monotonic()
        yield
        told = {"task": name, "keys alone": self.keys_alone, "presses": self.presses - before, "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps(told))  # noqa: T201  (the figures)
        assert self.presses - before <= most, told


def failure(lookup_id: int) -> dict[str, str]:
    """28 kinds of old failures, one of them of so many messages as are edited, and a new one."""
    number, text = (0, "'currency'") if lookup_id <= WRONG else (lookup_id % 27 + 1, f"order {lookup_id} has no price")
    if lookup_id > MESSAGES - NEW:
        number, text = 99, f"no customer {lookup_id}"
    return {"kind": "exception", "type": f"shop.Error{number}", "message": text, "fingerprint": f"{number:012x}", "trace": '  File "shop.py"'}


@pytest.fixture(scope="module")
def million(airflow: LiveAirflow) -> QueueTable:
    table = declare(airflow.store, QUEUE, Msmq4(receive_error_handling="Move"), CLOCK)
    for key, first, last, at in (("old", 1, MESSAGES - NEW, CLOCK.now() - timedelta(days=3)), ("new", MESSAGES - NEW + 1, MESSAGES, CLOCK.now())):
        send(table, (bodies(start, min(start + _AT_ONCE - 1, last)) for start in range(first, last + 1, _AT_ONCE)), key=key, clock=CLOCK)
        fail(table, at)
    assert places(table) == {"poison": MESSAGES}
    return table


def bodies(first: int, last: int) -> pa.RecordBatch:
    found = [json.dumps({"order": number, "carrier": ("VX", "AA", "UA")[number % 3]}).encode() for number in range(first, last + 1)]
    return pa.RecordBatch.from_pydict({"body": pa.array(found, pa.binary())})


def fail(table: QueueTable, at: datetime) -> None:
    """Let what waits have failed, as passes leave it: in a few files, with events."""
    for file in table.snapshot().files:
        if file.sub_queue == "main":
            rows = table.read(file)
            failures = [failure(number or 0) for number in rows["lookup_id"].to_pylist()]
            reasons = [f"{each['type']}: {each['message']}" for each in failures]
            failed = with_columns(rows, last_error=failures, reason=reasons, sub_queue="poison", move_count=1)
            table.replace_files([Replacement(file, failed)], [])
            _record(table, failed, at)


def in_main(airflow: LiveAirflow, table: QueueTable, wanted: Callable[[int], bool], what: str) -> int:
    return int(airflow.until(lambda: next(filter(wanted, [places(table).get("main", 0)]), 0), what))


@pytest.mark.parametrize("keys_alone", [False, True], ids=["mouse", "keys alone"])
def test_a_million_poison_messages_are_dealt_with(page: Page, airflow: LiveAirflow, million: QueueTable, keys_alone: bool) -> None:  # noqa: FBT001
    person, there = Person(page, keys_alone), places(million)["poison"]
    left = WRONG - (MESSAGES - there)  # an earlier one's canary was settled
    page.go("/plugin/poison")
    page.until_text("poison messages")
    with person.task("find which kind is new", 1):
        person.press(f"{there:,} poison messages")
        page.until_text("1 kind is new since yesterday: shop.Error99")
    with person.task(f"edit and redrive {left:,} messages with a canary", 6):
        person.press("^shop.Error0$")
        person.press("^Merge patch")
        person.write('{"currency": "EUR"}')
        person.press(f"^Edit and redrive {left:,} messages …")
        person.press(f"^Edit and redrive {left:,} messages$")
        assert in_main(airflow, million, lambda found: found == 100, "the canary is in main") == 100
        assert receive(million, "ab"[keys_alone]) == 100
        page.until_text(f"{left:,} of {left:,} messages done")
    assert places(million)["main"] == left - 100
    with person.task("undo", 2):
        person.press("^Undo …")
        person.press("^Undo$")
        page.until("document.body.innerText.toLowerCase().includes('undone')")
    assert places(million) == {"poison": there - 100}
    assert page.complaints() == []


@pytest.mark.parametrize("keys_alone", [False, True], ids=["mouse", "keys alone"])
def test_a_halted_queue_is_answered_and_enabled(page: Page, airflow: LiveAirflow, keys_alone: bool) -> None:  # noqa: FBT001
    person, queue = Person(page, keys_alone), f"answered{keys_alone:d}"
    halted(airflow, queue, Msmq4(receive_retry_count=0, max_retry_cycles=0))
    asked(airflow, queue)
    page.go("/plugin/poison")
    page.until_text(f"Queue {queue} is")
    with person.task("answer a halted queue and enable it", 4):
        person.press(f"^Queue {queue} is .* What shall be done")
        person.press("^Remove message 1 and enable")
        person.press("^Remove message 1 and enable")
        page.until_text("The queue is enabled.")
    assert page.complaints() == []

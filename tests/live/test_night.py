"""The story of docs/tutorial/night.md: an outage at night, 200,000 poison messages, found, tried with a canary and redriven in a real browser."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison import Msmq4
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.messages import with_columns
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.store.files import Replacement
from airflow_poison.values.clock import SystemClock
from tests.given.tables import places
from tests.live import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message
    from tests.live.chromium import Page
    from tests.live.live_airflow import LiveAirflow

MESSAGES, OUTAGE, QUEUE = 200_000, 182_000, "shipments"
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
SHOTS = os.environ.get("POISON_SCREENSHOTS")


def group_of(kind: str) -> str:
    """Return the id of the error group of a type."""
    return f"{len(kind):012x}"


def failure(number: int) -> dict[str, str]:
    """What a shipment failed with: most with an outage, the others for reasons of their own."""
    if number <= OUTAGE:
        kind, text = "requests.exceptions.ConnectionError", f"rates service: no answer for shipment {number} after 30.0 s"
    elif number <= 199_000:
        kind, text = "KeyError", "'currency'"
    else:
        kind, text = "ValueError", f"could not convert string to float: 'N/A{number}'"
    return {
        "kind": "exception",
        "type": kind,
        "message": text,
        "fingerprint": group_of(kind),
        "trace": '  File "/dags/shop.py", line 31, in price',
    }


@pytest.fixture
def shipments(airflow: LiveAirflow) -> QueueTable:
    """The queue in the morning."""
    clock = SystemClock()
    table = declare(airflow.store, QUEUE, POLICY, clock)
    bodies = [json.dumps({"shipment": n, "carrier": ("VX", "AA", "UA")[n % 3], "weight": n % 40}).encode() for n in range(1, MESSAGES + 1)]
    send(table, [pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})], key="night", clock=clock)
    for file in table.snapshot().files:
        rows = table.read(file)
        failed = [failure(number or 0) for number in rows["lookup_id"].to_pylist()]
        reasons = [f"{each['type']}: {each['message']}" for each in failed]
        poison = with_columns(rows, last_error=failed, reason=reasons, sub_queue="poison", move_count=1)
        table.replace_files([Replacement(file, poison)], [])
    return table


@pytest.fixture
def page(airflow: LiveAirflow, tmp_path: Path) -> Iterator[Page]:
    if chromium.found() is None:
        pytest.skip("There is no Chromium on this machine (Debian: apt-get install chromium).")
    with chromium.page(tmp_path / "profile", airflow.url) as browser:
        browser.sign_in(airflow.client.call("POST", "/auth/token", {"username": "op", "password": "op-password"})["access_token"])
        yield browser


def shoot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(Path(SHOTS) / f"{name}.png")


def land(message: Message) -> None:
    """Take a message: the rates service answers again."""
    del message


def receive(table: QueueTable, key: str) -> int:
    work = ReceivePass(table=table, policy=POLICY, handler=land, engine=LocalEngine, clock=SystemClock(), isolation="none")
    return work.run(key * 40).settled


def test_an_outage_at_night_is_found_tried_with_a_canary_and_redriven(page: Page, airflow: LiveAirflow, shipments: QueueTable) -> None:
    page.go("/plugin/poison")
    page.until_text("Search by name")
    page.fill("input[type=search]", QUEUE)  # in a run of all tests it is one of many
    page.until_text(QUEUE)
    shoot(page, "night-overview")
    page.go(f"/plugin/poison?queue={QUEUE}&sub_queue=poison")
    page.until_text("182,000")
    page.until_text("KeyError")
    page.until_text("All 200,000:")
    shoot(page, "night-groups")
    page.go(f"/plugin/poison?queue={QUEUE}&view=group&sub_queue=poison&error={group_of('KeyError')}")
    page.until_text("17,000, 9 % of all")
    page.until_text("Try it on 10 samples")
    page.run("document.querySelector('textarea').focus() ?? document.querySelector('textarea').select()")
    page.fill("textarea", '{"currency": "EUR"}')
    page.click("Try it on 10 samples")
    page.until("document.querySelectorAll('ins').length >= 10")
    page.run("document.querySelector('.poison').scrollTop = 250")
    shoot(page, "night-group")
    page.go(f"/plugin/poison?queue={QUEUE}&sub_queue=poison")
    page.until_text("182,000")
    page.click("Redrive …")
    page.click("Plan: nothing is done yet")
    page.until_text("Redrive 182,000 messages")
    shoot(page, "night-plan")
    assert places(shipments) == {"poison": MESSAGES}
    page.click("Redrive 182,000 messages")
    canary = airflow.until(lambda: places(shipments).get("main"), "the canary is in main")
    page.until_text(f"Canary: of {canary} messages, 0 settled, 0 failed again, {canary} still to be received or tried again.")
    shoot(page, "night-canary")
    assert canary < 1_000
    assert receive(shipments, "1") == canary
    airflow.until(lambda: places(shipments).get("main") == OUTAGE - canary, "the others are in main")
    page.until_text("182,000 of 182,000 messages done")
    page.until_text("18,000")  # left in poison, when the page asks again
    shoot(page, "night-done")
    assert receive(shipments, "2") == OUTAGE - canary
    assert places(shipments) == {"poison": MESSAGES - OUTAGE}
    assert page.complaints() == []


def look_up(message: Message) -> None:
    """Fail at the third plane, as a register that does not know it."""
    if message.lookup_id == 3:
        raise LookupError("no plane N619AA in the register")


def test_a_halted_queue_opens_on_the_message_that_halts_it(page: Page, airflow: LiveAirflow) -> None:
    policy, clock = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault"), SystemClock()
    table = declare(airflow.store, "gates", policy, clock)
    bodies = [json.dumps({"plane": n, "gate": n % 9}).encode() for n in range(1, 41)]
    send(table, [pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})], key="morning", clock=clock)
    ReceivePass(table=table, policy=policy, handler=look_up, engine=LocalEngine, clock=clock, isolation="none").run("3" * 40)
    page.go("/plugin/poison?queue=gates")
    page.until_text("gates is faulted")
    page.until_text("Message 3")
    page.until_text("Trace of its last failure")
    assert page.run("document.title").startswith("message 3 · gates - ")
    page.protocol.call("Emulation.setDeviceMetricsOverride", width=1280, height=505, deviceScaleFactor=1, mobile=False)  # traces name this machine
    shoot(page, "queue-page")
    assert page.complaints() == []

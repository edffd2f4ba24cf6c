"""The pages of queues in a real API server and a real browser, and what a task shows of itself: links, log, progress."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from airflow_poison import Contract, Dialog, Msmq4, Service, ServiceBroker
from airflow_poison.passes.alter import declare, disable
from airflow_poison.passes.conversations import conversations, declare_services
from airflow_poison.passes.dialogs import begin_dialogs, send_on
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.relay import transmit
from airflow_poison.passes.send import send
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches
from tests.live import chromium
from tools.airflow.client import API

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.store.queue_table import QueueTable
    from tests.live.chromium import Page
    from tests.live.live_airflow import LiveAirflow
    from tools.airflow.client import Run

SCRIPT = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
QUEUE = "page-orders"
SHOP, WAREHOUSE, ORDER = "//Page/Shop<img src=x onerror=\"document.title = 'taken'\">", "//Page/Warehouse", "//Page/Order"
READS = ["/poison/api/queues", f"/poison/api/queue?queue={QUEUE}", f"/poison/api/messages?queue={QUEUE}&sub_queue=poison", "/poison/ui/poison.js"]
NOWHERE = {"queue": "nowhere", "reason": "why not"}
ACTS: dict[str, dict[str, Any]] = {
    "plan": {"queue": "nowhere", "selection": {}, "action": {"verb": "put_back"}},
    "apply": {**NOWHERE, "selection": {}, "action": {"verb": "put_back"}, "version": 1},
    **dict.fromkeys(("pause", "resume", "cancel", "undo"), NOWHERE | {"plan": "feedbeef0000"}),
    **dict.fromkeys(("enable", "disable"), NOWHERE),
    "decide": {"dag_id": "none", "run_id": "none", "task_id": "none", "option": "none"},
}
AXE = Path(__file__).parents[2] / "airflow_poison/ui/frontend/node_modules/axe-core/axe.min.js"
SHOTS = os.environ.get("POISON_SCREENSHOTS")

TALKING = """
import logging
import sys

from airflow.sdk import DAG

from airflow_poison import Contract, Dialog, Msmq4, Service, ServiceBroker
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator


def talk(message):
    print("printed", message.lookup_id)
    logging.getLogger("shop").info("logged %s", message.lookup_id)
    logging.getLogger("shop").warning("warned %s", message.lookup_id)
    print("complained", message.lookup_id, file=sys.stderr)
    if message.body == b"bad":
        raise ValueError("no such order")


with DAG("talking", schedule=None):
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    send = QueueSendOperator(task_id="send", queue_name="talking", messages=["good", "bad", "fine"], policy=policy)
    send >> QueueReceiveOperator(task_id="receive", queue_name="talking", handler=talk)
"""


def refuse(message: Any) -> None:
    if message.body.startswith(b"<"):
        raise ValueError(f"refused: {SCRIPT}")


@pytest.fixture(scope="module")
def orders(airflow: LiveAirflow) -> QueueTable:
    """A queue whose first message is poison, with a hostile body and a hostile error; disabled."""
    policy = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move")
    table = declare(airflow.store, QUEUE, policy, SystemClock())
    put(table, [f"{SCRIPT}\x1b]0;owned\x07\u202e", *(f"order {number}" for number in range(5))], "a")
    ReceivePass(table=table, policy=policy, handler=refuse, engine=LocalEngine, clock=SystemClock(), isolation="none").run("0" * 40)
    put(table, [f"order {number}" for number in range(60)], "b")
    disable(table, SystemClock(), reason=f"the lorry has no driver {SCRIPT}")
    return table


@pytest.fixture(scope="module")
def warehouse(airflow: LiveAirflow) -> QueueTable:
    """A queue that a message of a dialog has disabled; its partner has a hostile name, and has sent once more."""
    store, clock, rules = airflow.store, SystemClock(), ServiceBroker()
    contract = Contract("//Page/Parts", {ORDER: "INITIATOR"})
    shop, table = (declare(store, name, rules, clock) for name in ("page-shop", "page-warehouse"))
    declare_services(store, shop, [Service(SHOP, [contract])])
    declare_services(store, table, [Service(WAREHOUSE, [contract])])
    dialogs = [
        Dialog(messages=[(ORDER, f"{SCRIPT}".encode()), (ORDER, b"two gears")], lifetime=timedelta(days=7)),
        Dialog(messages=[(ORDER, b"a shaft")], timer=timedelta(hours=6)),
    ]
    begun = begin_dialogs(shop, service=SHOP, far_service=WAREHOUSE, contract=contract.name, dialogs=dialogs, key="page", clock=clock)
    transmit(store, shop, clock)
    ReceivePass(table=table, policy=rules, handler=refuse, engine=LocalEngine, clock=clock, isolation="none", store=store).run("1" * 40)
    send_on(shop, begun.conversations[0], [(ORDER, b"one more")], key="more", clock=clock)
    return table


def put(table: QueueTable, bodies: list[str], key: str) -> None:
    send(table, rows_to_batches(bodies, ColumnMapping(), datetime.now(UTC)), key=key * 40, clock=SystemClock())


@pytest.fixture(scope="module")
def talked(airflow: LiveAirflow) -> Run:
    """A run that has sent three messages and received them."""
    dag_id = airflow.dag(TALKING)
    return airflow.wait(airflow.trigger(dag_id))


# Rights, in the real API server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize(("user", "status"), [(None, 401), ("viewer", 200), ("user", 200), ("op", 200), ("admin", 200)])
def test_who_can_read(airflow: LiveAirflow, orders: QueueTable, path: str, user: str | None, status: int) -> None:
    assert airflow.call("GET", path, user=user).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("user", [None, "viewer", "admin"])
def test_nobody_changes_anything_where_the_page_reads(airflow: LiveAirflow, orders: QueueTable, method: str, user: str | None) -> None:
    assert [airflow.call(method, path, {} if method != "DELETE" else None, user=user).status for path in READS] == [405] * len(READS)


@pytest.mark.parametrize(("user", "status"), [(None, 401), ("viewer", 403), ("user", 403), ("op", 404), ("admin", 404)])
def test_who_can_act(airflow: LiveAirflow, user: str | None, status: int) -> None:
    """404: who may is told that there is no such queue."""
    for verb, body in ACTS.items():
        answer = airflow.call("POST", f"/poison/api/{verb}", body, user=user)
        assert answer.status == status, (verb, answer.body)
    if user is not None:
        assert airflow.call("GET", "/poison/api/rights", user=user).body["act"] is (status == 404)


def test_a_change_is_done_and_noted_in_the_audit_log_of_airflow(airflow: LiveAirflow) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    table = declare(airflow.store, "page-acts", policy, SystemClock())
    put(table, [f"<{number}" for number in range(5)], "a")
    ReceivePass(table=table, policy=policy, handler=refuse, engine=LocalEngine, clock=SystemClock(), isolation="none").run("0" * 40)
    body = {"queue": "page-acts", "selection": {"sub_queue": "poison"}, "action": {"verb": "put_back"}}
    planned = airflow.call("POST", "/poison/api/plan", body, user="op").body
    assert (planned["messages"], planned["state"]) == (5, "planned")
    begun = airflow.call("POST", "/poison/api/apply", body | {"version": planned["version"], "reason": "the shop is open"}, user="op").body

    def done() -> Any:
        seen = airflow.call("GET", f"/poison/api/plan?queue=page-acts&plan={begun['plan']}", user="viewer").body
        return seen if seen["state"] == "done" else None

    seen = airflow.until(done, "the plan is done")
    assert (seen["done"], seen["who"], seen["reason"]) == (5, "airflow:op", "the shop is open")
    assert sum(file.rows for file in table.snapshot().files if file.sub_queue == "main") == 5
    entries = airflow.call("GET", f"{API}/eventLogs?event=poison_apply&owner=op").body["event_logs"]
    [noted] = [found for entry in entries if (found := json.loads(entry["extra"]))["queue"] == "page-acts"]
    assert (noted["queue"], noted["plan"], noted["reason"], noted["action"]) == ("page-acts", begun["plan"], "the shop is open", {"verb": "put_back"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403),
        ({}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 404),
        ({"Content-Type": "text/plain", "Sec-Fetch-Site": "same-origin"}, 415),
    ],
)
def test_the_session_of_a_browser_cannot_be_used_by_other_sites(airflow: LiveAirflow, headers: dict[str, str], status: int) -> None:
    token = airflow.client.call("POST", "/auth/token", {"username": "admin", "password": "admin-password"})["access_token"]
    sent = {"Cookie": f"_token={token}", "Content-Type": "application/json"} | headers
    request = urllib.request.Request(f"{airflow.url}/poison/api/disable", json.dumps(ACTS["disable"]).encode(), sent, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)
    with refused.value as answer:
        assert answer.code == status


def test_there_is_no_documentation_and_no_folder(airflow: LiveAirflow) -> None:
    for path in ("/poison/docs", "/poison/redoc", "/poison/openapi.json", "/poison/ui/", "/poison/ui/app.py"):
        assert airflow.call("GET", path, user=None).status == airflow.call("GET", path).status == 404


def test_the_page_is_in_the_menu_of_viewers(airflow: LiveAirflow) -> None:
    (plugin,) = [each for each in airflow.call("GET", f"{API}/plugins", user="viewer").body["plugins"] if each["name"] == "poison"]
    assert plugin["react_apps"][0]["bundle_url"] == "poison/ui/poison.js"
    assert airflow.call("GET", f"{API}/plugins/importErrors").body["total_entries"] == 0


# In a browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(airflow: LiveAirflow, tmp_path: Path) -> Iterator[Page]:
    if chromium.found() is None:
        pytest.skip("There is no Chromium on this machine (Debian: apt-get install chromium).")
    with chromium.page(tmp_path / "profile", airflow.url) as browser:
        browser.sign_in(airflow.client.call("POST", "/auth/token", {"username": "viewer", "password": "viewer-password"})["access_token"])
        yield browser


def shoot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(Path(SHOTS) / f"{name}.png")


def test_a_viewer_walks_from_the_queues_to_a_poison_message(page: Page, orders: QueueTable) -> None:
    page.go("/plugin/poison")
    page.until_text(QUEUE)
    shoot(page, "queues")
    page.click(QUEUE)
    page.until_text("the lorry has no driver")
    page.until_text("Messages in poison")
    assert page.run("document.title").startswith(f"poison · {QUEUE} - ")
    page.click("main")
    page.until_text("Messages in main")
    page.until_text("1–50 of 60")
    shoot(page, "queue")
    page.click("poison")
    page.until_text("Messages in poison")
    page.until_text("ValueError: refused")
    shoot(page, "poison")
    page.click("1")
    page.until_text("Trace of its last failure")
    page.until_text("MOVED_POISON")
    shoot(page, "message")
    assert SCRIPT + r"\x1b]0;owned\x07\u202e" in page.text()
    assert page.run("document.title") != "taken"
    assert page.run("document.querySelectorAll('.poison script, .poison img').length") == 0
    page.run("history.back()")
    page.until_text("Messages in poison")
    assert page.complaints() == []


def test_a_person_who_was_alerted_finds_the_conversation_its_partner_and_what_ends_it(page: Page, orders: QueueTable, warehouse: QueueTable) -> None:
    [handle] = [row.handle for row in conversations(warehouse) if row.waiting == {ORDER: 2}]
    page.go("/plugin/poison?queue=page-warehouse")
    page.until_text("page-warehouse is disabled")
    shoot(page, "dialogs-queue")
    page.click("Look at message 1.")
    page.until_text("Its conversation")
    page.until_text(f"airflow poison end-conversation page-warehouse {handle} --error 127 --description 'Unable to process message.' --enable")
    shoot(page, "dialogs-message")
    page.click(handle)
    page.until_text(f"Conversation {handle}")
    page.until_text("target, service //Page/Warehouse")
    shoot(page, "conversation-of-target")
    assert SHOP in page.text()
    page.click("conversations")
    page.until_text("SI started inbound")
    shoot(page, "conversations")
    assert _tile(page, "conversations") == ["conversations", "2", "going on"]
    page.until_text(f"{WAREHOUSE}\n→ {SHOP}")
    page.click(handle)
    page.click("its side")
    page.until_text("not sent yet")
    page.until_text("The queue of //Page/Warehouse is disabled: what is not sent yet waits here until it is enabled.")
    shoot(page, "conversation-of-initiator")
    assert page.run("document.title") != "taken"
    assert page.run("document.querySelectorAll('.poison script, .poison img').length") == 0
    page.go("/plugin/poison?queue=page-warehouse&conversation=nowhere")
    page.until_text("Queue 'page-warehouse' has no conversation 'nowhere'")
    page.go(f"/plugin/poison?queue={QUEUE}&sub_queue=main")
    page.until_text("Messages in main")
    assert "conversations" not in page.text()
    assert [each for each in page.complaints() if "404" not in each] == []


def test_who_may_act_puts_messages_back_and_undoes_it(page: Page, airflow: LiveAirflow) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    table = declare(airflow.store, "page-desk", policy, SystemClock())
    put(table, [f"<{number}" for number in range(7)], "a")
    ReceivePass(table=table, policy=policy, handler=refuse, engine=LocalEngine, clock=SystemClock(), isolation="none").run("0" * 40)

    def places() -> dict[str, int]:
        return {file.sub_queue: file.rows for file in table.snapshot().files}

    page.go("/plugin/poison?queue=page-desk&sub_queue=poison")
    page.until_text("ValueError: refused")
    assert "Put back" not in page.text()
    page.sign_in(airflow.client.call("POST", "/auth/token", {"username": "op", "password": "op-password"})["access_token"])
    page.go("/plugin/poison?queue=page-desk&sub_queue=poison")
    page.click("Put back …")
    page.click("Plan: nothing is done yet")
    page.until_text("Put back 7 messages")
    shoot(page, "plan")
    assert places() == {"poison": 7}
    page.click("Put back 7 messages")
    page.until_text("done")
    airflow.until(lambda: places() == {"main": 7}, "the messages are in main")
    page.click("Undo …")
    page.click("Undo")
    airflow.until(lambda: places() == {"poison": 7}, "the messages are in poison again")
    page.until_text("undone")
    shoot(page, "undone")
    assert {event.details["who"] for event in table.events() if event.details.get("plan")} == {"airflow:op"}
    assert page.complaints() == []


def _tile(page: Page, name: str) -> list[str]:
    lines: list[list[str]] = page.run("[...document.querySelectorAll('.poison .tile')].map((each) => each.innerText.split(/\\n+/))")
    return next(each for each in lines if each[0] == name)


def test_the_page_follows_the_dark_mode(page: Page, orders: QueueTable, warehouse: QueueTable) -> None:
    [handle] = [row.handle for row in conversations(warehouse) if row.waiting == {ORDER: 2}]
    for theme in ("light", "dark"):
        page.go("/")
        page.until("document.readyState === 'complete'")
        page.run(f"localStorage.setItem('theme', '{theme}')")
        page.go(f"/plugin/poison?queue={QUEUE}&sub_queue=main")
        page.until_text("Messages in main")
        shoot(page, f"queue-{theme}")
        ink, ground = (_brightness(page, what) for what in ("color", "backgroundColor"))
        assert (ink < ground) == (theme == "light")
        for name, query, text in (
            ("conversation", f"conversation={handle}", "waits in main for"),
            ("conversations", "view=conversations", "started inbound"),
            ("suspect", "lookup_id=1", "end-conversation"),
        ):
            page.go(f"/plugin/poison?queue=page-warehouse&{query}")
            page.until_text(text)
            shoot(page, f"{name}-{theme}")


@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(page: Page, airflow: LiveAirflow, orders: QueueTable, warehouse: QueueTable, width: int) -> None:
    """In the eyes of an admin, who sees all buttons; what Airflow has around the page is not ours."""
    if not AXE.exists():
        pytest.skip("The packages of the page are not installed: that takes Node (make setup).")
    page.sign_in(airflow.client.call("POST", "/auth/token", {"username": "admin", "password": "admin-password"})["access_token"])
    page.protocol.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    [handle] = [row.handle for row in conversations(warehouse) if row.waiting == {ORDER: 2}]
    found: dict[str, object] = {}
    for theme in ("light", "dark"):
        page.go("/")
        page.until("document.readyState === 'complete'")
        page.run(f"localStorage.setItem('theme', '{theme}')")
        for number, (query, text, presses) in enumerate(screens(handle)):
            page.go(f"/plugin/poison{query}")
            page.until_text(text)
            for each in presses:
                page.click(each)
            page.until("document.getAnimations().every((each) => each.playState !== 'running')")
            shoot(page, f"axe-{width}-{theme}-{number:02}")
            page.run(f"{AXE.read_text()};0")
            found[f"{theme} {query} {presses}"] = page.run(
                """(async () => {
                    const seen = document.querySelector('[role=dialog]') ?? document.querySelector('.poison');
                    const {violations} = await axe.run(seen, {resultTypes: ['violations']});
                    const wide = seen.scrollWidth - seen.clientWidth;
                    return [...violations.map(({id, nodes}) => [id, nodes[0].html]), ...(wide ? [[`${wide} pixels are cut off`]] : [])];
                })()"""
            )
    assert {where: problems for where, problems in found.items() if problems} == {}


def screens(handle: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return all screens and dialogs: their addresses, a text that they have, and what to press there."""
    poison, message = f"?queue={QUEUE}&sub_queue=poison", f"?queue={QUEUE}&lookup_id=1"
    return [
        ("", "All queues", ()),
        (poison, "All 1:", ()),
        *((poison, "All 1:", (f"{each} …",)) for each in ("Redrive", "Edit and redrive", "Edit", "Move", "Send to", "Remove")),
        (poison, "All 1:", ("Put back …", "Plan: nothing is done yet")),
        (poison, "All 1:", ("All fields",)),
        (f"?queue={QUEUE}&sub_queue=main&selection=%7B%22text%22%3A%22order%22%7D", "All 60:", ()),
        (f"?queue={QUEUE}&view=groups&sub_queue=poison", "Search errors", ()),
        (f"?queue={QUEUE}&view=groups&sub_queue=poison", "Search errors", ("ValueError", "Try it on 1 sample")),
        (message, "MOVED_POISON", ()),
        (message, "MOVED_POISON", ("Edit and put back …",)),
        *(
            (f"?queue={QUEUE}&view={view}", text, ())
            for view, text in (("events", "MOVED_POISON"), ("plans", "Plans"), ("settings", "No pass is at work."))
        ),
        (f"?queue={QUEUE}&view=settings", "No pass is at work.", ("Enable …",)),
        ("?queue=nowhere", "There is no queue", ()),
        ("?queue=page-warehouse&view=conversations", "started inbound", ()),
        (f"?queue=page-warehouse&conversation={handle}", "waits in main for", ()),
        ("?queue=page-warehouse&lookup_id=1", "end-conversation", ()),
    ]


def _brightness(page: Page, what: str) -> int:
    """Return how bright the page's ink or ground is, as it is painted."""
    script = f"""(() => {{
        let element = document.querySelector('.poison');
        let found = getComputedStyle(element).{what};
        while (found === 'rgba(0, 0, 0, 0)' && element.parentElement) {{ element = element.parentElement; found = getComputedStyle(element).{what}; }}
        const canvas = document.createElement('canvas').getContext('2d');
        canvas.fillStyle = found; canvas.fillRect(0, 0, 1, 1);
        const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
        return alpha ? red + green + blue : 765;
    }})()"""
    return int(page.run(script))


def test_what_is_not_there_is_told_on_the_page(page: Page, orders: QueueTable) -> None:
    page.go("/plugin/poison?queue=nowhere")
    page.until_text("There is no queue 'nowhere' in the store of connection 'poison_default'.")
    page.go(f"/plugin/poison?queue={QUEUE}&conn_id=nowhere")
    page.until_text("No connection of type 'poison' has the id 'nowhere'.")


# Slow answers, failed ones, and where somebody is ---------------------------------------------------------------------

GATE = """
window.asked = []; window.held = false; window.failure = null; window.together = 0;
const under_way = {}, inner = window.fetch.bind(window);
window.fetch = async (url, options) => {
    const text = String(url?.url ?? url);
    if (!text.includes("/poison/api/")) return inner(url, options);
    window.asked.push(text);
    under_way[text] = (under_way[text] ?? 0) + 1;
    window.together = Math.max(window.together, under_way[text]);
    try {
        while (window.held) await new Promise((go) => setTimeout(go, 10));
        if (window.failure) throw new TypeError(window.failure);
        return await inner(url, options);
    } finally { under_way[text] -= 1; }
};
const every = window.setInterval.bind(window);
window.setInterval = (act, milliseconds, ...rest) => every(act, milliseconds === 15000 ? 300 : milliseconds, ...rest);
"""
"""Holds or fails the answers of the page's server, counts what is asked at the same time, and looks again 50 times as often."""
FOCUSED = "document.activeElement.innerText"


@pytest.fixture
def gated(page: Page) -> Page:
    page.prepare(GATE)
    return page


def press(page: Page, text: str) -> None:
    """Follow a link with the keyboard."""
    page.until(f"[...document.querySelectorAll('.poison a')].some((each) => each.innerText === '{text}')")
    page.run(f"[...document.querySelectorAll('.poison a')].find((each) => each.innerText === '{text}').focus({{preventScroll: true}})")
    page.run("document.activeElement.click()")


def test_an_answer_that_takes_longer_than_the_refresh_is_shown_and_asked_for_once(gated: Page, orders: QueueTable) -> None:
    gated.prepare("window.held = true;")
    gated.go(f"/plugin/poison?queue={QUEUE}&sub_queue=main")
    gated.until("window.asked.length === 2")  # the queue, and what may be done with it
    gated.run("new Promise((go) => setTimeout(go, 1500))")  # five refreshes
    assert (gated.run("window.asked.length"), gated.run("window.together")) == (2, 1)
    gated.run("window.held = false")
    gated.until_text("Messages in main")
    gated.until_text("1–50 of 60")
    gated.until("window.asked.length > 6")
    assert gated.run("window.together") == 1


def test_a_failed_refresh_leaves_the_last_good_answer_and_says_from_when_it_is(gated: Page, orders: QueueTable) -> None:
    gated.go(f"/plugin/poison?queue={QUEUE}&sub_queue=main")
    gated.until_text("1–50 of 60")
    gated.run("window.failure = 'no network'")
    gated.until_text("The last try to read it again has failed: The server cannot be reached (no network).")
    shoot(gated, "failed")
    assert "1–50 of 60" in gated.text()
    [day] = gated.run(
        "[...new Set([...document.querySelectorAll('[role=alert]')].map((each) => each.innerText.match(/^From (\\S+) /)?.[1]))].filter(Boolean)"
    )
    assert abs(datetime.now(UTC) - datetime.fromisoformat(f"{day}T12:00+00:00")) < timedelta(hours=36)
    gated.run("window.failure = null")
    gated.click("Refresh")  # by itself it would wait longer after each failure
    gated.until("!document.body.innerText.includes('has failed')")
    assert gated.run("window.together") == 1


def test_a_click_keeps_the_focus_and_the_place(gated: Page, orders: QueueTable) -> None:
    gated.go("/plugin/poison")
    press(gated, QUEUE)
    gated.until_text("Messages in poison")
    gated.until(f"{FOCUSED} === '{QUEUE}'")  # its link is gone: the heading of its page
    for tile in ("poison", "events", "main"):
        press(gated, tile)
        gated.until(f"{FOCUSED} === '{tile}'")
    press(gated, "poison")
    press(gated, "1")
    gated.until(f"{FOCUSED} === 'Message 1'")
    gated.run("history.back()")
    gated.until_text("Messages in poison")
    gated.until("document.querySelector('.poison').contains(document.activeElement)")


def test_a_search_keeps_the_focus_while_it_is_typed(gated: Page, orders: QueueTable) -> None:
    gated.go("/plugin/poison")
    gated.until_text("Search by name")
    gated.fill("input[type=search]", "p")  # it is in the address: Airflow makes the page anew
    gated.until("location.search.includes('search=p')")
    gated.until("document.activeElement.type === 'search'")
    gated.protocol.call("Input.insertText", text="age")
    gated.until("location.search.includes('search=page')")
    assert gated.run("document.activeElement.value") == "page"


def test_a_click_keeps_the_place_while_what_it_wants_is_read(gated: Page, orders: QueueTable) -> None:
    gated.go(f"/plugin/poison?queue={QUEUE}&sub_queue=main")
    gated.until_text("1–50 of 60")
    gated.protocol.call("Emulation.setDeviceMetricsOverride", width=1280, height=250, deviceScaleFactor=1, mobile=False)
    gated.run("window.held = true; document.querySelector('.poison').scrollTop = 100")
    press(gated, "events")
    gated.until_text("Reading …")
    gated.run("document.querySelector('.poison').scrollTop = 0")  # as a browser does when the page becomes too short
    gated.run("window.held = false")
    gated.until_text("MOVED_POISON")
    gated.until("document.querySelector('.poison').scrollTop === 100")


def test_a_refresh_keeps_the_focus_and_what_is_selected(gated: Page, orders: QueueTable) -> None:
    gated.go(f"/plugin/poison?queue={QUEUE}&sub_queue=main")
    gated.until_text("1–50 of 60")
    gated.run("[...document.querySelectorAll('.poison td a, .poison th a')].at(-1).focus()")
    gated.run("getSelection().selectAllChildren(document.querySelector('.poison tbody tr:nth-child(3)'))")
    before = gated.run(f"[{FOCUSED}, String(getSelection()).split('\\t')[1], window.asked.length]")
    gated.until(f"window.asked.length > {before[2] + 6}")
    assert gated.run(f"[{FOCUSED}, String(getSelection()).split('\\t')[1]]") == before[:2]


# What a task shows ----------------------------------------------------------------------------------------------------


def test_a_task_links_to_its_queue_and_its_messages(airflow: LiveAirflow, talked: Run) -> None:
    links = airflow.call("GET", f"{talked.path}/taskInstances/receive/links").body["extra_links"]
    query = urlencode({"conn_id": "poison_default", "queue": "talking"})
    assert links == {
        "Queue": f"plugin/poison?{query}",
        "Poison messages": f"plugin/poison?{query}&sub_queue=poison",
        "Messages in retry": f"plugin/poison?{query}&sub_queue=retry",
    }
    assert set(airflow.call("GET", f"{talked.path}/taskInstances/send/links").body["extra_links"]) == {"Queue", "Messages"}


def test_a_link_of_a_task_leads_to_the_page(page: Page, talked: Run) -> None:
    page.go(f"/dags/{talked.dag_id}/runs/{talked.run_id}/tasks/receive/details")
    page.until_text("Poison messages")
    shoot(page, "links")
    page.click("Poison messages")
    page.until_text("Messages in poison")
    page.until_text("ValueError: no such order")


def test_lines_of_a_handler_are_in_the_log_with_the_id_of_their_message(airflow: LiveAirflow, talked: Run) -> None:
    entries = airflow.log_entries(talked, "receive")
    found = {(entry["event"], entry["level"]) for entry in entries if entry.get("logger") == "airflow_poison.handler"}
    for number in (1, 2, 3):
        label = f"talking [message {number}]"
        assert (f"{label} printed {number}", "info") in found
        assert (f"{label} shop: logged {number}", "info") in found
        assert (f"{label} shop: warned {number}", "warning") in found
        assert (f"{label} complained {number}", "warning") in found
    noise = [entry for entry in entries if str(entry.get("logger")).startswith("py4j") or entry["level"] in {"error", "critical"}]
    assert noise == []

"""What the API server serves of this package: reads for those who may read assets, nothing for anybody else, and no way to change anything."""

from __future__ import annotations

import codecs
import json
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from anyio import CapacityLimiter
from fastapi import HTTPException
from fastapi.routing import APIRoute

from airflow_poison import Contract, Dialog, Msmq4, Service, ServiceBroker
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.plans import cancel, pause, plan, record
from airflow_poison.desk.selection import Selection
from airflow_poison.dialogs.acts import target_handle
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.conversations import declare_services
from airflow_poison.passes.dialogs import begin_dialogs, end_conversation, send_on
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.move import put_back
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.relay import transmit
from airflow_poison.passes.send import send
from airflow_poison.queue import Queue
from airflow_poison.store import open_store
from airflow_poison.store.files import Transaction
from airflow_poison.ui.plugin import PoisonPlugin
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.events import acting
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches
from airflow_poison.values.schema import CONVERSATION, SubQueue, table_schema
from tests.airflow.conftest import define_connection
from tests.given.waiting import happened, until
from tools import api_types

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Airflow's own
    from fastapi.testclient import TestClient

    import airflow_poison.ui.app as page_app
    from airflow_poison.ui import answers as served
    from airflow_poison.ui import page_data
    from airflow_poison.ui.app import app
    from airflow_poison.ui.page_data import NotReadableError
    from airflow_poison.ui.shapes import ANSWERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

SCRIPT = "<script>document.title = 'taken'</script>"
SECRET = "hunter2-and-more"
FAR = "0a668759-281a-55ba-bc48-b0ab5cfb010b"
"""The handle of the dialog below at its initiator: it is begun under a key."""
HANDLE = target_handle(FAR)
CLOCK = SystemClock()
ORDER, SHOP, WAREHOUSE = "//Shop/Order", f"//Shop{SCRIPT}", "//Warehouse"
PLAN = sha256(b"planned").hexdigest()[:12]
"""The id of the plan of the warehouse, whose reason is hostile."""
PARTS = Contract("//Shop/Parts", {ORDER: "INITIATOR"})
ROLES = {"viewer": 200, "user": 200, "op": 200, "admin": 200, "nobody": 403, None: 401}
READS: dict[str, dict[str, Any]] = {
    "/api/queues": {},
    "/api/queue": {"queue": "orders"},
    "/api/messages": {"queue": "orders", "sub_queue": "poison"},
    "/api/message": {"queue": "orders", "lookup_id": 1},
    "/api/events": {"queue": "orders"},
    "/api/conversations": {"queue": "warehouse"},
    "/api/conversation": {"queue": "warehouse", "handle": HANDLE},
    "/api/groups": {"queue": "orders"},
    "/api/samples": {"queue": "orders"},
    "/api/plans": {"queue": "warehouse"},
    "/api/plan": {"queue": "warehouse", "plan": PLAN},
    "/api/decisions": {"queue": "orders"},
    "/api/rights": {},
    "/ui/poison.js": {},
}


def refuse(message: Any) -> None:
    raise ValueError(f"refused {message.body.decode()}: \x1b[31m{SCRIPT}\x07")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The queues of the fixtures below, made once: each test has a copy."""
    folder = tmp_path_factory.mktemp("made")
    store = open_store(str(folder))
    make_orders(store)
    make_warehouse(store)
    return folder


@pytest.fixture
def orders(store: QueueStore, made: Path) -> QueueTable:
    """A queue with one message in poison, whose body and error are hostile, and one in main."""
    return copied(made, store, "orders")


@pytest.fixture
def warehouse(store: QueueStore, made: Path) -> QueueTable:
    """A queue that a message of a dialog has disabled; what its partner, whose name is hostile, has sent since waits at the other side."""
    copied(made, store, "shop")
    return copied(made, store, "warehouse")


def copied(made: Path, store: QueueStore, name: str) -> QueueTable:
    shutil.copytree(made / name, Path(store.uri, name))
    return store.open(name)


def make_orders(store: QueueStore) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    table = declare(store, "orders", policy, SystemClock())
    put(table, f"{SCRIPT}\x1b]0;owned\x07\u202e")
    ReceivePass(table=table, policy=policy, handler=refuse, engine=LocalEngine, clock=SystemClock(), isolation="none").run("0" * 40)
    put(table, b"\x00\xff bytes")


def make_warehouse(store: QueueStore) -> None:
    rules = ServiceBroker()
    shop, table = (declare(store, name, rules, CLOCK) for name in ("shop", "warehouse"))
    declare_services(store, shop, [Service(SHOP, [PARTS])])
    declare_services(store, table, [Service(WAREHOUSE, [PARTS])])
    begin(shop, "parts", b"gear", b"shaft")
    transmit(store, shop, CLOCK)
    fail(store, table, "1")
    send_on(shop, FAR, [(ORDER, b"late")], key="late", clock=CLOCK)
    transmit(store, shop, CLOCK)
    planned = plan(table, Selection(sub_queue=SubQueue.MAIN), PlanAction(verb=Verb.REMOVE), CLOCK)
    assert record(table, planned, CLOCK, who="shell:ann@desk", reason=f"\x1b[31m{SCRIPT}", key="planned") == PLAN


def fail(store: QueueStore, table: QueueTable, key: str) -> None:
    """Let a pass disable a queue."""
    receiving = ReceivePass(table=table, policy=ServiceBroker(), handler=refuse, engine=LocalEngine, clock=CLOCK, isolation="none", store=store)
    receiving.run(key * 40)
    assert table.snapshot().control.halted_by == 1


def begin(shop: QueueTable, key: str, *bodies: bytes) -> None:
    dialogs = [Dialog(messages=[(ORDER, body) for body in bodies])]
    begin_dialogs(shop, service=SHOP, far_service=WAREHOUSE, contract=PARTS.name, dialogs=dialogs, key=key, clock=CLOCK)


@pytest.fixture
def both(orders: QueueTable, warehouse: QueueTable) -> QueueTable:
    """Everything that ``READS`` asks for."""
    return orders


def put(table: QueueTable, body: str | bytes) -> None:
    now = datetime.now(UTC)
    send(table, rows_to_batches([body], ColumnMapping(), now), key=f"{abs(hash(body)):040x}", clock=SystemClock())


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """Asks as a role; who a token is for is the auth manager's business, what he may do is asked of a real one."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.core_api import security

    create_auth_manager()
    monkeypatch.setattr("airflow_poison.ui.page_data.TREND_SECONDS", 60.0)  # a trend that a busy machine has no time for comes with a later answer

    async def user_of(token: str | None) -> SimpleAuthManagerUser:
        if not token:
            raise HTTPException(401, "Not authenticated")
        return SimpleAuthManagerUser(username=token, role=None if token == "nobody" else token.partition(" ")[0])

    monkeypatch.setattr(security, "resolve_user_from_token", user_of)
    with TestClient(app(), raise_server_exceptions=False) as client:
        yield Browser(client)


class Browser:
    """A client that signs in as a role."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def ask(self, path: str, role: str | None = "viewer", method: str = "GET", **query: Any) -> Any:
        headers = {} if role is None else {"Authorization": f"Bearer {role}"}
        return self.client.request(method, path, params=query, headers=headers)

    def read(self, path: str, **query: Any) -> Any:
        answer = self.ask(path, **query)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        if "asked" not in found:  # SlowReads has no other answer
            ANSWERS[path.removeprefix("/api/")].model_validate(found)
        return found


class SlowReads:
    """Reads of queues that wait until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[tuple[object, ...]] = []
        self.go_on = Event()
        monkeypatch.setattr("airflow_poison.ui.page_data.queue", self._read)

    def _read(self, *asked: object) -> dict[str, object]:
        self.begun.append(asked)
        assert self.go_on.wait(60)
        return {"asked": list(asked)}

    def until_begun(self, count: int) -> None:
        until(lambda: len(self.begun) >= count)
        assert len(self.begun) == count


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowReads]:
    reads = SlowReads(monkeypatch)
    yield reads
    reads.go_on.set()


# Many at the same time ------------------------------------------------------------------------------------------------


def until_asked(count: int) -> None:
    """Wait until so many reads go on or wait."""
    happened(lambda: len(served._going_on) >= count, 60)


def test_those_who_ask_for_the_same_share_one_read(browser: Browser, slow: SlowReads) -> None:
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(browser.read, "/api/queue", queue="orders") for _ in range(8)]
        slow.until_begun(1)
        time.sleep(0.2)  # a second read would have begun by now
        slow.go_on.set()
        assert [each.result()["asked"] for each in asked] == [["poison_default", "orders"]] * 8
    assert len(slow.begun) == 1
    assert browser.read("/api/queue", queue="orders")["asked"] == ["poison_default", "orders"]
    assert len(slow.begun) == 2, "an answer is shared by those who wait for it, and kept for nobody"


def test_few_reads_go_on_at_once_and_the_server_answers_others_meanwhile(browser: Browser, slow: SlowReads) -> None:
    with ThreadPoolExecutor(served.MOST_READS) as threads:
        asked = [threads.submit(browser.ask, "/api/queue", f"viewer {number % 4}", queue=f"orders{number}") for number in range(served.MOST_READS)]
        slow.until_begun(served.READERS)
        until_asked(served.MOST_READS)
        busy = browser.ask("/api/queue", queue="bills")
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, str(served.AGAIN_SECONDS))
        assert "as many queues as it can" in busy.json()["detail"]
        assert browser.ask("/ui/poison.js").status_code == 200
        assert len(slow.begun) == served.READERS
        slow.go_on.set()
        assert {each.result().status_code for each in asked} == {200}
    assert browser.ask("/api/queue", queue="bills").status_code == 200


def test_one_user_keeps_neither_the_readers_nor_the_places_to_wait_from_others(browser: Browser, slow: SlowReads) -> None:
    with ThreadPoolExecutor(served.MOST_READS) as threads:
        asked = [threads.submit(browser.ask, "/api/queue", queue=f"orders{number}") for number in range(served.MOST_READS_OF_ONE)]
        until_asked(served.MOST_READS_OF_ONE)
        slow.until_begun(served.READERS_OF_ONE)
        busy = browser.ask("/api/queue", queue="bills")
        assert (busy.status_code, busy.headers["Retry-After"], "for you" in busy.json()["detail"]) == (503, str(served.AGAIN_SECONDS), True)
        asked.append(threads.submit(browser.ask, "/api/queue", "viewer 2", queue="bills"))
        slow.until_begun(served.READERS_OF_ONE + 1)
        assert slow.begun[-1] == ("poison_default", "bills")
        slow.go_on.set()
        assert {each.result().status_code for each in asked} == {200}


def test_a_read_that_fails_fails_for_all_who_wait_for_it_and_for_nobody_else(
    browser: Browser, orders: QueueTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("airflow_poison.ui.page_data.queue", lambda *_: (_ for _ in ()).throw(NotReadableError("not now")))
        assert browser.ask("/api/queue", queue="orders").json()["detail"] == "not now"
    assert browser.read("/api/queue", queue="orders")["queue"] == "orders"


# Large reads ----------------------------------------------------------------------------------------------------------


class LargeReads(SlowReads):
    """Searches for messages that wait until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = []
        self.go_on = Event()
        find = Queue.find

        def slow(queue: Queue, selection: Any, **more: Any) -> Any:
            self.begun.append((selection.where,))
            assert self.go_on.wait(60)
            return find(queue, selection, **more)

        monkeypatch.setattr(Queue, "find", slow)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[LargeReads]:
    monkeypatch.setattr(served, "WAIT_SECONDS", 0.5)
    reads = LargeReads(monkeypatch)
    yield reads
    reads.go_on.set()


def search(browser: Browser, where: str, role: str = "viewer") -> Any:
    return browser.ask("/api/messages", role, queue="orders", selection=json.dumps({"sub_queue": None, "where": where}))


def test_one_large_read_of_a_user_goes_on_at_a_time_and_the_next_is_told_which(browser: Browser, large: LargeReads, orders: QueueTable) -> None:
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(search, browser, "lookup_id = 1")
        large.until_begun(1)
        refused = search(browser, "lookup_id = 2")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, str(served.AGAIN_SECONDS))
        assert "messages of queue 'orders' everywhere, where=lookup_id = 1" in refused.json()["detail"]
        assert browser.read("/api/queue", queue="orders")["queue"] == "orders"
        assert large.begun == [("lookup_id = 1",)]
        large.go_on.set()
        assert first.result().json()["total"] == 1
    assert search(browser, "lookup_id = 2").json()["total"] == 1


def test_a_large_read_waits_for_its_turn(browser: Browser, large: LargeReads, orders: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "WAIT_SECONDS", 60.0)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(search, browser, f"lookup_id = {number}") for number in (1, 2, 7)]
        large.until_begun(1)
        time.sleep(0.2)  # a second one would have begun by now
        assert len(large.begun) == 1
        large.go_on.set()
        assert sorted(each.result().json()["total"] for each in asked) == [0, 1, 1]


def test_nobody_is_told_what_others_read(browser: Browser, large: LargeReads, orders: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = CapacityLimiter(1)  # however many cores this machine has
    monkeypatch.setattr(served, "_large_reads", lambda: turns)
    with ThreadPoolExecutor(4) as threads:
        threads.submit(search, browser, "message_id = 'secret'")
        large.until_begun(1)
        refused = search(browser, "lookup_id = 2", "viewer 2")
        large.go_on.set()
    assert (refused.status_code, "secret" in refused.text, "of others" in refused.json()["detail"]) == (503, False, True)


def test_what_is_known_of_a_version_waits_for_no_large_read(browser: Browser, large: LargeReads, orders: QueueTable) -> None:
    before = browser.read("/api/groups", queue="orders")
    with ThreadPoolExecutor(4) as threads:
        threads.submit(search, browser, "lookup_id = 1")
        large.until_begun(1)
        assert browser.read("/api/groups", queue="orders") == before
        large.go_on.set()


def test_a_plan_is_a_large_read(browser: Browser, large: LargeReads, orders: QueueTable) -> None:
    planned = {"queue": "orders", "selection": {}, "action": {"verb": "put_back"}}
    headers = {"Authorization": "Bearer admin"}
    with ThreadPoolExecutor(4) as threads:
        threads.submit(search, browser, "lookup_id = 1", "admin")
        large.until_begun(1)
        refused = browser.client.post("/api/plan", json=planned, headers=headers)
        assert (refused.status_code, "lookup_id = 1" in refused.json()["detail"]) == (503, True)
        large.go_on.set()
    assert browser.client.post("/api/plan", json=planned, headers=headers).status_code == 200


# What has not changed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(set(READS) - {"/api/decisions", "/api/rights"}))
def test_what_has_not_changed_is_not_sent_again(browser: Browser, both: QueueTable, path: str) -> None:
    first = browser.ask(path, **READS[path])
    headers = {"Authorization": "Bearer viewer", "If-None-Match": f'"other", W/{first.headers["ETag"]}'}
    again = browser.client.get(path, params=READS[path], headers=headers)
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    assert again.headers["Cache-Control"] == first.headers["Cache-Control"]
    other = browser.client.get(path, params=READS[path], headers=headers | {"If-None-Match": '"other"'})
    assert other.status_code == 200


@pytest.mark.parametrize("path", ["/api/groups", "/api/messages", "/api/queue", "/api/queues", "/api/events"])
def test_a_change_of_the_queue_is_sent(browser: Browser, orders: QueueTable, path: str) -> None:
    first = browser.ask(path, **READS[path])
    put_back(orders, SystemClock())
    headers = {"Authorization": "Bearer viewer", "If-None-Match": first.headers["ETag"]}
    assert browser.client.get(path, params=READS[path], headers=headers).status_code == 200


def test_who_may_not_read_is_not_told_that_nothing_has_changed(browser: Browser, orders: QueueTable) -> None:
    tag = browser.ask("/api/groups", queue="orders").headers["ETag"]
    answer = browser.client.get("/api/groups", params={"queue": "orders"}, headers={"Authorization": "Bearer nobody", "If-None-Match": tag})
    assert answer.status_code == 403


def test_the_script_is_kept_for_some_minutes(browser: Browser) -> None:
    assert browser.ask("/ui/poison.js").headers["Cache-Control"] == f"private, max-age={page_app.SCRIPT_SECONDS}"


# Guards ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("role", ROLES)
def test_whoever_may_read_assets_can_read_and_nobody_else(browser: Browser, both: QueueTable, path: str, role: str | None) -> None:
    answer = browser.ask(path, role, **READS[path])
    assert answer.status_code == ROLES[role]
    if role in {"nobody", None}:
        assert "orders" not in answer.text
        assert "createElement" not in answer.text


def test_the_guard_comes_before_what_is_asked_for(browser: Browser) -> None:
    assert browser.ask("/api/message", None, lookup_id="x").status_code == 401
    assert browser.ask("/api/queue", None, queue="nowhere").status_code == 401


@pytest.mark.parametrize("path", READS)
def test_no_method_but_get_is_served_to_anybody(browser: Browser, path: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
        is_a_change, answer = (path, method) == ("/api/plan", "POST"), browser.ask(path, "admin", method, **READS[path])
        assert answer.status_code == (415 if is_a_change else 405)


def test_every_route_is_guarded_and_there_is_no_documentation() -> None:
    routes = app().routes
    assert [route for route in routes if not isinstance(route, APIRoute)] == []
    found = [route for route in routes if isinstance(route, APIRoute)]
    assert {route.path for route in found if route.methods == {"GET"}} == set(READS)
    for route in found:
        guards = [getattr(each.dependency, "__qualname__", "").partition(".")[0] for each in route.dependencies]
        more = [] if route.methods == {"GET"} else ["refuse_forged", "acts"]
        assert guards == ["requires_access_asset", *more], route.path


def test_every_answer_has_its_shape_and_the_page_has_the_types_of_all(browser: Browser, both: QueueTable) -> None:
    for path, query in READS.items():
        if path.startswith("/api/"):
            browser.read(path, **query)
    assert {f"/api/{name}" for name in ANSWERS} == {path for path in READS if path.startswith("/api/")}
    assert api_types.TARGET.read_text(encoding="utf-8") == api_types.text(), "the shapes have changed: run 'make types'"


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "readonly (number | null)[]"),
        ({"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Depth"}}, "Readonly<Record<string, Depth>>"),
        ({"type": "object", "additionalProperties": True}, "Readonly<Record<string, unknown>>"),
        ({"const": "a"}, '"a"'),
        ({"enum": ["a", "b"], "type": "string"}, '"a" | "b"'),
        ({}, "unknown"),
    ],
)
def test_a_schema_becomes_a_type(schema: dict[str, Any], type_: str) -> None:
    assert api_types._type(schema) == type_


@pytest.mark.parametrize("path", ["/", "/docs", "/redoc", "/openapi.json", "/api", "/ui", "/ui/", "/ui/app.py", "/ui/../app.py", "/ui/%2e%2e/app.py"])
def test_nothing_else_is_there(browser: Browser, path: str) -> None:
    assert browser.ask(path, "admin").status_code == 404


def test_reading_changes_nothing(browser: Browser, both: QueueTable) -> None:
    before = _files(_path(both))
    for path, query in READS.items():
        assert browser.ask(path, **query).status_code == 200
    assert _files(_path(both)) == before


@pytest.mark.parametrize("damage", ["unacknowledged", "acknowledged", "checkpoint"])
def test_a_click_of_a_viewer_repairs_nothing(browser: Browser, both: QueueTable, damage: str) -> None:
    """Opening a table whose newest log entry was damaged removed that entry."""
    log = _path(both) / "_delta_log"
    newest = max(log.glob("*.json"))
    match damage:
        case "unacknowledged":
            (log / f"{int(newest.stem) + 1:020d}.json").write_bytes(b'{"commitInfo":{"timest')
        case "acknowledged":
            newest.write_bytes(newest.read_bytes()[:50])
        case _:
            (log / "_last_checkpoint").write_text(json.dumps({"version": 1, "size": 3}))
    before = _files(_path(both))
    answers = {path: browser.ask(path, **asked) for path, asked in READS.items()}
    assert _files(_path(both)) == before
    told = {"unacknowledged": "", "acknowledged": "'airflow poison check' says what is wrong", "checkpoint": "no message is concerned"}
    shown = answers["/api/messages"]
    assert (shown.status_code == 200) is (damage == "unacknowledged")
    assert told[damage] in shown.text


def test_reading_makes_no_folder(browser: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    define_connection(monkeypatch, "other", {"store": str(tmp_path / "not yet" / "there")})
    found = browser.read("/api/queues", conn_id="other")
    assert (found["queues"], found["exists"]) == ([], False)
    answer = browser.ask("/api/queue", conn_id="other", queue="orders")
    assert (answer.status_code, str(tmp_path) in answer.text) == (404, False)
    assert "its folder does not exist where the API server runs" in answer.json()["detail"]
    assert list(tmp_path.iterdir()) == []


def test_an_empty_store_is_told_from_one_whose_folder_does_not_exist(browser: Browser, store: QueueStore) -> None:
    assert browser.read("/api/queues")["exists"] is False
    Path(store.uri).mkdir(parents=True)
    told = browser.read("/api/queues")
    assert {name: told[name] for name in ("conn_id", "exists", "queues", "unreadable")} == {
        "conn_id": "poison_default",
        "exists": True,
        "queues": [],
        "unreadable": [],
    }
    assert told["totals"]["queues"] == 0


# What is read ---------------------------------------------------------------------------------------------------------


def test_queues_with_their_depths(browser: Browser, orders: QueueTable) -> None:
    told = browser.read("/api/queues")
    (queue,) = told["queues"]
    assert (queue["queue"], queue["state"], queue["policy"]["system"]) == ("orders", "enabled", "Msmq4")
    assert {place: depth["messages"] for place, depth in queue["sub_queues"].items()} == {
        "main": 1,
        "retry": 0,
        "poison": 1,
        "postponed": 0,
        "transmission": 0,
    }
    assert told["unreadable"] == []


def test_queues_say_what_needs_somebody_how_it_went_and_how_much_there_is(browser: Browser, both: QueueTable) -> None:
    told = browser.read("/api/queues")
    orders, shop, warehouse = told["queues"]
    assert orders["needs"] == [{"kind": "poison_growing", "text": "1 poison message, 1 more than an hour ago."}]
    assert (orders["trend"]["hours"], sum(orders["trend"]["poison"]), sum(orders["trend"]["settled"])) == (24, 1, 0)
    assert shop["needs"] == []
    halted, at_work = warehouse["needs"]
    assert (halted["kind"], halted["text"].startswith("disabled: ")) == ("halted", True)
    assert at_work == {"kind": "plan_at_work", "text": f"Plan {PLAN} is under way.", "plan": PLAN}
    assert (told["totals"]["queues"], told["totals"]["halted"], told["totals"]["outages"]) == (3, 1, 0)
    assert told["totals"]["messages"] == {"main": 3, "retry": 0, "poison": 1, "postponed": 0, "transmission": 0}


def test_a_large_read_takes_memory_that_goes_back_to_the_system(browser: Browser, both: QueueTable) -> None:
    browser.read("/api/groups", queue="orders")
    assert pa.default_memory_pool().backend_name == "system"


def test_a_look_at_queues_that_have_not_changed_reads_none_of_them(browser: Browser, both: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.store.queue_table import QueueTable as Table

    before = browser.read("/api/queues")
    with monkeypatch.context() as patch:
        patch.setattr(Table, "view", lambda _table: pytest.fail("a table was read"))
        again = browser.read("/api/queues")
    assert [queue | {"at": ""} for queue in again["queues"]] == [queue | {"at": ""} for queue in before["queues"]]
    disable(both, CLOCK, reason="stocktaking")
    assert browser.read("/api/queues")["queues"][0]["needs"][0] == {"kind": "halted", "text": "disabled: stocktaking"}


def test_plans_that_have_not_ended_are_told_and_those_whose_files_are_damaged_hide_nothing_else(browser: Browser, warehouse: QueueTable) -> None:
    def plans() -> list[str]:
        return [each["text"] for queue in browser.read("/api/queues")["queues"] for each in queue["needs"] if "plan" in each]

    assert plans() == [f"Plan {PLAN} is under way."]
    pause(warehouse, PLAN, CLOCK, who="shell:ann@desk")
    assert plans() == [f"Plan {PLAN} is paused: nothing more happens until it is resumed."]
    cancel(warehouse, PLAN, CLOCK, who="shell:ann@desk")
    assert plans() == []
    page_data._seen.clear()
    for file in (_path(warehouse) / "sub_queue=_plan").rglob("*.parquet"):
        file.write_bytes(b"x")
    assert len(browser.read("/api/queues")["queues"]) == 2
    assert plans() == []


def test_a_trend_that_cannot_be_read_leaves_the_rest_of_the_queue(browser: Browser, orders: QueueTable) -> None:
    for file in (_path(orders) / "sub_queue=_event").rglob("*.parquet"):
        file.write_bytes(b"x")
    [queue] = browser.read("/api/queues")["queues"]
    assert (queue["trend"], queue["sub_queues"]["poison"]["messages"]) == (None, 1)


def test_a_connection_that_names_another_store_now_shows_that(
    browser: Browser, orders: QueueTable, store: QueueStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert len(browser.read("/api/queues")["queues"]) == 1
    declare(open_store(str(tmp_path / "other")), "orders", Msmq4(), CLOCK)
    define_connection(monkeypatch, "poison_default", {"store": str(tmp_path / "other")})
    [queue] = browser.read("/api/queues")["queues"]
    assert queue["sub_queues"]["main"]["messages"] == 0


def test_a_queue_that_cannot_be_read_is_named_beside_the_others(browser: Browser, orders: QueueTable, store: QueueStore) -> None:
    other = declare(store, "bills", Msmq4(), SystemClock())
    log = min((_path(other) / "_delta_log").glob("*.json"))
    log.write_text("no JSON\n")
    told = browser.read("/api/queues")
    assert ([queue["queue"] for queue in told["queues"]], told["unreadable"]) == (["orders"], ["bills"])
    answer = browser.ask("/api/queue", queue="bills")
    assert answer.status_code == 503
    assert str(_path(other)) not in answer.text


def test_a_disabled_queue_says_why(browser: Browser, orders: QueueTable) -> None:
    disable(orders, SystemClock(), reason="the lorry has \x1b[31mno driver")
    told = browser.read("/api/queue", queue="orders")
    assert (told["state"], told["reason"], told["halted"]) == ("disabled", r"the lorry has \x1b[31mno driver", True)


def test_messages_of_a_sub_queue_with_counts_and_their_last_error(browser: Browser, orders: QueueTable) -> None:
    told = browser.read("/api/messages", queue="orders", sub_queue="poison")
    (message,) = told["messages"]
    assert (message["lookup_id"], message["move_count"], message["sub_queue"]) == (1, 1, "poison")
    assert message["reason"].startswith("ValueError: refused")
    assert "body" not in message
    put(orders, "a third")
    first = browser.read("/api/messages", queue="orders", limit=1)
    assert ([each["lookup_id"] for each in first["messages"]], first["more"]) == ([2], 1)


def test_a_body_is_cut_and_says_so(browser: Browser, orders: QueueTable) -> None:
    put(orders, "x" * 70_000)
    message = browser.read("/api/message", queue="orders", lookup_id=3)["message"]
    assert (len(message["body"]), message["body_bytes"], message["body_cut"], message["body_encoding"]) == (65_536, 70_000, True, "text")
    assert browser.read("/api/message", queue="orders", lookup_id=2)["message"]["body_encoding"] == "base64"


def test_events_of_a_queue_and_of_a_message(browser: Browser, orders: QueueTable) -> None:
    told = browser.read("/api/events", queue="orders")
    assert [event["event"] for event in told["events"]] == ["POISON_EXCEPTION", "MOVED_POISON"]
    assert [event["links"] for event in told["events"]] == [{"dag_run": None, "task_log": None}] * 2
    assert browser.read("/api/events", queue="orders", lookup_id=2)["events"] == []
    assert [event["event"] for event in browser.read("/api/events", queue="orders", event="MOVED_POISON")["events"]] == ["MOVED_POISON"]


def test_events_of_a_task_say_where_airflow_shows_it(browser: Browser, orders: QueueTable) -> None:
    with acting("dag:shop/monday/receive"):
        disable(orders, CLOCK, reason="stocktaking")
    newest = browser.read("/api/events", queue="orders")["events"][-1]
    run = "dags/shop/runs/monday"
    assert newest["links"] == {"dag_run": run, "task_log": f"{run}/tasks/receive"}


@pytest.mark.parametrize("path", [path for path in READS if path.startswith("/api")])
def test_texts_of_strangers_have_no_control_characters_and_are_no_page(browser: Browser, both: QueueTable, path: str) -> None:
    answer = browser.ask(path, **READS[path])
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for text in _texts(answer.json()):
        assert all(sign.isprintable() or sign in "\n\t" for sign in text), text


def test_xml_is_served_as_it_says_itself(browser: Browser, orders: QueueTable) -> None:
    put(orders, codecs.BOM_UTF16_LE + "<order>Größe</order>".encode("utf-16-le"))
    message = browser.read("/api/message", queue="orders", lookup_id=3)["message"]
    assert (message["body"], message["body_encoding"], message["body_bytes"]) == ("<order>Größe</order>", "UTF-16", 42)


def test_a_hostile_body_is_shown_as_what_it_is(browser: Browser, orders: QueueTable) -> None:
    message = browser.read("/api/message", queue="orders", lookup_id=1)["message"]
    assert message["body"] == SCRIPT + r"\x1b]0;owned\x07\u202e"


def test_a_carriage_return_is_an_escape_so_that_the_page_writes_no_body_back_without_it(browser: Browser, orders: QueueTable) -> None:
    put(orders, "a\r\nb\r")
    message = browser.read("/api/message", queue="orders", lookup_id=3)["message"]
    assert message["body"] == "a\\x0d\nb\\x0d"
    assert len(message["body"].encode()) > message["body_bytes"] == 5, "the page takes a body for exact by its length"


# Conversations --------------------------------------------------------------------------------------------------------


def test_a_queue_says_how_many_conversations_go_on_where_it_has_any(browser: Browser, both: QueueTable) -> None:
    def told(queue: str) -> tuple[bool, int | None]:
        answer = browser.read("/api/queue", queue=queue)
        return answer["has_conversations"], answer["conversations"]

    assert [told(queue) for queue in ("orders", "warehouse", "shop")] == [(False, 0), (True, 1), (True, 1)]


def test_the_conversations_of_a_queue(browser: Browser, warehouse: QueueTable) -> None:
    told = browser.read("/api/conversations", queue="warehouse")
    (row,) = told["conversations"]
    assert (row["handle"], row["conversation_id"], row["state"], row["is_initiator"]) == (HANDLE, FAR, "SI", False)
    assert (row["service"], row["far_service"], row["contract"], row["waiting"]) == (WAREHOUSE, SHOP, PARTS.name, {ORDER: 2})
    assert told["more"] == 0
    assert browser.read("/api/conversations", queue="shop")["conversations"][0]["state"] == "CO"


def test_conversations_are_cut_and_those_with_messages_come_first(browser: Browser, warehouse: QueueTable, store: QueueStore) -> None:
    shop = store.open("shop")
    for number in range(3):
        begin(shop, f"more {number}", b"gear")
    told = browser.read("/api/conversations", queue="shop", limit=3)
    assert (len(told["conversations"]), told["more"]) == (3, 1)
    last = max(row["handle"] for row in browser.read("/api/conversations", queue="shop")["conversations"])
    enable(warehouse, CLOCK)
    transmit(store, shop, CLOCK)
    end_conversation(warehouse, target_handle(last), error=127, description="Unable to process message.", key="end", clock=CLOCK)
    transmit(store, warehouse, CLOCK)
    told = browser.read("/api/conversations", queue="shop", limit=1)
    assert [(row["handle"], row["state"], sum(row["waiting"].values())) for row in told["conversations"]] == [(last, "ER", 1)]


def test_conversations_that_have_ended_are_told_when_they_are_wanted(browser: Browser, warehouse: QueueTable) -> None:
    end_conversation(warehouse, HANDLE, cleanup=True, key="end", clock=CLOCK)
    assert browser.read("/api/conversations", queue="warehouse")["conversations"] == []
    assert browser.read("/api/queue", queue="warehouse")["conversations"] == 0
    assert [row["state"] for row in browser.read("/api/conversations", queue="warehouse", ended=True)["conversations"]] == ["CD"]
    assert browser.read("/api/conversation", queue="warehouse", handle=HANDLE)["ended_by"] is None


def test_the_conversation_of_a_suspect_says_who_waits_and_what_ends_it(browser: Browser, warehouse: QueueTable) -> None:
    suspect = browser.read("/api/queue", queue="warehouse")["halted_by"]
    handle = browser.read("/api/message", queue="warehouse", lookup_id=suspect)["message"]["conversation_id"]
    told = browser.read("/api/conversation", queue="warehouse", handle=handle)
    assert (told["conversation"]["far_service"], told["far_queue"]) == (SHOP, {"queue": "shop", "state": "enabled"})
    assert [(message["lookup_id"], message["message_type"]) for message in told["messages"]] == [(1, ORDER), (2, ORDER)]
    assert [message for message in told["messages"] if "body" in message] == []
    assert (told["halts"], told["unsent"]) == (True, {})
    assert told["ended_by"] == f"airflow poison end-conversation warehouse {HANDLE} --error 127 --description 'Unable to process message.' --enable"


def test_the_command_that_ends_a_conversation_does_so(browser: Browser, warehouse: QueueTable, store: QueueStore) -> None:
    command = browser.read("/api/conversation", queue="warehouse", handle=HANDLE)["ended_by"]
    words = [*shlex.split(command)[2:], "--yes", "--store", store.uri]
    subprocess.run([sys.executable, "-m", "airflow_poison", *words], check=True, capture_output=True)
    assert browser.read("/api/queue", queue="warehouse")["state"] == "enabled"
    error = browser.read("/api/conversation", queue="shop", handle=FAR)
    assert (error["conversation"]["state"], error["ended_by"]) == ("ER", f"airflow poison end-conversation shop {FAR}")


def test_only_the_conversation_of_the_suspect_enables_the_queue(browser: Browser, warehouse: QueueTable, store: QueueStore) -> None:
    def enabling() -> list[str]:
        handles = [row["handle"] for row in browser.read("/api/conversations", queue="warehouse")["conversations"]]
        told = [browser.read("/api/conversation", queue="warehouse", handle=handle) for handle in handles]
        assert [each["halts"] for each in told] == ["--enable" in each["ended_by"] for each in told]
        return [each["conversation"]["handle"] for each in told if each["halts"]]

    begin(store.open("shop"), "innocent", b"gear")
    enable(warehouse, CLOCK)
    transmit(store, store.open("shop"), CLOCK)
    assert browser.read("/api/queue", queue="warehouse")["conversations"] == 2
    assert enabling() == []
    fail(store, warehouse, "2")
    assert enabling() == [HANDLE]
    enable(warehouse, CLOCK)
    disable(warehouse, CLOCK, reason="stocktaking")
    assert enabling() == []


def test_a_conversation_names_the_connection_in_its_command_where_that_is_needed(
    browser: Browser, warehouse: QueueTable, store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    define_connection(monkeypatch, "other", {"store": store.uri})
    told = browser.read("/api/conversation", queue="warehouse", handle=HANDLE, conn_id="other")
    assert told["ended_by"].endswith("--conn-id other")


def test_a_conversation_says_what_is_held_back_for_its_partner(browser: Browser, warehouse: QueueTable) -> None:
    told = browser.read("/api/conversation", queue="shop", handle=FAR)
    assert (told["unsent"], told["far_queue"]) == ({ORDER: 1}, {"queue": "warehouse", "state": "disabled"})
    assert (told["messages"], told["halts"]) == ([], False)
    assert browser.read("/api/conversation", queue="warehouse", handle=told["conversation"]["far_handle"])["conversation"]["handle"] == HANDLE


def test_the_messages_of_a_conversation_are_cut(browser: Browser, warehouse: QueueTable) -> None:
    told = browser.read("/api/conversation", queue="warehouse", handle=HANDLE, limit=1)
    assert ([message["lookup_id"] for message in told["messages"]], told["more"]) == ([1], 1)


@pytest.mark.parametrize(
    ("harm", "status"),
    [(Path.unlink, 503), (lambda file: file.write_bytes(b"x"), 503), (lambda file: file.write_bytes(bytes(file.stat().st_size)), 200)],
)
def test_conversations_that_cannot_be_read_are_told(
    browser: Browser, warehouse: QueueTable, store: QueueStore, harm: Callable[[Path], object], status: int
) -> None:
    shop = _path(store.open("shop"))
    for file in (shop / "sub_queue=_conversation").rglob("*.parquet"):
        harm(file)
    for path, query in (("/api/conversations", {}), ("/api/conversation", {"handle": FAR})):
        answer = browser.ask(path, queue="shop", **query)
        assert (answer.status_code, str(shop) in answer.text) == (503, False)
        assert "Queue 'shop' of connection 'poison_default' cannot be read" in answer.json()["detail"]
    queue = browser.ask("/api/queue", queue="shop")
    assert queue.status_code == status
    if status == 200:
        assert (queue.json()["state"], queue.json()["has_conversations"], queue.json()["conversations"]) == ("enabled", True, None)


def test_an_endpoint_that_is_none_of_ours_is_told_as_damage(browser: Browser, warehouse: QueueTable, store: QueueStore) -> None:
    table = store.open("shop")
    row = {"conversation_id": FAR, "lookup_id": 99, "body": SECRET.encode(), "sub_queue": CONVERSATION, "move_count": 0}
    rows = pa.Table.from_pylist([row], schema=table_schema())
    table.transact(lambda _snapshot: Transaction(rows), "forged", CLOCK.now())
    for path, query in (("/api/conversations", {}), ("/api/conversation", {"handle": FAR})):
        answer = browser.ask(path, queue="shop", **query)
        assert (answer.status_code, SECRET in answer.text) == (503, False)
    assert browser.read("/api/queue", queue="shop")["conversations"] is None


def test_the_partner_is_named_also_where_its_queue_cannot_be_found(browser: Browser, warehouse: QueueTable) -> None:
    min((_path(warehouse) / "_delta_log").glob("*.json")).write_text("no JSON\n")
    told = browser.read("/api/conversation", queue="shop", handle=FAR)
    assert (told["conversation"]["far_service"], told["far_queue"]) == (WAREHOUSE, None)


# What is not there, and what is hidden --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (("/api/queue", {"queue": "bills"}), "There is no queue 'bills' in the store of connection 'poison_default'."),
        (("/api/queue", {"queue": "../orders"}), "There is no queue '../orders'"),
        (("/api/messages", {"queue": "orders/../orders"}), "There is no queue"),
        (("/api/message", {"queue": "orders", "lookup_id": 99}), "Message 99 is not in queue 'orders'"),
        (("/api/conversations", {"queue": "bills"}), "There is no queue 'bills' in the store of connection 'poison_default'."),
        (("/api/conversation", {"queue": "../warehouse", "handle": HANDLE}), "There is no queue '../warehouse'"),
        (("/api/conversation", {"queue": "orders", "handle": HANDLE}), f"Queue 'orders' has no conversation '{HANDLE}'"),
        (("/api/conversation", {"queue": "warehouse", "handle": FAR}), f"Queue 'warehouse' has no conversation '{FAR}'"),
        (("/api/conversation", {"queue": "warehouse", "handle": "../x"}), "Queue 'warehouse' has no conversation '../x'"),
        (("/api/conversation", {"queue": "warehouse", "handle": "\x1b\x00"}), "Queue 'warehouse' has no conversation"),
        (("/api/conversations", {"queue": "orders", "conn_id": "nowhere"}), "No connection of type 'poison' has the id 'nowhere'."),
        (("/api/queues", {"conn_id": "nowhere"}), "No connection of type 'poison' has the id 'nowhere'."),
        (("/api/queues", {"conn_id": "warehouse"}), "No connection of type 'poison' has the id 'warehouse'."),
    ],
)
def test_what_is_not_there_is_said_plainly(
    browser: Browser, both: QueueTable, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, dict[str, Any]], text: str
) -> None:
    path, query = asked
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "postgres", "password": SECRET}))
    answer = browser.ask(path, **query)
    assert answer.status_code == 404
    assert text in answer.json()["detail"]


@pytest.mark.parametrize(("name", "value"), [("conn_id", "a b"), ("conn_id", "<x>"), ("conn_id", "x" * 251), ("sub_queue", "lost"), ("limit", 201)])
def test_what_cannot_be_is_refused(browser: Browser, orders: QueueTable, name: str, value: Any) -> None:
    answer = browser.ask("/api/messages", **{"queue": "orders", name: value})
    assert (answer.status_code, answer.json()["detail"].startswith(f"{name}={str(value)[:100]!r}: ")) == (400, True)


def test_hostile_texts_of_a_query_stay_harmless(browser: Browser) -> None:
    answer = browser.ask("/api/queues", conn_id="\x1b]0;owned\x07\u202e")
    assert (answer.status_code, answer.json()["detail"].isprintable()) == (400, True)


@pytest.mark.parametrize("asked", [{}, {"handle": ""}, {"handle": "x" * 201}, {"handle": HANDLE, "limit": 0}, {"handle": HANDLE, "limit": 201}])
def test_a_handle_that_cannot_be_is_refused(browser: Browser, warehouse: QueueTable, asked: dict[str, Any]) -> None:
    answer = browser.ask("/api/conversation", queue="warehouse", **asked)
    assert (answer.status_code, answer.json()["detail"].startswith(("handle", "limit="))) == (400, True)
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "extra",
    [
        {"store": "/dev/null/queues", "storage_options": {"secret_key": SECRET}},
        {"store": f"s3://key:{SECRET}@bucket/queues"},
        {"passwort": SECRET},
        {"store": ["x", SECRET]},
        {"durable": SECRET},
        {},
    ],
)
def test_secrets_of_a_connection_never_appear(browser: Browser, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]) -> None:
    define_connection(monkeypatch, "other", extra, **({} if extra else {"password": SECRET}))
    for path, query in READS.items():
        answer = browser.ask(path, **{**query, "conn_id": "other"})
        assert SECRET not in answer.text
        assert "/dev/null" not in answer.text
        assert answer.status_code == (200 if path in {"/ui/poison.js", "/api/decisions", "/api/rights"} else 503)


def test_where_the_tables_lie_is_not_told(browser: Browser, both: QueueTable) -> None:
    for path, query in READS.items():
        assert str(_path(both).parent) not in browser.ask(path, **query).text


# The plugin -----------------------------------------------------------------------------------------------------------


def test_the_plugin_serves_the_app_and_puts_the_page_under_browse() -> None:
    (served,) = PoisonPlugin.fastapi_apps
    assert (served["app"], served["url_prefix"]) == (app(), "/poison")
    (page,) = PoisonPlugin.react_apps
    assert page["bundle_url"] == "poison/ui/poison.js"


def test_where_the_page_is_not_built_its_script_says_how_to_build_it(browser: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def served_script() -> str:
        page_app._bundle.cache_clear()
        return str(browser.ask("/ui/poison.js").text)

    unbuilt = (Path(page_app.__file__).parent / "unbuilt.js").read_text()
    (tmp_path / "unbuilt.js").write_text(unbuilt)
    with monkeypatch.context() as patch:
        patch.setattr(page_app, "files", lambda _package: tmp_path)
        assert served_script() == unbuilt
        assert "make setup" in unbuilt
        (tmp_path / "poison.js").write_text("built")
        assert served_script() == "built"
    page_app._bundle.cache_clear()


def test_a_process_that_loads_plugins_does_not_import_what_serves() -> None:
    script = "import sys; import airflow_poison.ui.plugin; print([name for name in ('fastapi', 'pyarrow', 'deltalake') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_an_airflow_in_which_the_app_cannot_be_made_serves_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow_poison.ui.app", None)
    assert PoisonPlugin.fastapi_apps == []


def _path(table: QueueTable) -> Path:
    return Path(table.uri)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)

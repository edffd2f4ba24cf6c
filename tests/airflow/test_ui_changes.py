"""What people do at the pages: who may, from where, how it is noted, and what it does. The auth manager is a real one."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import HTTPException
from fastapi.routing import APIRoute

from airflow_poison import Msmq4
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.plans import find_plan, plan, record
from airflow_poison.desk.rules import declare_mask
from airflow_poison.desk.selection import Selection
from airflow_poison.desk.sql import Limits
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.mapping import ColumnMapping, rows_to_batches
from airflow_poison.values.schema import SubQueue
from tests.airflow.conftest import define_connection, serialize
from tests.given.waiting import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Airflow's own
    from fastapi.testclient import TestClient

    from airflow_poison.ui import desk, posts
    from airflow_poison.ui.answers import AGAIN_SECONDS
    from airflow_poison.ui.app import app
    from airflow_poison.ui.desk import Applies
    from airflow_poison.ui.page_data import links_of
    from airflow_poison.ui.shapes import ANSWERS
    from airflow_poison.values.errors import PlanStateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

CLOCK = SystemClock()
HOST = "airflow.example"
SECRET = "hunter2-and-more"
PLAN = sha256(b"planned").hexdigest()[:12]
"""The id of a plan of ``orders`` that is recorded, and that nobody applies."""
POISON, PUT_BACK = {"sub_queue": "poison"}, {"verb": "put_back"}
OF_PLAN = {"queue": "orders", "plan": PLAN, "reason": "the lorry is back"}
ACTS: dict[str, dict[str, Any]] = {
    "plan": {"queue": "orders", "selection": POISON, "action": PUT_BACK},
    "apply": {"queue": "orders", "selection": POISON, "action": PUT_BACK, "version": 5, "reason": "the lorry is back"},
    "pause": OF_PLAN,
    "resume": OF_PLAN,
    "cancel": OF_PLAN,
    "undo": OF_PLAN,
    "enable": {"queue": "orders", "reason": "the lorry is back"},
    "disable": {"queue": "orders", "reason": "no driver"},
    "decide": {"dag_id": "asking", "run_id": "monday", "task_id": "ask", "map_index": -1, "option": "Leave it disabled", "reason": "asked Ann"},
}
"""A request to each route that changes something; each is answered with 200 where it is allowed."""
ROLES = {"viewer": 403, "user": 403, "op": 200, "admin": 200, "nobody": 403, None: 401}
FORGED: list[dict[str, str]] = [
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "https://evil.example"},
    {"Origin": f"https://{HOST}:8443", "Sec-Fetch-Site": "same-site"},
    {"Origin": f"https://{HOST}:8443"},
    {"Origin": f"https://other.{HOST}", "Sec-Fetch-Site": "same-site"},
    {"Origin": f"https://{HOST}.evil.example"},
    {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "none"},
    {},
]
"""What a browser says of a request that a page elsewhere has made, and of one that hides where it comes from."""
OWN: list[dict[str, str]] = [
    {"Origin": f"https://{HOST}", "Sec-Fetch-Site": "same-origin"},
    {"Origin": f"http://{HOST}"},
    {"Sec-Fetch-Site": "same-origin"},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue with six poison messages of two kinds, and a plan to remove the first; each test has a copy."""
    folder = tmp_path_factory.mktemp("made")
    store = open_store(str(folder))
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    table = declare(store, "orders", policy, CLOCK)
    bodies = [json.dumps({"number": number, "carrier": "VX" if number % 2 else "AA"}) for number in range(1, 7)]
    send(table, rows_to_batches(bodies, ColumnMapping(), CLOCK.now()), key="sent", clock=CLOCK)
    ReceivePass(table=table, policy=policy, handler=refuse, engine=LocalEngine, clock=CLOCK, isolation="none").run("0" * 40)
    planned = plan(table, Selection(lookup_ids=(1,)), PlanAction(verb=Verb.REMOVE), CLOCK)
    assert record(table, planned, CLOCK, who="shell:ann@desk", key="planned") == PLAN
    return folder


def refuse(message: Message) -> None:
    if message.lookup_id < 3:
        raise KeyError("delay")
    raise ValueError(f"no such shop {message.lookup_id}")


@pytest.fixture
def orders(store: QueueStore, made: Path) -> QueueTable:
    shutil.copytree(made / "orders", Path(store.uri, "orders"))
    return store.open("orders")


@pytest.fixture(autouse=True)
def applies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applies]:
    """What the server applies; ended with the test."""
    own = Applies(again=0.05)
    monkeypatch.setattr(desk, "applies", lambda: own)
    yield own
    own.close()


@pytest.fixture(scope="module")
def asking_dag(airflow_database: object) -> None:
    from airflow.sdk import DAG

    from airflow_poison.operators.ask import QueueAskOperator

    with DAG("asking", schedule=None) as dag:
        QueueAskOperator(task_id="ask", queue_name="orders")
    serialize(dag)


@pytest.fixture
def asked(asking_dag: None) -> Iterator[Asking]:
    """A question of a DAG ``asking`` about the queue ``orders``, which nobody has answered."""
    asking = Asking()
    asking.ask("monday")
    yield asking
    asking.forget()


class Asking:
    """Airflow's database with questions of QueueAskOperator, as tasks leave them that wait for people."""

    def ask(self, run_id: str, queue: str = "orders", conn_id: str = "poison_default", state: str = "awaiting_input", **more: Any) -> None:
        from airflow.models.hitl import HITLDetail
        from airflow.models.renderedtifields import RenderedTaskInstanceFields
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.utils.session import create_session
        from airflow.utils.state import DagRunState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType
        from sqlalchemy import insert

        operator = more.pop("operator", "QueueAskOperator")
        question = {"options": ["Enable", "Leave it disabled"], "subject": "Queue orders is disabled.", "body": "**orders** \x1b[31m", "params": {}}
        with create_session() as session:
            dag = SerializedDagModel.get_dag("asking", session=session)
            assert dag is not None
            run = dag.create_dagrun(
                run_id=run_id,
                run_after=datetime.now(UTC),
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                session=session,
            )
            [task] = run.get_task_instances(session=session)
            task.state, task.operator = state, operator
            session.add(HITLDetail(ti_id=task.id, **(question | more)))
            key = {"dag_id": "asking", "task_id": "ask", "run_id": run_id, "map_index": -1}
            fields = {"queue_name": queue, "conn_id": conn_id}
            session.execute(insert(RenderedTaskInstanceFields).values(**key, rendered_fields=fields))

    def state(self, run_id: str = "monday") -> tuple[str | None, Any, Any]:
        """Return the task's state, what was chosen, and who has answered."""
        from airflow.models.hitl import HITLDetail
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            wanted = select(TaskInstance.state, HITLDetail.chosen_options, HITLDetail.responded_by)
            found = session.execute(wanted.join(HITLDetail, HITLDetail.ti_id == TaskInstance.id).where(TaskInstance.run_id == run_id)).one()
            return found[0], found[1], found[2] and found[2]["name"]

    def forget(self) -> None:
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import delete

        with create_session() as session:
            for run in session.query(DagRun).where(DagRun.dag_id == "asking"):
                session.delete(run)
            session.execute(delete(DagRun).where(DagRun.dag_id == "asking"))


@pytest.fixture
def poster(monkeypatch: pytest.MonkeyPatch, airflow_database: object) -> Iterator[Poster]:
    """Asks as a role; what it may do is asked of a real auth manager."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.core_api import security

    create_auth_manager()

    async def user_of(token: str | None) -> SimpleAuthManagerUser:
        if not token:
            raise HTTPException(401, "Not authenticated")
        return SimpleAuthManagerUser(username=token, role=None if token == "nobody" else token)

    monkeypatch.setattr(security, "resolve_user_from_token", user_of)
    with TestClient(app(), base_url=f"https://{HOST}", raise_server_exceptions=False) as client:
        yield Poster(client)


class Poster:
    """A client that signs in as a role, with a token or, as browsers do, with a cookie."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def post(self, name: str, body: Any = None, role: str | None = "op", conn_id: str = "poison_default", **more: Any) -> Any:
        headers = {} if role is None else {"Authorization": f"Bearer {role}"}
        sent = {"json": ACTS[name] if body is None else body} | more
        return self.client.post(f"/api/{name}", params={"conn_id": conn_id}, **({"headers": headers} | sent))

    def from_browser(self, name: str, headers: dict[str, str], role: str = "admin") -> Any:
        self.client.cookies = {"_token": role}
        return self.post(name, role=None, headers=headers)

    def get(self, name: str, **query: Any) -> Any:
        return self.client.get(f"/api/{name}", params=query, headers={"Authorization": "Bearer viewer"})

    def decisions(self, role: str, queue: str | None = "orders") -> Any:
        of_queue = {} if queue is None else {"queue": queue}
        found = self.client.get("/api/decisions", params=of_queue, headers={"Authorization": f"Bearer {role}"})
        assert found.status_code == 200, found.text
        return ANSWERS["decisions"].model_validate(found.json()) and found.json()["decisions"]

    def rights(self, role: str, conn_id: str = "poison_default") -> Any:
        return self.client.get("/api/rights", params={"conn_id": conn_id}, headers={"Authorization": f"Bearer {role}"}).json()


def entries() -> list[tuple[str, str, dict[str, Any]]]:
    """Return the entries of the audit log that the pages have made: event, user, fields."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(Log).where(Log.event.startswith("poison_")).order_by(Log.id))
        return [(entry.event, str(entry.owner), json.loads(entry.extra or "")) for entry in found]


@pytest.fixture(autouse=True)
def no_entries(airflow_database: object) -> None:
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(Log))


# Who may --------------------------------------------------------------------------------------------------------------


def test_every_route_that_changes_something_is_asked_here() -> None:
    found = {route.path for route in app().routes if isinstance(route, APIRoute) and route.methods == {"POST"}}
    assert found == {f"/api/{name}" for name in ACTS}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("role", ROLES)
def test_who_may_act_can_and_nobody_else(poster: Poster, orders: QueueTable, asked: Asking, name: str, role: str | None) -> None:
    before = orders.snapshot().version
    answer = poster.post(name, role=role)
    assert answer.status_code == ROLES[role], answer.text
    if ROLES[role] != 200:
        assert (orders.snapshot().version, asked.state()) == (before, ("awaiting_input", None, None))
        assert "orders" not in answer.text
        assert entries() == []  # as Airflow's own API: who has no right leaves none


@pytest.mark.parametrize("role", ["viewer", "user", "op", "admin"])
def test_what_a_user_may_is_told(poster: Poster, role: str) -> None:
    may = ROLES[role] == 200
    assert poster.rights(role) == {"read": True, "act": may, "unmask": may}


@pytest.mark.parametrize("name", ACTS)
def test_a_change_is_made_by_post_alone(poster: Poster, name: str) -> None:
    for method in ("GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
        if (name, method) != ("plan", "GET"):  # which is a read
            answer = poster.client.request(method, f"/api/{name}", headers={"Authorization": "Bearer admin"})
            assert answer.status_code == 405


def test_rights_are_those_on_the_connection(poster: Poster, orders: QueueTable, monkeypatch: pytest.MonkeyPatch, store: QueueStore) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    asked: list[tuple[str, str]] = []

    def mine(*, method: str, details: Any, user: Any) -> bool:
        asked.append((method, details.conn_id))
        return (user.username, details.conn_id) == ("op", "mine")

    define_connection(monkeypatch, "mine", {"store": store.uri})
    monkeypatch.setattr(get_auth_manager(), "is_authorized_connection", mine)
    assert poster.post("disable", conn_id="mine").status_code == 200
    assert poster.post("disable").status_code == 403
    assert [poster.rights("op", each)["act"] for each in ("mine", "poison_default")] == [True, False]
    assert set(asked) == {("PUT", "mine"), ("PUT", "poison_default")}


@pytest.mark.parametrize(("allowed", "status"), [({"POST"}, 200), ({"PUT"}, 200), ({"GET", "DELETE"}, 403)])
def test_the_right_on_the_connection_is_not_enough(
    poster: Poster, orders: QueueTable, monkeypatch: pytest.MonkeyPatch, allowed: set[str], status: int
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    manager = get_auth_manager()
    monkeypatch.setattr(manager, "is_authorized_asset", lambda *, method, **_: method in allowed | {"GET"})
    monkeypatch.setattr(manager, "is_authorized_view", lambda **_: True)
    assert poster.post("disable").status_code == status


def test_the_guards_come_before_the_body(poster: Poster, orders: QueueTable) -> None:
    for role, status in ((None, 401), ("viewer", 403)):
        headers = {} if role is None else {"Authorization": f"Bearer {role}"}
        assert poster.client.post("/api/disable", content=b"{", headers=headers | {"Content-Type": "application/json"}).status_code == status


# From where -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", FORGED)
def test_a_forged_request_of_a_signed_in_browser_is_refused(poster: Poster, orders: QueueTable, headers: dict[str, str]) -> None:
    before = orders.snapshot().version
    assert {name: poster.from_browser(name, headers).status_code for name in ACTS} == dict.fromkeys(ACTS, 403)
    assert (orders.snapshot().version, entries()) == (before, [])


@pytest.mark.parametrize("headers", OWN)
def test_a_page_of_this_server_may(poster: Poster, orders: QueueTable, headers: dict[str, str]) -> None:
    assert poster.from_browser("disable", headers).status_code == 200


def test_an_origin_that_airflow_allows_may(poster: Poster, orders: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"Origin": "https://portal.example", "Sec-Fetch-Site": "cross-site"}
    assert poster.from_browser("disable", other).status_code == 403
    monkeypatch.setenv("AIRFLOW__API__ACCESS_CONTROL_ALLOW_ORIGINS", "https://portal.example")
    assert poster.from_browser("disable", other).status_code == 200


def test_a_server_behind_a_proxy_is_known_by_its_base_url(poster: Poster, orders: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = {"Origin": "https://flows.example"}
    assert poster.from_browser("disable", outside).status_code == 403
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flows.example/airflow")
    assert poster.from_browser("disable", outside).status_code == 200


def test_a_token_that_somebody_added_for_everybody_does_not_make_a_forged_request_good(poster: Poster, orders: QueueTable) -> None:
    """The middleware of ``simple_auth_manager_all_admins`` gives every request a token."""
    assert poster.post("disable", headers={"Authorization": "Bearer admin", **FORGED[0]}).status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", "", None])
def test_a_form_cannot_send_it(poster: Poster, orders: QueueTable, kind: str | None) -> None:
    headers = {"Authorization": "Bearer admin"} | ({} if kind is None else {"Content-Type": kind})
    answer = poster.client.post("/api/disable", content=json.dumps(ACTS["disable"]).encode(), headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["detail"]


# How it is noted ------------------------------------------------------------------------------------------------------


def test_a_change_is_in_the_audit_log_of_airflow(poster: Poster, orders: QueueTable) -> None:
    poster.post("disable")
    poster.post("enable", role="admin")
    assert entries() == [
        ("poison_disable", "op", {"conn_id": "poison_default", "queue": "orders", "reason": "no driver"}),
        ("poison_enable", "admin", {"conn_id": "poison_default", "queue": "orders", "reason": "the lorry is back"}),
    ]


def test_what_is_refused_is_there_too(poster: Poster, orders: QueueTable) -> None:
    assert poster.post("disable", {"queue": "nowhere", "reason": "x" * 400}).status_code == 404
    assert poster.post("disable", {"queue": 7, "what": "x" * 5_000}).status_code == 400
    assert [(event, fields["queue"]) for event, _, fields in entries()] == [("poison_disable", "nowhere"), ("poison_disable", 7)]


def test_nothing_is_done_that_cannot_be_noted(poster: Poster, orders: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> Any:
        from sqlalchemy.exc import OperationalError

        raise OperationalError("insert", {}, Exception("database is locked"))

    before = orders.snapshot().version
    monkeypatch.setattr(posts, "create_session", broken)
    answer = poster.post("disable")
    assert (answer.status_code, orders.snapshot().version) == (503, before)
    assert "nothing was done" in answer.json()["detail"]


@pytest.mark.parametrize("hostile", ["\\ud800", "a\\u0000b"])
def test_texts_that_a_database_refuses_are_noted_with_escapes(poster: Poster, orders: QueueTable, hostile: str) -> None:
    content = f'{{"dag_id": "{hostile}", "run_id": "monday", "task_id": "ask", "option": "Enable"}}'
    headers = {"Authorization": "Bearer admin", "Content-Type": "application/json"}
    answer = poster.client.post("/api/decide", content=content, headers=headers)
    assert answer.status_code in {400, 404}, answer.text
    assert [event for event, *_ in entries()] == ["poison_decide"]


# What is sent, and what is answered -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "queue: it is missing."),
        ({"queue": 7}, "queue='7': Input should be a valid string."),
        ({"queue": ""}, "queue=''"),
        ({"queue": "x" * 101}, "queue='xxx"),
        ({"queue": "orders", "reason": "x" * 501}, "reason="),
        ({"queue": "orders", "why": "so"}, "why: there is no such field. Fields: queue, reason."),
        ([], "must be a JSON object"),
        ("orders", "must be a JSON object"),
    ],
)
def test_bad_input_names_the_field_its_value_and_what_is_expected(poster: Poster, orders: QueueTable, body: Any, text: str) -> None:
    answer = poster.post("disable", body)
    assert answer.status_code == 400
    assert text in answer.json()["detail"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"nan"])
def test_what_is_no_json_is_refused(poster: Poster, orders: QueueTable, content: bytes) -> None:
    headers = {"Authorization": "Bearer admin", "Content-Type": "application/json; charset=utf-8"}
    answer = poster.client.post("/api/disable", content=content, headers=headers)
    assert answer.status_code == 400, answer.text


def test_a_field_that_is_there_twice_is_named(poster: Poster, orders: QueueTable) -> None:
    headers = {"Authorization": "Bearer admin", "Content-Type": "application/json"}
    answer = poster.client.post("/api/disable", content='{"queue": "orders", "queue": "bills"}', headers=headers)
    assert (answer.status_code, "'queue' stands twice" in answer.json()["detail"]) == (400, True)


def test_a_body_that_is_too_large_is_not_read(poster: Poster, orders: QueueTable) -> None:
    answer = poster.post("disable", {"queue": "orders", "reason": "x" * posts.MOST_BYTES})
    assert answer.status_code == 413


def test_hostile_texts_stay_harmless(poster: Poster, orders: QueueTable) -> None:
    hostile = "\x1b]0;owned\x07\u202e<script>"
    for body in ({"queue": hostile}, {"queue": "orders", hostile: 1}):
        answer = poster.post("disable", body)
        assert answer.status_code in {400, 404}
        assert answer.headers["content-type"] == "application/json"
        assert all(sign.isprintable() for sign in answer.json()["detail"])
    told = poster.post("disable", {"queue": "orders", "reason": hostile})
    assert (told.status_code, told.json()["before"]) == (200, "enabled")
    assert orders.snapshot().control.reason.startswith("\x1b]0;owned")


@pytest.mark.parametrize("conn_id", ["nowhere", "warehouse"])
def test_connections_that_are_none_of_ours_are_not_told_apart(poster: Poster, monkeypatch: pytest.MonkeyPatch, conn_id: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "postgres", "password": SECRET}))
    answer = poster.post("disable", conn_id=conn_id)
    assert (answer.status_code, answer.json()["detail"]) == (404, f"No connection of type 'poison' has the id {conn_id!r}.")


def test_secrets_of_a_connection_never_appear(poster: Poster, monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "other", {"store": f"s3://key:{SECRET}@bucket/queues"})
    for name in ACTS:
        answer = poster.post(name, conn_id="other")
        assert (answer.status_code, SECRET in answer.text) == (404 if name == "decide" else 503, False)
    assert SECRET not in str(entries())


def test_a_queue_is_switched_off_and_on(poster: Poster, orders: QueueTable) -> None:
    assert poster.post("disable").json() == {"queue": "orders", "before": "enabled", "receiving": 0}
    assert orders.snapshot().control.reason == "no driver"
    assert poster.post("enable").json()["before"] == "disabled"
    assert orders.snapshot().control.state.value == "enabled"


# What people are asked ------------------------------------------------------------------------------------------------


def test_pending_questions_of_a_queue_are_told_to_who_may_read_them(poster: Poster, asked: Asking) -> None:
    asked.ask("tuesday", queue="bills")
    asked.ask("wednesday", conn_id="other")
    asked.ask("thursday", state="success")
    asked.ask("friday", operator="HITLOperator")
    asked.ask("saturday", responded_at=datetime.now(UTC))
    asked.ask("sunday")
    first, second = poster.decisions("viewer")
    assert (first["run_id"], second["run_id"]) == ("sunday", "monday")
    assert {name: second[name] for name in second if name != "at"} == {
        "dag_id": "asking",
        "run_id": "monday",
        "task_id": "ask",
        "map_index": -1,
        "queue": "orders",
        "subject": "Queue orders is disabled.",
        "body": r"**orders** \x1b[31m",
        "options": ["Enable", "Leave it disabled"],
        "may_answer": False,
        "url": "dags/asking/runs/monday/tasks/ask/required_actions",
    }
    assert [each["may_answer"] for each in poster.decisions("op")] == [True, True]
    assert poster.decisions("op", queue="nowhere") == []
    assert [each["queue"] for each in poster.decisions("op", queue=None)] == ["orders", "bills", "orders"]


def test_questions_of_dags_that_a_user_may_not_see_are_not_told(poster: Poster, asked: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    rights = {"GET"}
    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", lambda *, method, **_: method in rights)
    assert [each["may_answer"] for each in poster.decisions("op")] == [False]
    answer = poster.post("decide")
    assert (answer.status_code, "right to answer required actions of DAG 'asking'" in answer.json()["detail"]) == (403, True)
    rights.clear()
    assert poster.decisions("op") == []
    assert poster.post("decide").status_code == 404
    assert asked.state() == ("awaiting_input", None, None)


def test_an_answer_wakes_the_task_as_airflow_does(poster: Poster, asked: Asking) -> None:
    told = poster.post("decide")
    key = {"dag_id": "asking", "run_id": "monday", "task_id": "ask", "map_index": -1}
    assert told.json() == {**key, "option": "Leave it disabled", "by": "op"}
    assert asked.state() == ("scheduled", ["Leave it disabled"], "op")
    assert poster.decisions("op") == []
    assert [(event, fields["option"], fields["reason"]) for event, _, fields in entries()] == [("poison_decide", "Leave it disabled", "asked Ann")]
    assert poster.post("decide").status_code == 404
    assert asked.state() == ("scheduled", ["Leave it disabled"], "op")


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"option": "Remove everything"}, 400),
        ({"run_id": "tuesday"}, 404),
        ({"task_id": "other"}, 404),
        ({"map_index": 0}, 404),
        ({"map_index": -2}, 400),
        ({"dag_id": "../x"}, 404),
        ({"option": 7}, 400),
    ],
)
def test_what_is_no_answer_to_it_is_refused(poster: Poster, asked: Asking, changed: dict[str, Any], status: int) -> None:
    assert poster.post("decide", ACTS["decide"] | changed).status_code == status
    assert asked.state() == ("awaiting_input", None, None)


@pytest.mark.parametrize("other", [{"operator": "HITLOperator"}, {"conn_id": "other"}])
def test_only_questions_about_queues_of_the_connection_are_answered(poster: Poster, asked: Asking, other: dict[str, str]) -> None:
    asked.ask("tuesday", **other)
    assert poster.post("decide", ACTS["decide"] | {"run_id": "tuesday"}).status_code == 404
    assert asked.state("tuesday") == ("awaiting_input", None, None)


def test_only_those_whom_the_question_is_for_may_answer(poster: Poster, asked: Asking) -> None:
    asked.ask("tuesday", assignees=[{"id": "ann", "name": "ann"}])
    asked.ask("wednesday", assignees=[{"id": "op", "name": "op"}])
    assert [each["may_answer"] for each in poster.decisions("op")] == [True, False, True]
    answer = poster.post("decide", ACTS["decide"] | {"run_id": "tuesday"})
    assert (answer.status_code, asked.state("tuesday")) == (403, ("awaiting_input", None, None))
    assert "not a respondent" in answer.json()["detail"]
    assert poster.post("decide", ACTS["decide"] | {"run_id": "wednesday"}).status_code == 200


# Plans ----------------------------------------------------------------------------------------------------------------


class Desk:
    """A person at the page: looks, plans, applies, and waits until it is done."""

    def __init__(self, poster: Poster, table: QueueTable) -> None:
        self.poster, self.table = poster, table

    def plan(self, action: dict[str, Any] = PUT_BACK, **more: Any) -> Any:
        return self._told(self.poster.post("plan", {"queue": "orders", "selection": POISON, "action": action} | more))

    def apply(self, action: dict[str, Any] = PUT_BACK, **more: Any) -> Any:
        body = {"queue": "orders", "selection": POISON, "action": action, "version": self.table.snapshot().version, "reason": "why not"}
        return self._told(self.poster.post("apply", body | more))

    def act(self, verb: str, plan_id: str) -> Any:
        return self._told(self.poster.post(verb, {"queue": "orders", "plan": plan_id, "reason": f"to {verb}"}))

    def seen(self, plan_id: str) -> Any:
        return self._told(self.poster.get("plan", queue="orders", plan=plan_id))

    def until(self, plan_id: str, *states: str) -> Any:
        def has_ended() -> bool:
            seen = self.seen(plan_id)
            return seen["state"] in states and seen["server"]["state"] != "running"

        until(has_ended, states)
        return self.seen(plan_id)

    def places(self) -> dict[int, str]:
        rows = [row for file in self.table.snapshot().files for row in self.table.read(file).to_pylist()]
        return {row["lookup_id"]: row["sub_queue"] for row in sorted(rows, key=lambda row: row["lookup_id"])}

    @staticmethod
    def _told(answer: Any) -> Any:
        assert answer.status_code == 200, answer.text
        return ANSWERS["plan"].model_validate(answer.json()) and answer.json()


@pytest.fixture
def at_desk(poster: Poster, orders: QueueTable) -> Desk:
    return Desk(poster, orders)


ALL_POISON = dict.fromkeys(range(1, 7), "poison")


def test_a_plan_says_what_would_become_of_which_messages_and_changes_nothing(at_desk: Desk) -> None:
    before = at_desk.table.snapshot().version
    told = at_desk.plan()
    assert (told["queue"], told["plan"], told["version"], told["messages"], told["state"]) == ("orders", "", before, 6, "planned")
    assert [(group["type"], group["messages"]) for group in told["groups"]] == [("ValueError", 4), ("KeyError", 2)]
    assert (told["action"], told["selection"], told["undoable"]) == (PUT_BACK, POISON, True)
    assert at_desk.plan(limit=2)["messages"] == 2
    assert at_desk.plan(selection={"where": "body.carrier = 'VX'"})["messages"] == 3
    assert (at_desk.table.snapshot().version, at_desk.places()) == (before, ALL_POISON)


def test_an_edit_shows_samples_before_and_after(at_desk: Desk) -> None:
    told = at_desk.plan({"verb": "edit", "patch": {"carrier": "ZZ"}})
    sample = told["samples"][0]
    assert (json.loads(sample["before"])["carrier"], json.loads(sample["after"])["carrier"]) == ("VX", "ZZ")


def test_a_group_of_messages_has_ten_samples_with_what_an_edit_makes_of_them(at_desk: Desk) -> None:
    told = at_desk.plan({"verb": "edit", "patch": {"carrier": "ZZ"}})
    assert [each["lookup_id"] for each in told["samples"]] == [3, 1, 2, 4, 5, 6]  # one of each group first
    assert [json.loads(each["after"])["carrier"] for each in told["samples"]] == ["ZZ"] * 6


def test_samples_have_bodies(at_desk: Desk) -> None:
    told = at_desk.poster.get("samples", queue="orders", selection=json.dumps({"error_type": "ValueError"}), limit=3).json()
    assert (told["total"], [each["lookup_id"] for each in told["samples"]]) == (4, [3, 4, 5])
    assert json.loads(told["samples"][0]["body"]) == {"number": 3, "carrier": "VX"}
    assert at_desk.poster.get("samples", queue="orders", limit=11).status_code == 400


def test_a_plan_that_was_shown_is_applied_without_being_made_again(at_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = at_desk.plan(limit=4)
    with monkeypatch.context() as patch:
        patch.setattr("airflow_poison.queue.plan", lambda *_, **__: pytest.fail("it was planned again"))
        begun = at_desk.apply(version=shown["version"], limit=4)
    assert at_desk.until(begun["plan"], "done")["done"] == 4
    assert at_desk.poster.post("apply", ACTS["apply"] | {"version": shown["version"], "limit": 4}).status_code == 200  # planned again: kept once


def test_a_plan_that_was_shown_is_of_the_queue_that_was_there_then(at_desk: Desk) -> None:
    shown = at_desk.plan()
    body = ACTS["apply"] | {"version": shown["version"]}
    answer = at_desk.poster.post("apply", body | {"queue_id": "that of a queue which was there before"})
    assert (answer.status_code, answer.json()["detail"].partition(".")[0]) == (
        409,
        "Queue 'orders' was removed and declared anew after this plan was shown",
    )
    assert at_desk.poster.post("apply", body | {"queue_id": shown["queue_id"]}).status_code == 200


@pytest.mark.parametrize("changed", [{"limit": 3}, {"selection": {"error_type": "ValueError"}}, {"action": {"verb": "remove"}}])
def test_another_plan_than_the_one_that_was_shown_is_made(at_desk: Desk, changed: dict[str, Any]) -> None:
    shown = at_desk.plan()
    begun = at_desk.apply(version=shown["version"], **changed)
    assert begun["messages"] == {"limit": 3, "selection": 4, "action": 6}[next(iter(changed))]
    assert begun["action"]["verb"] == changed.get("action", PUT_BACK)["verb"]


def test_plans_that_were_shown_take_little_memory_and_are_forgotten(at_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in range(1, 7):
        shown = at_desk.plan(limit=limit)
    assert [plan.view.messages for who, (*_, plan) in desk._planned.items() if who == "airflow:op"] == [6], "a person's last one"
    with monkeypatch.context() as patch:
        patch.setattr(desk, "MOST_PLANNED_BYTES", 10)
        at_desk.plan()
        assert len(desk._planned) == 0
    at_desk.plan(limit=2)
    with monkeypatch.context() as patch:
        patch.setattr(desk, "PLANNED_SECONDS", 0.0)
        at_desk.plan(limit=2)
        patch.setattr("airflow_poison.queue.plan", lambda *_, **__: (_ for _ in ()).throw(PlanStateError("planned again")))
        assert at_desk.poster.post("apply", ACTS["apply"] | {"version": shown["version"], "limit": 2}).status_code == 409


def test_an_applied_plan_goes_on_in_the_server_and_says_who_and_why(at_desk: Desk) -> None:
    begun = at_desk.apply()
    assert (begun["messages"], begun["who"], begun["reason"]) == (6, "airflow:op", "why not")
    done = at_desk.until(begun["plan"], "done")
    assert (done["done"], done["skipped"], done["server"]) == (6, 0, {"state": "", "before": 0, "error": ""})
    assert at_desk.places() == dict.fromkeys(range(1, 7), "main")
    assert [each["plan"] for each in at_desk.poster.get("plans", queue="orders").json()["plans"]] == [begun["plan"], PLAN]
    [(event, user, fields)] = entries()
    assert (event, user) == ("poison_apply", "op")
    assert (fields["plan"], fields["action"], fields["selection"], fields["reason"]) == (begun["plan"], PUT_BACK, POISON, "why not")
    told = [event for event in at_desk.poster.get("message", queue="orders", lookup_id=4).json()["history"] if event["type"] == "RETURNED"]
    assert [(each["details"]["who"], each["details"]["plan"]) for each in told] == [("airflow:op", begun["plan"])]


def test_what_has_changed_since_somebody_looked_is_left_out(at_desk: Desk) -> None:
    version = at_desk.table.snapshot().version
    first = at_desk.apply(selection={"lookup_ids": [1, 2]})
    at_desk.until(first["plan"], "done")
    second = at_desk.until(at_desk.apply(version=version)["plan"], "done")
    assert (second["messages"], second["done"], second["skipped"]) == (6, 4, 2)


def test_a_plan_of_nothing_and_one_of_a_version_that_is_gone_are_refused(at_desk: Desk) -> None:
    body = {"queue": "orders", "selection": {"lookup_ids": [99]}, "action": PUT_BACK, "version": at_desk.table.snapshot().version}
    assert at_desk.poster.post("apply", body).status_code == 409
    for version in (10_000, 2**62):
        answer = at_desk.poster.post("apply", body | {"version": version})
        assert (answer.status_code, f"no version {version}" in answer.json()["detail"]) == (409, True)
    assert [each["plan"] for each in at_desk.poster.get("plans", queue="orders").json()["plans"]] == [PLAN]


def test_a_plan_is_undone(at_desk: Desk) -> None:
    begun = at_desk.apply({"verb": "remove"})
    at_desk.until(begun["plan"], "done")
    assert at_desk.places() == {}
    at_desk.act("undo", begun["plan"])
    at_desk.until(begun["plan"], "undone")
    assert at_desk.places() == ALL_POISON
    assert at_desk.poster.post("undo", OF_PLAN | {"plan": begun["plan"]}).status_code == 409


def test_an_edit_keeps_what_was_sent_and_is_undone(at_desk: Desk) -> None:
    begun = at_desk.apply({"verb": "edit", "patch": {"carrier": "ZZ"}, "properties": {"seen": "yes"}}, selection={"lookup_ids": [3]})
    at_desk.until(begun["plan"], "done")
    told = at_desk.poster.get("message", queue="orders", lookup_id=3).json()
    assert json.loads(told["message"]["body"]) == {"number": 3, "carrier": "ZZ"}
    assert json.loads(told["original"]["body"]) == {"number": 3, "carrier": "VX"}
    assert (told["message"]["properties"], told["message"]["edited"]) == ({"seen": "yes"}, True)
    [row] = at_desk.poster.get("messages", queue="orders", selection='{"lookup_ids": [3]}').json()["messages"]
    assert row["properties"] == {"seen": "yes"}
    at_desk.act("undo", begun["plan"])
    at_desk.until(begun["plan"], "undone")
    told = at_desk.poster.get("message", queue="orders", lookup_id=3).json()
    assert (json.loads(told["message"]["body"])["carrier"], told["original"], told["message"]["edited"]) == ("VX", None, False)


def test_a_body_of_thousands_of_brackets_stays_as_it_is_and_ends_neither_its_page_nor_a_plan(at_desk: Desk) -> None:
    # given one such body among six good ones
    deep = "[" * 5_000 + "]" * 5_000
    send(at_desk.table, rows_to_batches([deep], ColumnMapping(), CLOCK.now()), key="deep", clock=CLOCK)
    selection = {"lookup_ids": [*range(1, 8)], "sub_queue": None}
    # when
    shown = at_desk.poster.get("message", queue="orders", lookup_id=7)
    patch = {"verb": "edit", "patch": {"carrier": "ZZ"}}
    planned = at_desk.plan(patch, selection={"lookup_ids": [7], "sub_queue": "main"})
    done = at_desk.until(at_desk.apply(patch, selection=selection)["plan"], "done")
    # then
    assert (shown.status_code, shown.json()["message"]["body"]) == (200, deep)
    assert [sample["unfit"] for sample in planned["samples"]] == ["the body cannot be patched: it is nested too deeply"]
    assert (done["done"], done["skipped"], [each["lookup_id"] for each in done["unfit"]]) == (6, 1, [7])


@pytest.mark.long
def test_a_plan_whose_queue_goes_away_has_failed_and_can_be_resumed(at_desk: Desk, store: QueueStore, applies: Applies) -> None:
    # given a plan that waits while its queue goes away
    declare(store, "bills", Msmq4(), CLOCK)
    begun = at_desk.apply({"verb": "send_to", "target": "bills"}, rate=1, chunk=1)
    at_desk.act("pause", begun["plan"])
    at_desk.until(begun["plan"], "paused")
    shutil.move(Path(store.uri, "bills"), Path(store.uri, "_away"))
    # when
    at_desk.act("resume", begun["plan"])
    failed = at_desk.until(begun["plan"], "failed")
    # then
    assert failed["error"].startswith("QueueNotFoundError: There is no queue 'bills' in the store.")
    assert str(store.uri) not in at_desk.poster.get("events", queue="orders").text
    assert (failed["server"]["state"], at_desk.poster.get("plans", queue="orders").json()["plans"][0]["state"]) == ("", "failed")
    # and when the queue is back
    shutil.move(Path(store.uri, "_away"), Path(store.uri, "bills"))
    at_desk.act("resume", begun["plan"])
    assert at_desk.until(begun["plan"], "running", "done")["error"] == ""
    applies.close()


def test_a_plan_is_paused_resumed_and_cancelled(at_desk: Desk) -> None:
    assert at_desk.act("pause", PLAN)["state"] == "paused"
    at_desk.act("resume", PLAN)
    assert at_desk.until(PLAN, "done")["done"] == 1
    assert at_desk.places() == dict.fromkeys(range(2, 7), "poison")
    assert at_desk.poster.post("cancel").status_code == 409
    told = [event["details"] for event in at_desk.poster.get("events", queue="orders").json()["events"] if event["event"] == "PLAN_CHANGED"]
    assert [(each["state"], each.get("who"), each.get("why")) for each in told[:2]] == [
        ("paused", "airflow:op", "to pause"),
        ("running", "airflow:op", "to resume"),
    ]


def test_a_plan_that_whoever_applied_it_has_left_goes_on_when_somebody_resumes_it(at_desk: Desk) -> None:
    assert at_desk.seen(PLAN)["state"] == "running"
    assert at_desk.seen(PLAN)["server"]["state"] == ""
    at_desk.act("resume", PLAN)
    assert at_desk.until(PLAN, "done")["done"] == 1


def test_a_canary_waits_for_the_pass_and_goes_on_by_itself(at_desk: Desk) -> None:
    begun = at_desk.apply(canary={"messages": 2, "share": 0.5})
    waits = at_desk.until(begun["plan"], "canary")
    assert (waits["done"], waits["canary"]) == (2, {"messages": 2, "share": 0.5})
    assert (waits["canary_seen"]["settled"], waits["canary_seen"]["failed"], waits["canary_seen"]["waiting"]) == (0, 0, 2)
    ReceivePass(table=at_desk.table, policy=Msmq4(), handler=lambda _message: None, engine=LocalEngine, clock=CLOCK, isolation="none").run("1" * 40)
    done = at_desk.until(begun["plan"], "done")
    assert (done["done"], done["canary_seen"]) == (6, None)


def test_a_canary_that_has_passed_is_no_more_counted(at_desk: Desk) -> None:
    begun = at_desk.apply(canary={"messages": 1})
    at_desk.until(begun["plan"], "canary")
    assert at_desk.table.claim("pass", lease=timedelta(hours=1), now=CLOCK.now(), max_messages=9, sub_queue=SubQueue.POISON)  # the plan waits for it
    ReceivePass(table=at_desk.table, policy=Msmq4(), handler=lambda _message: None, engine=LocalEngine, clock=CLOCK, isolation="none").run("1" * 40)
    assert at_desk.until(begun["plan"], "running")["canary_seen"] is None
    at_desk.act("pause", begun["plan"])
    assert at_desk.until(begun["plan"], "paused")["canary_seen"] is None


def test_a_canary_that_has_failed_says_by_which_errors(at_desk: Desk) -> None:
    begun = at_desk.apply(canary={"messages": 4, "share": 0.9})
    at_desk.until(begun["plan"], "canary")
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    ReceivePass(table=at_desk.table, policy=policy, handler=refuse_some, engine=LocalEngine, clock=CLOCK, isolation="none").run("1" * 40)
    stopped = at_desk.until(begun["plan"], "stopped")["canary_seen"]
    assert (stopped["settled"], stopped["failed"], stopped["waiting"]) == (1, 3, 0)
    assert [(each["type"], each["messages"]) for each in stopped["errors"]] == [("KeyError", 2), ("ZeroDivisionError", 1)]


def refuse_some(message: Message) -> None:
    if message.lookup_id < 3:
        raise KeyError("carrier")
    if message.lookup_id == 3:
        raise ZeroDivisionError


def test_few_plans_are_applied_at_once_and_the_others_wait_and_say_so(at_desk: Desk, applies: Applies, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Event()
    monkeypatch.setattr("airflow_poison.desk.applying.apply", lambda table, plan_id, *_, **__: (gate.wait(60), find_plan(table, plan_id))[1])
    begun = [at_desk.apply(selection={"lookup_ids": [number]}) for number in range(1, 5)]
    until(lambda: at_desk.seen(begun[1]["plan"])["server"]["state"] == "running")
    told = [at_desk.seen(each["plan"])["server"] for each in begun]
    assert [(each["state"], each["before"]) for each in told] == [("running", 0), ("running", 0), ("waiting", 0), ("waiting", 1)]
    monkeypatch.setattr("airflow_poison.ui.desk.MOST", 4)
    full = at_desk.poster.post("apply", ACTS["apply"] | {"version": at_desk.table.snapshot().version})
    assert (full.status_code, "Nothing was done" in full.json()["detail"]) == (503, True)
    gate.set()


def test_an_error_of_what_goes_on_is_told_without_what_it_names(at_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(table: QueueTable, *_: object, **__: object) -> Any:
        raise RuntimeError(f"{table.uri} {SECRET}")

    monkeypatch.setattr("airflow_poison.desk.applying.apply", fails)
    begun = at_desk.apply()
    told = at_desk.until(begun["plan"], "running")["server"]
    assert told == {"state": "", "before": 0, "error": "RuntimeError. The log of the API server says why."}


def test_a_server_that_ends_leaves_the_plan_where_it_is(at_desk: Desk, applies: Applies) -> None:
    begun = at_desk.apply(rate=1, chunk=1)
    applies.close()
    left = find_plan(at_desk.table, begun["plan"])
    assert left.state == "running"
    assert left.done < 6
    assert sum(place == "main" for place in at_desk.places().values()) == left.done


def test_code_that_somebody_names_is_not_run_in_the_api_server(at_desk: Desk) -> None:
    for name in ("plan", "apply"):
        body = ACTS[name] | {"action": {"verb": "edit", "function": "os:system"}}
        answer = at_desk.poster.post(name, body)
        assert (answer.status_code, "not in the API server" in answer.json()["detail"]) == (400, True)
    action = PlanAction(verb=Verb.EDIT, function="tests.airflow.test_ui_changes:never")
    planned = plan(at_desk.table, Selection(lookup_ids=()), action, CLOCK)
    plan_id = record(at_desk.table, planned, CLOCK, who="shell:ann@desk")
    answer = at_desk.poster.post("resume", OF_PLAN | {"plan": plan_id})
    assert (answer.status_code, "not in the API server" in answer.json()["detail"]) == (409, True)


def never(_body: bytes) -> bytes:
    raise AssertionError("it was called")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"action": {"verb": "burn"}}, "verb='burn' is not allowed; allowed: put_back, move"),
        ({"action": {"verb": "move"}}, "target='' is not allowed"),
        ({"action": {"verb": "send_to", "target": "no-such-queue"}}, "There is no queue 'no-such-queue' in the store. Queues there: orders."),
        ({"action": {"verb": "send_to", "target": "../orders"}}, "'../orders'"),
        ({"action": {"verb": "send_to", "target": "orders"}}, "target='orders' is not allowed; allowed: another queue"),
        ({"action": {"verb": "edit", "patch": [1]}}, "action.patch="),
        ({"action": {"verb": "edit", "patch": "{"}}, "action.patch="),
        ({"action": {"verb": "edit", "properties": {"a": 7}}}, "action.properties.a='7'"),
        ({"action": {"verb": "put_back", "where": "x"}}, "action.where: there is no such field"),
        ({"selection": {"sub_queue": "main"}}, "sub_queue='main' is not allowed; allowed: poison"),
        ({"selection": {"error": "x"}}, "error='x' is not allowed"),
        ({"selection": {"colour": "x"}}, "selection='colour' is not allowed"),
        ({"selection": {"where": "body.carrier ="}}, "is no SQL condition"),
        ({"selection": {"where": "1 = 1; drop view messages"}}, "where="),
        ({"selection": {"where": "lookup_id in (select lookup_id from messages)"}}, "without another query in it"),
        ({"selection": {"where": "(select count(*) from read_text('/etc/passwd')) > 0"}}, "without another query in it"),
        ({"selection": {"where": "not " * 400 + "true"}}, "it is nested too deeply"),
        ({"selection": {"where": "not " * 100_000 + "true"}}, "where='not not"),
        ({"action": {"verb": "edit", "patch": json.loads('{"a":' * 200 + "1" + "}" * 200)}}, "patch='of more than 100 levels' is not allowed"),
        ({"selection": {"counts": ["move_count >> 3"]}}, "counts="),
        ({"selection": "poison"}, "selection='poison'"),
        ({"action": {"verb": "edit", "body": ""}}, "body='' is not allowed; allowed: the whole new body"),
        ({"limit": 0}, "limit='0'"),
        ({"limit": 2**63}, "limit=9223372036854775808 is not allowed"),
        ({"limit": "7"}, "limit='7'"),
    ],
)
def test_selections_and_actions_that_cannot_be_are_refused(at_desk: Desk, changed: dict[str, Any], text: str) -> None:
    for name in ("plan", "apply"):
        answer = at_desk.poster.post(name, ACTS[name] | changed)
        assert (answer.status_code, text in answer.json()["detail"]) == (400, True), answer.text


@pytest.mark.parametrize(
    "changed",
    [
        {"rate": 0},
        {"chunk": 0},
        {"canary": {"messages": 0}},
        {"canary": {"messages": 1, "share": 0}},
        {"canary": {"most": 1}},
        {"version": -1},
        {"version": 2**63},
    ],
)
def test_a_pace_or_a_canary_that_cannot_be_is_refused(at_desk: Desk, changed: dict[str, Any]) -> None:
    assert at_desk.poster.post("apply", ACTS["apply"] | changed).status_code == 400
    assert at_desk.places() == ALL_POISON


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "undo"])
def test_a_plan_that_is_not_there_is_said_plainly(at_desk: Desk, verb: str) -> None:
    answer = at_desk.poster.post(verb, OF_PLAN | {"plan": "feedbeef0000"})
    assert (answer.status_code, "has no plan 'feedbeef0000'" in answer.json()["detail"]) == (404, True)
    assert at_desk.poster.get("plan", queue="orders", plan="feedbeef0000").status_code == 404


# Messages and groups --------------------------------------------------------------------------------------------------


def test_messages_of_a_selection_page_by_page(at_desk: Desk) -> None:
    def page(**query: Any) -> Any:
        return at_desk.poster.get("messages", queue="orders", **query).json()

    told = page(selection='{"sub_queue": "poison"}', limit=2, offset=1)
    assert ([row["lookup_id"] for row in told["messages"]], told["total"], told["more"]) == ([2, 3], 6, 3)
    assert told["version"] == at_desk.table.snapshot().version
    assert "body" not in told["messages"][0]
    assert [row["lookup_id"] for row in page(sub_queue="poison", order="lookup_id", desc=True, limit=2)["messages"]] == [6, 5]
    assert [row["lookup_id"] for row in page(selection='{"where": "body.number > 4"}')["messages"]] == [5, 6]
    assert page()["total"] == 0  # of main
    assert [page(selection=asked)["total"] for asked in ('{"lookup_ids": []}', '{"sub_queue": "poison"}')] == [0, 6]


def test_a_patch_without_a_field_is_a_plan_that_can_be_read(at_desk: Desk) -> None:
    begun = at_desk.apply({"verb": "edit", "patch": {}})
    assert at_desk.until(begun["plan"], "done")["action"] == {"verb": "edit", "patch": {}}


def test_error_groups_of_a_selection(at_desk: Desk) -> None:
    told = at_desk.poster.get("groups", queue="orders").json()
    assert told["messages"] == 6
    assert [(group["type"], group["messages"], len(group["trend"])) for group in told["groups"]] == [("ValueError", 4, 24), ("KeyError", 2, 24)]
    [group] = at_desk.poster.get("groups", queue="orders", selection='{"error_type": "KeyError"}').json()["groups"]
    found = at_desk.poster.get("messages", queue="orders", selection=json.dumps({"error": group["error"]})).json()
    assert [row["lookup_id"] for row in found["messages"]] == [1, 2]


def test_error_groups_in_an_order_searched_and_marked_as_new(at_desk: Desk) -> None:
    def told(**query: Any) -> Any:
        return at_desk.poster.get("groups", queue="orders", **query).json()

    assert [group["type"] for group in told(order="type", desc=False)["groups"]] == ["KeyError", "ValueError"]
    assert [group["type"] for group in told(desc=False)["groups"]] == ["KeyError", "ValueError"]
    assert ([group["type"] for group in told(limit=1)["groups"]], told(limit=1)["more"]) == (["ValueError"], 1)
    assert ([group["type"] for group in told(search="DELAY")["groups"]], told(search="DELAY")["messages"]) == (["KeyError"], 6)
    assert [group["new"] for group in told()["groups"]] == [True, True]
    assert [group["new"] for group in told(since="2999-01-01T00:00:00+00:00")["groups"]] == [False, False]
    assert at_desk.poster.get("groups", queue="orders", since="2026-01-01").status_code == 400
    assert at_desk.poster.get("groups", queue="orders", order="colour").status_code == 400


@pytest.mark.parametrize(
    "selection",
    [
        "{",
        "[]",
        '"x"',
        '{"colour": 1}',
        '{"error_type": "KeyError", "error_type": "ValueError"}',
        r'{"text": "\ud800"}',
        '{"where": "1 ="}',
        "[" * 5_000,
        '{"where": "x.y.z = 1"}',
        json.dumps({"where": "not " * 400 + "true"}),
        f'{{"lookup_ids": {"[" * 900}{"]" * 900}}}',
    ],
)
@pytest.mark.parametrize("path", ["messages", "groups"])
def test_a_selection_that_cannot_be_is_refused(at_desk: Desk, path: str, selection: str) -> None:
    answer = at_desk.poster.get(path, queue="orders", selection=selection)
    assert answer.status_code == 400, answer.text
    assert str(at_desk.table.uri) not in answer.text


def test_the_order_of_a_column_that_is_not_there_is_refused(at_desk: Desk) -> None:
    answer = at_desk.poster.get("messages", queue="orders", order="body; drop table x")
    assert (answer.status_code, "order=" in answer.json()["detail"]) == (400, True)


@pytest.mark.parametrize(
    ("who", "links"),
    [
        ("airflow:ann", (None, None)),
        ("", (None, None)),
        ("dag:nightly", (None, None)),
        ("dag:nightly/manual__1/redrive", ("dags/nightly/runs/manual__1", "dags/nightly/runs/manual__1/tasks/redrive")),
        ("dag:a b/r+1:00/<x>/t", ("dags/a%20b/runs/r%2B1%3A00%2F%3Cx%3E", "dags/a%20b/runs/r%2B1%3A00%2F%3Cx%3E/tasks/t")),
    ],
)
def test_who_has_acted_is_linked_where_airflow_shows_it(who: str, links: tuple[str | None, str | None]) -> None:
    found = links_of(who)
    assert (found["dag_run"], found["task_log"]) == links


def test_what_was_asked_of_a_version_is_read_once(at_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [("groups", {}), ("messages", {"sub_queue": "poison"}), ("messages", {"selection": '{"text": "x, where=1 = 1"}'})]
    first = [at_desk.poster.get(name, queue="orders", **query).json() for name, query in asked]
    other = at_desk.poster.get("messages", queue="orders", selection='{"text": "x", "where": "1 = 1"}').json()
    assert (other["total"], first[2]["total"]) == (3, 0)  # the odd ones are of carrier VX
    with monkeypatch.context() as patch:
        patch.setattr("airflow_poison.desk.sql.messages", lambda *_, **__: pytest.fail("it was read again"))
        assert [at_desk.poster.get(name, queue="orders", **query).json() for name, query in asked] == first
    at_desk.until(at_desk.apply(selection={"lookup_ids": [1]})["plan"], "done")
    assert [at_desk.poster.get(name, queue="orders", **query).json().get("total", 5) for name, query in asked[:2]] == [5, 5]
    assert at_desk.poster.get("groups", queue="orders").json()["messages"] == 5


def test_a_condition_that_takes_long_is_ended(at_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "LIMITS", Limits(seconds=0.01))
    endless = json.dumps({"where": "list_sum(list_transform(range(3000000 + lookup_id), lambda x: x % 7)) > 0"})
    begun = time.monotonic()
    for answer in (
        at_desk.poster.get("groups", queue="orders", selection=endless),
        at_desk.poster.get("messages", queue="orders", selection=endless),
        at_desk.poster.post("plan", ACTS["plan"] | {"selection": json.loads(endless)}),
    ):
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, str(AGAIN_SECONDS)), answer.text
        assert answer.json()["detail"].endswith("select fewer messages, or ask in a shell. Ask again in 10 s.")
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("where", "total"),
    [
        ("body.carrier like 'V%' and body.number between 2 and 4", 1),
        ("lookup_id * 2 + 1 > 8 or error_type = 'KeyError'", 5),
        ("regexp_matches(lower(error_message), 'shop [34]') and length(text) > 5", 2),
        ("json_extract_string(body, '$.carrier') in ('AA', 'ZZ') and enqueued_at > now() - interval 3 hours", 3),
        ("case when lookup_id = 1 then true else false end and coalesce(properties['x'], '') = ''", 1),
    ],
)
def test_conditions_of_texts_numbers_times_and_json(at_desk: Desk, where: str, total: int) -> None:
    answer = at_desk.poster.get("messages", queue="orders", selection=json.dumps({"where": where}))
    assert (answer.status_code, answer.json().get("total")) == (200, total), answer.text


@pytest.mark.parametrize(
    "where",
    [
        "read_text('/etc/passwd') is not null",
        "getenv('AIRFLOW_HOME') is not null",
        "exists(select 1 from read_csv('/etc/passwd'))",
        "lookup_id > 0 union select 1 from duckdb_secrets()",
        "current_setting('allowed_paths') is not null",
        "list_sum(range(300000000 + lookup_id)) > 0",
        "length(repeat('x', 2000000000)) > 0",
        "length(rpad('x', 2000000000, 'y')) > 0",
        "length(replace(text, 'a', repeat('x', 1000))) > 0",
        "length(hex(hex(hex(text)))) > 0",
        "length(text || text) > 0",
        "list_transform([1], lambda x: x)[1] = 1",
        "[x for x in range(1000000000)][1] = 1",
    ],
)
def test_a_condition_reads_nothing_of_the_machine_and_cannot_take_all_of_it(at_desk: Desk, where: str) -> None:
    answer = at_desk.poster.get("messages", queue="orders", selection=json.dumps({"where": where}))
    assert answer.status_code == 400, answer.text
    assert "root:" not in answer.text
    assert str(at_desk.table.uri) not in answer.text


def test_the_end_of_the_server_ends_what_it_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(desk, "end", lambda: ended.append("ended"))
    with TestClient(app()):
        assert ended == []
    assert ended == ["ended"]


# What a queue hides ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["viewer", "user", "op", "admin"])
def test_hidden_values_are_shown_to_who_may_act_and_that_is_noted(poster: Poster, orders: QueueTable, role: str) -> None:
    declare_mask(orders, CLOCK, ["$.carrier"])
    headers = {"Authorization": f"Bearer {role}"}
    query: dict[str, Any] = {"queue": "orders", "lookup_id": 3}
    told = poster.client.get("/api/message", params=query, headers=headers).json()
    assert (json.loads(told["message"]["body"])["carrier"], told["masked"]) == ("***", ["$.carrier"])
    assert entries() == []
    unmasked = poster.client.get("/api/message", params=query | {"unmask": True}, headers=headers)
    if ROLES[role] != 200:
        assert (unmasked.status_code, "VX" in unmasked.text, entries()) == (403, False, [])
        return
    assert (json.loads(unmasked.json()["message"]["body"])["carrier"], unmasked.json()["masked"]) == ("VX", [])
    assert entries() == [("poison_unmask", role, {"conn_id": "poison_default", "queue": "orders", "lookup_id": 3})]


def test_nobody_finds_out_hidden_values_by_conditions_groups_or_plans(at_desk: Desk) -> None:
    declare_mask(at_desk.table, CLOCK, ["$.carrier"])
    selection = {"where": "body.carrier = 'VX'"}
    assert at_desk.poster.get("messages", queue="orders", selection=json.dumps(selection)).json()["total"] == 0
    assert at_desk.plan(selection=selection)["messages"] == 0
    told = at_desk.plan({"verb": "edit", "patch": {"seen": True}})
    assert [json.loads(sample["before"])["carrier"] for sample in told["samples"]] == ["***"] * 6
    samples = at_desk.poster.get("samples", queue="orders").json()["samples"]
    assert [json.loads(sample["body"])["carrier"] for sample in samples] == ["***"] * 6
    begun = at_desk.apply({"verb": "edit", "patch": {"carrier": "ZZ"}}, selection={"lookup_ids": [3]})
    at_desk.until(begun["plan"], "done")
    message = at_desk.poster.get("message", queue="orders", lookup_id=3).text
    assert ("VX" in message, "ZZ" in message) == (False, False)

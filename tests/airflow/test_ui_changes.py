"""What people do at the pages: who may, from where, how it is noted, and what it does. The auth manager is a real one."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import HTTPException
from fastapi.routing import APIRoute

from airflow_poison import Msmq4
from airflow_poison.core.clock import SystemClock
from airflow_poison.core.passes.alter import declare
from tests.airflow.conftest import define_connection, serialize

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Airflow's own
    from fastapi.testclient import TestClient

    from airflow_poison.ui import audit, posts
    from airflow_poison.ui.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable

HOST = "airflow.example"
SECRET = "hunter2-and-more"
ACTS: dict[str, dict[str, Any]] = {
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


@pytest.fixture
def orders(store: QueueStore) -> QueueTable:
    return declare(store, "orders", Msmq4(), SystemClock())


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

    def decisions(self, role: str, queue: str = "orders") -> Any:
        found = self.client.get("/api/decisions", params={"queue": queue}, headers={"Authorization": f"Bearer {role}"})
        assert found.status_code == 200, found.text
        return found.json()["decisions"]

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


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("name", ACTS)
def test_a_change_is_made_by_post_alone(poster: Poster, orders: QueueTable, name: str, method: str) -> None:
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
@pytest.mark.parametrize("name", ACTS)
def test_a_forged_request_of_a_signed_in_browser_is_refused(poster: Poster, orders: QueueTable, name: str, headers: dict[str, str]) -> None:
    before = orders.snapshot().version
    answer = poster.from_browser(name, headers)
    assert (answer.status_code, orders.snapshot().version) == (403, before)
    assert entries() == []


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
    monkeypatch.setattr(audit, "create_session", broken)
    answer = poster.post("disable")
    assert (answer.status_code, orders.snapshot().version) == (503, before)
    assert "nothing was done" in answer.json()["detail"]


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
    define_connection(monkeypatch, "other", {"store": f"s3://key:{SECRET}@bucket/queues"}, password=SECRET, login="me")
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
        "subject": "Queue orders is disabled.",
        "body": r"**orders** \x1b[31m",
        "options": ["Enable", "Leave it disabled"],
        "may_answer": False,
        "url": "dags/asking/runs/monday/tasks/ask/required_actions",
    }
    assert [each["may_answer"] for each in poster.decisions("op")] == [True, True]
    assert poster.decisions("op", queue="nowhere") == []


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

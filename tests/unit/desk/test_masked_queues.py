"""Queues that hide values: nothing that is written down, logged or shown of their messages has them, unless it is asked for; handlers get all."""

from __future__ import annotations

import json
import logging
import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.delivery.handlers import Batching
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply
from airflow_poison.desk.plans import find_plan, plan, record
from airflow_poison.desk.queries import find, groups, query
from airflow_poison.desk.rules import declare_mask
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.browse import browse, look_up, masked
from airflow_poison.passes.inspect import inspect
from airflow_poison.passes.messages import Chosen
from airflow_poison.passes.move import remove, remove_messages
from airflow_poison.passes.relay import dead_letter_queue
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.outage import Outage
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.failures import PoisonRows
from airflow_poison.values.masking import Masking
from airflow_poison.values.schema import SubQueue
from tests.given.passes import NO_RETRY, Handler, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_poison.rules.policy import Policy
    from airflow_poison.values.message import Message
    from tests.given.passes import Queue

CARD, MAIL, TOKEN = "4111-1111-1111-1111", "ann@shop.example", "t0ps3cret"
MASK = ["$.card", "$.customer.email", "properties.token"]
SECRETS = (CARD, MAIL, TOKEN)


@dataclass(frozen=True)
class Telling(Handler):
    """Prints and logs what it gets, and fails with it; ``kill`` ends its process."""

    def __call__(self, message: Message) -> None:
        """Be called with a message."""
        self._write("call", message)
        body = message.json()
        Path(f"{self.calls}.bodies").write_bytes(message.body)
        print("printed", body["card"], message.properties["token"])  # noqa: T201  (what a handler does)
        logging.getLogger("shop").warning("logged %s", body["customer"])
        if body.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            {}[body["customer"]["email"]]
        except KeyError as error:
            raise ValueError(f"no card {body['card']} of {message.text}, token {message.properties['token']}") from error


def order(number: int, **more: object) -> str:
    return json.dumps({"number": number, "card": CARD, "customer": {"email": MAIL, "name": "Ann"}, **more})


def sent(queue: Queue, *bodies: str) -> Queue:
    return queue.sent(*(bodies or [order(number) for number in range(1, 4)]), properties={"token": TOKEN, "source": "test"})


@pytest.fixture
def shop(queue: Queue, tmp_path: Path) -> Queue:
    """A queue that hides values."""
    declare_mask(queue.table, queue.clock, MASK)
    return queue.having(handler=Telling(str(tmp_path / "calls")))


@pytest.fixture
def unmasked(queue: Queue, tmp_path: Path) -> Queue:
    """Poison that was made before the queue hides anything."""
    return sent(queue.having(handler=Telling(str(tmp_path / "calls"))))


def everything(queue: Queue) -> str:
    """All that is recorded but bodies and properties."""
    rows = [{name: cell for name, cell in row.items() if name not in {"body", "properties"}} for row in rows_of(queue.table).values()]
    events = [event.details for event in queue.table.events()]
    return f"{rows} {events} {queue.table.snapshot().control}"


def has_none(text: object) -> None:
    found = [secret for secret in SECRETS if secret in str(text)]
    assert not found, f"{found} in {str(text)[:2000]}"


# Written down ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_failures_are_recorded_without_hidden_values(shop: Queue, isolation: str) -> None:
    result = sent(shop).receive(isolation=isolation)
    assert result.poisoned == 3
    has_none(result.to_dict())
    has_none(everything(shop))
    row = shop.rows()[1]
    error: Any = row["last_error"]
    assert error["message"] == f"no card *** of {order(1).replace(CARD, '***').replace(MAIL, '***')}, token ***"
    assert "KeyError: '***'" in error["trace"]
    assert str(row["reason"]).startswith("ValueError: no card *** of")


def test_the_handler_and_the_table_have_the_whole_message(shop: Queue) -> None:
    sent(shop, order(1)).receive()
    assert Path(f"{shop.handler.calls}.bodies").read_text() == order(1)
    assert shop.rows()[1]["body"] == order(1).encode()


def test_output_of_handlers_is_logged_without_hidden_values(shop: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sent(shop).receive(isolation="process")
    has_none(caplog.text)
    assert "[message 1] printed *** ***" in caplog.text
    assert "[message 2] shop: logged {'email': '***', 'name': 'Ann'}" in caplog.text


def test_output_of_endpoints_that_keep_an_order_is_logged_without_them(shop: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fault = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault")
    result = sent(shop.having(policy=fault)).receive(isolation="process")
    assert result.halted is not None
    has_none(caplog.text)
    has_none(result.to_dict())
    has_none(everything(shop))
    assert "[message 1] printed *** ***" in caplog.text
    assert "no card ***" in shop.table.snapshot().control.reason


def test_the_last_output_of_a_process_that_was_killed_has_none(shop: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sent(shop, order(1, kill=True)).receive(isolation="process")
    has_none(everything(shop))
    has_none(caplog.text)
    assert "printed *** ***" in str(shop.rows()[1]["last_error"])


def test_failures_are_alike_whatever_is_hidden_in_them(shop: Queue) -> None:
    sent(shop, *(order(number, card=f"41{number:03}-secret") for number in range(1, 6))).receive()
    assert len({row["last_error"]["fingerprint"] for row in shop.rows().values()}) == 1  # type: ignore[index]  # a failure
    [group] = groups(shop.table, Selection(), shop.clock).groups
    assert (group.messages, group.type) == (5, "ValueError")


def test_alerts_have_none(shop: Queue) -> None:
    sent(shop.having(policy=ServiceBroker()), order(1)).receive()
    told: list[object] = []
    send_alerts(shop.table, "ops", {"notes": told.append}, shop.clock)
    has_none(told)
    assert told


@pytest.mark.parametrize("policy", [NO_RETRY, ServiceBroker()], ids=["each alone", "an endpoint"])
def test_outages_are_told_without_hidden_values(shop: Queue, policy: Policy) -> None:
    told: list[str] = []
    outage = Outage(share=0.5, at_least=3, probe=1, every=timedelta(minutes=5))
    shop = shop.having(policy=policy)
    result = sent(shop, *(order(number) for number in range(1, 9))).receive(isolation="process", outage=outage, progress=told.append)
    assert result.outage is not None
    assert "no card ***" in str(result.outage)
    has_none(result.to_dict())
    has_none(everything(shop))
    has_none(told)


def frames(table: pa.Table) -> None:
    """A handler of batches that names rows, with what it has read of all."""
    bodies = table["body"].to_pylist()
    print("all", bodies)  # noqa: T201  (what a handler does)
    raise PoisonRows(dict.fromkeys(table["lookup_id"].to_pylist()[:1], f"bad: {bodies}"))


def test_what_a_handler_of_batches_says_of_one_message_has_nothing_of_the_others(shop: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cards = [f"41{number:03}-secret" for number in range(1, 4)]
    sent(shop, *(order(number, card=card) for number, card in enumerate(cards, 1)))
    shop.receive(handler=frames, isolation="process", batching=Batching.of("arrow", 10, None))
    error: Any = shop.rows()[1]["last_error"]
    assert error["message"].startswith("bad: [b'{")
    for text in (everything(shop), caplog.text):
        has_none(text)
        assert not any(card in text for card in cards)


def test_a_body_that_is_no_json_is_told_nothing_of(shop: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sent(shop, f"card;{CARD}").receive(isolation="process")
    has_none(everything(shop))
    error: Any = shop.rows()[1]["last_error"]
    assert error["message"] == "***"
    assert "airflow_poison.values.json_text.JsonError" in error["type"]
    [row] = look_up(shop.table, Chosen.ids([1]))
    assert row.body == b"***"


def test_dead_letters_are_hidden_in_their_queue(shop: Queue) -> None:
    reject = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Reject")
    sent(shop.having(policy=reject), order(1)).receive()
    letters = shop.store.open(dead_letter_queue("orders"))
    [row] = browse(letters, [SubQueue.MAIN], 10, bodies=True).messages
    has_none(row)
    assert json.loads(row.body)["card"] == "***"


def test_messages_that_are_sent_to_a_queue_that_hides_more_are_told_of_as_that_wants(unmasked: Queue) -> None:
    reject = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Reject")
    letters = unmasked.store.create(dead_letter_queue("orders"), unmasked.table.snapshot().control)
    declare_mask(letters, unmasked.clock, MASK)
    unmasked.having(policy=reject).receive()
    row = next(iter(rows_of(letters).values()))
    has_none((row["last_error"], row["reason"]))


# Shown ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [False, True], ids=["masked at first", "masked later"])
def test_messages_are_shown_without_hidden_values(shop: Queue, before: bool) -> None:  # noqa: FBT001
    if before:
        declare_mask(shop.table, shop.clock, [])
    shop.clock.advance(timedelta(hours=1))
    sent(shop).receive()
    declare_mask(shop.table, shop.clock, MASK)
    table = shop.table
    whole = browse(table, [SubQueue.POISON], 10, bodies=True).messages
    light = browse(table, [SubQueue.POISON], 10).messages
    seen = inspect(table, shop.clock, lookup_id=1).messages
    page = find(table, Selection()).messages
    for rows in (whole, light, seen, page, look_up(table, Chosen.ids([1, 2, 3]))):
        assert rows
        has_none([row.to_dict() for row in rows])
        assert all("no card ***" in str(row.last_error) for row in rows)
        assert all(row.properties["source"] == "test" for row in rows)
    assert {row.body for row in (*light, *page)} == {b""}
    assert json.loads(whole[0].body) == {"number": 1, "card": "***", "customer": {"email": "***", "name": "Ann"}}
    has_none(groups(table, Selection(), shop.clock).to_dict())
    has_none(query(table, "select * from messages").to_pylist())
    assert query(table, "select error_message from messages").num_rows == 3


def test_whoever_asks_for_it_sees_all(shop: Queue) -> None:
    sent(shop).receive()
    table = shop.table
    assert browse(table, [SubQueue.POISON], 1, bodies=True, unmask=True).messages[0].body == order(1).encode()
    assert look_up(table, Chosen.ids([1]), unmask=True)[0].properties["token"] == TOKEN
    assert inspect(table, shop.clock, lookup_id=1, unmask=True).messages[0].body == order(1).encode()
    assert find(table, Selection(where=f"body.card = '{CARD}'"), unmask=True).total == 3
    assert groups(table, Selection(text=MAIL), shop.clock, unmask=True).messages == 3
    assert CARD in str(query(table, "select body from messages", unmask=True).to_pylist())
    assert plan(table, Selection(properties={"token": TOKEN}), PlanAction(verb=Verb.REMOVE), shop.clock, unmask=True).view.messages == 3


@pytest.mark.parametrize(
    "selection",
    [
        Selection(where=f"body.card = '{CARD}'"),
        Selection(where=f"contains(text, '{MAIL}') or contains(raw::varchar, '4111')"),
        Selection(where=f"properties['token'] = '{TOKEN}'"),
        Selection(where=f"contains(error_message, '{CARD}') or contains(error_trace, '{MAIL}') or contains(reason, '{CARD[:4]}')"),
        Selection(text=CARD),
        Selection(text=MAIL),
        Selection(properties={"token": TOKEN}),
    ],
)
@pytest.mark.parametrize("before", [False, True], ids=["masked at first", "masked later"])
def test_no_condition_tells_of_hidden_values(shop: Queue, selection: Selection, before: bool) -> None:  # noqa: FBT001
    if before:
        declare_mask(shop.table, shop.clock, [])
    shop.clock.advance(timedelta(hours=1))
    sent(shop).receive()
    declare_mask(shop.table, shop.clock, MASK)
    assert find(shop.table, selection).total == 0
    assert groups(shop.table, selection, shop.clock).messages == 0
    assert plan(shop.table, selection, PlanAction(verb=Verb.PUT_BACK), shop.clock).view.messages == 0
    assert find(shop.table, Selection(where="body.customer.name = 'Ann' and body.number >= 2")).total == 2


def test_every_property_can_be_hidden(shop: Queue) -> None:
    declare_mask(shop.table, shop.clock, ["properties.*"])
    sent(shop, order(1)).receive()
    assert query(shop.table, "select properties from messages").to_pylist() == [{"properties": [("token", "***"), ("source", "***")]}]


def test_what_people_remove_is_shown_without_hidden_values_and_given_whole(shop: Queue) -> None:
    sent(shop).receive()
    has_none(remove_messages(shop.table, shop.clock, [1]).to_dict())
    assert remove_messages(shop.table, shop.clock, [2], unmask=True).messages[0].body == order(2).encode()
    assert remove(shop.table, 3, shop.clock).json()["card"] == CARD


def test_plans_show_edits_without_hidden_values_and_make_them_whole(shop: Queue) -> None:
    sent(shop).receive()
    edit = PlanAction(verb=Verb.EDIT, patch={"card": "5500-0000", "currency": "EUR"}, properties={"token": "new-token"})
    made = plan(shop.table, Selection(), edit, shop.clock)
    has_none(made.view.to_dict())
    assert json.loads(made.view.samples[0].after or "")["card"] == "***"
    plan_id = record(shop.table, made, shop.clock, who="shell:ann@here")
    for view in (made.view, find_plan(shop.table, plan_id), apply(shop.table, plan_id, shop.clock)):
        has_none(view.to_dict())
        assert "5500" not in str(view.to_dict())
        assert "new-token" not in str(view.to_dict())
        assert view.to_dict()["action"]["patch"] == {"card": "***", "currency": "EUR"}
    assert "5500" not in repr(made)
    assert json.loads(bytes(shop.rows()[1]["body"]))["card"] == "5500-0000"  # type: ignore[call-overload]  # bytes
    [row] = look_up(shop.table, Chosen.ids([1]))
    has_none(row)
    assert "5500" not in str(row)
    has_none(query(shop.table, "select properties from messages").to_pylist())


def test_an_edit_that_cannot_be_made_says_so_without_hidden_values(shop: Queue) -> None:
    sent(shop, order(1)).receive()
    edit = PlanAction(verb=Verb.EDIT, function=f"{__name__}:fails_with_it")
    [sample] = plan(shop.table, Selection(), edit, shop.clock).view.samples
    assert "raised ValueError: " in sample.unfit
    has_none(sample)


def fails_with_it(body: bytes) -> bytes:
    """An edit that fails."""
    raise ValueError(body.decode())


# Recorded -------------------------------------------------------------------------------------------------------------


def test_a_change_of_the_mask_is_an_event_and_the_same_mask_none(queue: Queue) -> None:
    for mask in (MASK, MASK, ["$.other"], [], []):
        declare_mask(queue.table, queue.clock, mask)
    assert [event.details for event in queue.table.events()] == [{"desk": "mask"}] * 3
    assert Masking.recorded(queue.table.snapshot().control.desk) is None


def test_a_message_is_shown_by_one_function(shop: Queue) -> None:
    [row] = look_up(sent(shop, order(1)).table, Chosen.ids([1]), unmask=True)
    assert masked(row, None) is row
    has_none(masked(row, Masking.read(MASK)))


def test_a_queue_without_a_mask_is_as_ever(queue: Queue, tmp_path: Path) -> None:
    plain = sent(queue.having(handler=Telling(str(tmp_path / "calls")), policy=NO_RETRY), order(1))
    plain.receive()
    assert CARD in str(plain.rows()[1]["last_error"])
    assert find(plain.table, Selection(text=CARD)).total == 1

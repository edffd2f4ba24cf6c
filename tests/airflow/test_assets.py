"""Queues as assets: their URIs and watchers, and the message queue provider behind ``MessageQueueTrigger``."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_poison.assets import happened, queue_asset
from airflow_poison.triggers import QueueEventTrigger
from airflow_poison.values.errors import QueueNameError, SettingError
from tests.given import forked

from . import fresh

ROOT = Path(__file__).parents[2]


def test_an_asset_has_a_watcher_for_each_happening() -> None:
    asset = queue_asset("orders", on=("retry_due", "messages"), conn_id="shop")
    assert asset.uri == asset.name == "poison://shop/orders?on=messages&on=retry_due"
    triggers: list[Any] = [watcher.trigger for watcher in asset.watchers]
    assert [trigger.event for trigger in triggers] == ["messages", "retry_due"]
    assert {(trigger.queue_name, trigger.conn_id, trigger.asset) for trigger in triggers} == {("orders", "shop", asset.name)}


def test_other_happenings_are_another_asset_and_the_same_ones_the_same() -> None:
    assert queue_asset("orders", on=["poisoned"]).uri != queue_asset("orders", on=["disabled"]).uri
    assert queue_asset("orders", on=["poisoned", "disabled"]) == queue_asset("orders", on=["disabled", "poisoned"])
    triggers = [queue_asset("orders", on="poisoned").watchers[0].trigger for _ in range(2)]
    one, two = (QueueEventTrigger.hash(*trigger.serialize()) for trigger in triggers)
    assert one == two


def test_the_queue_itself_is_an_asset_that_nobody_watches() -> None:
    asset = queue_asset("orders", on=())
    assert (asset.uri, asset.watchers) == ("poison://poison_default/orders", [])


def test_a_uri_has_one_normal_form() -> None:
    assert Asset("poison://shop/orders/").uri == "poison://shop/orders"
    assert Asset("poison://shop/orders?on=retry_due&on=messages").uri == "poison://shop/orders?on=messages&on=retry_due"


@pytest.mark.parametrize(
    "uri", ["poison://shop", "poison:///orders", "poison://shop/a/b", "poison://shop/orders?on=full", "poison://shop/orders?of=x"]
)
def test_a_uri_that_names_no_queue_is_refused(uri: str) -> None:
    with pytest.raises((ValueError, QueueNameError), match=r"names no queue|cannot be a queue's name"):
        Asset(uri)


def test_what_does_not_exist_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(SettingError, match="on='full' is not allowed; allowed: messages, retry_due, poisoned, blocked, outage, disabled, enabled"):
        queue_asset("orders", on=("full",))
    with pytest.raises(QueueNameError):
        queue_asset("or/ders")


def test_a_message_queue_trigger_becomes_a_queue_event_trigger() -> None:
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    path, arguments = MessageQueueTrigger(scheme="poison", queue_name="orders", event="retry_due", conn_id="shop").serialize()
    assert path == "airflow_poison.triggers.QueueEventTrigger"
    assert (arguments["queue_name"], arguments["event"], arguments["conn_id"]) == ("orders", "retry_due", "shop")
    with pytest.warns(match="deprecated"):
        old = MessageQueueTrigger(queue="poison://shop/orders")
    assert old.serialize()[1]["queue_name"] == "orders"


def test_without_common_messaging_the_provider_can_still_be_imported() -> None:
    code = (
        "import sys; sys.modules['airflow.providers.common.messaging'] = None;"
        "from airflow_poison.queues import PoisonMessageQueueProvider as Provider; print(Provider.scheme)"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.stdout.strip().endswith("poison"), ran.stderr


@pytest.mark.parametrize("module", ["airflow_poison.assets", "airflow_poison.sensors", "airflow_poison.triggers"])
def test_what_dag_files_import_reads_no_table_library(module: str) -> None:
    ran = forked.run(fresh.print_heavy_imports, f"import {module}")
    assert ran.printed.strip().splitlines()[-1:] == ["[]"], ran.errors


class Stored(dict[str, Any]):
    """An asset's state store, as tasks see it."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


class Events(list[Any]):
    """All events of an asset, as tasks see them."""

    def after(self, instant: str) -> list[Any]:
        return [event for event in self if event.timestamp >= datetime.fromisoformat(instant)]


def test_each_happening_is_told_to_one_run_and_none_is_left_out() -> None:
    asset, stored, events = queue_asset("orders", on="poisoned"), Stored(), Events()

    def recorded(key: str) -> Any:
        events.append(SimpleNamespace(extra={"payload": {"key": key}}, timestamp=datetime(2013, 1, 1, tzinfo=UTC) + timedelta(seconds=len(events))))
        return events[-1]

    def run(run_id: str, *made_by: Any, dag_id: str = "look_after") -> list[str]:
        context = {
            "asset_state_store": {asset: stored},
            "inlet_events": {asset: events},
            "run_id": run_id,
            "ti": SimpleNamespace(dag_id=dag_id),
            "triggering_asset_events": {asset: made_by} if made_by else {},
        }
        return [told["key"] for told in happened(context, asset)]

    recorded("long ago")
    one = recorded("a")
    recorded("b")  # while the run that "a" has asked for could not begin: Airflow gives it "a" alone
    assert run("first", one) == ["a", "b"]
    assert run("first", one) == ["a", "b"]
    two = recorded("b")  # told again by a triggerer that was killed
    assert run("second", two) == []
    assert run("other", two, dag_id="other") == ["b"]
    assert run("third", recorded("c")) == ["c"]
    assert run("by hand") == []

"""Passes on a real cluster whose machines share nothing but an object store: two workers with mounts of their own, and a driver apart from both."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import pytest
from deltalake import DeltaTable

from airflow_poison import protect
from airflow_poison.delivery.handlers import Transformation
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.delivering import ENDED_WITHIN
from airflow_poison.passes.due import return_due
from airflow_poison.rules.outage import Outage
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import PoisonError, ReceiveStoppedError, ServerSessionError, SettingError, SparkJobError
from airflow_poison.values.schema import SubQueue
from tests.given import transforms
from tests.given.drivers import POLICY
from tests.given.transforms import SCHEMA
from tests.spark.grouped import Grouped
from tests.spark.places.place import CLUSTER, session
from tests.spark.places.task import BAD, MESSAGES, Returning, Task, bodies, cycles
from tests.spark.places.test_frames import ONCE, Transforming, cast_amount
from tests.spark.places.travel import send_columns
from tools.servers import s3 as server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tests.spark.places.place import Place
    from tests.spark.places.servers import Nodes


@pytest.fixture(scope="session")
def options() -> Iterator[Mapping[str, str]]:
    """Return how the stores of these tests are reached."""
    with server.running() as port:
        yield server.options(f"http://{server.LOOPBACK}:{port}")


@pytest.fixture
def task(options: Mapping[str, str], tmp_path: Path) -> Task:
    """Return a task of a queue in a new bucket."""
    name = f"bucket-{uuid4().hex}"
    server.make_bucket(options, name)
    return Task(f"s3://{name}/queues", options=options, written_to=str(tmp_path / "calls"))


def journals(folder: Path) -> list[str]:
    """Return the journals that lie on a node."""
    return [path.name for path in folder.rglob("*.journal")]


def test_what_fails_is_retried_parked_returned_and_poisoned_and_the_rest_is_settled(far: Place, nodes: Nodes, task: Task) -> None:
    task = replace(task, policy=cycles(1)).sent(bodies())
    before = [len(journals(folder)) for folder in nodes.workers]

    first = far.call(task.receive, "first")
    assert [len(journals(folder)) for folder in nodes.workers] == [before[0] + 1, before[1] + 1], "each node has had a task"
    assert not journals(nodes.driver)
    returned = return_due(task.table(), SystemClock())
    second = far.call(task.receive, "second")

    assert (first.received, first.settled, first.parked, first.deliveries) == (MESSAGES, MESSAGES - len(BAD), len(BAD), MESSAGES + len(BAD))
    assert returned.returned == len(BAD)
    assert (second.received, second.poisoned, second.rollbacks) == (len(BAD), len(BAD), 2 * len(BAD))
    assert task.calls() == Counter(range(1, MESSAGES + 1)) + Counter([*BAD] * 3)
    assert {row["sub_queue"] for row in task.rows().values()} == {"poison"}


def test_a_handler_that_ends_its_process_is_charged_alone(far: Place, task: Task) -> None:
    task = task.sent(bodies(exit=20, segfault=120, kill=220))

    result = far.call(task.receive, "run")

    assert (result.settled, result.poisoned, result.crashes) == (MESSAGES - len(BAD) - 3, len(BAD) + 3, 6)
    assert task.calls() == Counter(range(1, MESSAGES + 1)) + Counter([*BAD, 20, 120, 220])


def test_the_message_that_kills_its_executor_is_charged_alone(far: Place, task: Task) -> None:
    """The task may begin again on the other node, which knows too little to go on; then the next run does."""
    task = task.sent(bodies(jvm=101))

    try:
        result = far.call(task.receive, "run")
    except ServerSessionError:
        result = far.call(task.receive, "run")

    assert (result.received, result.settled, result.poisoned) == (MESSAGES, MESSAGES - len(BAD), len(BAD))
    assert set(task.rows()) == set(BAD)
    assert set(task.calls()) == set(range(1, MESSAGES + 1))
    assert max(task.calls().values()) <= 4, "of what was with the lost task, each is delivered again, and once more alone at most"


@pytest.mark.parametrize("far", [CLUSTER], indirect=True)
def test_a_queue_in_one_order_is_received_in_it_and_halts_where_it_must(far: Place, task: Task) -> None:
    good = ["good"] * 80
    policy = replace(POLICY, receive_error_handling="Fault")
    task = replace(task, policy=policy).sent([*good[:60], "bad", *good[:19]], priorities=[number % 3 for number in range(80)])

    result = far.call(task.receive, "run")

    in_order = sorted(range(1, 81), key=lambda number: (-((number - 1) % 3), number))
    reached = in_order[: in_order.index(61) + 1]
    assert task.order() == [*reached, 61]
    assert (result.settled, result.halted_messages, result.untouched) == (len(reached) - 1, 1, 80 - len(reached))
    assert task.table().snapshot().control.state is QueueState.FAULTED


@pytest.mark.parametrize("far", [CLUSTER], indirect=True)
def test_every_conversation_group_is_in_one_task_and_in_its_order(far: Place, task: Task, tmp_path: Path) -> None:
    names = [f"g{number % 6}" for number in range(120)]
    words = ["twice" if number % 9 == 0 else "ok" for number in range(120)]
    handler = Grouped(str(tmp_path / "groups"))
    policy = ServiceBroker(scope="conversation_group", max_queue_readers=2)
    task = replace(task, policy=policy, named=handler).sent(words, groups=names)

    result = far.call(task.receive, "run")

    assert (result.received, result.settled) == (120, 120)
    deliveries = handler.deliveries()
    for name in set(names):
        mine = [call.number for call in deliveries if call.group == name]
        assert mine == sorted(mine)
    assert len({call.task for call in deliveries}) == 2


def landed(path: Path) -> Counter[int]:
    """Return how often each message has a row."""
    return Counter(row["id"] for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist())


@pytest.mark.parametrize("far", [CLUSTER], indirect=True)
def test_rows_land_once_though_the_first_run_dies_with_its_node(far: Place, nodes: Nodes, task: Task, tmp_path: Path) -> None:
    """What tasks on other nodes had settled is in their journals and rows, which the next run reads where it runs, and tells its tasks."""
    output = outputs_of(str(tmp_path / "landed"), schema="id long, text string")
    task = replace(task, named=Returning(task.calls_file), outputs=output).sent(bodies(linger=101))
    first = far.begin(task.receive, "run")
    [handler] = task.until_lingering()
    nodes.replace(nodes.of(handler))
    with pytest.raises(PoisonError):
        first.result()
    task.go_on()
    result = far.call(task.receive, "run")

    assert result.poisoned == len(BAD)
    assert landed(tmp_path / "landed") == Counter(set(range(1, MESSAGES + 1)) - set(BAD))


def test_a_run_that_is_stopped_gives_its_claim_up_when_its_tasks_have_had_time_to_end(far: Place, task: Task) -> None:
    """A handler of one task lingers, that of the other one has done all; nobody waits for the lease, which is longer."""
    task = replace(task, lease=timedelta(minutes=10)).sent(bodies(linger=101))
    with pytest.raises(ReceiveStoppedError):
        far.call(task.receive_until_stopped, "stopped")
    [given_up] = task.table().snapshot().claims
    left = given_up.expires_at - SystemClock().now()
    assert timedelta(seconds=5) < left <= ENDED_WITHIN

    assert far.call(task.receive, "early").received == 0
    time.sleep(left.total_seconds())
    assert not any(map(psutil.pid_exists, task.until_lingering()))
    task.go_on()
    result = far.call(task.receive, "another")

    assert (result.received, result.settled, result.poisoned, result.crashes) == (MESSAGES, MESSAGES - len(BAD), len(BAD), 0)
    assert set(task.rows()) == set(BAD)
    assert max(task.calls("done").values()) <= 2, "what was delivered since a section began"


@pytest.mark.parametrize("far", [CLUSTER], indirect=True)
def test_an_output_whose_columns_nobody_knows_is_refused_before_anything_is_delivered(far: Place, task: Task, tmp_path: Path) -> None:
    task = replace(task, outputs=outputs_of(str(tmp_path / "landed"))).sent(["good"])

    with pytest.raises(SettingError, match="output_schema"):
        far.call(task.receive, "run")

    assert not (tmp_path / "calls").exists()
    assert task.table().snapshot().depth(SubQueue.MAIN, SystemClock().now()).messages == 1
    assert task.table().snapshot().claims == ()


@pytest.mark.parametrize("far", [CLUSTER], indirect=True)
def test_an_outage_that_one_node_finds_ends_the_pass_on_all_uncounted(far: Place, task: Task) -> None:
    """Half of the messages are good, those of one node: only its neighbour finds the outage."""
    task = replace(task, outage=Outage(share=0.5, at_least=20)).sent(["bad"] * 300 + ["good"] * 300)

    result = far.call(task.receive, "run")

    assert result.outage is not None
    bad = {number: row for number, row in task.rows().items() if number <= 300}
    assert len(bad) == 300
    assert {(row["sub_queue"], row["abort_count"]) for row in bad.values()} == {("main", 0)}
    assert result.poisoned == 0


@pytest.mark.parametrize("transform", ["verdict", "cast", "in_python"])
def test_a_transformation_runs_where_its_tasks_see_no_folder_either(far: Place, task: Task, transform: str) -> None:
    """A verdict names the culprits; a cast fails, and they are looked for; a function in Python fails in its worker."""
    function = getattr(transforms, transform)
    culprits = {7: "raise", 30: "die"}
    one = Transforming(task.root, transformation=Transformation(function, SCHEMA), options=task.options, written_to=task.written_to)
    one = one.sent(transforms.bodies(60, culprits))

    result = far.call(one.receive, "run")

    assert (result.settled, result.poisoned) == (58, 2)
    assert sorted(one.rows()) == [7, 30]
    assert one.landed() == [number for number in range(1, 61) if number not in culprits]


def test_a_dataframe_is_sent_once_and_whole_and_in_its_order(far: Place, task: Task) -> None:
    table = task.table()

    sent = [far.call(send_columns, task, key) for key in ("one", "two", "one")]

    assert [(each.sent, each.first_lookup_id, each.repeated) for each in sent] == [(200, 1, False), (200, 201, False), (200, 1, True)]
    rows = task.rows()
    numbers = [*range(200)] * 2
    names = ("body", "group_id", "priority", "properties")
    wanted = [(b"%d" % number, f"g{number % 7}", number % 10, [("origin", str(number))]) for number in numbers]
    assert [tuple(rows[lookup_id][name] for name in names) for lookup_id in sorted(rows)] == wanted
    assert {row["expires_at"] is None for row in rows.values()} == {False}
    assert not [found.path for found in table.folder.stages() if "send-" in found.path], "nothing is left in the bucket"


@pytest.mark.parametrize("far", [CLUSTER], indirect=True)
def test_a_dataframe_whose_job_fails_sends_nothing_and_leaves_nothing(far: Place, task: Task) -> None:
    """One of its four tasks fails; the others have made objects."""
    with pytest.raises(SparkJobError, match=r"no such origin(?s:.*)Nothing was sent"):
        far.call(send_columns, task, "one", fails_at=199)

    assert task.rows() == {}
    assert not [found.path for found in task.table().folder.stages() if "send-" in found.path]


def protected(root: str, options: Mapping[str, str], output: str, transform: Callable[[DataFrame], DataFrame]) -> Mapping[str, int]:
    """Protect a job in the session of a driver."""
    rows = session().range(20).selectExpr("id", "if(id = 7, 'bad', cast(id AS string)) AS amount")
    return protect(rows, "orders", key="one", store=root, storage_options=options, policy=ONCE, transform=transform, output=output).in_place


@pytest.mark.parametrize("where", ["bucket", "folder"])
def test_rows_of_a_data_frame_whose_files_are_not_here_are_none_the_less_messages(far: Place, nodes: Nodes, task: Task, where: str) -> None:
    output = f"{task.root}/clean" if where == "bucket" else f"{nodes.driver}/clean-{uuid4().hex}"

    counts = far.call(protected, task.root, task.options, output, cast_amount)

    assert counts == {"read": 20, "landed": 0, "filtered": 0, "messages": 20}
    landed: list[Any] = DeltaTable(output, storage_options=dict(task.options) if where == "bucket" else None).to_pyarrow_table()["id"].to_pylist()
    assert sorted(landed) == [each for each in range(20) if each != 7]

"""A topic of its own for each test, on a real broker."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, NewTopic, ResourcePatternType, ResourceType

from airflow_poison.sources.kafka import Kafka
from tools.servers.kafka import USER, Broker

if TYPE_CHECKING:
    from collections.abc import Sequence

_numbers = count()


class Topic:
    """A topic of its own for each test."""

    def __init__(self, broker: Broker, name: str = "", partitions: int = 2, **config: str) -> None:
        self.broker, self.name = broker, name or f"orders-{next(_numbers)}"
        self.admin = AdminClient(dict(broker.settings))
        self.make(partitions, **config)

    def make(self, partitions: int = 2, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        for _ in range(100):
            try:
                self.admin.create_topics([NewTopic(self.name, partitions, 1, config=settings)])[self.name].result()
                break
            except Exception:  # noqa: BLE001  (the one before it is still going)
                time.sleep(0.1)
        until(lambda: self.name in self.admin.list_topics(timeout=5).topics)

    def remove(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result()
        until(lambda: self.name not in self.admin.list_topics(timeout=5).topics)

    def produce(self, *values: str | bytes | None, partition: int = 0, **more: Any) -> None:
        producer = Producer(dict(self.broker.settings))
        for value in values:
            producer.produce(self.name, value, partition=partition, **more)
        assert producer.flush(20) == 0

    def transaction(self, values: Sequence[str], *, commit: bool, partition: int = 0) -> None:
        producer = Producer({**self.broker.settings, "transactional.id": f"writer-{self.name}"})
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=partition)
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)

    def values(self, isolation: str = "read_committed") -> list[tuple[bytes, bytes, dict[str, bytes]]]:
        consumer = Consumer({**self.broker.settings, "group.id": "looker", "isolation.level": isolation, "enable.partition.eof": True})
        partitions = len(self.admin.list_topics(self.name, timeout=5).topics[self.name].partitions)
        consumer.assign([TopicPartition(self.name, number, 0) for number in range(partitions)])
        found: list[Any] = []
        ended = 0
        while ended < partitions:
            for each in consumer.consume(1_000, 0.2):
                if each.error() is None:
                    found.append((each.key(), each.value(), dict(each.headers() or ())))
                else:
                    ended += 1
        consumer.close()
        return found

    def allow(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        who = f"User:{USER}"
        rules = [AclBinding(kind, name, ResourcePatternType.LITERAL, who, "*", each, AclPermissionType.ALLOW) for each in operations]
        for done in self.admin.create_acls(rules).values():
            done.result()

    def source(self, **more: Any) -> Kafka:
        return Kafka(self.name, self.broker.settings, **more)


def until(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)

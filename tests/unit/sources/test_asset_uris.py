"""What sources are called in assets and lineage: as Airflow's providers and OpenLineage name them, without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison import DeltaChanges, Files, Jdbc, Kafka, Outbox
from airflow_poison.sources.source import Connection

if TYPE_CHECKING:
    from airflow_poison.sources.source import Source

SHOP = "postgresql+psycopg2://ann:hush@db/shop"


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        (Files("/landing/2026/*.json"), "file:///landing/2026"),
        (Files("/landing/a.json"), "file:///landing"),
        (Files("s3://bucket/landing/**/*.json"), "s3://bucket/landing"),
        (DeltaChanges("/lake/orders"), "file:///lake/orders"),
        (DeltaChanges("s3://bucket/orders"), "s3://bucket/orders"),
        (Kafka("orders", {"bootstrap.servers": "one:9092,two:9092"}), "kafka://one:9092/orders"),
        (Kafka("orders", {"bootstrap.servers": "SASL_SSL://one:9093"}), "kafka://one:9093/orders"),
        (Jdbc(SHOP, "orders", order_by="id", overlap=10), "postgres://db:5432/shop/public/orders"),
        (Outbox("mysql://ann:hush@db:3307/shop", "orders", order_by="id", delete=True), "mysql://db:3307/shop/orders"),
        (Outbox(SHOP, "sales.orders", order_by="id", delete=True), "postgres://db:5432/shop/sales/orders"),
        (Outbox("sqlite:////data/shop.db", "orders", order_by="id", delete=True), "sqlite:///data/shop.db/orders"),
    ],
)
def test_names(source: Source, uri: str) -> None:
    assert source.asset_uri == uri


def test_a_connection_is_looked_up_first() -> None:
    found = Connection("shop", "postgres", "db", 5433, "ann", "hush", "shop")
    assert Outbox("shop", "orders", order_by="id", delete=True).connected(lambda _: found).asset_uri == "postgres://db:5433/shop/public/orders"

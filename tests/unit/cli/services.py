"""Services of the tests of commands."""

from __future__ import annotations

from airflow_poison.dialogs.services import Contract, Service

PARTS = Contract("parts", {"order": "INITIATOR", "shipped": "TARGET"})
orders = Service("Orders", [PARTS])
both = (Service("Warehouse", [PARTS]), Service("Spares", [PARTS]))
listed = [*both]
mixed = [orders, "Warehouse"]
none = ()

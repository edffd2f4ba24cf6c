"""Rights: who may read queues and who may act on them, as Airflow's auth manager says, for each connection."""

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import AssetDetails, ConnectionDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from airflow.configuration import conf
from airflow.models.connection import Connection
from fastapi import HTTPException, Query

from airflow_poison.hooks.poison import QueueHook

FORBIDDEN = 403
ASSETS: tuple[ResourceMethod, ...] = ("POST", "PUT")
"""Who may do one of these to assets may act, with the right to edit the connection."""

ConnId = Annotated[str, Query(max_length=250, pattern=r"^[\w.\-]+$", description="A connection of type poison.")]

reads = requires_access_asset("GET")
"""The guard of every route."""


def may_act(user: GetUserDep, conn_id: str) -> bool:
    """Whether a user may change the queues of a connection: asset POST or PUT, and PUT of this connection."""
    manager = get_auth_manager()
    if not any(manager.is_authorized_asset(method=method, details=AssetDetails(), user=user) for method in ASSETS):
        return False
    team = Connection.get_team_name(conn_id) if conf.getboolean("core", "multi_team", fallback=False) else None
    return bool(manager.is_authorized_connection(method="PUT", details=ConnectionDetails(conn_id=conn_id, team_name=team), user=user))


def acts(user: GetUserDep, conn_id: ConnId = QueueHook.default_conn_name) -> None:
    """Guard a route that changes queues. Raises HTTPException."""
    if not may_act(user, conn_id):
        why = f"To act on the queues of connection {conn_id!r}, you need Airflow's rights to create asset events and to edit this connection."
        raise HTTPException(FORBIDDEN, why)


def rights(user: GetUserDep, conn_id: ConnId = QueueHook.default_conn_name) -> dict[str, object]:
    """Return what a user may do with the queues of a connection. Who may act may also see what a queue masks."""
    act = may_act(user, conn_id)
    return {"read": True, "act": act, "unmask": act}

"""The plugin: the pages of queues in the Airflow UI, and the timetable. Every task process loads it, so it imports neither when it is loaded."""

from __future__ import annotations

import logging
from typing import Any, cast

from airflow.sdk.plugins_manager import AirflowPlugin

log = logging.getLogger(__name__)

PREFIX = "/poison"
PAGE = "Poison queues"
ROUTE = "poison"


class ServedApps:
    """The apps of the plugin, made when the API server asks for them: importing FastAPI takes two seconds."""

    def __get__(self, _plugin: object, _owner: type | None = None) -> list[dict[str, Any]]:
        try:
            from airflow_poison.ui.app import app
        except ImportError:  # the API server serves everything else
            log.exception("The pages of queues are not served.")
            return []
        return [{"app": app(), "url_prefix": PREFIX, "name": PAGE}]


class Timetables:
    """The timetables of the plugin, imported when a DAG is serialized or scheduled."""

    def __get__(self, _plugin: object, _owner: type | None = None) -> list[type]:
        from airflow_poison.timetables import RetryCycleTimetable

        return [RetryCycleTimetable]


class PoisonPlugin(AirflowPlugin):
    """Serves what queues hold and what people may do with it, puts a page of it under Browse, and registers RetryCycleTimetable."""

    name = "poison"
    fastapi_apps = cast("list[Any]", ServedApps())
    timetables = cast("list[Any]", Timetables())
    react_apps = [  # noqa: RUF012  (as Airflow declares it)
        {"name": PAGE, "bundle_url": f"{PREFIX.lstrip('/')}/ui/poison.js", "url_route": ROUTE, "destination": "nav", "category": "browse"}
    ]

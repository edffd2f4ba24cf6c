"""What Airflow learns about this package. It is read while Airflow configures itself, so this module imports nothing."""

from __future__ import annotations

INTEGRATION = "Poison messages"
OPERATORS = (
    "airflow_poison.operators.send",
    "airflow_poison.operators.manage",
    "airflow_poison.operators.desk",
    "airflow_poison.operators.receive",
    "airflow_poison.operators.ask",
    "airflow_poison.operators.dialogs",
    "airflow_poison.operators.submit",
)
SENSORS = ("airflow_poison.sensors",)
LINKS = ("QueueLink", "MessagesLink", "RetryLink", "PoisonLink", "EventsLink")


def get_provider_info() -> dict[str, object]:
    """Return the provider's description, valid against ``airflow/provider_info.schema.json``.

    An error in here, or another ``package-name`` than the canonical one, would break every Airflow command of the installation.
    """
    return {
        "package-name": "airflow-poison",
        "name": INTEGRATION,
        "description": "Queue tables with retry cycles and poison-message handling, received by Spark.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software"]}],
        "hooks": _modules("airflow_poison.hooks.poison"),
        "operators": _modules(*OPERATORS),
        "cli": ["airflow_poison.cli.main.get_poison_cli_commands"],
        "sensors": _modules(*SENSORS),
        "triggers": _modules("airflow_poison.triggers"),
        "task-decorators": [
            {"class-name": "airflow_poison.decorators.receive_task", "name": "receive"},
            {"class-name": "airflow_poison.decorators.send_task", "name": "send"},
        ],
        "extra-links": [f"airflow_poison.links.{link}" for link in LINKS],
        "asset-uris": [
            {
                "schemes": ["poison"],
                "handler": "airflow_poison.assets.sanitize_uri",
                "to_openlineage_converter": "airflow_poison.lineage.convert_asset_to_openlineage",
            }
        ],
        "queues": ["airflow_poison.queues.PoisonMessageQueueProvider"],
        "connection-types": [_connection_type()],
    }


def _modules(*names: str) -> list[dict[str, object]]:
    return [{"integration-name": INTEGRATION, "python-modules": list(names)}]


def _connection_type() -> dict[str, object]:
    return {
        "connection-type": "poison",
        "hook-class-name": "airflow_poison.hooks.poison.QueueHook",
        "hook-name": "Poison queues",
        "ui-field-behaviour": {"hidden-fields": ["host", "port", "schema", "login", "password", "extra"], "relabeling": {}},
        "conn-fields": {
            "store": _field("Store", "Folder or URI that holds the queue tables. Empty: the folder 'poison' in AIRFLOW_HOME."),
            "storage_options": _field(
                "Storage options", "JSON object of options for the store's file system, for example keys of an object store.", secret=True
            ),
            "credentials_conn_id": _field(
                "Credentials",
                "The id of a connection of type aws, google_cloud_platform or wasb that has keys and endpoint; storage options win over it.",
            ),
            "spark": _field(
                "Spark",
                "A Spark master like local[*] or spark://host:7077, or the id of a Spark connection; auto: none for small passes. Empty: local[*].",
            ),
            "spark_conf": _field("Spark settings", 'JSON object of Spark settings, for example {"spark.driver.memory": "2g"}.'),
            "small_pass": _field(
                "Small pass", "So many messages a pass delivers in the task itself, without Spark. Empty: 20000 with auto, else none."
            ),
            "durable": _field("Durable", "false: commits are not forced to disk; a loss of power may take acknowledged messages. Empty: true."),
            "installation": _field(
                "Installation",
                "The id of this Airflow in the keys of what its tasks do: two Airflows on one store need two. Empty: one is made for the database.",
            ),
        },
    }


def _field(label: str, description: str, *, secret: bool = False) -> dict[str, object]:
    """Return a field of the connection's form; none must be filled in."""
    schema: dict[str, object] = {"type": ["string", "null"]} | ({"format": "password"} if secret else {})
    return {"label": label, "description": description, "schema": schema}

"""What Airflow learns about this package. It is read while Airflow configures itself, so this module imports nothing."""

from __future__ import annotations


def get_provider_info() -> dict[str, object]:
    """Return the provider's description, valid against ``airflow/provider_info.schema.json``.

    An error in here, or another ``package-name`` than the canonical one, would break every Airflow command of the installation.
    """
    integration = "Poison messages"
    return {
        "package-name": "airflow-poison",
        "name": "Poison messages",
        "description": "Queue tables with retry cycles and poison-message handling, received by Spark.",
        "integrations": [{"integration-name": integration, "tags": ["software"]}],
        "hooks": [{"integration-name": integration, "python-modules": ["airflow_poison.hooks.poison"]}],
        "operators": [
            {
                "integration-name": integration,
                "python-modules": [
                    "airflow_poison.operators.send",
                    "airflow_poison.operators.return_due",
                    "airflow_poison.operators.receive",
                    "airflow_poison.operators.alert",
                    "airflow_poison.operators.alter",
                    "airflow_poison.operators.ask",
                    "airflow_poison.operators.inspect",
                    "airflow_poison.operators.maintain",
                    "airflow_poison.operators.move",
                    "airflow_poison.operators.recover",
                    "airflow_poison.operators.remove",
                ],
            }
        ],
        "cli": ["airflow_poison.cli.definition.get_poison_cli_commands"],
        "sensors": [
            {
                "integration-name": integration,
                "python-modules": [
                    "airflow_poison.sensors.queue_disabled",
                    "airflow_poison.sensors.queue_enabled",
                    "airflow_poison.sensors.queue_messages",
                    "airflow_poison.sensors.queue_poison",
                    "airflow_poison.sensors.queue_poison_gone",
                    "airflow_poison.sensors.queue_retry_due",
                ],
            }
        ],
        "triggers": [
            {"integration-name": integration, "python-modules": ["airflow_poison.triggers.queue", "airflow_poison.triggers.events"]},
        ],
        "task-decorators": [
            {"class-name": "airflow_poison.decorators.receive.receive_task", "name": "receive"},
            {"class-name": "airflow_poison.decorators.send.send_task", "name": "send"},
        ],
        "extra-links": [
            "airflow_poison.links.queue.QueueLink",
            "airflow_poison.links.queue.MessagesLink",
            "airflow_poison.links.queue.RetryLink",
            "airflow_poison.links.queue.PoisonLink",
            "airflow_poison.links.queue.EventsLink",
        ],
        "asset-uris": [
            {
                "schemes": ["poison"],
                "handler": "airflow_poison.assets.queue.sanitize_uri",
                "to_openlineage_converter": "airflow_poison.lineage.convert_asset_to_openlineage",
            }
        ],
        "queues": ["airflow_poison.queues.poison.PoisonMessageQueueProvider"],
        "connection-types": [
            {
                "connection-type": "poison",
                "hook-class-name": "airflow_poison.hooks.poison.QueueHook",
                "hook-name": "Poison queues",
                "ui-field-behaviour": {"hidden-fields": ["host", "port", "schema", "login", "password", "extra"], "relabeling": {}},
                "conn-fields": {
                    "store": {
                        "label": "Store",
                        "description": "Folder or URI that holds the queue tables. Empty: the folder 'poison' in AIRFLOW_HOME.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "storage_options": {
                        "label": "Storage options",
                        "description": "JSON object of options for the store's file system, for example keys of an object store.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "spark": {
                        "label": "Spark",
                        "description": "A Spark master such as local[*] or spark://host:7077, or the id of a Spark connection. Empty: local[*].",
                        "schema": {"type": ["string", "null"]},
                    },
                    "spark_conf": {
                        "label": "Spark settings",
                        "description": 'JSON object of Spark settings, for example {"spark.driver.memory": "2g"}.',
                        "schema": {"type": ["string", "null"]},
                    },
                    "durable": {
                        "label": "Durable",
                        "description": "false: commits are not forced to disk; a loss of power may take acknowledged messages. Empty: true.",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            }
        ],
    }

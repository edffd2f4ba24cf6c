"""From alerts to any Airflow notifier."""

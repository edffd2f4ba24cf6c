"""Pages of queues in the Airflow UI: what is read, what is served, and the script that shows it. Nothing here changes anything."""

"""Pages of queues in the Airflow UI: what is read, what is served, and the script `poison.js` that renders it. Nothing here changes anything."""

"""Pages of queues in the Airflow UI: what is read, what is served, and the page (its sources: `frontend`). Nothing here changes anything."""

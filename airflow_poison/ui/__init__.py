"""Pages of queues in the Airflow UI: what is read, what people may do, what is served, and the page (its sources: `frontend`)."""

"""Triggers: what waits on queues in Airflow's triggerer, one look at a store for all of them."""

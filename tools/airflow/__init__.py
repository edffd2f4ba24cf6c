"""A real Airflow of one's own on loopback, for the demo and for tests: its folder, its processes, and a client of its REST API."""

"""What people and programs are told: Prefect's pages and events, the log, the pool's page, metrics, spans."""

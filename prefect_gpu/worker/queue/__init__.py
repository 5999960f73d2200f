"""From Prefect's queue to the scheduler, and what Prefect shows of runs that wait."""

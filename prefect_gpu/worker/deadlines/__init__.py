"""What is answered to whoever wants a run to end by a date, and what Prefect is told of it."""

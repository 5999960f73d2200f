"""A private Prefect server, and Docker nodes on one machine: for `prefect-gpu up`, demos, benchmarks and tests."""

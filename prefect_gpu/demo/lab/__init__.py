"""A private Prefect server, and Docker nodes on one machine: for the demos, the benchmarks and the tests."""

"""Best loss against time: our sweep against plain Optuna, in our pool and with Prefect's process worker."""

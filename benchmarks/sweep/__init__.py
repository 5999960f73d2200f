"""A sweep of real trainings on one device: our pool against Prefect's process worker."""

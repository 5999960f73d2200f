"""How the worker writes to its own folder: whole files, for its user alone, and the log of events."""

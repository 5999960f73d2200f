"""What the worker writes to its own folder, and what is removed of it."""

"""Carried out by Alembic for each command, in the transaction of whoever asked for it."""

from __future__ import annotations

from alembic import context

from prefect_gpu.storage.migrations import revision_table

context.configure(connection=context.config.attributes["connection"], version_table=revision_table.name)
context.run_migrations()

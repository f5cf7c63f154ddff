"""Alembic's entry point: runs on the connection that `schema.migrate` hands over."""

from alembic import context

from rag_pipeline.adapters.postgres.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()

"""The row sets, one module per record: what is claimed, how it is measured, and what was chosen."""

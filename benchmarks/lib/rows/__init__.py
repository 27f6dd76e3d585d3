"""The row sets, one module per record (claim, measurement, choices), and what several sets share."""

"""The run folder and all that writes into it: stages, checkpoints, the journal of metrics, provenance and curves."""

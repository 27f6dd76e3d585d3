"""The in-graph sampler: the runtime's noise stream in tensor operations, so that a file draws its own votes."""

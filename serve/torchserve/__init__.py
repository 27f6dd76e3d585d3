"""TorchServe as the server: archive, configuration, processes, and the handler that its workers call."""

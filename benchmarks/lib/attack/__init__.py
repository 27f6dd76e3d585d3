"""A server under attack and under load: the tests of `benchmarks/trust/server.py`, for any engine."""

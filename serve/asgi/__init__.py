"""The living server: Starlette and uvicorn over `serve/service`, in worker processes that a launcher supervises."""

"""Overload: many clients ask for certificates without pause, and readiness is asked for all the while."""

import http.client
import threading
import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.lib.attack.bodies import NAME, json_body
from benchmarks.lib.attack.target import Target

__all__ = ["run"]


def run(target: Target, *, clients: int, seconds: float, n: int = 5000) -> dict[str, Any]:
    """Statuses of the clients, and how quickly readiness answered, at the worst, throughout."""
    end = threading.Event()
    statuses: Counter[int] = Counter()
    waits: list[float] = []
    lock = threading.Lock()
    body, headers = json_body(n=n), {"Content-Type": "application/json"}

    def client() -> None:
        while not end.is_set():
            began = time.perf_counter()
            try:
                status, _ = target.ask(f"/predictions/{NAME}", body, headers, timeout=600)
            except (OSError, http.client.HTTPException):
                status = 0
            with lock:
                statuses[status] += 1
                if status == 503:
                    waits.append(time.perf_counter() - began)
            if status == 503:
                end.wait(0.2)  # the least that a client does when it is told to come back

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    probes: list[tuple[bool, float]] = []
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        probes.append(target.is_ready())
        time.sleep(0.05)
    end.set()
    for thread in threads:
        thread.join(600)
    return {
        "clients": clients,
        "seconds": seconds,
        "statuses": dict(sorted(statuses.items())),
        "probes": len(probes),
        "not_ready": sum(not ready for ready, _ in probes),
        "readiness_worst_ms": round(1e3 * max(wait for _, wait in probes), 1),
        "readiness_p99_ms": round(1e3 * float(np.percentile([wait for _, wait in probes], 99)), 1),
        "refusal_worst_ms": round(1e3 * max(waits, default=0.0), 1),
    }

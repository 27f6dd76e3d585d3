"""Soak: an hour at 70 % of what the server can do, and whether anything grows.

Capacity is measured first, with as many clients as keep the server busy. Then requests come at 70 % of that rate by a
clock, whether earlier ones are answered or not (an open loop: a slow answer delays no later request, and latency counts
from the moment at which the request was due). Every minute is a window: p99 latency, memory and descriptors of all
processes, processor time per request.

Trend: the Theil-Sen slope over the windows after the first five minutes (of all, in a soak of less than ten, which
proves little), with its 99 % interval (distribution-free, so that a minute in which the machine was busy with other
things counts as one minute). It is a trend if even the lower end of the interval adds more than 5 % of the median in an
hour.
"""

import http.client
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import theilslopes

from benchmarks.lib.attack.bodies import good_request
from benchmarks.lib.attack.target import TOKEN, Target

__all__ = ["WARM_UP", "measure_capacity", "run", "trend", "verdict"]

SHARE = 0.7
WINDOW = 60.0
WARM_UP = 5  # windows
TOLERANCE = 0.05  # of the median, per hour
CLIENTS = 32
MEASURES = {"p99_ms": "p99 latency (ms)", "megabytes": "memory (MB)", "descriptors": "descriptors",
            "cpu_ms": "processor time per request (ms)"}  # fmt: skip


@dataclass
class Load:
    """Requests that are due at fixed times, and their answers."""

    target: Target
    rate: float | None  # per second; None: as fast as the clients can
    end: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    next_number: int = 0
    began: float = field(default_factory=time.perf_counter)
    done: list[tuple[float, int]] = field(default_factory=list)  # seconds from due to answer, status

    def take(self) -> tuple[int, float] | None:
        """The next request's number, and when it is due."""
        with self.lock:
            number = self.next_number
            due = time.perf_counter() if self.rate is None else self.began + number / self.rate
            if due >= self.end:
                return None
            self.next_number += 1
            return number, due

    def collect(self) -> list[tuple[float, int]]:
        """What was answered since the last call."""
        with self.lock:
            found, self.done = self.done, []
            return found

    def client(self) -> None:
        """One client: takes what is due, asks, notes the answer."""
        connection = http.client.HTTPConnection(*self.target.address, timeout=120)
        while (taken := self.take()) is not None:
            number, due = taken
            time.sleep(max(0.0, due - time.perf_counter()))
            path, body, headers = good_request(number)
            try:
                connection.request("POST", path, body, {"Authorization": f"Bearer {TOKEN}", **headers})
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, http.client.HTTPException):
                connection.close()
                status = 0
            with self.lock:
                self.done.append((time.perf_counter() - due, status))
        connection.close()

    def start(self, clients: int) -> list[threading.Thread]:
        """All clients at work."""
        threads = [threading.Thread(target=self.client, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        return threads


def measure_capacity(target: Target, *, seconds: float) -> float:
    """Answers per second when sixteen clients ask without pause."""
    for length in (min(10.0, seconds), seconds):  # the first one warms up
        load = Load(target, None, time.perf_counter() + length)
        began = time.perf_counter()
        for thread in load.start(16):
            thread.join()
        done = [status for _, status in load.collect()]
    return done.count(200) / (time.perf_counter() - began)


def run(target: Target, file: Path, *, seconds: float, capacity_seconds: float = 40.0) -> list[dict[str, Any]]:
    """The soak; every window is appended to `file` as one line of JSON, and all of them are returned."""
    capacity = measure_capacity(target, seconds=capacity_seconds)
    rate = SHARE * capacity
    load = Load(target, rate, time.perf_counter() + seconds)
    threads = load.start(CLIENTS)
    windows: list[dict[str, Any]] = []
    spent = target.processor_seconds()
    workers = target.workers()
    file.unlink(missing_ok=True)
    while time.perf_counter() + WINDOW <= load.end + 1:
        time.sleep(max(0.0, load.began + (len(windows) + 1) * WINDOW - time.perf_counter()))
        answers, now = load.collect(), target.processor_seconds()
        latencies = [latency for latency, _ in answers] or [float("nan")]
        window = {
            "minute": len(windows) + 1,
            "rate": round(rate, 2),
            "capacity": round(capacity, 2),
            "answers": len(answers),
            "failed": sum(status != 200 for _, status in answers),
            "p50_ms": round(1e3 * float(np.percentile(latencies, 50)), 2),
            "p99_ms": round(1e3 * float(np.percentile(latencies, 99)), 2),
            "megabytes": round(target.megabytes(), 1),
            "descriptors": target.descriptors(),
            "cpu_ms": round(1e3 * (now - spent) / max(1, len(answers)), 3),
            "load": round(os.getloadavg()[0], 1),
            "restarted": len(target.workers() - workers),
        }
        spent = now
        windows.append(window)
        with file.open("a") as lines:
            lines.write(json.dumps(window) + "\n")
    for thread in threads:
        thread.join(150)
    return windows


def trend(values: Sequence[float]) -> dict[str, float]:
    """Growth per hour by Theil-Sen with its 99 % interval, and the median."""
    slope, _, low, high = theilslopes(values, np.arange(len(values)) / 60, alpha=0.99)
    return {"median": float(np.median(values)), "per_hour": float(slope), "low": float(low), "high": float(high)}


def verdict(windows: Sequence[dict[str, Any]]) -> tuple[bool, str, dict[str, Any]]:
    """Whether nothing grows, in words, and the trends."""
    kept = windows[WARM_UP if len(windows) >= 2 * WARM_UP else 0 :]
    trends = {name: trend([window[name] for window in kept]) for name in MEASURES}
    grown = [name for name, found in trends.items() if found["low"] > TOLERANCE * found["median"]]
    failed = sum(window["failed"] for window in windows)
    restarted = max(window["restarted"] for window in windows)
    words = [
        f"{MEASURES[name]} {found['median']:.4g}, per hour {found['per_hour']:+.2g} [{found['low']:+.2g}, "
        f"{found['high']:+.2g}]" + (" **grows**" if name in grown else "")
        for name, found in trends.items()
    ]
    answers = sum(window["answers"] for window in windows)
    head = (
        f"{len(windows)} minutes at {windows[0]['rate']:g} of {windows[0]['capacity']:g} requests per second, "
        f"{answers:,} answers, {failed} failed, {restarted} processes restarted"
    )
    return not grown and failed == 0 and restarted == 0, "; ".join([head, *words]), trends

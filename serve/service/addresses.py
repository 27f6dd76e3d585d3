"""Where a server listens: its own port, and beside it those of the metrics and of health checks."""

import socket
from contextlib import ExitStack
from dataclasses import dataclass

from robustinfer.errors import ArgumentError, ServeError

from .options import ServeOptions

__all__ = ["Addresses", "bound", "choose_addresses", "family", "require_free"]


@dataclass(frozen=True)
class Addresses:
    """The addresses of one server."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int
    health_port: int

    @property
    def url(self) -> str:
        """The address clients use."""
        return f"http://{_reachable(self.host)}:{self.port}"

    @property
    def metrics_url(self) -> str:
        """The address Prometheus uses."""
        return f"http://{_reachable(self.metrics_host)}:{self.metrics_port}/metrics"

    @property
    def health_url(self) -> str:
        """The address orchestrators use: `/live` and `/ready` below it answer at once."""
        return f"http://{_reachable(self.metrics_host)}:{self.health_port}"


def choose_addresses(options: ServeOptions) -> Addresses:
    """The ports that the options name, and free ones where they leave the choice; they must differ."""
    # By custom health and metrics stand one and two ports above. A server on any free port has them on any free ports.
    beside = {name: options.port + step if options.port else 0 for name, step in (("health", 1), ("metrics", 2))}
    wanted = {
        "port": (options.host, options.port),
        "metrics": (options.metrics_host, _given(options.metrics_port, beside["metrics"])),
        "health": (options.metrics_host, _given(options.health_port, beside["health"])),
    }
    with ExitStack() as held:  # all at once, or the same free port might be found twice
        port, metrics_port, health_port = (
            number or _bound_port(held.enter_context(_bind(host, 0))) for host, number in wanted.values()
        )
    if len({port, metrics_port, health_port}) < 3:
        raise ArgumentError(
            f"port, metrics_port and health_port must differ; found {port}, {metrics_port} and {health_port}."
        )
    return Addresses(options.host, port, options.metrics_host, metrics_port, health_port)


def bound(host: str) -> str:
    """The host as an address has it."""
    return f"[{host}]" if ":" in host else host


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else bound(host)


def family(host: str) -> socket.AddressFamily:
    """IPv6 where the host is such an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def require_free(host: str, port: int) -> None:
    """Refuse, with a sentence, a port that another program has."""
    _bind(host, port).close()


def _given(chosen: int | None, default: int) -> int:
    return default if chosen is None else chosen


def _bound_port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(family(host))
    # As the server does: connections of a former one that are still closing do not count.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServeError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    return listener

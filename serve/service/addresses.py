"""Where a server listens: its own port, and beside it those of the metrics and of health checks."""

import socket
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
    port = options.port or require_free(options.host, 0)
    # By custom the metrics stand two ports above. A server on any free port has them on any free port, too.
    beside = port + 2 if options.port else 0
    metrics_port = options.metrics_port if options.metrics_port is not None else beside
    metrics_port = metrics_port or require_free(options.metrics_host, 0)
    beside = port + 1 if options.port else 0
    health_port = options.health_port if options.health_port is not None else beside
    health_port = health_port or require_free(options.metrics_host, 0)
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


def require_free(host: str, port: int) -> int:
    """The port, or any free one for 0; a sentence if another program has it."""
    with socket.socket(family(host)) as probe:
        # As the server does: connections of a former one that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServeError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
        return int(probe.getsockname()[1])

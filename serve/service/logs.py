"""Logs: one JSON object per line on stderr, with the request's id, and without headers, images or query strings."""

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

__all__ = ["LOG4J", "announce", "log_to_stderr", "quiet_worker", "record"]

# Lines that are JSON already (the workers' request records) pass as they are; all others are wrapped. A query string
# could hold what a user typed by mistake, so addresses are logged without it.
LOG4J = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders>
    <Console name="records" target="SYSTEM_ERR">
      <PatternLayout pattern="%m%n"/>
      <RegexFilter regex="^\\{.*\\}$" onMatch="ACCEPT" onMismatch="DENY"/>
    </Console>
    <Console name="wrapped" target="SYSTEM_ERR">
      <PatternLayout alwaysWriteExceptions="false" pattern='{"time":"%d{yyyy-MM-dd&apos;T&apos;HH:mm:ss.SSSXXX}",\
"level":"%p","logger":"%c{1}","message":"%enc{%replace{%m %ex{short}}{\\?\\S*}{}}{JSON}"}%n'/>
      <RegexFilter regex="^\\{.*\\}$" onMatch="DENY" onMismatch="ACCEPT"/>
    </Console>
  </Appenders>
  <Loggers>
    <Logger name="org.pytorch.serve" level="warn"/>
    <Logger name="io.netty" level="error"/>
    <Logger name="org.apache" level="off"/>
    <Logger name="ACCESS_LOG" level="info"/>
    <Logger name="MODEL_LOG" level="info"/>
    <Logger name="MODEL_METRICS" level="off"/>
    <Logger name="TS_METRICS" level="off"/>
    <Root level="warn">
      <AppenderRef ref="records"/>
      <AppenderRef ref="wrapped"/>
    </Root>
  </Loggers>
</Configuration>
"""

_log = logging.getLogger("robust.serve")


def quiet_worker() -> None:
    """In a worker: silence TorchServe's line for each batch, and keep its metrics, which travel through the log."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("ts.metrics.caching_metric").setLevel(logging.INFO)
    _log.setLevel(logging.INFO)


class _Lines(logging.Formatter):
    """Records that are JSON already pass as they are; all others are wrapped, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        if record.name == _log.name:
            return record.getMessage()
        fields = {"level": record.levelname, "logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = repr(record.exc_info[1])
        return _line(record.getMessage(), fields)


class _Gathering(logging.StreamHandler[TextIO]):
    """Writes the lines of one turn of the event loop together; outside an event loop each line as it comes.

    A system call lets go of the interpreter, which the engine's threads are quick to take.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line until the turn ends."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            super().emit(record)
            return
        try:
            self._lines.append(self.format(record) + self.terminator)
        except Exception:  # as every handler does: a line that cannot be written costs nobody an answer
            self.handleError(record)
        if len(self._lines) == 1:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was kept. Lines of other threads come in between, and perhaps nobody reads them any more."""
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            with suppress(OSError, ValueError):
                self.stream.write("".join(lines))
                super().flush()
        finally:
            self.release()


def log_to_stderr() -> None:
    """In a worker of our own: every line of the log is JSON, also those of libraries, of which only warnings are."""
    handler = _Gathering()
    handler.setFormatter(_Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _log.setLevel(logging.INFO)


def announce(event: str, /, **fields: Any) -> None:
    """Write one event of the launcher itself to stderr, in the form of all other lines."""
    sys.stderr.write(_line(event, fields) + "\n")
    sys.stderr.flush()


def record(event: str, /, **fields: Any) -> None:
    """Log one event as JSON. Only give it what is safe to keep: ids, counts, times, codes."""
    if _log.isEnabledFor(logging.INFO):
        # As `Logger.info` does, but without a walk up the stack for the name of the caller, which no line shows.
        _log.handle(logging.LogRecord(_log.name, logging.INFO, __file__, 0, _line(event, fields), None, None))


def _line(event: str, fields: Mapping[str, Any]) -> str:
    """ASCII only, one line: a field can neither end the line nor look like one of TorchServe's own marks."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "event": event, **fields}, ensure_ascii=True)

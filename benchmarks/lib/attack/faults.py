"""Faults: lost and hung workers, a foreign environment, clients that hang up, drains, and bad configurations."""

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.lib.attack.bodies import NAME, json_body
from benchmarks.lib.attack.floods import predict
from benchmarks.lib.attack.ledger import Observation
from benchmarks.lib.attack.target import TOKEN, Target, eventually

__all__ = ["bad_configurations", "environment_of", "hang_ups", "hung_engine", "killed_engine", "quiet_home", "rotation"]

_JSON = {"Content-Type": "application/json"}


def killed_engine(target: Target) -> Observation:
    """Kill -9 what computes, while it computes."""
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(_certify, target, 20_000) for _ in range(8)]
        time.sleep(0.3)
        for pid in target.engines():
            os.kill(pid, signal.SIGKILL)
        statuses = Counter(future.result() for future in asked)
    back = eventually(lambda: target.process.poll() is not None or predict(target, 10) == 200, seconds=120)
    code = target.process.poll()
    words = f"requests under way got {dict(statuses)}; "
    words += f"the command ended with code {code}" if code is not None else f"answers again after {back or 0:.1f} s"
    return Observation(back is not None and (code is None or code != 0), words)


def _certify(target: Target, n: int) -> int:
    try:
        return target.ask(f"/predictions/{NAME}", json_body(n=n), _JSON, timeout=300)[0]
    except (OSError, http.client.HTTPException):
        return 0


def hung_engine(target: Target) -> Observation:
    """Stop what computes, for good: it is there and does nothing."""
    stopped = target.engines()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        unready = eventually(lambda: target.process.poll() is not None or not target.is_ready()[0], seconds=60)
        settled = eventually(
            lambda: target.process.poll() is not None or (target.is_ready()[0] and predict(target, 5) == 200),
            seconds=150,
        )
        code, waited = target.process.poll(), time.monotonic() - began
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    said = target.log.read_text().strip().splitlines()[-1][:160] if code is not None else ""
    words = f"not ready after {unready or 0:.1f} s; " if unready is not None else "still said to be ready after 60 s; "
    if settled is None:
        words += "neither restarted nor ended in 150 s"
    else:
        words += (
            f"ended with code {code} after {waited:.0f} s ({said})"
            if code is not None
            else (f"replaced, answers again after {waited:.0f} s")
        )
    return Observation(unready is not None and settled is not None and code != 0, words)


def hang_ups(target: Target) -> Observation:
    """Forty clients ask for 100,000 samples and hang up; then somebody asks for a prediction."""
    body = json_body(n=100_000)
    head = (
        f"POST /predictions/{NAME} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    began = time.monotonic()
    _certify(target, 100_000)
    one = time.monotonic() - began
    for _ in range(40):
        with socket.create_connection(target.address, timeout=30) as connection:
            connection.sendall(head + body)
            time.sleep(0.02)
    began = time.monotonic()
    status = predict(target, 600)
    waited = time.monotonic() - began
    words = f"one such certificate takes {one:.1f} s; the prediction ({status}) came after {waited:.1f} s"
    return Observation(status == 200 and waited < 3 * one + 2, words, {"one": one, "waited": waited})


def drain(target: Target, *, cut: bool) -> Observation:
    """SIGTERM while thirty accepted requests are under way."""
    with ThreadPoolExecutor(30) as pool:
        asked = [pool.submit(_certify, target, 100_000 if cut else 5000) for _ in range(30)]
        time.sleep(1.0)
        code = target.stop()
        statuses = Counter(future.result() for future in asked)
    said = next((line for line in target.log.read_text().splitlines() if "cut off" in line), "")
    words = f"{dict(statuses)}, exit code {code}" + (f", {_sentence(said)!r}" if said else ", nothing said")
    lost = statuses[0] + statuses[500] + statuses[507]
    if cut:
        return Observation((lost == 0 and code == 0) or (code != 0 and bool(said)), words)
    return Observation(lost == 0 and code == 0, words)


def _sentence(line: str) -> str:
    found = re.search(r"\d+ accepted requests were cut off after [\d.]+ s", line)
    return found.group(0) if found else line[:160]


FOREIGN = {
    "TS_CONFIG_FILE": "/nonexistent/hostile.properties",
    "http_proxy": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "no_proxy": "",
    "DATABASE_URL": "postgres://user:word@host/base",
    "DB_PASSWORD": "a word",
    "AWS_SECRET_ACCESS_KEY": "a word",
}


def environment_of(target: Target) -> Observation:
    """A server that was started among foreign variables and secrets: what its processes see of them."""
    seen: set[str] = set()
    for pid in target.processes():
        if pid != target.process.pid:
            with contextlib.suppress(OSError):
                entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                seen |= {entry.partition("=")[0] for entry in entries} & {*FOREIGN, "ROBUST_SERVE_TOKEN"}
    status = predict(target)
    words = f"it started, a prediction got {status}; its processes see {', '.join(sorted(seen)) or 'none of them'}"
    return Observation(status == 200 and not seen, words)


def quiet_home(target: Target, home: Path) -> Observation:
    """A server whose home folder is empty: files in it, and connections to anything but loopback."""
    predict(target)
    files = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]
    outside = sorted(_remote_addresses(target))
    words = f"{len(files)} files in the home folder, {len(outside)} connections beyond loopback"
    return Observation(not files and not outside, words, {"files": files, "outside": outside})


def _remote_addresses(target: Target) -> set[str]:
    found: set[str] = set()
    own = set()
    for pid in target.processes():
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    own.add(os.readlink(link))  # noqa: PTH115 (no path, but a name)
    for table in ("tcp", "udp"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            remote = fields[2].partition(":")[0]
            if f"socket:[{fields[9]}]" in own and remote not in ("00000000", "0100007F"):
                found.add(remote)
    return found


def rotation(target: Target, file: Path) -> Observation:
    """Another token in the file, and SIGHUP."""
    other = "another-token-for-the-attack-0123"
    file.write_text(other)
    target.process.send_signal(signal.SIGHUP)

    def status(token: str) -> int:
        body, headers = json_body(n=200, mode="predict"), {**_JSON, "Authorization": f"Bearer {token}"}
        return target.ask_plainly(f"/predictions/{NAME}", body, headers)[0]

    changed = eventually(lambda: status(other) == 200, seconds=30)
    old = status(TOKEN)
    words = f"the new token works after {changed or 0:.1f} s, the old one gets {old}, the server keeps running"
    return Observation(changed is not None and old == 401 and target.process.poll() is None, words)


BAD: dict[str, tuple[str, list[str]]] = {
    "max_seconds = nan": ("max_seconds = nan", []),
    "max_deadline = inf": ("max_deadline = inf", []),
    "heap_megabytes = 1": ("heap_megabytes = 1", []),
    "900 workers": ("workers = 900", []),
    "a host that is none": ("", ["--host", "no such host"]),
    "a host of another machine": ("", ["--host", "192.0.2.1"]),
    "equal ports": ("", ["--port", "18181", "--health-port", "18181"]),
    "an unknown key": ("no_such_key = 1", []),
    "a short token": ("", []),
}


def bad_configurations(command: str, model: Path, folder: Path) -> Observation:
    """Mistakes, each of which is refused with a sentence and without a trace."""
    wrong = []
    for name, (text, options) in BAD.items():
        config = folder / "bad.toml"
        config.write_text(text + "\n")
        code, said = _start(command, model, ["--config", str(config), *options], "short" if "token" in name else TOKEN)
        if code in (0, None) or "Traceback" in said or "\tat " in said or not said.strip():
            wrong.append(f"{name} (code {code})")
    strange = folder / "t\u00e9mp"
    strange.mkdir(exist_ok=True)
    code, said = _start(command, model, [], TOKEN, TMPDIR=str(strange))
    if (code not in (1, 2) or "Traceback" in said or "\tat " in said) and not said.startswith("ready"):
        wrong.append(f"a temporary folder that is not ASCII (code {code})")
    code, said = _start(command, model, ["--host", "::1"], TOKEN)
    if socket.has_ipv6 and not said.startswith("ready"):
        wrong.append(f"--host ::1 does not start (code {code})")
    count = len(BAD) + 2
    return Observation(not wrong, f"{count - len(wrong)} of {count}" + (f"; not: {', '.join(wrong)}" if wrong else ""))


def _start(command: str, model: Path, options: list[str], token: str, **more: str) -> tuple[int | None, str]:
    """The exit code and the log of a server that should not start; "ready" and 0 if it does, and is ended."""
    words = [word.format(model=model) for word in shlex.split(command)] + options
    if words[0] == "robust":
        words = [str(Path(sys.executable).with_name("robust")), *words[1:]]
    own = {**os.environ, "ROBUST_SERVE_TOKEN": token, **more}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=own)
    assert process.stdout is not None
    line = process.stdout.readline()  # its addresses, or nothing when it ends
    if line:
        with contextlib.suppress(ValueError):
            json.loads(line)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        return 0, "ready"
    _, said = process.communicate(timeout=300)
    return process.returncode, said.decode(errors="replace")

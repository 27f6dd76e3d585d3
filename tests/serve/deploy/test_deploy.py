"""The files of a deployment: linted, checked against their schemas, and their commands run as they stand."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from robust.serve import ServeOptions
from robust.serve.service.probes import health_url
from robust.serve.torchserve import devices

from ..conftest import Server, serving

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "serve" / "deploy"
MANIFESTS = [path for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) if path.name != "kustomization.yaml"]


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: word and value, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, value) for word, _, value in (line.partition(" ") for line in text.splitlines() if line.strip())]


def values(word: str) -> list[str]:
    return [value for found, value in dockerfile() if found == word]


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_image_is_not_run_by_root_and_copies_only_what_the_builder_sees() -> None:
    assert values("USER") == ["10001"]
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for value in values("COPY") if "--from" not in value for name in value.split()[:-1]}
    assert copied == seen
    flavours = [value.rpartition(" ")[2] for value in values("FROM")]
    assert {"base-cpu", "base-gpu"} <= set(flavours)
    extras = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{flavour} = \[", extras, flags=re.MULTILINE) for flavour in ("cpu", "gpu", "serve"))


def environment_of_the_image() -> dict[str, str]:
    pairs = [pair.partition("=") for pair in shlex.split(" ".join(values("ENV")))]
    return {name: value for name, _, value in pairs if name.startswith("ROBUST_")}


@pytest.mark.server
@pytest.mark.xdist_group("server")
def test_the_commands_of_the_image_serve_and_are_healthy(tiny: Path, tmp_path: Path) -> None:
    """Entry point and health check in the image's environment, with other ports and a temporary folder of its own."""
    entry = json.loads(values("ENTRYPOINT")[0])
    check = json.loads(values("HEALTHCHECK")[0].partition("CMD ")[2])
    assert entry == ["robust", "serve"]
    assert shutil.which("robust", path=str(Path(sys.executable).parent))
    folder = Path(tempfile.mkdtemp())  # sockets need short names: pytest's own folders have long ones
    environment = environment_of_the_image() | {"TMPDIR": str(folder)}
    assert environment["ROBUST_SERVE_HOST"] == "0.0.0.0"

    def health(port: str) -> int:
        own = {**os.environ, **environment, "ROBUST_SERVE_PORT": port}
        return subprocess.run([sys.executable, *check[1:]], env=own, capture_output=True, timeout=60).returncode

    try:
        assert health("1") == 1
        ports = {"ROBUST_SERVE_METRICS_PORT": "0", "ROBUST_SERVE_METRICS_HOST": "127.0.0.1"}
        with serving(tmp_path, f"model={tiny}", "--host", "127.0.0.1", environment=environment | ports) as server:
            assert health(str(port_of(server))) == 0
        assert list(folder.iterdir()) == []
    finally:
        shutil.rmtree(folder)


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_follow_the_schemas_of_kubernetes(path: Path) -> None:
    checker = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(path.read_text()):
        checker.validate(document, "1.30", strict=True)


def container() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text())
    (found,) = document["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_probes_ask_the_addresses_the_server_has() -> None:
    expected = health_url("", "model")
    for probe in ("startupProbe", "readinessProbe"):
        assert container()[probe]["httpGet"] == {"path": expected, "port": "http"}
    assert container()["livenessProbe"]["httpGet"]["path"] == "/ping"
    ports = {port["name"]: str(port["containerPort"]) for port in container()["ports"]}
    image = environment_of_the_image()
    assert ports == {"http": image["ROBUST_SERVE_PORT"], "metrics": image["ROBUST_SERVE_METRICS_PORT"]}


def test_a_pod_has_time_to_drain() -> None:
    document = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text())
    assert document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > ServeOptions().drain_timeout + 20
    listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [path.name for path in MANIFESTS]


def test_the_example_configuration_is_the_default_one() -> None:
    options = ServeOptions.read(DEPLOY / "serve.toml", {"token_file": Path("x")})
    assert options == ServeOptions(token_file=Path("x"))


def test_compose_mounts_what_the_configuration_names() -> None:
    document = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    serve = document["services"]["serve"]
    assert f"./serve.toml:{serve['environment']['ROBUST_SERVE_CONFIG']}:ro" in serve["volumes"]
    assert ServeOptions.read(DEPLOY / "serve.toml", {}).token_file == Path("/run/secrets") / serve["secrets"][0]
    assert (DEPLOY / serve["build"]["context"] / "Dockerfile").resolve() == ROOT / "Dockerfile"
    assert serve["read_only"] is True


def test_cores_follow_the_limit_of_the_container(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    free = devices._cores(quota)
    quota.write_text("max 100000\n")
    assert devices._cores(quota) == free
    quota.write_text("50000 100000\n")
    assert devices._cores(quota) == 1

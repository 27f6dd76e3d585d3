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
from robust.serve.service import devices
from robust.serve.service.measures import METRICS

from ...waiting import eventually
from ..conftest import ENGINES, TORCHSERVE_IS_SLOW, serving

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
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout


def test_the_image_is_not_run_by_root_and_copies_only_what_the_builder_sees() -> None:
    assert values("USER") == ["10001"]
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for value in values("COPY") if "--from" not in value for name in value.split()[:-1]}
    assert copied == seen
    flavours = {value.rpartition(" ")[2]: value.partition(" ")[0] for value in values("FROM")}
    for base in ("base-cpu", "base-gpu"):
        assert re.search(r":[^@]+@sha256:[0-9a-f]{64}$", flavours[base]), "a base is pinned by tag and digest"
    extras = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{flavour} = \[", extras, flags=re.MULTILINE) for flavour in ("cpu", "gpu", *ENGINES))


def environment_of_the_image() -> dict[str, str]:
    pairs = [pair.partition("=") for pair in shlex.split(" ".join(values("ENV")))]
    return {name: value for name, _, value in pairs if name.startswith("ROBUST_")}


@pytest.mark.server
@TORCHSERVE_IS_SLOW
def test_the_commands_of_the_image_serve_and_are_healthy(tiny: Path, tmp_path: Path, engine: str) -> None:
    """Entry point and health check in the image's environment, with other ports and a temporary folder of its own."""
    entry = json.loads(values("ENTRYPOINT")[0])
    check = json.loads(values("HEALTHCHECK")[0].partition("CMD ")[2])
    assert entry == ["robust", "serve"]
    assert shutil.which("robust", path=str(Path(sys.executable).parent))
    folder = Path(tempfile.mkdtemp())  # sockets need short names: pytest's own folders have long ones
    environment = environment_of_the_image() | {"TMPDIR": str(folder)}
    assert environment["ROBUST_SERVE_HOST"] == "0.0.0.0"

    def health() -> int:
        own = {**os.environ, **environment}
        return subprocess.run([sys.executable, *check[1:]], env=own, capture_output=True, timeout=250).returncode

    try:
        assert health() == 1
        ports = {f"ROBUST_SERVE_{kind}_PORT": "0" for kind in ("METRICS", "HEALTH")}
        own = environment | ports | {"ROBUST_SERVE_METRICS_HOST": "127.0.0.1"}
        with serving(tmp_path, f"model={tiny}", "--host", "127.0.0.1", environment=own, engine=engine):
            eventually(lambda: health() == 0)
        assert list(folder.iterdir()) == []
    finally:
        shutil.rmtree(folder)


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
    asked = {probe: container()[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: (get["path"], get["port"]) for name, get in asked.items()} == {
        "startupProbe": ("/ready", "health"),
        "readinessProbe": ("/ready", "health"),
        "livenessProbe": ("/live", "health"),
    }
    ports = {port["name"]: str(port["containerPort"]) for port in container()["ports"]}
    image = environment_of_the_image()
    assert ports == {
        "http": image["ROBUST_SERVE_PORT"],
        "health": image["ROBUST_SERVE_HEALTH_PORT"],
        "metrics": image["ROBUST_SERVE_METRICS_PORT"],
    }


def test_a_pod_has_time_to_drain() -> None:
    document = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text())
    drain = {entry["name"]: entry["value"] for entry in container()["env"]}["ROBUST_SERVE_DRAIN_TIMEOUT"]
    assert document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > float(drain) + 20
    seconds = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]["serve"]["stop_grace_period"]
    timeout = ServeOptions.read(DEPLOY / "serve.toml", {}).drain_timeout
    assert timeout is not None
    assert float(seconds.rstrip("s")) > timeout + 20
    listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [path.name for path in MANIFESTS]


def test_the_example_configuration_is_the_default_one() -> None:
    options = ServeOptions.read(DEPLOY / "serve.toml", {"token_file": Path("x")})
    assert options == ServeOptions(token_file=Path("x"), drain_timeout=options.drain_timeout)


def test_compose_mounts_what_the_configuration_names() -> None:
    document = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    serve = document["services"]["serve"]
    assert f"./serve.toml:{serve['environment']['ROBUST_SERVE_CONFIG']}:ro" in serve["volumes"]
    assert ServeOptions.read(DEPLOY / "serve.toml", {}).token_file == Path("/run/secrets") / serve["secrets"][0]
    assert (DEPLOY / serve["build"]["context"] / "Dockerfile").resolve() == ROOT / "Dockerfile"
    assert serve["read_only"] is True
    # TorchServe loads a native library from there; Docker mounts a tmpfs noexec unless told otherwise.
    assert serve["tmpfs"][0].startswith("/tmp:")
    assert "exec" in serve["tmpfs"][0].split(":")[1].split(",")
    # Paths are relative to the compose file: the folders its comment makes in the root of the repository.
    for path in (serve["volumes"][0].split(":")[0], document["secrets"]["token"]["file"]):
        assert ROOT in (DEPLOY / path).resolve().parents
        assert DEPLOY not in (DEPLOY / path).resolve().parents


def test_no_secret_reaches_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"**/secrets", "**/*.pem", "**/*.key", "**/.env*"} <= set(ignored)


@pytest.mark.parametrize("overlay", ["gpu", "asgi"])
def test_an_overlay_changes_what_the_deployment_has(overlay: str) -> None:
    folder = DEPLOY / "kubernetes" / overlay
    document = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert (folder / document["resources"][0] / "kustomization.yaml").is_file()
    (patch,) = document["patches"]
    target = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text())
    assert (patch["target"]["kind"], patch["target"]["name"]) == (target["kind"], target["metadata"]["name"])
    for step in yaml.safe_load(patch["patch"]):
        where: Any = target
        *way, last = [part.replace("~1", "/") for part in step["path"].strip("/").split("/")]
        for part in way:
            where = where[int(part)] if isinstance(where, list) else where[part]
        assert (step["op"] == "replace") == (last in where)


def test_cores_follow_the_limit_of_the_container(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    free = devices._cores(quota)
    quota.write_text("max 100000\n")
    assert devices._cores(quota) == free
    quota.write_text("50000 100000\n")
    assert devices._cores(quota) == 1


def test_the_runtime_of_kserve_is_a_pod_that_asks_for_what_the_image_has() -> None:
    checker = pytest.importorskip("kubernetes_validate")
    runtime = yaml.safe_load((DEPLOY / "kserve" / "runtime.yaml").read_text())
    assert (runtime["kind"], runtime["apiVersion"]) == ("ServingRuntime", "serving.kserve.io/v1alpha1")
    pod = {"containers": runtime["spec"]["containers"], "volumes": runtime["spec"]["volumes"]}
    checker.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, "1.30", strict=True)
    (own,) = runtime["spec"]["containers"]
    assert own["ports"][0]["containerPort"] == int(environment_of_the_image()["ROBUST_SERVE_PORT"])
    assert {own[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} == {
        "/v2/health/ready",
        "/v2/health/live",
    }


def test_alerts_and_dashboard_ask_for_metrics_that_there_are() -> None:
    alerts = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text())
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name.removesuffix("_bucket") for text in rules + panels for name in re.findall(r"robust_\w+", text)}
    drift = re.findall(r'gauge\("(\w+)"', (ROOT / "serve" / "asgi" / "drift.py").read_text())
    assert asked <= {*METRICS, *drift}
    assert len(drift) == 3
    assert len(panels) >= 6

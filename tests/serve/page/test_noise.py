"""The slider of the noise: a real server of two files, each of which is certified with its own sigma only."""

from pathlib import Path

import pytest
from PIL import Image
from robust.serve.page import views

from robustinfer import Predictor
from robustinfer.errors import ClientError

from ..conftest import serving
from .conftest import BRIGHT, constant, two_models


@pytest.mark.server
def test_each_file_brings_its_own_noise_and_refuses_another(folder: Path, tmp_path: Path) -> None:
    quiet, noisy = two_models(folder)
    image = constant(BRIGHT)
    with serving(tmp_path, str(noisy), str(quiet), "--page", engine="asgi") as server:
        with server.http() as http:
            offered = http.get("/page/api/models").json()["models"]
        assert [(one["name"], one["sigma"]) for one in offered] == [("tiny", 0.25), ("second", 0.5)]
        for file, other in ((quiet, noisy), (noisy, quiet)):
            predictor, wrong = Predictor.load(file, threads=1), Predictor.load(other, threads=1).card.sigma
            with server.client(file.stem) as client:
                found = client.certify(image, n=2000, seed=3)
                expected = predictor.certify(image, n=2000, seed=3)
                assert (found.sigma, found.radius, found.counts) == (expected.sigma, expected.radius, expected.counts)
                assert found.sigma == predictor.card.sigma
                with pytest.raises(ClientError, match="sigma") as refused:
                    client.certify(image, n=2000, sigma=wrong)
                assert refused.value.status == 422
            Image.fromarray(image[0]).save(tmp_path / "bright.png")
            picture = (tmp_path / "bright.png").read_bytes()
            with server.http() as http:
                shown = http.post(f"/page/api/{file.stem}/views?seed=5&count=4", content=picture).json()
            assert shown == views(predictor, image, count=4, seed=5).to_json()

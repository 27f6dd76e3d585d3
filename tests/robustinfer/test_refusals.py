"""Every refusal has its own exception class, and one sentence that says what was expected and what was found."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer import Card, InputSpec, Predictor, errors
from robustinfer.errors import RobustinferError

UINT8 = np.full((3, 4, 4), 100, dtype=np.uint8)
FLOAT = UINT8 / np.float32(255)
WEIGHTS = np.random.default_rng(0).normal(size=(3, 48))


@pytest.fixture
def model(linear_model: Callable[..., Path]) -> Any:
    return linear_model(WEIGHTS, shape=(3, 4, 4))


@pytest.fixture
def predictor(model: Any) -> Any:
    return Predictor.load(model)


def changed(image: Any, value: Any) -> Any:
    image = image.copy()
    image[0, 0, 0] = value
    return image


IMAGES = {
    "wrong shape": (np.zeros((3, 5, 4), np.uint8), errors.ShapeError, r"Expected.*\(3, 4, 4\).*found \(3, 5, 4\)"),
    "grey for colour": (np.zeros((4, 4), np.uint8), errors.ShapeError, r"Expected.*found \(4, 4\)"),
    "batch for one": (np.zeros((2, 3, 4, 4), np.uint8), errors.ShapeError, r"Expected.*found \(2, 3, 4, 4\)"),
    "integers": (UINT8.astype(np.int64), errors.DtypeError, "Expected uint8.*found int64"),
    "booleans": (UINT8 > 5, errors.DtypeError, "Expected uint8.*found bool"),
    "objects": (UINT8.astype(object), errors.DtypeError, "found object"),
    "text": ("image.png", errors.DtypeError, "Expected uint8.*found <U9"),
    "not divided by 255": (UINT8.astype(np.float32), errors.PixelRangeError, r"\[0,1\], found 100 to 100.*uint8"),
    "normalised": (FLOAT - 0.5, errors.PixelRangeError, r"Expected pixels in \[0,1\], found -0.1"),
    "NaN": (changed(FLOAT, np.nan), errors.PixelRangeError, "found NaN or infinite"),
    "infinite": (changed(FLOAT, np.inf), errors.PixelRangeError, "found NaN or infinite"),
    "too large for float32": (changed(FLOAT.astype(np.float64), 1e300), errors.PixelRangeError, "found NaN or inf"),
}


@pytest.mark.parametrize("case", IMAGES)
@pytest.mark.parametrize("method", ["certify", "predict", "scores"])
def test_images(predictor: Any, case: Any, method: Any) -> None:
    image, error, sentence = IMAGES[case]
    if case == "batch for one" and method == "scores":
        assert predictor.scores(image).shape == (2, 3)
        return
    with pytest.raises(error, match=sentence):
        getattr(predictor, method)(image)


SETTINGS: dict[str, tuple[Any, ...]] = {
    "n too small": ({"n": 9, "n0": 0}, errors.SampleSizeError, r"9 samples cannot certify.*alpha = 0.001.*n >= 11"),
    "n too small for two classes": ({"n": 10, "n0": 10}, errors.SampleSizeError, r"n >= 11"),
    "n too small for a deadline": ({"n": 10, "deadline": 1.0}, errors.SampleSizeError, r"use n >= 11"),
    "radius out of reach": ({"n": 1000, "radius": 2.0}, errors.SampleSizeError, r"radius of 2.0 is out of reach"),
    "n zero": ({"n": 0}, errors.SampleSizeError, "whole number from 1 to 1,000,000,000 for n, found 0"),
    "n a fraction": ({"n": 10.5}, errors.SampleSizeError, "whole number"),
    "n0 negative": ({"n0": -1}, errors.SampleSizeError, "from 0 to 1,000,000,000 for n0, found -1"),
    "alpha zero": ({"alpha": 0}, errors.AlphaError, "from 1e-09 to 0.5 for alpha, found 0"),
    "alpha one": ({"alpha": 1.0}, errors.AlphaError, "from 1e-09 to 0.5 for alpha, found 1.0"),
    "alpha a text": ({"alpha": "0.1"}, errors.AlphaError, "found '0.1'"),
    "alpha NaN": ({"alpha": float("nan")}, errors.AlphaError, "found nan"),
    "another sigma": ({"sigma": 0.5}, errors.SigmaError, "trained for sigma = 0.25, found 0.5"),
    "sigma negative": ({"sigma": -1.0}, errors.SigmaError, "from 0.0001 to 16 for sigma .*, found -1.0"),
    "negative radius": ({"radius": -0.1}, errors.SettingError, "a number from 1e-06 to 1000 for radius, found -0.1"),
    "infinite deadline": (
        {"deadline": float("inf")},
        errors.SettingError,
        "at most 86,400 for deadline .*found inf",
    ),
    "two aims": ({"radius": 0.1, "tolerance": 0.1}, errors.SettingError, "leave out radius"),
    "unknown bound": ({"bound": "both"}, errors.SettingError, "two-class or top-class for bound, found 'both'"),
    "continuous noise": ({"noise": "continuous"}, errors.SettingError, "integer for noise, found 'continuous'"),
    "unknown domain": ({"domain": "10-bit"}, errors.SettingError, "8-bit or 16-bit for domain, found '10-bit'"),
    "the domain of old certificates": ({"domain": "continuous"}, errors.SettingError, "found 'continuous'"),
    "no selection": ({"n0": 0, "radius": 0.1}, errors.SettingError, "positive n0 for the procedure radius"),
    "seed too large": ({"seed": 2**64}, errors.SettingError, r"from 0 to 2\^64 - 1 for seed"),
    "seed negative": ({"seed": -1}, errors.SettingError, r"from 0 to 2\^64 - 1 for seed"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(predictor: Any, case: Any) -> None:
    settings, error, sentence = SETTINGS[case]
    with pytest.raises(error, match=sentence):
        predictor.certify(UINT8, **settings)


def test_the_advised_n_is_the_smallest_that_can_certify(
    predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    bright = np.full((1, 2, 2), 255, np.uint8)
    predictor = predictor_of(half_space, sigma=0.01)
    for settings in ({"n0": 0}, {"n0": 5}, {"n0": 0, "bound": "two-class"}, {"deadline": 9.0}, {"radius": 1e-6}):
        with pytest.raises(errors.SampleSizeError, match="use n >=") as refusal:
            predictor.certify(bright, n=2, **settings)
        least = int(str(refusal.value).partition("n >= ")[2].partition(",")[0])
        assert predictor.certify(bright, n=least, **settings).label == 1
        with pytest.raises(errors.SampleSizeError):
            predictor.certify(bright, n=least - 1, **settings)


def test_the_8_bit_domain_needs_uint8(predictor: Any) -> None:
    with pytest.raises(errors.DtypeError, match="8-bit domain is that of uint8 images, found float32 pixels"):
        predictor.certify(FLOAT, domain="8-bit")
    assert predictor.certify(FLOAT, noise="integer", n=100).domain == "16-bit"


@pytest.mark.parametrize("sigma", [0.0009, 2.1])
def test_the_16_bit_domain_has_sigmas_of_its_own(linear_model: Any, sigma: Any) -> None:
    predictor = Predictor.load(linear_model(WEIGHTS, shape=(3, 4, 4), sigma=None))
    with pytest.raises(errors.SigmaError, match=f"from 0.001 to 2.0 in the 16-bit domain, found {sigma}"):
        predictor.certify(FLOAT, sigma=sigma)
    assert predictor.certify(UINT8, sigma=sigma, n=100).sigma == sigma


def test_noise_that_rounding_outweighs_is_refused(predictor_of: Any, half_space: Any) -> None:
    predictor = predictor_of(half_space, shape=(3, 300, 300), sigma=0.001)
    with pytest.raises(errors.SampleSizeError, match="no n does at sigma"):
        predictor.certify(np.zeros((3, 300, 300), dtype=np.float32))


def test_predict_refuses_too_few_samples(predictor: Any) -> None:
    with pytest.raises(errors.SampleSizeError, match="5 samples cannot decide anything"):
        predictor.predict(UINT8, n=5)


def test_a_model_without_sigma_needs_one(linear_model: Callable[..., Path]) -> None:
    predictor = Predictor.load(linear_model(WEIGHTS, shape=(3, 4, 4), sigma=None))
    with pytest.raises(errors.SigmaError, match="no sigma: pass one"):
        predictor.certify(UINT8)
    with pytest.raises(errors.SigmaError, match=r"to 16 for sigma \(pixels are in \[0,1\]\), found 64"):
        predictor.certify(UINT8, sigma=64)
    assert predictor.certify(UINT8, sigma=0.5, n=100).sigma == 0.5


def jpeg() -> Any:
    return bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffdb004300") + bytes(300)


FILES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty": ("model.onnx", lambda _: b""),
    "truncated": ("model.onnx", lambda whole: whole[: len(whole) // 2]),
    "a JPEG": ("model.onnx", lambda _: jpeg()),
    "a JPEG as TorchScript": ("model.pt", lambda _: jpeg()),
    "a JPEG as pt2": ("model.pt2", lambda _: jpeg()),
    "an ONNX graph as TorchScript": ("model.pt", lambda whole: whole),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_are_no_models(model: Any, tmp_path: Path, case: Any) -> None:
    name, content = FILES[case]
    path = tmp_path / name
    path.write_bytes(content(model.read_bytes()))
    with pytest.raises(errors.ModelFileError, match=rf"{name} is damaged, or no"):
        Predictor.load(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.ModelFileError, match="There is no model file"):
        Predictor.load(tmp_path / "none.onnx")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(errors.ModelFileError, match=r"ends in .onnx, .pt or .pt2, found model.bin"):
        Predictor.load(tmp_path / "model.bin")


def test_an_archive_that_is_no_torchscript(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/readme", "hello")
    with pytest.raises(errors.ModelFileError, match="is damaged, or no"):
        Predictor.load(tmp_path / "model.pt")


def test_a_file_without_a_card(linear_model: Callable[..., Path]) -> None:
    path = linear_model(WEIGHTS, shape=(3, 4, 4), card=False)
    with pytest.raises(errors.CardError, match=r"carries no card.*robust wrap.*card=Card"):
        Predictor.load(path)
    card = Card(classes=("a", "b", "c"), input=InputSpec(3, 4, 4), sigma=0.25)
    assert Predictor.load(path, card=card).certify(UINT8, n=100).n == 100


def test_a_card_that_does_not_fit(linear_model: Callable[..., Path]) -> None:
    wrong_count = Card(classes=("a", "b"), input=InputSpec(3, 4, 4), sigma=0.25)
    with pytest.raises(errors.ClassCountError, match="2 classes"):
        Predictor.load(linear_model(WEIGHTS, shape=(3, 4, 4), card=wrong_count)).certify(UINT8, n=100)
    wrong_input = Card(classes=("a", "b", "c"), input=InputSpec(3, 8, 8), sigma=0.25)
    with pytest.raises(errors.CardError, match=r"\(3, 8, 8\), but the graph takes"):
        Predictor.load(linear_model(WEIGHTS, shape=(3, 4, 4), card=wrong_input))


def test_another_digest(model: Any, predictor: Any) -> None:
    assert Predictor.load(model, digest=predictor.digest).digest == predictor.digest
    assert Predictor.load(model, digest=predictor.digest.removeprefix("sha256:"))
    with pytest.raises(errors.DigestError, match="another file"):
        Predictor.load(model, digest="sha256:" + 64 * "0")


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_is_absent_is_refused_by_name(model: Any, device: Any) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this machine has CUDA")
    with pytest.raises(errors.DeviceError, match=f"{device} was requested"):
        Predictor.load(model, device=device)
    assert Predictor.load(model, device="auto").device == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "tpu:0", ""])
def test_a_device_that_does_not_exist(model: Any, device: Any) -> None:
    with pytest.raises(errors.DeviceError, match="auto, cpu, cuda or cuda:N"):
        Predictor.load(model, device=device)


def test_a_batch_of_nothing(model: Any) -> None:
    with pytest.raises(errors.SettingError, match="batch of at least 1"):
        Predictor.load(model, batch=0)


def test_seeds_that_run_out(predictor: Any) -> None:
    with pytest.raises(errors.SettingError, match="more images than seeds"):
        list(predictor.certify_many([UINT8, UINT8], seeds=[1], n=100))
    with pytest.raises(errors.SettingError, match="not both"):
        list(predictor.certify_many([UINT8], seeds=[1], seed=1, n=100))


def test_every_error_has_one_base_and_a_documented_place() -> None:
    found = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(error, RobustinferError) for error in found)
    assert all(error.__name__ in errors.__doc__ for error in found)

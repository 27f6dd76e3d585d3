"""Labels and certificates inside a FastAPI application.

    pip install fastapi uvicorn
    MODEL=quickstart/digits.onnx uvicorn --app-dir examples fastapi_app:app
    curl -T quickstart/images/five.png "http://127.0.0.1:8000/certify?radius=0.5"

The model is loaded once. `Predictor` is safe to use from several threads, and FastAPI runs plain `def` endpoints in its
thread pool, so a slow certificate does not hold up other requests; a deadline keeps each of them short.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Body, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from robustinfer import Predictor, RobustinferError
from robustinfer.errors import InputError, SettingError
from robustinfer.images import decode_image


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model before the first request; MODEL_DIGEST, if it is set, says which file was approved."""
    app.state.predictor = Predictor.load(os.environ["MODEL"], digest=os.environ.get("MODEL_DIGEST"))
    yield


app = FastAPI(title="Certified digits", lifespan=lifespan)


@app.exception_handler(RobustinferError)
def refuse(request: Request, error: RobustinferError) -> JSONResponse:
    """A bad image or setting is the caller's mistake; the message says what was expected and what was found."""
    status = 422 if isinstance(error, InputError | SettingError) else 500
    return JSONResponse({"error": type(error).__name__, "message": str(error)}, status_code=status)


@app.put("/certify")
def certify(
    request: Request,
    image: bytes = Body(media_type="application/octet-stream", max_length=5_000_000),
    radius: float | None = Query(
        default=None, gt=0, description="decide this radius, and stop as soon as it is decided"
    ),
    deadline: float = Query(default=0.5, gt=0, le=5, description="seconds a certificate may take"),
) -> dict[str, Any]:
    """The certificate of a PNG, JPEG or npy image."""
    predictor: Predictor = request.app.state.predictor
    pixels = decode_image(image, predictor.card.input)
    if radius is not None:
        return predictor.certify(pixels, radius=radius, n=10_000).to_json()
    return predictor.certify(pixels, deadline=deadline).to_json()


@app.put("/label")
def label(
    request: Request, image: bytes = Body(media_type="application/octet-stream", max_length=5_000_000)
) -> dict[str, Any]:
    """The label alone; an image the model cannot decide on is refused rather than guessed."""
    predictor: Predictor = request.app.state.predictor
    prediction = predictor.predict(decode_image(image, predictor.card.input))
    if prediction.abstained:
        raise HTTPException(status_code=409, detail="the model abstains on this image")
    return {"label": prediction.class_name, "alpha": prediction.alpha, "model": prediction.model.digest}


@app.get("/model")
def model(request: Request) -> dict[str, Any]:
    """Which model answers, and what it was trained for."""
    predictor: Predictor = request.app.state.predictor
    return {"digest": predictor.digest, "card": predictor.card.to_json()}

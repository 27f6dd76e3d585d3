"""`Predictor`: a model file that answers with labels, radii and certificates. This is what applications embed."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import NoReturn, Unpack

import numpy as np
import numpy.typing as npt

from .answers import certificate_of, prediction_of
from .card import Card
from .certificate import Certificate, ModelReference, Prediction
from .crew import Crew, Pace
from .engines import Engine, check_rows, load_engine
from .errors import CardError, DigestError, EngineError, SettingError
from .explanations import untrained_noise
from .images import as_batch, in_batches, to_unit
from .jobs import Job
from .live import AnswerFuture, Live, check_process
from .replay import Replay, replay
from .requests import Request
from .scheduler import Board, run
from .settings import SETTINGS, CertifyManySettings
from .sharing import InOrder
from .smoothing.domains import GridDomain
from .smoothing.kinds import Bound, NoiseKind
from .smoothing.noise import derive_seed
from .smoothing.tally import plurality
from .voting import scores_of, tally_of, vote_betas

__all__ = ["Predictor"]

log = logging.getLogger("robustinfer")

Result = Certificate | Prediction
Progress = Callable[[int], None]


class Predictor:
    """A classifier and its certificates. Safe to use from several threads.

    Images are numpy arrays, one image or a batch: uint8, or floating pixels in [0,1]; channels first or last.

        predictor = Predictor.load("digits.onnx")
        predictor.predict(image).class_name
        predictor.certify(image, radius=0.5).radius
    """

    def __init__(
        self, engine: Engine, card: Card, *, digest: str = "", batch: int | None = None, threads: int | None = None
    ) -> None:
        if batch is not None and batch < 1:
            raise SettingError(f"Expected a batch of at least 1, found {batch}.")
        vote_betas(card)  # refuses a votes file whose members have no betas
        self.engine = engine
        self.card = card
        self.digest = digest
        self.batch = batch or engine.batch
        self._pace = Pace()
        self._crew = Crew(threads)
        self._live = Live(partial(Board, engine, batch=self.batch, pace=self._pace, crew=self._crew))
        self._process = os.getpid()
        self._warned: set[float] = set()

    def __enter__(self) -> "Predictor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise EngineError("A Predictor cannot be copied or pickled: load the model file in each process.")

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str = "auto",
        threads: int | None = None,
        batch: int | None = None,
        card: Card | None = None,
        digest: str | None = None,
    ) -> "Predictor":
        """Open a model file: .onnx, .pt (TorchScript) or .pt2.

        `device` is auto, cpu, cuda or cuda:N; a device that is named is used or refused, never replaced, but what a GPU
        has no operator for is computed on the CPU. `threads` are those of one engine run and of its noise, `batch` the
        samples of one run. `card` describes a file that carries none, and `digest` ("sha256:...") is checked if given.
        A graph in which the scores of an image depend on the images beside it is refused, unless `batch` is 1.
        """
        loaded = load_engine(path, device=device, threads=threads)
        if digest is not None and digest.removeprefix("sha256:") != loaded.digest.removeprefix("sha256:"):
            raise DigestError(
                f"Expected {path} to have the digest {digest}, found {loaded.digest}: it is another file."
            )
        card = card or loaded.card
        if card is None:
            raise CardError(
                f"{path} carries no card, so its classes and input are not known: "
                "make it a model file with `robust wrap`, or give a card beside it (--card FILE, card=Card(...))."
            )
        _check_shape(loaded.engine, card)
        if batch != 1:  # an image that is always scored alone has no neighbours
            check_rows(loaded.engine, card.input.shape)
        return cls(loaded.engine, card, digest=loaded.digest, batch=batch, threads=threads)

    @property
    def device(self) -> str:
        """Where the engine runs."""
        return self.engine.device

    @property
    def model(self) -> ModelReference:
        """Name, version and digest, as they stand in every answer."""
        return ModelReference(self.card.name, self.card.version, self.digest)

    def scores(self, images: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Plain ensemble scores (N, K), without noise and without any guarantee.

        For a votes file they are the votes: the share of the members' betas that each class has.
        """
        batch = as_batch(images, self.card.input)
        tally = tally_of(self.card, members=False)
        pieces = [scores_of(self.engine, tally, to_unit(part)) for _, part in in_batches(batch, self.batch)]
        if not pieces:
            return np.empty((0, tally.classes), dtype=np.float32)
        scores = np.concatenate(pieces)
        return plurality(scores, tally.betas) if tally.betas else scores

    def predict(
        self,
        image: npt.ArrayLike,
        *,
        n: int = 1000,
        alpha: float = 0.001,
        sigma: float | None = None,
        domain: GridDomain | None = None,
        noise: NoiseKind | None = None,
        seed: int | None = None,
        members: bool | None = None,
        stop: threading.Event | None = None,
    ) -> Prediction:
        """The label of the smoothed classifier, or an abstention; wrong with probability at most alpha.

        At most n samples are drawn, and fewer as soon as the label is clear.
        """
        request = Request(
            image=image,
            mode="predict",
            n=n,
            alpha=alpha,
            sigma=sigma,
            domain=domain,
            noise=noise,
            seed=seed,
            members=members,
        )
        answer = self._answer(request, stop, None)
        assert isinstance(answer, Prediction)
        return answer

    def certify(
        self,
        image: npt.ArrayLike,
        *,
        n: int = 100_000,
        alpha: float = 0.001,
        n0: int | None = None,
        radius: float | None = None,
        tolerance: float | None = None,
        quantile: float | None = None,
        deadline: float | None = None,
        bound: Bound | None = None,
        sigma: float | None = None,
        domain: GridDomain | None = None,
        noise: NoiseKind | None = None,
        seed: int | None = None,
        members: bool | None = None,
        stop: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> Certificate:
        """Label and radius: no change below the radius alters the label; wrong with probability at most alpha.

        radius=r     decide one radius, and stop as soon as it is decided
        tolerance=t  on average about t below what n samples would give, from fewer samples; quantile=q plans
                     for each image, to be at most t below with this probability (0.7 where members vote)
        deadline=s   the best certificate that s seconds can buy
        otherwise    n samples

        uint8 pixels are certified among 8-bit images, floating ones among all images in [0,1], rounded to 16 bits;
        domain="16-bit" asks for the latter with uint8 pixels, too.

        A votes file certifies each of its members, all on the same samples, and combines their votes; members=False
        certifies its plurality vote as one classifier.

        Setting `stop` (a threading.Event) ends the work at once; with `radius` or `deadline` the best certificate
        so far is returned, which is valid at any moment; otherwise the answer is an abstention.
        """
        request = Request(
            image=image,
            n=n,
            alpha=alpha,
            n0=n0,
            radius=radius,
            tolerance=tolerance,
            quantile=quantile,
            deadline=deadline,
            bound=bound,
            sigma=sigma,
            domain=domain,
            noise=noise,
            seed=seed,
            members=members,
        )
        answer = self._answer(request, stop, progress)
        assert isinstance(answer, Certificate)
        return answer

    def certify_many(
        self,
        images: Iterable[npt.ArrayLike],
        *,
        seed: int | None = None,
        seeds: Iterable[int] | None = None,
        numbers: Iterable[int] | None = None,
        stop: threading.Event | None = None,
        progress: Progress | None = None,
        **settings: Unpack[CertifyManySettings],
    ) -> Iterator[Certificate]:
        """Certify many images, in order: one engine batch holds samples of several, and a decided image makes room.

        The settings are those of `certify`. Each image has noise of its own: from `seeds`, one per image, or derived
        from one `seed` and the image's number (`numbers`; 0, 1, 2, ... by default), or from the operating system.
        """
        if seeds is not None and seed is not None:
            raise SettingError("Pass seeds, one per image, or one seed to derive them from, not both.")
        if seed is not None:
            seed = SETTINGS["seed"].check(seed)
        own_seeds = _seeds(seed, seeds, numbers)
        jobs = (
            self._job(Request(image=image, seed=next(own_seeds), **settings), stop, derived_seed=seed is not None)
            for image in images
        )
        for job in self._run(jobs, progress):
            answer = self._result(job)
            assert isinstance(answer, Certificate)
            yield answer

    def answer_many(self, requests: Sequence[Request]) -> list[Result | Exception]:
        """Answer requests of any kind together, sharing engine batches.

        A request that is bad, or fails, gets its error, its neighbours their answers.
        """
        jobs: list[Job | Exception] = []
        for request in requests:
            try:
                jobs.append(self._job(request, None))
            except Exception as error:
                jobs.append(error)
        deque(self._run([job for job in jobs if isinstance(job, Job)], None), maxlen=0)
        return [job if isinstance(job, Exception) else job.error or self._result(job) for job in jobs]

    def submit(self, request: Request, *, client: str = "", stop: threading.Event | None = None) -> AnswerFuture:
        """Answer a request together with whatever else is submitted meanwhile, from any thread or event loop.

            future = predictor.submit(Request(image=image, n=10_000))
            future.result()     # or `await future`; `future.snapshot()` says what is known so far

        A bad request is refused at once. Jobs are admitted between engine runs and end in any order; `sharing.py` says
        how they share the engine: clients (`client` is any text that tells them apart) get equal parts of it, short
        jobs overtake long ones. Setting `stop` ends the work as in `certify`, and `cancel` of the future without an
        answer. A deadline counts from now.
        """
        check_process(self._process)
        job = self._job(request, stop, client=client)
        return self._live.submit(AnswerFuture(job, self._result, self.card.classes))

    @property
    def outstanding(self) -> int:
        """How many submitted requests are not answered yet."""
        return self._live.outstanding

    def close(self, *, cancel: bool = False) -> None:
        """Take no more submissions; wait for the answers of those that were made, or cancel them."""
        if os.getpid() == self._process:
            self._live.close(cancel=cancel)

    def verify(
        self, certificate: Certificate, image: npt.ArrayLike, *, other_model: bool = False, max_flips: int = 0
    ) -> Replay:
        """Draw the samples of a certificate again, and say whether everything in it comes out again.

        The model must have the certificate's digest, unless `other_model` allows another file of the same ensemble.
        Another file or machine may round near-ties the other way: `max_flips` votes may differ, if the votes of the
        certificate and those of the replay both prove what it claims.
        """
        return replay(self, certificate, image, other_model=other_model, max_flips=max_flips)

    def _answer(self, request: Request, stop: threading.Event | None, progress: Progress | None) -> Result:
        (job,) = self._run(iter([self._job(request, stop)]), progress)
        return self._result(job)

    def _job(
        self, request: Request, stop: threading.Event | None, *, derived_seed: bool = False, client: str = ""
    ) -> Job:
        question = request.ask(self.card, derived_seed=derived_seed)
        self._warn(question.smoothing.sigma)
        return Job(question, stop, client=client)

    def _warn(self, sigma: float) -> None:
        """Say once that the card does not name this sigma as one the model was trained with."""
        sentence = untrained_noise(self.card, sigma)
        if sentence and sigma not in self._warned:
            self._warned.add(sigma)
            log.warning("%s", sentence)

    def _run(self, jobs: Iterable[Job], progress: Progress | None) -> Iterator[Job]:
        check_process(self._process)
        board = Board(self.engine, InOrder(), batch=self.batch, pace=self._pace, crew=self._crew)
        return run(board, jobs, progress=progress)

    def _result(self, job: Job) -> Result:
        if job.error is not None:
            raise job.error
        outcome = job.outcome
        assert outcome is not None
        if job.question.mode == "predict":
            return prediction_of(self, job.question, outcome, job.seconds)
        return certificate_of(self, job.question, outcome, job.seconds)


def _seeds(seed: int | None, seeds: Iterable[int] | None, numbers: Iterable[int] | None) -> Iterator[int | None]:
    """A seed for every image."""
    if seeds is not None:
        yield from seeds
        raise SettingError("There are more images than seeds.")
    for number in count() if numbers is None else numbers:
        yield None if seed is None else derive_seed(seed, number)
    raise SettingError("There are more images than numbers.")


def _check_shape(engine: Engine, card: Card) -> None:
    declared = getattr(engine, "input_shape", None)
    if declared is None:
        return
    fixed = [
        isinstance(size, int) and size != wanted for size, wanted in zip(declared[1:], card.input.shape, strict=False)
    ]
    if len(declared) != 4 or any(fixed):
        raise CardError(f"The card expects images of shape {card.input.shape}, but the graph takes {declared}.")

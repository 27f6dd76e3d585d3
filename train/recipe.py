"""The recipe: what a training is told, as one frozen object, one TOML file, one table in `docs/recipes.md`."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from robustinfer.card import Threat
from robustinfer.errors import RecipeError
from robustinfer.files import read_toml

from .recipe_fields import choice, flag, number, parse, text, validate

__all__ = ["Recipe", "builtin_recipes", "recipe_template"]

_BUILTIN = Path(__file__).with_name("recipes")

# Recipes outlive releases. A field that was renamed is read under its old name as well, unless both are given; one
# that was dropped may still stand in a file with the value that changes nothing.
_RENAMED = {"weights": "betas"}
_DROPPED: dict[str, Any] = {"initial_beta": 1.0, "label_smoothing": 0.0}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a training is told. Every field is a key of the TOML file and of `--set key=value`."""

    name: str = text("unnamed", "name of the recipe")
    description: str = text("", "one sentence about the recipe")

    # The data
    data: str = text("digits", "digits, mnist, cifar10, imagenet, folder:PATH or npz:PATH")
    size: int = number(0, "pictures are resized to squares of this side; 0 accepts pictures of one size only")
    validation: float = number(0.1, "part of the training set that is held out for measurements", high=0.5)
    augment: str = choice("none", ("none", "crop", "crop-flip"), "random change of each training image")
    limit: int = number(0, "use at most this many training images; 0 uses all")
    balance: str = choice(
        "none",
        ("none", "loss", "sample"),
        "none; classes count alike in the loss, by weights; or their images are drawn equally often",
    )

    # The members
    architecture: str = text(
        "cnn", "cnn, cnn7, cnn7-norm, fast, lenet, resnet12 ... resnet110, imagenet-resnet18 ... 50, or module:factory"
    )
    width: float = number(1.0, "factor on the number of channels of a built-in architecture", above=True, high=64)
    warm_start: bool = flag(True, "start each member from the parameters of the one before")
    share: str = choice(
        "none", ("none", "trunk"), "what later members take from the first: nothing, or its trunk, to train a head only"
    )
    split: int = number(2, "with share: stages of the network that the trunk has, behind its stem")

    # The threat
    norm: str = choice("linf", ("linf", "l2"), "norm of the threat")
    delta: float = number(0.1, "radius of the threat, in pixel units of [0,1]")
    smoothing: str = choice(
        "none",
        ("none", "scores", "softmax", "gaussian", "cat-rs"),
        "none; scores averaged over noise (the paper); probabilities averaged (SmoothAdv); noise as augmentation only; "
        "by each image's confidence (CAT-RS)",
    )
    sigma: float = number(0.0, "standard deviation of the smoothing noise, in pixel units; 0 without smoothing")
    noise_scale: float = number(
        1.0, "factor on sigma for the noise members are trained with; certificates stay at sigma", above=True, high=4
    )
    noise_samples: int = number(2, "noise vectors per image, the m of the smoothed objectives", low=1, high=256)
    consistency: float = number(
        0.0, "strength of consistency regularisation: noisy copies of an image should get the same answer", high=1000
    )
    confidence: float = number(
        1.0, "cat-rs: strength of the attacked term, for images whose noisy copies are all right", high=1000
    )
    teacher: str = text(
        "",
        "cat-rs: run of a network trained with Gaussian noise that gives soft targets; else the ensemble so far does",
    )

    # The inner maximisation
    attack: str = choice(
        "pgd",
        ("pgd", "n-fgsm", "kept", "none"),
        "how the perturbation is found while training; kept: one step per epoch, from where the last one ended",
    )
    steps: int = number(7, "gradient steps of the attack", low=1, high=1000)
    step_scale: float = number(1.3, "length of a step, in units of delta/steps", above=True, high=100)
    start: str = choice("random", ("random", "input"), "where the attack starts")
    ramp: float = number(0.0, "epochs of the first stage over which delta grows from 0 to its full value")
    guard: float = number(
        0.2, "fall of robust training accuracy that ends one-step attacks (catastrophic overfitting); 0 never", high=1
    )

    # Boosting
    booster: str = choice(
        "greedy",
        ("greedy", "independent", "minimax"),
        "Algorithm 1 of the paper; members trained apart; or voting members on reweighted examples (docs/theory.md)",
    )
    reweigh: str = choice("examples", ("examples", "pairs"), "minimax: what the distribution is over")
    rate: str = choice("adaptive", ("adaptive", "fixed"), "minimax: betas by each member's edge, or equal ones")
    stages: int = number(5, "number of stages, the T of the paper", low=1, high=1000)
    epochs: int = number(5, "epochs of the first stage, the N_1 of the paper", low=1)
    growth: float = number(2.0, "stage t takes growth^(t-1) times the epochs of the first", above=True, high=16)
    previous: str = choice("clean", ("clean", "adversarial", "exact"), "where the frozen ensemble is evaluated")
    betas: str = choice("trained", ("trained", "corrective"), "train the new beta only, or all betas")
    shrinkage: float = number(1.0, "factor on the beta of a finished member", above=True, high=1)
    own_loss: float = number(0.0, "share of the new member's own robust loss in the objective", high=1)
    refit: bool = flag(False, "refit all betas at the end of a stage, a convex problem")
    drop_below: float = number(0.0, "drop members whose share of the scores falls below this", high=0.5)

    # The optimiser
    optimizer: str = choice("sgd", ("sgd", "adam", "adamw", "muon"), "the optimiser of a stage")
    learning_rate: float = number(0.01, "initial learning rate of a stage, the eta_max of the paper", above=True)
    schedule: str = choice(
        "cosine", ("cosine", "decay"), "the rate falls throughout a stage (the paper), or over its last quarter"
    )
    beta_learning_rate: float = number(1.0, "factor on the learning rate for the betas", high=1000)
    momentum: float = number(0.9, "momentum of sgd and muon", high=0.9999)
    weight_decay: float = number(0.0, "weight decay of the members' parameters; the betas have none", high=1)
    clip: float = number(0.0, "largest norm of a gradient; 0 does not clip")
    batch: int = number(128, "images per step, shared by all processes", low=1)
    select: str = choice("last", ("last", "best"), "keep a stage's last epoch, or its best on the held-out images")

    # The machine
    seed: int = number(0, "seed of everything random", high=2**62)
    precision: str = choice("fp32", ("fp32", "bf16"), "arithmetic of the training steps; measurements stay fp32")
    channels_last: bool = flag(False, "memory layout of images and parameters")
    compile: bool = flag(False, "compile the members with torch.compile")
    validation_images: int = number(1000, "held-out images attacked at the end of an epoch", low=1)
    checkpoint_seconds: float = number(60.0, "seconds between two checkpoints within an epoch")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, validate(field, getattr(self, field.name)))
        _check_threat(self)

    @property
    def shares_trunk(self) -> bool:
        """Whether members after the first have its trunk, frozen."""
        return self.share == "trunk"

    @property
    def smoothed(self) -> bool:
        """Whether the members are trained for randomised smoothing."""
        return self.smoothing != "none"

    @property
    def training_sigma(self) -> float:
        """Standard deviation of the noise that members are trained with; measurements and certificates use `sigma`."""
        return self.sigma * self.noise_scale

    @property
    def attacked(self) -> bool:
        """Whether training looks for perturbations at all."""
        return self.attack != "none" and self.smoothing != "gaussian" and self.delta > 0

    @property
    def keeps_perturbations(self) -> bool:
        """Whether each image keeps its perturbation from epoch to epoch."""
        return self.attacked and self.attack == "kept"

    @property
    def threat(self) -> Threat:
        """The change the model is trained to resist."""
        return Threat(norm="linf" if self.norm == "linf" else "l2", delta=self.delta)

    def stage_epochs(self, stage: int) -> int:
        """N_t = growth^(t-1) N_1 epochs for stage t = 1, 2, ... (the paper's growth is 2)."""
        return max(1, round(self.epochs * self.growth ** (stage - 1)))

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """All fields as the text of a recipe file."""
        return tomli_w.dumps(self.to_json())

    def replace(self, **changes: Any) -> "Recipe":
        """This recipe with some fields changed."""
        return Recipe.from_json({**self.to_json(), **_current(changes)})

    def set(self, assignments: Iterable[str]) -> "Recipe":
        """This recipe with the `key=value` words of `--set` applied."""
        known = {field.name: field for field in dataclasses.fields(self)}
        changes = {}
        for assignment in assignments:
            key, separator, value = assignment.partition("=")
            if not separator:
                raise RecipeError(f"--set takes key=value, for example stages=3; found {assignment!r}.")
            name = _RENAMED.get(key.strip(), key.strip())
            if name not in known:
                raise RecipeError(_unknown(name))
            changes[name] = parse(known[name], value)
        return self.replace(**changes)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Recipe":
        """A recipe of these fields; an unknown key is refused by name."""
        fields = _current(document)
        known = {field.name for field in dataclasses.fields(cls)}
        for key in fields:
            if key not in known:
                raise RecipeError(_unknown(key))
        return cls(**fields)

    @classmethod
    def load(cls, recipe: str | Path) -> "Recipe":
        """Read a TOML file, or the built-in recipe of this name.

        `extends = "NAME"` in a file takes every field that the file does not give from the recipe of that name.
        """
        path = Path(recipe)
        if path.suffix != ".toml":
            path = _BUILTIN / f"{recipe}.toml"
        if not path.is_file():
            raise RecipeError(
                f"A recipe is a .toml file or one of {', '.join(builtin_recipes())}; there is no {str(recipe)!r}."
            )
        document = read_toml(path, what="The recipe", error=RecipeError)
        document.pop("provenance", None)  # the recipe.toml of a run is a recipe, too
        base = document.pop("extends", None)
        if base is not None and not isinstance(base, str):
            raise RecipeError(f"The key `extends` of {path} names a recipe; found {base!r}.")
        document.setdefault("name", path.stem)
        return cls.load(base).replace(**document) if base else cls.from_json(document)


def builtin_recipes() -> tuple[str, ...]:
    """The names of the recipes this package brings along."""
    return tuple(sorted(path.stem for path in _BUILTIN.glob("*.toml")))


def recipe_template(kind: str) -> str:
    """The text of a commented recipe to start from, for this kind of data."""
    kinds = {path.stem: path for path in sorted((_BUILTIN / "templates").glob("*.toml"))}
    if kind not in kinds:
        raise RecipeError(f"There is a template for: {', '.join(kinds)}; found {kind!r}.")
    return kinds[kind].read_text(encoding="utf-8")


def _check_threat(recipe: Recipe) -> None:
    if recipe.norm == "linf" and recipe.delta > 1:
        raise RecipeError(
            f"The field `delta` is in pixel units of [0,1], so at most 1 for linf; found {recipe.delta:g} "
            f"(did you mean {recipe.delta:g}/255 = {recipe.delta / 255:.6f}?)."
        )
    if recipe.smoothed != (recipe.sigma > 0):
        raise RecipeError(
            f"Smoothing needs both `smoothing` and a positive `sigma`; found smoothing = {recipe.smoothing!r} and "
            f"sigma = {recipe.sigma:g}."
        )
    if recipe.smoothed and recipe.norm != "l2":
        raise RecipeError('Gaussian smoothing certifies l2 balls: set norm = "l2", or smoothing = "none".')
    if recipe.noise_scale != 1 and not recipe.smoothed:
        raise RecipeError("The field `noise_scale` changes the noise of a smoothed training: it needs `smoothing`.")
    if recipe.consistency and not (recipe.smoothed and recipe.noise_samples > 1):
        raise RecipeError(
            "The field `consistency` compares noisy copies of an image: it needs smoothing and noise_samples of at "
            f"least 2; found smoothing = {recipe.smoothing!r} and noise_samples = {recipe.noise_samples}."
        )
    _check_confidence(recipe)
    if recipe.attack == "n-fgsm" and (recipe.norm != "linf" or recipe.smoothed):
        raise RecipeError('N-FGSM is an linf attack: for l2 use attack = "pgd" with steps = 1.')
    if recipe.attack == "kept" and recipe.augment != "none":
        raise RecipeError(
            'The field attack = "kept" continues the perturbation an image had an epoch before, which does not '
            f'fit the image that augment = {recipe.augment!r} makes of it now: set augment = "none", or attack = "pgd".'
        )
    if recipe.keeps_perturbations and recipe.balance == "sample":
        raise RecipeError(
            'The field attack = "kept" moves the perturbation of an image once per epoch, and balance = "sample" '
            'draws some images more often and some less: set balance = "loss", or attack = "pgd".'
        )
    shortest = min(recipe.stage_epochs(1), recipe.stage_epochs(recipe.stages))
    if recipe.keeps_perturbations and shortest < 2:
        raise RecipeError(
            'The field attack = "kept" moves a perturbation after each epoch, so that a stage of one epoch would '
            'meet none at all: raise `epochs` or `growth` until every stage has at least two, or set attack = "pgd".'
        )


def _check_confidence(recipe: Recipe) -> None:
    if recipe.smoothing != "cat-rs":
        if recipe.teacher:
            raise RecipeError(
                'The field `teacher` gives soft targets to smoothing = "cat-rs": set that, or no teacher.'
            )
        return
    if recipe.noise_samples < 2:
        raise RecipeError(
            'The field smoothing = "cat-rs" counts which noisy copies of an image are right: it needs noise_samples of '
            f"at least 2 (4 is usual); found {recipe.noise_samples}."
        )
    if recipe.consistency:
        raise RecipeError('The field smoothing = "cat-rs" has a regulariser of its own: set consistency = 0.')
    if recipe.booster == "minimax":
        raise RecipeError(
            'The field booster = "minimax" weighs examples itself: smoothing = "cat-rs" needs another one.'
        )


def _current(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields under their present names, without those that were dropped and changed nothing."""
    fields: dict[str, Any] = {}
    for key, value in document.items():
        name = _RENAMED.get(key, key)
        if name in fields:
            raise RecipeError(f"`{name}` is given twice, once by its old name: keep one of the two.")
        if name not in _DROPPED:
            fields[name] = value
        elif value != _DROPPED[name]:
            raise RecipeError(f"The field `{name}` no longer exists; found {value!r}: remove it from the recipe.")
    return fields


def _unknown(key: str) -> str:
    names = [field.name for field in dataclasses.fields(Recipe)]
    close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean `{close[0]}`?" if close else "docs/recipes.md lists them all."
    return f"A recipe has no field `{key}`; {hint}"

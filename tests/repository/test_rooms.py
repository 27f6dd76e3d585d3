"""The rooms of the repository: which folder may import which. `docs/architecture.md` has the same table for people."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {"robustinfer": "robustinfer", "train": "robust.train", "export": "robust.export", "serve": "robust.serve"}

# The rooms of `train`, from the ground up: each may import those before it.
TRAIN = tuple(
    f"robust.train.{room}"
    for room in (
        *(
            "recipe",
            "machine",
            "data",
            "members",
            "attacks",
            "theory",
            "runs",
            "stage",
            "boosting",
            "budget",
            "evaluation",
        ),
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
# What a room may import of other packages at the top of a module: the runtime stays small, and its mathematics pure.
NOT_AT_THE_TOP = {
    "robustinfer.smoothing": {"torch", "onnxruntime", "onnx", "PIL", "pandas", "statsmodels", "matplotlib"},
    "robustinfer.engines": {"torch", "onnx", "pandas", "statsmodels", "matplotlib"},
    "robustinfer": {"torch", "onnxruntime", "onnx", "pandas", "statsmodels", "matplotlib"},
    "robustinfer.data": {"torch", "torchvision", "PIL", "pyarrow", "sklearn", "onnxruntime", "onnx"},
    "robustinfer.report": {"torch", "onnxruntime", "onnx", "pandas", "statsmodels", "matplotlib"},
    "robustinfer.cli": {"torch", "onnxruntime", "onnx", "pandas", "statsmodels", "matplotlib", "numpy", "scipy"},
    "robust.serve.service": {"torch", "onnxruntime", "ts"},
    "robust.serve.page": {"torch", "onnxruntime"},
    "robust.serve.asgi": {"torch", "onnxruntime", "ts", "opentelemetry"},
    "robust.train.recipe": {"torch"},
}
TORCH_MODULES = {"robustinfer/engines/torch.py"}  # which is imported lazily itself
PURE = {"numpy", "scipy"}


def modules() -> Iterator[tuple[Path, str, ast.Module]]:
    """Every module of the four packages: its file, its dotted name and its syntax tree."""
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = list(file.relative_to(ROOT / folder).with_suffix("").parts)
            name = ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])
            yield file, name, ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path, name: str, tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The absolute names of all modules that a module imports, wherever in it."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            # `from ..service import logs` imports a module of that room, or a name of its __init__.
            yield from ((node, f"{whole}.{alias.name}") for alias in node.names)


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


def test_large_packages_are_imported_where_they_are_used() -> None:
    for file, name, tree in modules():
        forbidden = NOT_AT_THE_TOP.get(room(name), set())
        if str(file.relative_to(ROOT)) in TORCH_MODULES:
            forbidden = forbidden - {"torch"}
        top = {node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
        found = {target.split(".")[0] for node, target in imported(file, name, tree) if node in top}
        assert not found & forbidden, name


def test_the_mathematics_is_pure() -> None:
    for file, name, tree in modules():
        if room(name) == "robustinfer.smoothing":
            found = {target.split(".")[0] for _, target in imported(file, name, tree)}
            assert found <= PURE | sys.stdlib_module_names | {"robustinfer"}, name


def test_no_import_of_ours_is_hidden_in_a_string() -> None:
    for file, name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in {
                *("import_module", "__import__", "require", "run_module"),
            }:
                words = [word.value for word in node.args if isinstance(word, ast.Constant)]
                assert not any(str(word).startswith("robust") for word in words), f"{file}:{node.lineno} in {name}"


def test_every_module_is_in_a_room_that_says_what_belongs_there() -> None:
    for file, _, tree in modules():
        assert (file.parent / "__init__.py").is_file(), f"{file.parent} is not a package"
        if file.name == "__init__.py":
            assert ast.get_docstring(tree), f"{file} does not say what belongs there"

"""The house: imports go down the floors, nothing forbidden stands in the source, imports stay cheap."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernelhead

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kernelhead"
FLOORS = (
    ("errors",),
    ("shapes", "rng", "records", "units"),
    ("pattern", "data", "report"),
    ("kernels",),
    ("decomposition",),
    ("ops",),
    ("nn",),
    ("models", "surgery", "inspection"),
    ("training",),
    ("estimators",),
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
MODULES = sorted(SOURCE.rglob("*.py"))

Found = list[str]


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    """The room a file stands in; of the package's own, `__main__` is the command and `__init__` in none."""
    room = path.relative_to(SOURCE).with_suffix("").parts[0]
    return "cli" if room == "__main__" else room


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, anywhere in a file and however it is spelled.

    A name imported from `kernelhead` is a room of it; so is an attribute of `kernelhead`.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"
            case ast.ImportFrom():
                yield node.lineno, "." * node.level + (node.module or "")
            case ast.Attribute(value=ast.Name(id="kernelhead"), attr=attr):
                yield node.lineno, f"kernelhead.{attr}"
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module


def rooms_imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in imports(tree):
        parts = name.split(".")
        if parts[0] == "kernelhead" and len(parts) > 1 and parts[1] in FLOOR:
            yield line, parts[1]


def climbs(room: str, tree: ast.AST) -> Found:
    """Imports of a room that stands as high or higher."""
    return [
        f"line {line}: {room} (floor {FLOOR[room]}) imports {other} (floor {FLOOR[other]})"
        for line, other in rooms_imported(tree)
        if other != room and FLOOR[other] >= FLOOR[room]
    ]


def calls(tree: ast.AST, name: str) -> Found:
    """Calls of a builtin by its name."""
    return [
        f"line {node.lineno}: {name}()"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def uses(tree: ast.AST, *names: str) -> Found:
    """Dotted names such as `os.environ`, as attributes or as imported names."""
    attributes = {
        (node.lineno, ast.unparse(node)) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    return [f"line {line}: {name}" for line, name in sorted({*attributes, *imports(tree)}) if name in names]


def packages(tree: ast.AST, *names: str) -> Found:
    """Imports of these packages or of anything inside them."""
    return sorted({f"line {line}: {name}" for line, name in imports(tree) if name.split(".")[0] in names})


def asserts(tree: ast.AST) -> Found:
    return [f"line {node.lineno}: assert" for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout.strip()


def loaded_by(statement: str, *packages: str) -> set[str]:
    """Which of these packages a fresh interpreter has loaded after a statement."""
    return set(run(f"import sys; {statement}; print(*({{*sys.modules}} & {set(packages)!r}))").split())


def test_the_source_is_there() -> None:
    assert {"errors.py", "pattern.py", "nn/base.py", "decomposition/ksvd.py"} <= {*map(name_of, MODULES)}


def test_every_file_stands_on_a_floor() -> None:
    assert [name_of(path) for path in MODULES if room_of(path) not in {*FLOOR, "__init__"}] == []


def test_every_room_named_by_the_package_is_there() -> None:
    rooms = {room_of(path) for path in MODULES}
    assert [room for room in kernelhead.__all__ if room not in rooms] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_down(path: Path) -> None:
    if room_of(path) == "__init__":
        assert [*rooms_imported(tree_of(path))] == []
    else:
        assert climbs(room_of(path), tree_of(path)) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_are_absolute(path: Path) -> None:
    assert [found for found in imports(tree_of(path)) if found[1].startswith(".")] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_forbidden_everywhere(path: Path) -> None:
    tree = tree_of(path)
    assert asserts(tree) == []
    assert uses(tree, "sys.path") == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_forbidden_outside_its_room(path: Path) -> None:
    tree, room = tree_of(path), room_of(path)
    assert room == "cli" or calls(tree, "print") == []
    assert room == "data" or uses(tree, "os.environ", "os.environb", "os.getenv", "os.putenv") == []
    assert room == "rng" or uses(tree, "torch.manual_seed", "torch.seed", "torch.random.manual_seed") == []
    assert uses(tree, "random.seed", "numpy.random.seed", "np.random.seed") == []
    assert name_of(path).startswith("ops/triton") or packages(tree, "triton") == []
    assert room not in ("report", "data") or packages(tree, "torch") == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_public_module_says_what_it_is(path: Path) -> None:
    private = path.stem.startswith("_") and path.stem not in ("__init__", "__main__")
    assert private or ast.get_docstring(tree_of(path)), "no docstring opens the file"


def test_no_file_is_called_after_nothing() -> None:
    folders = (ROOT / name for name in ("src", "tests", "benchmarks"))
    files = (path for folder in folders for path in folder.rglob("*.py"))
    assert [str(path) for path in files if {path.stem, path.parent.name} & NO_NAMES] == []


@pytest.mark.parametrize(
    "code",
    [
        "import kernelhead.nn",
        "from kernelhead import nn",
        "from kernelhead.nn import record",
        "from kernelhead.nn.tape import record",
        "def f():\n    from kernelhead.models import registry",
        "class C:\n    def f(self):\n        import kernelhead.nn.tape as t",
        "if TYPE_CHECKING:\n    from kernelhead.cli import main",
        "import kernelhead\nkernelhead.nn.record",
        "from importlib import import_module\nimport_module('kernelhead.training.loop')",
        "import importlib\nimportlib.import_module('kernelhead.ops')",
    ],
)
def test_a_climb_is_seen(code: str) -> None:
    assert len(climbs("ops" if "ops" not in code else "kernels", ast.parse(code))) >= 1


def test_rooms_on_one_floor_are_strangers() -> None:
    assert climbs("data", ast.parse("from kernelhead.pattern import Dense")) != []
    assert climbs("models", ast.parse("from kernelhead.inspection import spectrum")) != []


def test_a_way_down_is_free() -> None:
    code = "import torch\nfrom kernelhead import __version__, errors\nfrom kernelhead.kernels import Cosine"
    assert climbs("decomposition", ast.parse(code)) == []
    assert climbs("nn", ast.parse("from kernelhead.nn.tape import record")) == []


@pytest.mark.parametrize(
    "code", ["import os\nos.environ['A']", "from os import environ", "import os\nx = os.getenv('A')"]
)
def test_a_look_at_the_environment_is_seen(code: str) -> None:
    assert len(uses(ast.parse(code), "os.environ", "os.getenv")) >= 1


def test_other_slips_are_seen() -> None:
    assert uses(ast.parse("import sys\nsys.path.append('x')"), "sys.path") == ["line 2: sys.path"]
    assert uses(ast.parse("from sys import path"), "sys.path") == ["line 1: sys.path"]
    assert asserts(ast.parse("def f():\n    assert True")) == ["line 2: assert"]
    assert calls(ast.parse("print(1)\n'print(2)'"), "print") == ["line 1: print()"]
    assert packages(ast.parse("def f():\n    import triton.language as tl"), "triton") != []


def test_the_package_alone_imports_nothing_heavy() -> None:
    assert loaded_by("import kernelhead", "torch", "numpy", "sklearn", "matplotlib", "transformers") == set()


def test_layers_import_nothing_optional() -> None:
    optional = ("sklearn", "matplotlib", "transformers", "aeon", "jsonargparse", "jinja2", "lightning_fabric")
    assert loaded_by("import kernelhead.nn", *optional) == set()


@pytest.mark.parametrize("room", ["data", "report", "records"])
def test_rooms_that_know_no_tensor_import_no_torch(room: str) -> None:
    assert loaded_by(f"import kernelhead.{room}", "torch") == set()


def test_a_room_is_imported_on_first_use() -> None:
    code = "import sys, kernelhead; kernelhead.records.CONFIG; print('kernelhead.records' in sys.modules)"
    assert run(code) == "True"


def test_a_room_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'kernelhead' has no attribute 'kitchen'"):
        kernelhead.kitchen  # noqa: B018


@pytest.mark.slow
def test_importing_costs_little_beside_torch() -> None:
    # In one process after torch, and by the processor's clock: other work on the machine adds nothing.
    clock = "import torch; from time import process_time as f; t = f(); import kernelhead.nn; print(f() - t)"
    extra = min(float(run(clock)) for _ in range(3))
    assert extra < 0.2, f"kernelhead.nn adds {extra:.3f} s to the import of torch"

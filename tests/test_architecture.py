"""Imports go one way, and nobody outside of inference asks which class a posterior is of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lingp"
PAGE = ROOT / "docs" / "architecture.md"
# what can't be asked about outside of inference
POSTERIORS = (
    {"OccamFactor", "Posterior", "FactorizedPosterior", "WeightSpace", "FunctionSpace"}
    | {"SparsePosterior", "IterativePosterior", "BlocksDeterminant"}
    | {"InferenceMethod", "Options", "Exact", "Sparse", "Iterative", "Blocks"}
    | {"BoundSparse", "BoundIterative", "BoundBlocks"}
)
ASKING = {"isinstance", "issubclass", "getattr", "hasattr"}


def modules() -> dict[str, Path]:
    """All modules of the package by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(module: str) -> Iterator[str]:
    """The package's modules that a module names in any import, wherever it stands."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                name = inner if inner in MODULES else node.module
                if name in MODULES:
                    yield name


IMPORTS = {module: set(imported(module)) - {module} for module in MODULES}


def order() -> list[str]:
    """Rooms from the lowest to the highest, as the page has them."""
    block = re.search(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return [line.split()[0] for line in reversed(block[1].splitlines())]


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_the_page_names_every_room():
    assert sorted(order()) == sorted({room(m) for m in MODULES} - {""})


@pytest.mark.parametrize("name", order())
def test_a_room_imports_from_below_only(name):
    rank = {r: i for i, r in enumerate(order())}
    upwards = [
        f"{module} imports {other}"
        for module, others in IMPORTS.items()
        if room(module) == name
        for other in others
        if rank.get(room(other), len(rank)) > rank[name]
    ]
    assert upwards == []


def test_no_circle_of_modules():
    """Modules that import nothing that is left are taken away, until none is left."""
    left = {module: set(others) for module, others in IMPORTS.items()}
    while free := [module for module, others in left.items() if not others]:
        for module in free:
            del left[module]
        for others in left.values():
            others.difference_update(free)
    assert left == {}


def names_in(node: ast.AST) -> set[str]:
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def questions(source: str) -> list[str]:
    """Lines that ask for the class or the attributes of a posterior, a method or its options."""
    found = []
    for node in ast.walk(ast.parse(source)):
        asked: set[str] = set()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ASKING:
                asked = set().union(*map(names_in, node.args))
        elif isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq | ast.In) for op in node.ops
        ):
            asked = set().union(*(names_in(side) for side in node.comparators)) & POSTERIORS
        if asked & (POSTERIORS | {"posterior", "occam"}):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("name", [r for r in order() if r != "inference"])
def test_nobody_else_asks_for_the_class_of_a_posterior(name):
    asked = {
        module: questions(path.read_text(encoding="utf-8"))
        for module, path in MODULES.items()
        if room(module) == name
    }
    assert {module: lines for module, lines in asked.items() if lines} == {}


def test_such_questions_are_found():
    assert questions("isinstance(p, WeightSpace | FunctionSpace)")
    assert questions("getattr(gp.laplace.posterior(), 'features', None)")
    assert questions("laplace.method is FunctionSpace")
    assert not questions("isinstance(x, Tensor) and laplace.posterior().eigenvalues()")

"""What the README and the documentation show works: code runs, links lead somewhere."""

import configparser
import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch

import lingp

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("**/*.md"))]
EVERY_PAGE = pytest.mark.parametrize(
    "page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES]
)

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def code_blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Blocks of one language in a page, each with the number of lines above its code."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: match.start(2)].count("\n"), match[2])
        for match in FENCE.finditer(text)
        if match[1] == language
    ]


@EVERY_PAGE
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for lines_above, code in code_blocks(page, "python"):
        # The blank lines make a traceback name the line of the page.
        exec(compile("\n" * lines_above + code, str(page), "exec"), namespace)


@EVERY_PAGE
def test_every_fence_is_closed(page):
    assert page.read_text(encoding="utf-8").count("```") % 2 == 0


@EVERY_PAGE
def test_relative_links_lead_to_files(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [link for link in LINK.findall(text) if not re.match(r"https?://|#", link)]
    missing = [link for link in targets if not (page.parent / link.split("#")[0]).exists()]
    assert missing == []


def test_readme_shows_code_and_two_commands():
    assert code_blocks(README, "python")
    commands = [line for _, code in code_blocks(README, "bash") for line in code.splitlines()]
    assert sum("tox -e" in line for line in commands) == 2


def test_commands_name_tox_environments():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini", encoding="utf-8")
    known = {name.removeprefix("testenv:") for name in config.sections() if ":" in name}
    for page in PAGES:
        named = re.findall(r"tox -e (\w+)", page.read_text(encoding="utf-8"))
        assert set(named) <= known


def test_continuous_integration_runs_the_readme_test_command():
    [command] = [
        line
        for _, code in code_blocks(README, "bash")
        for line in code.splitlines()
        if "tox -e tests" in line
    ]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert command in script.splitlines()


MODULES = [
    module.name for module in pkgutil.walk_packages(lingp.__path__, prefix=lingp.__name__ + ".")
]


@pytest.mark.parametrize("name", ["lingp", *MODULES])
def test_examples_in_docstrings(name):
    known = {"gpytorch": gpytorch, "lingp": lingp, "np": np, "torch": torch}
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, extraglobs=known, optionflags=doctest.ELLIPSIS)
    assert failed == 0

"""docs/errors.md quotes messages that are really given, and every case here is on the page."""

import re
import warnings
from pathlib import Path

import pytest
from error_cases import says

import lingp

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
ROW = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| (.+) \|$", re.MULTILINE)
SEVERAL = "## Several processes"

_text = PAGE.read_text(encoding="utf-8")
QUOTED = {says: kind for kind, says, _ in ROW.findall(_text)}
OF_RANKS = [says for _, says, _ in ROW.findall(_text[_text.index(SEVERAL) :])]


def pattern(quoted):
    return re.compile(".*".join(map(re.escape, quoted.split("…"))), re.DOTALL)


def given_by(provoke):
    """Kind and message of the warnings and of the error that a function gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = []
        try:
            provoke()
        except Exception as error:
            given.append((type(error).__name__, str(error)))
    return given + [(warning.category.__name__, str(warning.message)) for warning in caught]


@pytest.mark.parametrize("quoted", says)
def test_message(quoted):
    matching = [kind for kind, text in given_by(says[quoted]) if pattern(quoted).search(text)]
    assert matching, given_by(says[quoted])
    assert matching[0] == QUOTED[quoted]


def test_every_row_of_the_page_is_provoked():
    rows = [line for line in _text.splitlines() if re.match(r"\| `", line)]
    assert len(rows) == len(QUOTED), "every row has a kind and one message, and none is there twice"
    assert set(QUOTED) - set(OF_RANKS) == set(says)


@pytest.mark.parametrize("quoted", OF_RANKS)
def test_messages_of_several_processes_stand_in_the_library(quoted):
    source = "".join(
        path.read_text(encoding="utf-8") for path in Path(lingp.__path__[0]).rglob("*.py")
    )
    # neighbouring strings are one; names in braces are what differs
    source = re.sub(r"""["']\s+f?["']""", "", source)
    inside = "".join(
        r"[^{}]*\{[^{}]*\}" if part == "…" else re.escape(part) for part in re.split("(…)", quoted)
    )
    assert re.search(inside, source)
    assert re.search(rf"class {QUOTED[quoted]}\(|raise {QUOTED[quoted]}\(", source)

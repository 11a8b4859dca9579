"""The checker of English finds each kind of violation, and accepts plain sentences."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("prose", ROOT / ".ci/prose.py")
prose = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prose)
LONG = "The " + "very " * 30 + "long sentence ends here."


def messages(check, text):
    return [violation.message for violation in check("a file", text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""What a module has."""', 'begins with "What"'),
        ('"""A module."""\nX = 1\n"""Of points, how many."""', 'begins with "Of"'),
        ('"""A module, of which one knows little."""', '"of which"'),
        (f'"""{LONG}"""', "a sentence of 35 words"),
        ('def f():\n    """The square."""', 'begins with "The": begin with a verb'),
        ("x = 1  # so many points", '"so many"'),
        ("knobs = 1", "the name knobs"),
        ('"""A module.\n\nThe rank is told."""', '"is told"'),
    ],
)
def test_a_violation_in_a_python_file_is_found(text, found):
    assert any(found in message for message in messages(prose.check_python, text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("How it works.", 'begins with "How"'),
        ("* A list. With two sentences.", "more than one sentence"),
        ("| a cell | One. Two. |", "more than one sentence"),
        (LONG, "a sentence of 35 words"),
        ("It tells the rank.", '"tells"'),
    ],
)
def test_a_violation_in_a_page_is_found(text, found):
    assert any(found in message for message in messages(prose.check_markdown, text))


def test_plain_sentences_are_accepted():
    python = '"""A module.\n\nIt has one function."""\n\ndef f():\n    """Return a sum of ``knobs``, e.g. two."""\n'
    assert messages(prose.check_python, python) == []
    page = "# How many causes?\n\nBy Lücke et al. (2010), of `so many` words.\n\n```\nWhat. Is. This.\n```\n"
    assert messages(prose.check_markdown, page) == []

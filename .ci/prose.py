"""Check the English of docstrings, comments and Markdown, and the names of the code, against ``prose.toml``.

``python .ci/prose.py [PATH ...]`` prints one line for each violation and returns the exit code 1 if it finds any.
Without a path it checks all files that Git tracks.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
PHRASES = re.compile(rf"\b({'|'.join(map(re.escape, RULES['phrases']))})\b", re.IGNORECASE)
SENTENCE_END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\beq)(?<!\bsec)(?<!\bch)(?<!\bal)(?<!\bfig)(?<!\bvs)[.?!][)\"*_]*\s+(?=[A-Z`*\[(\"])"
)
INITIAL = re.compile(r"\b[A-Z]\.(?= )")
CODE = re.compile(r"``[^`]*``|`[^`]*`|\$[^$]*\$|!?\[[^\]]*\]\([^)]*\)|\[[^\]]*\]|https?://\S+|\"[^\"]*\"")
SECTION = re.compile(
    r"^\s*(Parameters|Returns|Yields|Raises|Attributes|Examples|Notes|See Also|References)\s*\n\s*-{3,}", re.MULTILINE
)


class Violation(NamedTuple):
    """A place in a file and the rule that it breaks."""

    path: str
    line: int
    message: str


def check_words(path: str, line: int, text: str) -> Iterator[Violation]:
    """Yield the constructions of ``prose.toml`` that a text contains outside code and quotations."""
    for number, one in enumerate(text.split("\n")):
        for found in PHRASES.finditer(CODE.sub("``", one)):
            phrase = found.group().lower()
            yield Violation(path, line + number, f'"{phrase}": write {RULES["phrases"][phrase]}')


def check_sentences(path: str, line: int, text: str) -> Iterator[Violation]:
    """Yield the sentences of a paragraph that are too long."""
    plain = CODE.sub("code", re.sub(r"\([^()]*\)", "", text))
    for sentence in SENTENCE_END.split(INITIAL.sub("", plain)):
        words = [word for word in sentence.split() if re.search(r"[a-z]", word)]
        if len(words) > RULES["limits"]["sentence"]:
            yield Violation(path, line, f"a sentence of {len(words)} words: {' '.join(words[:6])} …")


def check_start(path: str, line: int, text: str) -> Iterator[Violation]:
    """Yield a first word that no sentence begins with, unless the text is a question."""
    first = re.match(r"\W*(\w+)", text)
    if first and first.group(1) in RULES["starts"]["words"] and not text.rstrip("*_ ").endswith("?"):
        yield Violation(path, line, f'begins with "{first.group(1)}": lead with the verb or the thing')


def check_docstring(path: str, node: ast.AST, line: int, text: str) -> Iterator[Violation]:
    """Yield the violations of a docstring, or of the string below a constant."""
    yield from check_words(path, line, text)
    yield from check_start(path, line, text)
    prose = SECTION.split(text)[0]
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[*-] |\d\. )", prose):
        if "::" not in paragraph and " : " not in paragraph:
            yield from check_sentences(path, line, paragraph)
    if isinstance(node, ast.FunctionDef) and not is_property(node):
        first = text.split()[0].strip(".,:;")
        if first not in RULES["verbs"]["words"]:
            yield Violation(path, line, f'a function whose docstring begins with "{first}": begin with a verb')


def is_property(node: ast.FunctionDef) -> bool:
    """Return whether a function is a property, or a fixture, and may be described by a noun."""
    names = [ast.unparse(one) for one in node.decorator_list]
    return any(re.search(r"property|fixture", name) for name in names)


def check_python(path: str, text: str) -> Iterator[Violation]:
    """Yield the violations of a Python file."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for before, child in zip([node, *body], body, strict=False) if isinstance(body, list) else ():
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield from check_docstring(path, before, child.lineno, value.value.strip())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|ruff)", token.string):
            yield from check_words(path, token.start[0], token.string)
        elif token.type == tokenize.NAME and token.string in RULES["identifiers"]:
            yield Violation(
                path, token.start[0], f"the name {token.string}: write {RULES['identifiers'][token.string]}"
            )


def check_markdown(path: str, text: str) -> Iterator[Violation]:
    """Yield the violations of a Markdown file: one sentence a line, and the rules for words."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(("```", "~~~", "$$")):
            fenced = not fenced if line.count("$$") != 2 else fenced
            continue
        if fenced or line.startswith(("<", ":::", "---")):
            continue
        cells = (
            [cell for cell in line.strip().strip("|").split("|") if cell.strip(" -:")]
            if line.startswith("|")
            else [line]
        )
        for cell in cells:
            plain = re.sub(r"^\s*([*+-]|\d+\.|#+|>)\s+", "", cell).strip()
            yield from check_words(path, number, plain)
            yield from check_start(path, number, plain)
            if len(SENTENCE_END.split(INITIAL.sub("", CODE.sub("code", plain)))) > 1:
                yield Violation(path, number, "more than one sentence in a line or cell")
            else:
                yield from check_sentences(path, number, plain)


def check_file(path: str) -> list[Violation]:
    """Return the violations of a file, in the order of its lines."""
    text = Path(path).read_text()
    return sorted(
        check_python(path, text) if path.endswith(".py") else check_markdown(path, text), key=lambda one: one.line
    )


def tracked_files() -> list[str]:
    """Return the Python and Markdown files that Git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.md"], capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.splitlines() if Path(path).is_file()]


def main(paths: list[str]) -> int:
    """Print all violations and return the exit code."""
    names = [
        str(path)
        for one in paths
        for path in ([Path(one)] if Path(one).is_file() else [*Path(one).rglob("*.py"), *Path(one).rglob("*.md")])
    ]
    violations = [violation for path in (names or tracked_files()) for violation in check_file(path)]
    for violation in violations:
        print(f"{violation.path}:{violation.line}: {violation.message}")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

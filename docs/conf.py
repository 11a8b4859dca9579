"""Configuration of Sphinx, which builds the site from the Markdown pages; see ``make docs``."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import ziamath.fonts
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402

project = "parallel_et"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "parallel_et"
html_static_path = ["_static", str(Path(*ziamath.fonts.__path__) / "STIXTwoMath-Regular.ttf")]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
highlight_language = "text"
smartquotes = False

INCLUDED_PAGES = {"how-to/slurm": "slurm/README.md", "reference/changelog": "CHANGELOG.md"}
"""Pages whose text is another file of the repository, by path from the root."""
GENERATED = {"<!-- the keys -->": reference.job, "<!-- the commands -->": reference.commands}
"""Marks in pages, and the functions whose text replaces them."""


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the marks in a page by generated text, and links between files by links between pages."""
    home = (HERE / page).parent
    if page in INCLUDED_PAGES:
        text = HERE.parent / INCLUDED_PAGES[page]
        source[0] = re.sub(
            r"\]\(([^)#:]+)", lambda link: f"]({os.path.relpath(text.parent / link[1], home)}", text.read_text()
        )
    for mark, generate in GENERATED.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, generate())
    for name, path in INCLUDED_PAGES.items():
        here = os.path.relpath(HERE.parent / path, home)
        source[0] = source[0].replace(f"]({here})", f"]({os.path.relpath(HERE / name, home)}.md)")


def format_sections(app: Sphinx, kind: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Convert the sections of a docstring, which have lines ``name : description``, into lists."""
    formatted: list[str] = []
    section = False
    for line in lines:
        if re.fullmatch("-{3,}", line) and formatted:
            formatted[-1] = f"**{formatted[-1]}**"
            section = True
            line = ""
        elif section and (item := re.fullmatch(r"(\S.*?) : (.*)", line)):
            line = f"* ``{item[1]}``: {item[2]}"
        elif section and line.startswith("    "):
            line = f"  {line.strip()}"
        formatted.append(line)
    lines[:] = formatted


def write_mathml(self: Any, node: nodes.Element) -> None:
    """Write an equation as MathML, which browsers show without a script, in the font of ``site.css``."""
    block = isinstance(node, nodes.math_block)
    text = convert(node.astext(), display="block" if block else "inline")
    self.body.append(f'<div class="equation">{text}</div>\n' if block else text)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the functions of this file. Sphinx calls this function."""
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-docstring", format_sections)
    app.add_html_math_renderer("mathml", (write_mathml, None), (write_mathml, None))

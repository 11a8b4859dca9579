"""How Sphinx builds the site from the Markdown pages; ``make docs``."""

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
extensions = ["myst_parser"]
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

WHOLE = {"how-to/slurm": "slurm/README.md", "reference/changelog": "CHANGELOG.md"}
"""Pages whose text is in another file of the repository, by path from its root."""
GENERATED = {"<!-- the keys -->": reference.job, "<!-- the commands -->": reference.commands}
"""What is put in place of a mark in a page."""


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Fill in the generated parts of a page, and turn links between files into links between pages."""
    home = (HERE / page).parent
    if page in WHOLE:
        text = HERE.parent / WHOLE[page]
        source[0] = re.sub(
            r"\]\(([^)#:]+)", lambda link: f"]({os.path.relpath(text.parent / link[1], home)}", text.read_text()
        )
    for mark, generate in GENERATED.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, generate())
    for name, path in WHOLE.items():
        here = os.path.relpath(HERE.parent / path, home)
        source[0] = source[0].replace(f"]({here})", f"]({os.path.relpath(HERE / name, home)}.md)")


def mathml(self: Any, node: nodes.Element) -> None:
    """An equation as MathML, which browsers show without any script, in the font that ``site.css`` names."""
    block = isinstance(node, nodes.math_block)
    text = convert(node.astext(), display="block" if block else "inline")
    self.body.append(f'<div class="equation">{text}</div>\n' if block else text)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))

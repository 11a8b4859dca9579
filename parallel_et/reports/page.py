"""The page of a report: HTML in one file, without scripts."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #57606a; --line: #d0d7de; --paper: #fff; --box: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --quiet: #9aa5b1; --line: #3a424c; --paper: #14181d; --box: #1d232a; }
}
body { margin: 0 auto; max-width: 60rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0.5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.5rem; padding-top: 0.6rem; border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 0.6rem; margin: 1rem 0; }
dl div { background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: 0.4rem 0.7rem; }
dt, figcaption, footer { color: var(--quiet); font-size: 0.88rem; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
figure { margin: 0.5rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption { margin-top: 0.4rem; max-width: 46rem; }
pre { background: var(--box); border: 1px solid var(--line); border-radius: 6px; padding: 0.8rem; margin: 0.5rem 0;
  font-size: 0.82rem; line-height: 1.4; white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.8rem 0.25rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; white-space: pre-line; }
th { font-weight: 400; color: var(--quiet); width: 11rem; }
.choice { border: 0; margin: 0 0 0.4rem; padding: 0; color: var(--quiet); font-size: 0.88rem; }
.choice label { margin-right: 1rem; cursor: pointer; }
.either:has(.first:checked) figure + figure, .either:has(.second:checked) figure:has(+ figure) { display: none; }
table.several { table-layout: fixed; }
table.several th[scope="col"] { color: var(--ink); font-weight: 600; width: auto; }
details > summary { cursor: pointer; color: var(--quiet); margin-top: 0.8rem; }
.note { border-left: 4px solid #d4a017; background: var(--box); padding: 0.5rem 0.8rem; }
@media (max-width: 40rem) { figure { overflow-x: auto; } img.wide { max-width: 180%; } }
@media print {
  :root { --ink: #000; --quiet: #444; --line: #ccc; --paper: #fff; --box: #fff; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  figure, dl div, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


class Picture(NamedTuple):
    """A PNG with its file name, alternative text for screen readers, and caption."""

    name: str
    png: bytes
    alt: str
    caption: str

    def html(self) -> str:
        """Render the picture as an HTML figure."""
        source = f"data:image/png;base64,{b64encode(self.png).decode()}"
        width, height = (round(int.from_bytes(self.png[at : at + 4], "big") / 1.5) for at in (16, 20))
        kind = "wide" if width > 820 else "narrow"  # too wide for the screen of a phone
        return (
            f'<figure><img class="{kind}" src="{source}" alt="{escape(self.alt)}" width="{width}" height="{height}">'
            f"<figcaption>{escape(self.caption)}</figcaption></figure>"
        )


class PictureChoice(NamedTuple):
    """Two pictures of the same content. The reader switches between them without a script.

    Attributes
    ----------
    labels : labels of the two pictures
    second : show the second picture at first
    """

    name: str
    pictures: tuple[Picture, Picture]
    labels: tuple[str, str]
    second: bool = False

    def html(self) -> str:
        """Render both pictures, with a choice above."""
        buttons = "".join(
            f'<label><input type="radio" class="{kind}" name="{self.name}"{" checked" if on else ""}> '
            f"{escape(labels)}</label>"
            for kind, labels, on in zip(("first", "second"), self.labels, (not self.second, self.second), strict=True)
        )
        shown = "".join(picture.html() for picture in self.pictures)
        return f'<div class="either"><fieldset class="choice">{buttons}</fieldset>{shown}</div>'


class Chapter(NamedTuple):
    """A heading and its body in HTML."""

    heading: str
    body: str


def warning_box(text: str) -> str:
    """Render a highlighted line."""
    return f'<p class="note">{escape(text)}</p>'


def preformatted(text: str) -> str:
    """Render preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def collapsible(labels: str, body: str) -> str:
    """Render HTML that is hidden until the reader opens it."""
    return f"<details><summary>{escape(labels)}</summary>{body}</details>"


def comparison_table(heads: Sequence[str], rows: Mapping[str, Sequence[object]]) -> str:
    """Render a table with one row per name and one column per head."""
    first = "".join(f'<th scope="col">{escape(head)}</th>' for head in ("", *heads))
    lines = (
        f'<tr><th scope="row">{escape(key)}</th>{"".join(f"<td>{escape(str(value))}</td>" for value in values)}</tr>'
        for key, values in rows.items()
    )
    return f'<table class="several"><tr>{first}</tr>{"".join(lines)}</table>'


def table(rows: Mapping[str, object]) -> str:
    """Render a table of names and values."""
    lines = (f'<tr><th scope="row">{escape(key)}</th><td>{escape(str(value))}</td></tr>' for key, value in rows.items())
    return f"<table>{''.join(lines)}</table>"


def render_page(title: str, facts: Mapping[str, object], sections: Sequence[Chapter], foot: str) -> str:
    """Render the page."""
    boxes = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(str(value))}</dd></div>" for key, value in facts.items())
    parts = "\n".join(f"<section><h2>{escape(s.heading)}</h2>\n{s.body}</section>" for s in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
{f"<dl>{boxes}</dl>" if boxes else ""}</header>
<main>
{parts}
</main>
<footer><p>{escape(foot)}</p></footer>
</body>
</html>
"""

"""Parsing of report pages, and rendering in a browser."""

import subprocess
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.image import imread


class Page(HTMLParser):
    """A parsed page. Parsing fails if an element is not closed."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open, self.tags, self.images, self.text, self.title = [], [], [], "", ""
        self.source = path.read_text()
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["title"]:
            self.title += data
        elif self.open[-1:] != ["style"]:
            self.text += data


def pictures(folder: Path) -> dict[str, np.ndarray]:
    """Return the pictures of a report, and check that the page embeds exactly the PNG files of its folder."""
    page = Page(folder / "report.html")
    assert "http://" not in page.source
    assert "https://" not in page.source
    assert "script" not in page.tags
    inside = []
    for image in page.images:
        kind, data = image["src"].split(",")
        assert kind == "data:image/png;base64"
        assert len(image["alt"]) > 20
        inside.append(b64decode(data))
    files = {path.stem: path.read_bytes() for path in folder.glob("*.png")}
    assert sorted(inside) == sorted(files.values())
    return {name: imread(BytesIO(content))[..., :3] for name, content in files.items()}


def coloured(image):
    return bool((np.ptp(image, axis=2) > 0.1).any())


def browse(page: Path, *options: str) -> str:
    """Return the output of headless Chromium for a page."""
    profile = f"--user-data-dir={page.parent / 'profile'}"
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", profile)
    command = ["chromium", *quiet, *options, f"file://{page}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout

"""What the documents show works as they show it."""

import re
from pathlib import Path

import numpy as np
import pytest

from parallel_et import fit, models
from parallel_et.job import read_job

ROOT = Path(__file__).parent.parent


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_model_of_the_architecture_page_trains(tmp_path, monkeypatch):
    (source,) = blocks("docs/architecture.md", "python")
    (tmp_path / "matched.py").write_text(source)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    models.known.cache_clear()
    try:
        result = fit(
            {
                "model": {"name": "matched", "causes": 10, "sigma": 2.0, "pi": 0.2},
                "data": {"source": "bars", "points": 500, "negative": 0.5, "noise": {"sigma": 2.0}},
                "inference": {"candidates": 5, "gamma": 3},
                "anneal": {"temperature": [[0.1, 13.0], [0.8, 1.0]], "noise": {"W": 0.05}},
            }
        )
    finally:
        models.known.cache_clear()
    error = np.abs(result.W[:, :, None] - result.truth["W"][:, None]).mean(0).min(0)
    assert (error < 1.0).sum() >= 8


@pytest.mark.parametrize("text", blocks("README.md", "toml"))
def test_jobs_of_the_readme_are_valid(text, tmp_path):
    (tmp_path / "job.toml").write_text(text)
    read_job(str(tmp_path / "job.toml"))


def test_links_of_the_documents_lead_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"

"""Code, commands, jobs and links of the documentation."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from launch import call, launch
from PIL import Image

from parallel_et import fit
from parallel_et.__main__ import COMMANDS
from parallel_et.job.job import SECTIONS, read_job

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import reference  # noqa: E402


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_trace_of_a_point_is_on_the_page_about_the_architecture(tmp_path):
    done = launch(None, ROOT / "docs/trace.py", tmp_path / "trace.png")
    assert done.returncode == 0, done.stderr
    assert done.stdout in (ROOT / "docs/explanation/architecture.md").read_text()
    assert Image.open(tmp_path / "trace.png").size == Image.open(ROOT / "docs/pictures/trace.png").size


def test_the_model_on_the_page_about_adding_a_model_is_the_example(monkeypatch, capsys):
    source, _, _, check = blocks("docs/how-to/adding-a-model.md", "python")
    assert source == (ROOT / "examples/own_model.py").read_text()
    monkeypatch.chdir(ROOT / "examples")
    exec(compile(check, "adding-a-model", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("example", [1, 2])
def test_further_models_on_the_page_about_adding_a_model_find_the_true_fields(example, tmp_path):
    (tmp_path / "model.py").write_text(blocks("docs/how-to/adding-a-model.md", "python")[example])
    rng = np.random.default_rng(1)
    fields = rng.normal(size=(6, 3))
    Y = rng.choice(example + 1, (800, 3), p=[0.6, 0.4] if example == 1 else [0.6, 0.25, 0.15]) @ fields.T
    Y += rng.laplace(0, 0.1, Y.shape) if example == 1 else 0.1 * rng.normal(size=Y.shape)
    job = {
        "model": {"file": str(tmp_path / "model.py"), "causes": 3, "init": {"W": {"moments": "third"}}},
        "inference": {"scheme": "exact"},
        "anneal": {"iterations": 30},
    }
    result = fit(job, Y)
    assert (np.diff(result.history["free_energy"]) > -1e-9).all()
    assert result.W[:, np.abs(fields.T @ result.W).argmax(1)] == pytest.approx(fields, abs=0.05)


@pytest.mark.parametrize("text", [*blocks("README.md", "toml"), *blocks("docs/reference/job-file.md", "toml")])
def test_jobs_of_the_documents_are_valid(text, tmp_path):
    (tmp_path / "job.toml").write_text(text)
    read_job(str(tmp_path / "job.toml"))


def test_links_of_the_documents_lead_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_tutorial_shows_the_job_that_it_runs():
    (shown,) = blocks("docs/tutorials/photographs.md", "toml")
    assert (ROOT / "jobs/patches.toml").read_text().endswith(f"\n\n{shown}")


def test_the_first_job_of_the_readme_is_printed_by_the_command():
    (shown,) = blocks("README.md", "toml")
    assert shown == call("job", "linca").stdout


def test_the_page_about_denoising_takes_noise_out_of_a_picture(tmp_path):
    (shown,) = blocks("docs/tutorials/denoising.md", "toml")
    assert (ROOT / "jobs/denoise.toml").read_text().endswith(f"\n\n{shown}")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "jobs").mkdir()
    image = np.repeat(np.repeat(np.random.default_rng(3).integers(0, 256, (6, 6), np.uint8), 9, 0), 9, 1)
    Image.fromarray(image).save(tmp_path / "pictures/camera.png")
    job = shown.replace("causes = 256", "causes = 40").replace("iterations = 60", "iterations = 20")
    (tmp_path / "jobs/denoise.toml").write_text(job)
    lines = "\n".join(blocks("docs/tutorials/denoising.md", "bash")).splitlines()
    commands = [shlex.split(line) for line in lines if line]
    decibels = []
    for words in commands:
        name, *args = " ".join(words[words.index("-m") + 1 :]).replace("parallel_et.", "parallel_et ").split()[1:]
        done = call(name, *args, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        decibels += re.findall(r"patches, (\S+) dB", done.stdout)
    noisy, denoised = map(float, decibels)
    assert noisy == pytest.approx(20.17, abs=0.5)
    assert denoised > noisy + 3


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Folder in which the commands of the tutorial were run, with a smaller job."""
    place = tmp_path_factory.mktemp("tutorial")
    (place / "images").mkdir()
    (place / "jobs").mkdir()
    image = np.random.default_rng(3).integers(0, 256, (40, 50), np.uint8)
    Image.fromarray(image).save(place / "images" / "noise.png")
    job = (ROOT / "jobs/patches.toml").read_text()
    for large, small in (("causes = 100", "causes = 12"), ("iterations = 100", "iterations = 20")):
        assert large in job
        job = job.replace(large, small)
    (place / "jobs/patches.toml").write_text(job)
    commands = [line for block in blocks("docs/tutorials/photographs.md", "bash") for line in block.splitlines()]
    assert len(commands) == 4
    for line in commands:
        words = shlex.split(line.replace("50000", "300"))
        ranks = int(words[2]) if words[0] == "mpirun" else None
        done = launch(ranks, *words[words.index("python") + 1 :], cwd=place)
        assert done.returncode == 0, done.stderr
    return place


def test_the_tutorial_leads_from_images_to_a_report(followed):
    assert (followed / "runs/patches/report/report.html").exists()


@pytest.mark.parametrize("page", ["tutorials/photographs", "tutorials/own-data", "reference/files", "how-to/scripts"])
def test_code_of_the_documents_runs(page, followed, monkeypatch, capsys):
    monkeypatch.chdir(followed)
    names = {}
    for source in blocks(f"docs/{page}.md", "python"):
        exec(compile(source, page, "exec"), names)
    assert capsys.readouterr().out


def test_the_example_of_the_library_finds_the_true_parameters(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, *_ = blocks("docs/how-to/scripts.md", "python")
    exec(compile(source, "library", "exec"), {})
    shape, sigma = re.match(r"(\(.*\)) (\S+)", capsys.readouterr().out).groups()
    assert shape == "(16, 4)"
    assert float(sigma) == pytest.approx(0.1, abs=0.005)


def test_every_key_of_the_job_file_is_described():
    text = reference.job()
    assert all(f"## [{section}]" in text for section in SECTIONS)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_command_and_option_is_described():
    text = reference.commands()
    assert [name for name in COMMANDS if f"\n## {name}\n" not in f"\n{text}"] == []
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []
    assert "```text\n\n```" not in text

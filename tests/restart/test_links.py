"""Links instead of files and directories of a run: their targets are not written, or an error is reported."""

import os

import pytest
from launch import call

from parallel_et.storage.atomic import write_atomically

SHORT = ("--set", "anneal.iterations=3", "--set", "run.checkpoint.every=1", "--set", "run.picture=true")


@pytest.fixture
def other(place):
    """A file that does not belong to the run."""
    (place / "other").write_text("not ours")
    yield place / "other"
    assert (place / "other").read_text() == "not ours"


def test_a_file_is_not_written_through_a_link(tmp_path):
    (tmp_path / "other").write_text("not ours")
    for name in ("job.toml", "job.toml.part"):
        (tmp_path / name).symlink_to("other")
    write_atomically(tmp_path / "job.toml", b"ours")
    assert (tmp_path / "other").read_text() == "not ours"
    assert (tmp_path / "job.toml").read_text() == "ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml", "other"]


def test_links_with_the_names_of_unfinished_files_are_not_followed(place, other):
    run = place / "runs/job"
    (run / "checkpoints").mkdir(parents=True)
    (run / "job.toml.part").symlink_to(other)
    assert call("train", "job.toml", *SHORT, cwd=place).returncode == 2  # not a run yet
    (run / "checkpoints").rmdir()
    assert call("train", "job.toml", *SHORT, cwd=place).returncode == 0
    (run / "result.h5").unlink()
    for name in ("job.toml.part", "log.txt.part", "result.h5.part", "fields.png", "fields.png.part"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(other)
    done = call("train", "job.toml", *SHORT, cwd=place)
    assert done.returncode == 0, done.stderr
    assert not any(path.is_symlink() for path in run.rglob("*"))


@pytest.mark.parametrize("name", ["job.toml", "log.txt", "result.h5"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "pipe"])
def test_what_is_no_file_in_the_place_of_one_is_refused(torn, name, kind):
    path = torn / "runs/job" / name
    if path.exists():
        path.rename(torn / name)
    if "link" in kind:
        path.symlink_to(torn / (name if kind == "link" else "nowhere"))
        (torn / name).touch()
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = (torn / name).read_bytes() if (torn / name).exists() else None
    for fresh in ((), ("--fresh",)):
        done = call("train", "job.toml", *fresh, cwd=torn)
        assert done.returncode == 2
        found = {"pipe": "something else", "directory": "a directory"}.get(kind, "a symbolic link")
        assert done.stderr == f"runs/job/{name}: expected a file, found {found}\n"
    assert before is None or (torn / name).read_bytes() == before
    assert not (torn / "nowhere").exists()


def test_a_log_that_becomes_a_link_meanwhile_gets_no_lines(place, other, capsys):
    from parallel_et.runs.directory import RunDirectory

    run = RunDirectory(str(place))
    run.log.symlink_to(other)
    run.append_to_log("a line")
    assert "log.txt: " in capsys.readouterr().err


def test_directories_that_are_links_are_followed(place, torn, ends_the_same):
    (torn / "runs/job/checkpoints").rename(torn / "elsewhere")
    (torn / "runs/job/checkpoints").symlink_to(torn / "elsewhere")
    ends_the_same(torn, call("train", "job.toml", cwd=torn))
    assert len(list((torn / "elsewhere").glob("*.h5"))) == 3


def test_checkpoints_that_are_no_directory_are_refused(torn):
    (torn / "runs/job/checkpoints").rename(torn / "elsewhere")
    (torn / "runs/job/checkpoints").symlink_to(torn / "nowhere")
    done = call("train", "job.toml", cwd=torn)
    assert done.returncode == 2
    assert done.stderr == "runs/job/checkpoints: expected a directory, found something else\n"


def test_links_that_lead_round_in_a_circle_are_refused_in_one_line(place):
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    commands = [("train", "job.toml", "--output"), ("train", "job.toml", "--fresh", "--output")]
    commands += [("infer",), ("generate", "--points", 3), ("report",), ("compare",)]
    for name, *args in commands:
        for run in ("a", "a/job"):
            data = ["data.npy"] if name == "infer" else []
            done = call(name, *args, run, *data, cwd=place)
            assert done.returncode == 2, done.stderr
            assert done.stderr.startswith(f"{run}: expected ")
            assert done.stderr.count("\n") == 1


def test_a_name_that_is_too_long_is_refused_in_one_line(place):
    for name, *args in (("train", "job.toml", "--output"), ("generate", "--points", 3), ("report",)):
        done = call(name, *args, "x" * 300, cwd=place)
        assert done.returncode == 2
        assert "File name too long" in done.stderr
        assert done.stderr.count("\n") == 1

"""Every error on a command line has one line and exit code 2, and changes no file."""

import h5py
import numpy as np
import pytest
from launch import call
from PIL import Image
from scipy.io import wavfile

from parallel_et.job.job import JOBS
from parallel_et.models import MODELS

JOB = """
[model]
name = "linca"
causes = 5
[data]
source = "d.h5:/rows"
[inference]
candidates = 3
gamma = 2
"""
NAMES = " or ".join(MODELS.names())
PROC = "/proc, where nothing can be created"
USAGE = [
    (
        "bench",
        "W9",
        "expected W1, W2, W3, W4, K2, S4, X2, L1, F2, G2, M2, M3, M4, P2, O2, I2, V2, V3, T2, T3, found W9",
    ),
    ("bench", "--seconds -1", "--seconds: expected a number above 0, found -1.0"),
    ("compare", "runs/demo --starts 0", "--starts: expected a positive number, found 0"),
    ("generate", "runs/linca --points 0", "--points: expected a positive number, found 0"),
    ("generate", "runs/linca --points 5 --sigma=-1", "--sigma: expected a number of 0 or more, found -1.0"),
    ("generate", "runs/linca --points 5 --sigma=nan", "--sigma: expected a number of 0 or more, found nan"),
    ("generate", "runs/linca --points 5 --seed=-1", "--seed: expected a number from 0 to 2^63 - 1, found -1"),
    (
        "infer",
        "runs/linca new.npy --what map,mean",
        "--what: expected some of evidence,candidates,means,map,reconstruction,quality, found mean",
    ),
    ("patches", "images", "one of the arguments --count --all is required"),
    ("patches", "images --all --count 3", "argument --count: not allowed with argument --all"),
    ("patches", "images --count 0", "--count: expected a positive number, found 0"),
    ("patches", "images --count 5 --stride 2", "--stride: expected a positive number, with --all, found 2"),
    ("patches", "images --all --scale 3 3", "--scale: expected a number and a larger one, found 3.0 3.0"),
    ("patches", "images --all --scale 0 1e39", "--scale: expected a number and a larger one, found 0.0 1e+39"),
    ("patches", "images --all --dog 1 0", "--dog: expected two different positive numbers below 10000, found 1.0 0.0"),
    (
        "patches",
        "images --all --dog 1 1e9",
        "--dog: expected two different positive numbers below 10000, found 1.0 1000000000.0",
    ),
    ("patches", "images --all --zca 0", "--zca: expected a positive number, found 0.0"),
    ("report", "runs/demo --shape 5by6", "--shape: expected numbers as in 16x16, found 5by6"),
    (
        "reproduce",
        "et-2011",
        "expected et-2010 or mca-2008 or oca-2014 or planted or thesis-2018 or tvem-2019, found et-2011",
    ),
    ("reproduce", "et-2010 --trials 0", "--trials: expected a positive number, found 0"),
    (
        "slurm",
        "job.toml --nodes 0 --ntasks-per-node 8 --time 1:00:00",
        "--nodes and --ntasks-per-node must be 1 or more",
    ),
    (
        "slurm",
        "job.toml --nodes 1 --ntasks-per-node 8 --time 4h",
        "--time: expected a time as 4:00:00 or 2-12:00:00, found 4h",
    ),
    (
        "slurm",
        "job.toml --nodes 1 --time 1:00:00",
        "the following arguments are required: --ntasks-per-node",
    ),
    ("sounds", "in --length soon", "--length: expected a time as 12.5ms, 0.1s or 200 (samples), found soon"),
    ("sounds", "in --step 0", "--step: expected a time as 1ms, 0.1s or 20 (samples), found 0"),
    ("sounds", "in --step 2 --count 3", "argument --count: not allowed with argument --step"),
    ("sounds", "in --bands 20", "--bands: expected --spectrogram with it, found 20"),
    (
        "sounds",
        "in --spectrogram --length 200",
        "--length: expected none, as with --spectrogram it follows from --windows, found 200",
    ),
    ("sounds", "in --spectrogram --range 0 1e39", "--range: expected a number and a larger one, found 0.0 1e+39"),
    ("sounds", "in --npy-rate -1", "--npy-rate: expected a positive number, found -1"),
    ("train", "job.toml --frehs", "unrecognized arguments: --frehs"),
    ("trials", "job.toml --of 3", "--of: expected --best as well, found none"),
    ("trials", "job.toml --best sigma --of 0", "--count, --ranks-per-trial, --of and --until must be 1 or more"),
]
"""Errors of the command line alone."""
TABLE = [
    *((name, args, f"python -m parallel_et {name}: {words}; --help shows an example") for name, args, words in USAGE),
    (
        "bench",
        "--model-scaling",
        "--model-scaling: expected two ranks or more, or --latency, --bandwidth and --memory, found one rank",
    ),
    ("generate", "nowhere --points 5", "nowhere: expected a run with a result or a checkpoint, found none"),
    (
        "generate",
        "runs/linca --points 5 --output there.h5 --quiet",
        "there.h5: expected the name of a new file, found a file; --fresh replaces it",
    ),
    ("infer", "runs/linca nowhere.npy --quiet", "nowhere.npy: expected a .npy file, found nothing there"),
    ("infer", "runs/nowhere new.npy", "runs/nowhere: expected a run with a result or a checkpoint, found none"),
    ("infer", "runs/linca wide.npy --quiet", "wide.npy: expected points of 16 dimensions, found 17"),
    (
        "infer",
        "runs/linca new.npy --output new.npy --quiet",
        "new.npy: expected the name of a new file, found a file; --fresh replaces it",
    ),
    (
        "infer",
        "runs/linca new.npy --output no/where.h5 --quiet",
        "no/where.h5: expected a place to write to, found no folder no",
    ),
    ("patches", "nowhere --all", "nowhere: expected a file, a folder or a pattern of files, found nothing there"),
    (
        "patches",
        "images --all --output images/c.npy",
        "images/c.npy: expected the name of a new file, found a file; --fresh replaces it",
    ),
    (
        "patches",
        "images --all --output no/out.h5",
        "no/out.h5: expected a place to write to, found no folder no",
    ),
    (
        "patches",
        "flat.npy --all --scale 0 1 --quiet",
        "--scale: expected patches of different values, found 1 everywhere",
    ),
    ("report", "nowhere", "nowhere: expected the directory of a run, found no job.toml there"),
    ("report", "begun", "begun: expected a run with a result or a checkpoint, found none"),
    ("report", "runs/demo --output file --quiet", "file: expected a folder to write to, found File exists"),
    ("report", "runs/demo --shape 5x6 --quiet", "--shape: expected 25 values, found 5x6"),
    (
        "reproduce",
        "et-2010 --only linca-bar-noisy",
        "--only: expected linca-bars-noisy, found linca-bar-noisy",
    ),
    (
        "reproduce",
        "et-2010 --data empty",
        "empty: expected files or folders named digits, grass, photos, large-photos, channels, sound, phonemes, icons, "
        "found none",
    ),
    ("sounds", "in --length 0.01ms", "--length: expected at least one sample, which takes 0.125 ms, found 0.01ms"),
    (
        "sounds",
        "in --spectrogram --hertz 100 5000",
        "--hertz: expected at most half of the sampling rate of 8000 Hz, found 5000",
    ),
    ("sounds", "in --scale 1e39", "in/a.wav: expected finite numbers of single precision, found others"),
    ("sounds", "in --channel 2", "in/a.wav: expected a channel 2, found 1"),
    ("train", "missing.toml", "missing.toml: expected a job file, found nothing there"),
    (
        "train",
        "jobs/demmo.toml",
        f"jobs/demmo.toml: expected a job file, found nothing there, but there is {JOBS / 'demo.toml'}",
    ),
    *(
        ("train", f"job.toml --set model.name={name}", f'job.toml: model.name: expected {NAMES}, found "{name}"{near}')
        for name, near in (("lincaa", ", did you mean linca?"), ("MCA", ", did you mean mca?"), ("x", ""))
    ),
    (
        "train",
        "job.toml --set data.source=bar",
        'job.toml: data.source: expected "bars", "clusters", "mixed", "model", "objects", "planted", "strokes", '
        '"file.npy" or "file.h5:/dataset", found "bar", did you mean bars?',
    ),
    *(
        (command, args, "d.h5: expected the name of a dataset, as in d.h5:/W, found none; the file contains /W, /rows")
        for command, args in (("train", "job.toml --set data.source=d.h5"), ("infer", "runs/linca d.h5 --quiet"))
    ),
    ("trials", "job.toml --output /proc/x/t.h5", f"/proc/x/t.h5: expected a place to write to, found {PROC}"),
    *(
        (command, f"{args} --output /proc/x", f"/proc/x: expected a {what} to write to, found {PROC}")
        for command, args, what in (
            ("train", "job.toml --quiet", "directory"),
            ("trials", "job.toml", "place"),
            ("infer", "runs/linca new.npy --quiet", "place"),
            ("generate", "runs/linca --points 5 --quiet", "place"),
            ("patches", "images --all --size 5 --quiet", "place"),
            ("report", "runs/demo --quiet", "folder"),
            ("reproduce", "et-2010", "folder"),
        )
    ),
    ("train", "broken.toml", "broken.toml: expected TOML, found an error..."),
    ("train", "job.toml --set data.source=no.h5:/rows", "no.h5: expected an HDF5 file, found nothing there"),
    ("train", "job.toml --set data.source=d.h5:/row", "d.h5: expected a dataset /row, found /rows, …"),
    ("train", "job.toml --set data.source=job.toml:/rows", "job.toml: expected an HDF5 file, found something..."),
    ("train", "job.toml --set data.source=bad.npy", "bad.npy: expected version 1, 2 or 3 of .npy, found 32"),
    (
        "train",
        "job.toml --set data.source=empty.npy",
        "empty.npy: expected points x dimensions, found the shape (0, 4)",
    ),
    ("train", "job.toml --set data.source=words.npy", "words.npy: expected numbers, found <U3"),
    (
        "train",
        "job.toml --set data.points=99",
        "data.points: expected at most the 30 rows of d.h5:/rows, found 99",
    ),
    ("train", "job.toml --set model.init.W.file=d.h5", "d.h5: W: expected the shape 4 x 5, found 4 x 3"),
    *(
        ("train", f"job.toml --output {output} {more}".rstrip(), f"{output}: {words}")
        for more in ("", "--fresh", "--dry-run")
        for output, words in (
            ("notes", "expected an empty directory or a run directory, found other files"),
            ("notes/mine.txt", "expected a directory, found a file {place}/notes/mine.txt"),
            ("notes/mine.txt/run", "expected a directory, found a file {place}/notes/mine.txt"),
        )
    ),
    (
        "trials",
        "job.toml --best sigma --set model.learn=['W']",
        "job.toml: model.learn: expected sigma in it for --best sigma, found ['W']",
    ),
    (
        "trials",
        "job.toml --count 1 --output other.h5",
        "other.h5: expected a file of trials, found a file without its checksum...",
    ),
    ("trials", "job.toml --count 1 --output runs", "runs: expected a file, found a directory"),
]
"""Command, arguments and error line; a line that ends with three dots is a beginning."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Small runs, data, images and a recording, valid and invalid."""
    place = tmp_path_factory.mktemp("mistakes")
    for folder in ("images", "in", "notes", "begun", "empty"):
        (place / folder).mkdir()
    for name in ("notes/mine.txt", "begun/job.toml", "file", "there.h5"):
        (place / name).touch()
    (place / "job.toml").write_text(JOB)
    (place / "broken.toml").write_text("[model\nname = 3")
    (place / "other.h5").write_text("no trials")
    (place / "bad.npy").write_bytes(b"\x93NUMPY garbage")
    with h5py.File(place / "d.h5", "w") as file:
        file["rows"], file["W"] = np.ones((30, 4)), np.ones((4, 3))
    for name, shape in (("empty", (0, 4)), ("new", (10, 16)), ("wide", (10, 17)), ("flat", (30, 30))):
        np.save(place / f"{name}.npy", np.ones(shape))
    np.save(place / "words.npy", np.array([["one", "two"]]))
    image = np.random.default_rng(5).integers(0, 255, (40, 60), np.uint8)
    Image.fromarray(image).save(place / "images/a.png")
    np.save(place / "images/c.npy", image)
    wavfile.write(place / "in/a.wav", 8000, (9000 * np.sin(np.arange(1600.0) ** 2 / 3000)).astype(np.int16))
    short = ("--set", "data.source=bars", "--set", "data.points=60", "--set", "anneal.iterations=2", "--quiet")
    for name, grid in (("linca", 4), ("demo", 5)):
        done = call("train", "job.toml", *short, "--set", f"data.grid={grid}", "--output", f"runs/{name}", cwd=place)
        assert done.returncode == 0, done.stderr
    return place


def contents(place):
    """Return all folders, and all files with content and modification time."""
    return {path: path.is_dir() or (path.stat().st_mtime_ns, path.read_bytes()) for path in place.rglob("*")}


@pytest.mark.parametrize("command, args, line", TABLE, ids=[f"{command} {args}" for command, args, _ in TABLE])
def test_a_mistake_on_a_command_line_is_one_line_and_changes_nothing(place, command, args, line):
    before = contents(place)
    done = call(command, *args.split(), cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    line = line.replace("{place}", str(place))
    if line.endswith("..."):
        assert done.stderr.startswith(line.removesuffix("..."))
    else:
        assert done.stderr == f"{line}\n"
    assert contents(place) == before

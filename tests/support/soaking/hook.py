"""Code that every process of a soak runs first (as sitecustomize): it slows a command at the points of disturbance.

Files in the working directory are its switches:

hold : number of the first iteration that is slowed by 0.1 s
slow : kinds of files that are written slowly: "checkpoints", "result", "rows"
case : a name with "distributed" or "without memory" sets the limits of the package accordingly
steps : gets one character for each write of rows and each trial
"""

import importlib.util
import os
import sys
import time
from pathlib import Path


def later(name, change):
    """Register a change of a module, applied when the module is loaded."""

    class Hook:
        def find_spec(self, wanted, path=None, target=None):
            if wanted == name:
                sys.meta_path.remove(self)
                spec = importlib.util.find_spec(name)
                load = spec.loader.exec_module
                spec.loader.exec_module = lambda module: (load(module), change(module))
                return spec
            return None

    sys.meta_path.insert(0, Hook())


def pause(word):
    """Wait 0.05 s if writes of this kind are slowed."""
    if os.path.exists("slow") and word in Path("slow").read_text():
        time.sleep(0.05)


def slow_iterations(module):
    """Make iterations slow from iteration ``hold``."""
    after = module.Checkpointer._after

    def slowly(checkpointer):
        if os.path.exists("hold") and checkpointer.training.state.iteration >= int(Path("hold").read_text() or 0):
            time.sleep(0.1)
        return after(checkpointer)

    module.Checkpointer._after = slowly


def slow_files(module):
    """Make the write of files slow: wait after each half of a file, before the file is renamed."""

    def open_slowly(path, mode):
        file = open(path, mode)  # noqa: SIM115 (the caller closes it)
        write, word = file.write, "result" if "result.h5" in str(path) else Path(path).parent.name

        def halves(data):
            for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                write(half)
                file.flush()
                pause(word)

        file.write = halves
        return file

    module.open = open_slowly


def slow_rows(kind, method):
    """Count the calls of a method that writes, and make the method slow."""

    def change(module):
        does = getattr(getattr(module, kind), method)

        def slowly(*args, **options):
            done = does(*args, **options)
            with open("steps", "a") as file:
                file.write(".")
            pause("rows")
            pause("rows")
            return done

        setattr(getattr(module, kind), method, slowly)

    return change


def limits(word, name, value):
    """Set a constant of a module if the name of the case has this word."""

    def change(module):
        if os.path.exists("case") and word in Path("case").read_text():
            setattr(module, name, value)

    return change


later("parallel_et.runs.checkpointer", slow_iterations)
later("parallel_et.storage.atomic", slow_files)
later("parallel_et.storage.output", slow_rows("Output", "write"))
later("parallel_et.trials.table", slow_rows("Trials", "add"))
later("parallel_et.models.components.linear", limits("distributed", "DISTRIBUTED_M_STEP_PRODUCTS", 0))
later("parallel_et.em.e_step", limits("without memory", "POSTERIOR_CACHE_BYTES", -(1 << 40)))

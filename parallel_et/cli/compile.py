"""``python -m parallel_et compile``: compile all kernels, so that no run has to."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.kernels import cache
from parallel_et.parallel.communicator import Ranks


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = Parser(
        "compile",
        "Compile all kernels for the processor of this machine, for example right after the installation: runs then "
        "start at once, also where the installation is read-only.",
        "python -m parallel_et compile",
    )
    ranks.from_root(lambda: parser.parse_args(argv))
    cache.declare_all()
    ranks.load_kernels()
    if ranks.either(bool(cache.unsaved)):
        return 2
    if ranks.is_root:
        print(f"all kernels are in {' and '.join(sorted(map(str, cache.used)))}", flush=True)
    return 0

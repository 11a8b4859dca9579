"""``python -m parallel_et compile``: compile all kernels before the first run."""

from collections.abc import Sequence

from parallel_et.cli import Parser
from parallel_et.kernels import cache
from parallel_et.parallel.communicator import Ranks


def main(ranks: Ranks, argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        "compile",
        "Compile all kernels for the processor of this machine, for example after the installation. Runs then start "
        "at once, even if the installation is read-only.",
        "python -m parallel_et compile",
    )
    ranks.from_root(lambda: parser.parse_args(argv))
    cache.declare_all()
    ranks.load_kernels()
    if ranks.bitwise_or(bool(cache.unsaved)):
        return 2
    if ranks.is_root:
        print(f"all kernels are in {' and '.join(sorted(map(str, cache.used)))}", flush=True)
    return 0

"""What the benchmark measures: one EM iteration beside the one matrix product that it cannot do without."""

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np

from parallel_et.bench.workloads import Workload, nearby, sample
from parallel_et.control.process import peak_bytes, reset_peak
from parallel_et.core.capabilities import pictures_of
from parallel_et.em.loop import em_step
from parallel_et.em.timer import PHASES, Timer
from parallel_et.kernels.rows import Rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import owners
from parallel_et.runs.memory_demand import count_statistics
from parallel_et.runs.setup import set_up

FEWEST, MOST = 7, 200
"""Repetitions."""
BLOCKS = (128, 256, 512, 1024, 2048)
"""Block sizes that the product is tried with, besides the one that the iteration has."""
FAR = (64, 1024, 10000)
"""Numbers of ranks that the scaling is predicted for."""
HOLDS, MANY = (0.9, 0.5), 1024
"""Efficiencies of which is told up to how many ranks they hold, and of how many that is looked at."""
SELECTING = ("prepare", "select", "cut", "communication", "mstep")
"""Phases in which a selection that is learned may take time; in some others do so as well, which is counted for it."""
LARGE = 1 << 24
"""Bytes of a message that shows the bandwidth."""
SMALL = 10
"""Messages of an iteration besides those in which works are shared out."""


def measure_beside_product(
    workload: Workload, points: int, ranks: Ranks, seconds: float, threads: int
) -> dict[str, Any]:
    """Measure a workload on one rank, and on several also with the same work for all and the same for each."""
    if ranks.size == 1:
        return measure(workload, points, ranks, seconds, threads)
    single = ranks.on_root_alone(lambda root: measure(workload, points, root, seconds, threads))
    strong = measure(workload, points, ranks, seconds, threads)
    weak = measure(workload, points * ranks.size, ranks, seconds, threads)
    return {
        **strong,
        "floor_us_per_point": single["floor_us_per_point"],
        "ratio": threads * ranks.size * strong["compared_us_per_point"] / single["floor_us_per_point"],
        "one_rank": single,
        "strong": single["us_per_point"] / (ranks.size * strong["us_per_point"]),
        "weak": single["us_per_point"] / (ranks.size * weak["us_per_point"]),
    }


def measure_computing(workload: Workload, points: int, ranks: Ranks, seconds: float) -> dict[str, Any]:
    """The processor time that ranks compute for in an iteration, however many share a core; messages are left aside.

    ``computing`` has the efficiency that this would give, and the one that ``predict`` makes of one rank's phases.
    """
    Timer.now = thread_time
    single = ranks.on_root_alone(lambda root: measure(workload, points, root, seconds, 1))
    row = measure(workload, points, ranks, seconds, 1)
    mine = sum(spent for phase, spent in row["phases"].items() if phase != "communication")
    one = sum(spent for phase, spent in single["phases"].items() if phase != "communication")
    predicted = predict(single, Network(0.0, np.inf, np.inf), ranks.size, ranks.size)["strong"][ranks.size]
    found = one / (ranks.size * ranks.max(mine))
    return {**row, "one_rank": single, "computing": {"found": found, "predicted": predicted}}


def measure(workload: Workload, points: int, ranks: Ranks, limit: float, threads: int) -> dict[str, Any]:
    """Time the iteration, and on one rank in turn with it the product, until the time is up; medians of all."""
    source = sample(workload, points)
    problem, begin, _ = set_up(workload.job(threads), source, ranks)
    params = ranks.share({**begin, **nearby(source)})
    state, fields = problem.initial_state(params), np.ascontiguousarray(pictures_of(problem.model, params))
    settings = problem.schedule.settings(state)
    learned, _ = em_step(problem, ranks, state, settings)
    if workload.rank:  # it has a kernel and targets from now on, and measures leverages once more
        state = learned._replace(params=ranks.share({**learned.params, **nearby(source)}))
        settings = problem.schedule.settings(state)
        em_step(problem, ranks, state, settings)
    floors: dict[int, list[float]] = {}
    if ranks.size == 1:
        quickest = min(BLOCKS, key=lambda size: min(multiply(problem.rows, fields, size) for _ in range(3)))
        floors = {problem.shard.block: [], quickest: []}
    reset_peak()
    times: list[float] = []
    infos, begun = [], perf_counter()
    while ranks.of_root(len(times) < FEWEST or (len(times) < MOST and perf_counter() - begun < limit)):
        for size, found in floors.items():
            found.append(multiply(problem.rows, fields, size))
        ranks.meet()
        start = perf_counter()
        _, info = em_step(problem, ranks, state, settings)
        times.append(ranks.max(perf_counter() - start))
        infos.append(info)
    seconds = float(np.median(times))
    low, high = np.percentile(times, [25, 75])
    floor = min((float(np.median(found)) for found in floors.values()), default=np.nan)
    scheme = problem.scheme
    states = scheme.count + (workload.causes - scheme.candidates) * workload.singletons
    phases = {phase: 1e6 / points * float(np.median([i.seconds[phase] for i in infos])) for phase in PHASES}
    compared = sum(phases[phase] for phase in SELECTING) if workload.rank else 1e6 * seconds / points
    a_state = 1e3 * (phases["states"] if workload.samples else 1e6 * seconds / points) / states
    return {
        "id": workload.id,
        "what": workload.what,
        "model": workload.model,
        "N": points,
        "D": workload.dims,
        "H": workload.causes,
        "candidates": workload.candidates,
        "gamma": workload.gamma,
        "temperature": workload.temperature,
        "ranks": ranks.size,
        "threads": threads,
        "block": problem.shard.block,
        "states": states,
        "repetitions": len(times),
        "spread": float(high - low) / seconds,
        "us_per_point": 1e6 * seconds / points,
        "floor_us_per_point": 1e6 * floor / points,
        "compared_us_per_point": compared,
        "ratio": threads * compared * points / (1e6 * floor),
        "most": workload.most,
        "ns_per_state_and_100_dims": a_state / (1.0 if workload.samples else max(1.0, workload.dims / 100)),
        "most_ns": workload.most_ns,
        "ns_per_state": a_state,
        "points_per_second": points / seconds,
        "peak_mb": ranks.max(peak_bytes()) / 1e6,
        "shard_mb": ranks.max(problem.rows.nbytes) / 1e6,
        "message_mb": 16 * count_statistics(problem.model) / 1e6,
        "phases": phases,
        "dealt": [
            {
                "sizes": list(one[0].sizes),
                "seconds": float(np.median([same.seconds for same in one])),
                "once": one[0].once,
            }
            for one in zip(*(info.shared_work for info in infos), strict=True)
        ],
    }


def multiply(rows: Rows, W: np.ndarray, size: int) -> float:
    """Seconds that Y W takes in blocks of that size."""
    out = np.empty((size, W.shape[1]))
    begun = perf_counter()
    for first in range(0, len(rows), size):
        Y = rows[first : first + size, : len(W)]
        np.dot(Y, W, out=out[: len(Y)])
    return perf_counter() - begun


class Network(NamedTuple):
    """What ranks are connected by.

    Attributes
    ----------
    latency : seconds that a message takes from rank to rank
    bandwidth : bytes a second that a rank sends
    memory : bytes a second that a rank reads and adds up of what others of its node have written
    """

    latency: float
    bandwidth: float
    memory: float


def measure_network(ranks: Ranks) -> Network:
    """That of these ranks, two or more."""
    small, large = (time_of_sum(ranks, size) for size in (1, LARGE // 8))
    shared = time_of_sum_in_memory(ranks, LARGE // 16)
    return Network(small / (ranks.size - 1).bit_length(), 2 * LARGE * (1 - 1 / ranks.size) / large, LARGE / shared)


def time_of_sum_in_memory(ranks: Ranks, size: int) -> float:
    """Seconds of a sum of that many words, of 16 bytes, over the ranks of a node."""
    node = ranks.node
    words, values = node.room("words", (node.size, 2, size), np.int64), node.room("sums", (size,))
    words[node.rank], values[:], times = 0, 0.0, []
    for _ in range(20):
        words[node.rank] += 1
        ranks.meet()
        begun = perf_counter()
        node.sum(words, lambda total, first: None, values)
        times.append(perf_counter() - begun)
    return ranks.max(float(np.median(times)))


def time_of_sum(ranks: Ranks, size: int) -> float:
    """Seconds of a sum of that many integers over the ranks."""
    values, times = np.zeros(size, np.int64), []
    for _ in range(20):
        ranks.meet()
        begun = perf_counter()
        ranks.sum(values)
        times.append(perf_counter() - begun)
    return ranks.max(float(np.median(times)))


def largest_share(sizes: list[int], ranks: int) -> float:
    """Of a work in pieces of these sizes, what the rank that has most of it does."""
    return float(np.bincount(owners(sizes, ranks), sizes).max() / sum(sizes))


def predict(row: dict[str, Any], network: Network, on_node: int = 64, *others: int) -> dict[str, Any]:
    """Efficiency on many ranks, with the same points for all (strong) and for each (weak), from measured parts.

    A rank's share of the points, in whole blocks, takes its share of the time, and so do its pieces of what is dealt
    out; what each node does is shared by its ranks, of which there are ``on_node``; all else stays as it is. A message
    takes the latency for each doubling of the ranks. Where the M-step is dealt out, a rank reads a share of the sums of
    all on its node, 16 bytes an element in all, and copies the fields. What nodes exchange, the sums once and again as
    numbers, and the pieces, is shared by their ranks. Else, in a reduction to the root and a broadcast, a rank sends
    twice what there is, but for its own share. ``holds`` are the largest numbers of ranks, up to ``MANY``, that have
    such an efficiency (strong).
    """
    one = row.get("one_rank", row)
    phases = {phase: 1e-6 * spent * one["N"] for phase, spent in one["phases"].items()}
    points = sum(phases[phase] for phase in ("select", "states", "statistics"))
    fixed = phases["prepare"] + phases["communication"] + phases["mstep"]
    alone = fixed - sum(work["seconds"] for work in one["dealt"])
    sums, fields = 1e6 * one["message_mb"], 8 * one["D"] * one["H"]
    pieces = 8 * sum(sum(work["sizes"]) for work in one["dealt"])
    blocks = -(-one["N"] // one["block"])

    def talk(ranks: int) -> float:
        messages = (SMALL + len(one["dealt"])) * network.latency * (ranks - 1).bit_length()
        if not one["dealt"]:
            return messages + (1 - 1 / ranks) * 2 * (sums + fields) / network.bandwidth
        here, nodes = min(ranks, on_node), -(-ranks // on_node)
        read = (sums + fields) / network.memory if here > 1 else 0.0
        return messages + read + (1 - 1 / nodes) * (1.5 * sums + pieces) / (here * network.bandwidth)

    def share(work: dict[str, Any], ranks: int) -> float:
        if not work["once"]:
            return 1 / min(ranks, on_node)
        return largest_share(work["sizes"], ranks) if work["sizes"] else 1 / ranks

    def rest(ranks: int) -> float:
        return alone + sum(work["seconds"] * share(work, ranks) for work in one["dealt"])

    def time_on(ranks: int) -> float:
        return points * -(-blocks // ranks) / blocks + rest(ranks) + talk(ranks)

    def strong(ranks: int) -> float:
        return (points + fixed) / (ranks * time_on(ranks))

    def first(found: Callable[[int], bool]) -> int | None:
        return next((ranks for ranks in (2**k for k in range(1, 31)) if found(ranks)), None)

    return {
        "strong": {ranks: strong(ranks) for ranks in (*FAR, *others)},
        "weak": {ranks: (points + fixed) / (points + rest(ranks) + talk(ranks)) for ranks in FAR},
        "holds": {share: max(n for n in range(1, MANY + 1) if n == 1 or strong(n) >= share) for share in HOLDS},
        "root_dominates_at": first(lambda ranks: rest(ranks) > points / ranks),
        "network_dominates_at": first(lambda ranks: talk(ranks) > points / ranks),
    }

"""Measurements of the benchmark: the time of an EM iteration relative to the matrix product Y W that it needs."""

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np

from parallel_et.bench.workloads import Workload, draw_points, nearby_params
from parallel_et.control.process import peak_bytes, reset_peak
from parallel_et.core.capabilities import cause_images_of
from parallel_et.em.loop import em_step
from parallel_et.em.timer import PHASES, Timer
from parallel_et.kernels.rows import Rows
from parallel_et.parallel.communicator import Ranks
from parallel_et.parallel.shards import owners
from parallel_et.runs.memory_demand import count_statistics
from parallel_et.runs.setup import set_up

MIN_REPETITIONS = 7
MAX_REPETITIONS = 200
BLOCKS = (128, 256, 512, 1024, 2048)
"""Points per block that the product is timed with, in addition to the block size of the iteration."""
PREDICTED_RANKS = (64, 1024, 10000)
"""Numbers of ranks for which the scaling is predicted."""
EFFICIENCIES = (0.9, 0.5)
"""Efficiencies for which the largest number of ranks is predicted."""
MAX_RANKS = 1024
"""Largest number of ranks that is considered for these efficiencies."""
SELECTING = ("prepare", "select", "cut", "communication", "mstep")
"""Phases in which a learned selection takes time. Their other work is attributed to the selection as well."""
LARGE_MESSAGE_BYTES = 1 << 24
"""Bytes of the message that measures the bandwidth."""
MESSAGES = 10
"""Messages of an iteration, without the messages that share the work of the M-step."""


def measure_with_product(workload: Workload, points: int, ranks: Ranks, seconds: float, threads: int) -> dict[str, Any]:
    """Measure a workload on one rank. On several ranks, also measure strong and weak scaling.

    Strong scaling has the same number of points on all ranks together, and weak scaling the same number on each rank.
    """
    if ranks.size == 1:
        return measure(workload, points, ranks, seconds, threads)
    single = ranks.run_on_root(lambda root: measure(workload, points, root, seconds, threads))
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
    """Measure the processor time that ranks compute for in an iteration, without messages; ranks may share cores.

    ``computing`` contains the resulting efficiency, and the efficiency that ``predict`` gives for one rank's phases.
    """
    Timer.now = thread_time
    single = ranks.run_on_root(lambda root: measure(workload, points, root, seconds, 1))
    row = measure(workload, points, ranks, seconds, 1)
    mine = sum(spent for phase, spent in row["phases"].items() if phase != "communication")
    one = sum(spent for phase, spent in single["phases"].items() if phase != "communication")
    predicted = predict(single, Network(0.0, np.inf, np.inf), ranks.size, ranks.size)["strong"][ranks.size]
    found = one / (ranks.size * ranks.max(mine))
    return {**row, "one_rank": single, "computing": {"found": found, "predicted": predicted}}


def measure(workload: Workload, points: int, ranks: Ranks, limit: float, threads: int) -> dict[str, Any]:
    """Time the iteration, and on one rank the product in turn with it, until the time is up; return the medians."""
    source = draw_points(workload, points)
    problem, begin, _ = set_up(workload.job(threads), source, ranks)
    params = ranks.broadcast({**begin, **nearby_params(source)})
    state, fields = problem.initial_state(params), np.ascontiguousarray(cause_images_of(problem.model, params))
    settings = problem.schedule.settings(state)
    learned, _ = em_step(problem, ranks, state, settings)
    if workload.rank:  # the selection now has a kernel and targets, and computes the leverages again
        state = learned._replace(params=ranks.broadcast({**learned.params, **nearby_params(source)}))
        settings = problem.schedule.settings(state)
        em_step(problem, ranks, state, settings)
    floors: dict[int, list[float]] = {}
    if ranks.size == 1:
        quickest = min(BLOCKS, key=lambda size: min(multiply(problem.rows, fields, size) for _ in range(3)))
        floors = {problem.shard.block: [], quickest: []}
    reset_peak()
    times: list[float] = []
    infos, begun = [], perf_counter()
    while ranks.broadcast_object(
        len(times) < MIN_REPETITIONS or (len(times) < MAX_REPETITIONS and perf_counter() - begun < limit)
    ):
        for size, found in floors.items():
            found.append(multiply(problem.rows, fields, size))
        ranks.barrier()
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
    """Return the seconds of the product Y W in blocks of this size."""
    out = np.empty((size, W.shape[1]))
    begun = perf_counter()
    for first in range(0, len(rows), size):
        Y = rows[first : first + size, : len(W)]
        np.dot(Y, W, out=out[: len(Y)])
    return perf_counter() - begun


class Network(NamedTuple):
    """The speed of the connections between ranks.

    Attributes
    ----------
    latency : seconds of a message from rank to rank
    bandwidth : bytes per second that a rank sends
    memory : bytes per second that a rank reads and adds from the shared memory of its node
    """

    latency: float
    bandwidth: float
    memory: float


def measure_network(ranks: Ranks) -> Network:
    """Measure the network of these ranks, at least two."""
    small, large = (time_of_sum(ranks, size) for size in (1, LARGE_MESSAGE_BYTES // 8))
    shared = time_of_sum_in_memory(ranks, LARGE_MESSAGE_BYTES // 16)
    return Network(
        small / (ranks.size - 1).bit_length(),
        2 * LARGE_MESSAGE_BYTES * (1 - 1 / ranks.size) / large,
        LARGE_MESSAGE_BYTES / shared,
    )


def time_of_sum_in_memory(ranks: Ranks, size: int) -> float:
    """Return the seconds of a sum of this many words of 16 bytes over the ranks of a node."""
    node = ranks.work_sharing
    words, values = node.shared_array("words", (node.size, 2, size), np.int64), node.shared_array("sums", (size,))
    words[node.rank], values[:], times = 0, 0.0, []
    for _ in range(20):
        words[node.rank] += 1
        ranks.barrier()
        begun = perf_counter()
        node.sum(words, lambda total, first: None, values)
        times.append(perf_counter() - begun)
    return ranks.max(float(np.median(times)))


def time_of_sum(ranks: Ranks, size: int) -> float:
    """Return the seconds of a sum of this many integers over the ranks."""
    values, times = np.zeros(size, np.int64), []
    for _ in range(20):
        ranks.barrier()
        begun = perf_counter()
        ranks.sum(values)
        times.append(perf_counter() - begun)
    return ranks.max(float(np.median(times)))


def largest_fraction(sizes: list[int], ranks: int) -> float:
    """Return the fraction of a work in pieces of these sizes that the busiest rank does."""
    return float(np.bincount(owners(sizes, ranks), sizes).max() / sum(sizes))


def predict(row: dict[str, Any], network: Network, on_node: int = 64, *others: int) -> dict[str, Any]:
    """Predict the efficiency on many ranks from measured phases.

    * The time of the points is proportional to the blocks of a rank.
    * The time of shared work is proportional to the pieces of a rank. The ranks of a node share the work of the node.
    * All other work takes the same time on any number of ranks.
    * A message takes the latency for each doubling of the ranks.
    * If the ranks share the M-step, each reads its part of the sums of its node, 16 bytes per element, and copies the
      fields. Nodes exchange the sums, as words and again as numbers, and the pieces; their ranks share these messages.
    * Otherwise a rank sends all sums and fields twice, except for its own part: in a reduction and a broadcast.

    Parameters
    ----------
    row : result of ``measure_with_product``
    network : speed of the connections
    on_node : ranks of a node
    others : further numbers of ranks to predict for

    Returns
    -------
    dict : ``strong`` and ``weak`` efficiency by number of ranks (the same points for all ranks, or for each rank).
        ``holds`` gives the largest number of ranks, up to ``MAX_RANKS``, for each strong efficiency
    """
    one = row.get("one_rank", row)
    phases = {phase: 1e-6 * spent * one["N"] for phase, spent in one["phases"].items()}
    points = sum(phases[phase] for phase in ("select", "states", "statistics"))
    fixed = phases["prepare"] + phases["communication"] + phases["mstep"]
    unshared = fixed - sum(work["seconds"] for work in one["dealt"])
    sums, fields = 1e6 * one["message_mb"], 8 * one["D"] * one["H"]
    pieces = 8 * sum(sum(work["sizes"]) for work in one["dealt"])
    blocks = -(-one["N"] // one["block"])

    def communication(ranks: int) -> float:
        messages = (MESSAGES + len(one["dealt"])) * network.latency * (ranks - 1).bit_length()
        if not one["dealt"]:
            return messages + (1 - 1 / ranks) * 2 * (sums + fields) / network.bandwidth
        here, nodes = min(ranks, on_node), -(-ranks // on_node)
        read = (sums + fields) / network.memory if here > 1 else 0.0
        return messages + read + (1 - 1 / nodes) * (1.5 * sums + pieces) / (here * network.bandwidth)

    def fraction(work: dict[str, Any], ranks: int) -> float:
        if not work["once"]:
            return 1 / min(ranks, on_node)
        return largest_fraction(work["sizes"], ranks) if work["sizes"] else 1 / ranks

    def rest(ranks: int) -> float:
        return unshared + sum(work["seconds"] * fraction(work, ranks) for work in one["dealt"])

    def time_on(ranks: int) -> float:
        return points * -(-blocks // ranks) / blocks + rest(ranks) + communication(ranks)

    def strong(ranks: int) -> float:
        return (points + fixed) / (ranks * time_on(ranks))

    def first(found: Callable[[int], bool]) -> int | None:
        return next((ranks for ranks in (2**k for k in range(1, 31)) if found(ranks)), None)

    return {
        "strong": {ranks: strong(ranks) for ranks in (*PREDICTED_RANKS, *others)},
        "weak": {ranks: (points + fixed) / (points + rest(ranks) + communication(ranks)) for ranks in PREDICTED_RANKS},
        "holds": {
            goal: max(n for n in range(1, MAX_RANKS + 1) if n == 1 or strong(n) >= goal) for goal in EFFICIENCIES
        },
        "root_dominates_at": first(lambda ranks: rest(ranks) > points / ranks),
        "network_dominates_at": first(lambda ranks: communication(ranks) > points / ranks),
    }

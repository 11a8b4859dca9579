"""Check relations between fits for many seeds, and print the broken relations by model.

Run ``python tests/support/relations.py --seeds 10``. ``--only`` selects models and ``--relation`` relations by a part
of the name. With ``--noise`` models are compared with longer arithmetic instead, for noise of all sizes.
"""

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import every_model
import numpy as np
from invariances import RELATIONS
from metamorphic import case_of, schemes_of, worst
from noise_levels import Verdict, judged
from threadpoolctl import threadpool_limits

SHOWN = 30
"""Largest number of broken relations that are printed one by one."""


class Outcome(NamedTuple):
    """The result of one relation: the largest difference relative to the tolerance, and its parameter or error."""

    model: str
    scheme: str
    relation: str
    seed: int
    ratio: float
    where: str

    @property
    def broken(self) -> bool:
        return not self.ratio <= 1

    def __str__(self) -> str:
        return f"{self.model}, {self.scheme}, {self.relation}, seed {self.seed}: {self.ratio:.3g} of {self.where}"


def tried(model: dict[str, Any], scheme: str, seed: int, part: str = "") -> Iterator[Outcome]:
    """Yield the results of the applicable relations of a model and a scheme with ``part`` in their names."""
    case, known = case_of(model, scheme, seed), dict[Any, Any]()
    for number, (name, relation) in enumerate(RELATIONS.items()):
        if part not in name:
            continue
        changed = relation(case, np.random.default_rng([seed, 3, number]))
        if isinstance(changed, str):
            continue
        try:
            ratio, where = worst(changed, seed, known)
        except Exception as error:  # a relation is also broken if the changed case is refused
            ratio, where = np.inf, f"{type(error).__name__}: {error!s:.200}"
        yield Outcome(every_model.label(model), scheme, name, seed, ratio, where)


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the lines of a table of relations by models: number of broken and of all relations."""
    count: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in outcomes:
        for place in ((one.relation, one.model), (one.relation, ""), ("", one.model), ("", "")):
            count[place][0] += one.broken
            count[place][1] += 1
    models = list(dict.fromkeys(one.model for one in outcomes))
    yield from (f"{chr(ord('a') + number)}  {model}" for number, model in enumerate(models))
    yield f"{'':30}{'all':>12}" + "".join(f"{chr(ord('a') + number):>8}" for number in range(len(models)))
    for relation in [*RELATIONS, ""]:
        row = [count.get((relation, model)) for model in ("", *models)]
        if row[0]:
            cells = [f"{broken}/{of}" if of else "" for broken, of in (cell or (0, 0) for cell in row)]
            yield f"{relation or 'all':30}{cells[0]:>12}" + "".join(f"{cell:>8}" for cell in cells[1:])


def of_noise(verdicts: list[Verdict]) -> Iterator[str]:
    """Yield the counts of verdicts by model, then the noise factors and errors of quantities that are not right."""
    words = ("right", "reported", "refused", "silent")
    yield f"{'':20}" + "".join(f"{word:>9}" for word in words)
    for model in [*dict.fromkeys(one.model for one in verdicts), ""]:
        count = Counter(one.word for one in verdicts if model in ("", one.model))
        yield f"{model or 'all':20}" + "".join(f"{count[word]:9}" for word in words)
    wrong = defaultdict(list)
    for one in verdicts:
        if one.word != "right":
            wrong[one.model, one.setting, one.quantity, one.word].append((one.factor, one.error))
    for place, found in wrong.items():
        most = {factor: max(error for other, error in found if other == factor) for factor, _ in sorted(found)}
        yield f"{', '.join(place)}: " + "  ".join(f"{factor:.0e} {error:.0e}" for factor, error in most.items())


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--only", default="", metavar="MODEL", help="models whose names have this part")
    parser.add_argument("--scheme", default="", help="only this scheme")
    parser.add_argument("--relation", default="", metavar="NAME", help="relations whose names have this part")
    parser.add_argument("--noise", action="store_true", help="noise from 1e-9 to 1e9 of the data, against a judge")
    args = parser.parse_args()
    if args.noise:
        return noise(args)
    outcomes, begun = [], time.perf_counter()
    with threadpool_limits(1):
        for model in every_model.models():
            if args.only not in every_model.label(model):
                continue
            for scheme in schemes_of(model):
                if args.scheme in ("", scheme):
                    for seed in range(args.first, args.first + args.seeds):
                        outcomes += tried(model, scheme, seed, args.relation)
            print(f"{every_model.label(model)}: {len(outcomes)} tried", file=sys.stderr, flush=True)
    print("\n".join(table(outcomes)))
    broken = sorted((one for one in outcomes if one.broken), key=lambda one: -one.ratio)
    print(f"{len(broken)} of {len(outcomes)} relations are broken, {time.perf_counter() - begun:.0f} s")
    seen = dict[tuple[str, ...], Outcome]()
    for one in broken:
        seen.setdefault((one.model, one.relation, one.where.split(" ")[0]), one)
    for one in list(seen.values())[:SHOWN]:
        print(f"  {one}")
    return 1 if broken else 0


def noise(args: argparse.Namespace) -> int:
    """Run the command with --noise."""
    verdicts = list[Verdict]()
    with threadpool_limits(1):
        for model in every_model.models():
            for seed in range(args.first, args.first + args.seeds) if args.only in every_model.label(model) else ():
                verdicts += judged(model, seed)
    print("\n".join(of_noise(verdicts)))
    return 1 if any(one.word == "silent" for one in verdicts) else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Hard EM: only the best state of each point that was found so far (TV Prop. 8)."""

from typing import Any

from pydantic import Field

from parallel_et.schemes.tv import SearchOptions, TruncatedVariational


class HardOptions(SearchOptions):
    """The keys of [inference] for hard."""

    scheme: str = Field("hard", description="hard EM: only the best state that has been found so far")


class Hard(TruncatedVariational):
    """Truncated variational EM with a single state for each point."""

    Options = HardOptions

    def wanted_pool_size(self, options: Any) -> int:
        return 1


SCHEME = Hard

"""Hard EM: one state a point, the best that was found so far (TV Prop. 8)."""

from typing import Any

from pydantic import Field

from parallel_et.schemes.tv import SearchOptions, TruncatedVariational


class HardOptions(SearchOptions):
    """The keys of [inference] for hard."""

    scheme: str = Field("hard", description="hard EM: only the best state that was found so far")


class Hard(TruncatedVariational):
    """All weight on one state: truncated variational EM that keeps a single one."""

    Options = HardOptions

    def wanted(self, options: Any) -> int:
        return 1


SCHEME = Hard

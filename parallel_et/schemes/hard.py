"""Hard EM: one state a point, the best that was found so far (TV Prop. 8)."""

from pydantic import Field

from parallel_et.schemes.tv import SearchOptions, TruncatedVariational


class HardOptions(SearchOptions):
    """The keys of [inference] for hard."""

    scheme: str = Field("hard", description="hard EM: only the best state that was found so far")

    @property
    def kept(self) -> int:
        return 1


class Hard(TruncatedVariational):
    """All weight on one state: truncated variational EM that keeps a single one."""

    Options = HardOptions


SCHEME = Hard

"""One file an inference scheme; a new file in here is found by its name."""

from parallel_et.core.contract import Scheme
from parallel_et.core.registry import Registry

SCHEMES = Registry(__name__, "SCHEME", Scheme)

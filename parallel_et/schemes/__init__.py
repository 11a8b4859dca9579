"""Schemes (kinds of E-step), one file each. A new file is found by its name."""

from parallel_et.core.registry import Registry
from parallel_et.core.scheme import Scheme

SCHEMES = Registry(__name__, "SCHEME", Scheme)

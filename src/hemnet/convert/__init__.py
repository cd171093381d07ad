"""Published weights of other projects as models of ours: `hemnet convert`."""

from hemnet.convert.facts import Facts
from hemnet.convert.networks import SOURCES, Conversion, convert

__all__ = ["SOURCES", "Conversion", "Facts", "convert"]

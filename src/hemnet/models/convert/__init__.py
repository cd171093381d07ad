"""Convert published weights of other projects."""

from hemnet.models.convert.facts import Facts
from hemnet.models.convert.networks import SOURCES, Conversion, convert

__all__ = ["SOURCES", "Conversion", "Facts", "convert"]

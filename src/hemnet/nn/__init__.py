"""What holds state: the moving averages and the attention units built on `hemnet.em`."""

from hemnet.nn.attention import EMAttention, HighwayEMAttention
from hemnet.nn.health import BasesWarning, Health

__all__ = ["BasesWarning", "EMAttention", "Health", "HighwayEMAttention"]

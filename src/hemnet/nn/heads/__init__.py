"""Segmentation heads, one module each: from a backbone's features to class logits."""

from hemnet.nn.heads.attention import EMAHead, HEMHead
from hemnet.nn.heads.danet import DualAttentionHead
from hemnet.nn.heads.deeplabv3plus import DeepLabV3PlusHead
from hemnet.nn.heads.fcn import AuxiliaryHead, FCNHead
from hemnet.nn.heads.head import Head
from hemnet.nn.heads.non_local import NonLocalHead
from hemnet.nn.heads.psanet import PSAHead
from hemnet.nn.heads.pspnet import PSPHead

# The name of a model is that of its head; its options are the constructor's.
HEADS: dict[str, type[Head]] = {
    "hemnet": HEMHead,
    "emanet": EMAHead,
    "fcn": FCNHead,
    "deeplabv3plus": DeepLabV3PlusHead,
    "psanet": PSAHead,
    "pspnet": PSPHead,
    "danet": DualAttentionHead,
    "nonlocal": NonLocalHead,
}

__all__ = ["HEADS", "AuxiliaryHead", "Head"]

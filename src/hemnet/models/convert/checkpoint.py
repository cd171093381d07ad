"""Read checkpoints of other projects without executing anything in them.

`torch.load(weights_only=True)` refuses a file for a single object that it does not know, and what
training frameworks save beside the weights (histories, configurations, arrays) are such objects.
They are replaced by placeholders here: of everything that a pickle can name, tensors and ordered
dictionaries alone come to life, and these by functions of ours.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Self

import torch
from safetensors.torch import load_file
from torch import Tensor

from hemnet.errors import UserError


class Ignored:
    """Placeholder for an object of any other class, or the result of any other call."""

    __slots__ = ()
    dump_patches = False  # torch asks classes of the oldest files for it

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return super().__new__(cls)

    def __call__(self, *_: Any, **__: Any) -> Self:
        return self

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Drop the attributes, items and members that unpickling would set."""

    __init__ = __setstate__ = __setitem__ = append = extend = add = update = _ignore


class _Names(dict[Any, Any]):
    """An OrderedDict's items without its attributes."""

    __slots__ = ()

    def __setstate__(self, _: Any) -> None: ...


class _Rebuild:
    """A function of ours in place of one of torch's. Not a function: it has no attributes that a
    pickle could set."""

    __slots__ = ("_parameter",)

    def __init__(self, parameter: bool) -> None:
        self._parameter = parameter

    def __setstate__(self, _: Any) -> None: ...

    def __call__(self, *args: Any) -> Tensor:
        if self._parameter:
            if not isinstance(args[0], Tensor):
                raise pickle.UnpicklingError("a parameter that holds no tensor")
            return args[0]
        storage, offset, size, stride = args[:4]
        if not isinstance(storage, torch.storage.TypedStorage):
            raise pickle.UnpicklingError("a tensor that has no storage")
        tensor = torch.empty(0, dtype=storage.dtype)
        return tensor.set_(storage._untyped_storage, offset, tuple(size), tuple(stride))


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _Names,
    ("torch._utils", "_rebuild_tensor"): _Rebuild(parameter=False),
    ("torch._utils", "_rebuild_tensor_v2"): _Rebuild(parameter=False),
    ("torch._utils", "_rebuild_parameter"): _Rebuild(parameter=True),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _KNOWN.get((module, name), Ignored)


def _load(file: IO[bytes], **options: Any) -> Any:
    return _Unpickler(file, **options).load()


_PICKLE = SimpleNamespace(__name__=__name__, Unpickler=_Unpickler, load=_load)


def read_checkpoint(path: Path) -> Mapping[Any, Any]:
    """A file's content, with placeholders for everything but tensors and plain values."""
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:  # not for TorchScript archives, which are programs
            content = torch.load(
                path, map_location="cpu", weights_only=False, pickle_module=_PICKLE
            )
    except Exception as error:  # of any kind: the content of the file decides
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path} cannot be read, it is damaged or of another kind: {reason}"
        ) from None
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds a {type(content).__name__}, not tensors by name")
    return content


def named_tensors(content: Mapping[Any, Any], depth: int = 2) -> dict[str, Tensor]:
    """The largest dictionary of tensors in a checkpoint, nested or not."""
    found = [{str(k): v for k, v in content.items() if isinstance(v, Tensor)}]
    if depth:
        inner = (value for value in content.values() if isinstance(value, Mapping))
        found += [named_tensors(value, depth - 1) for value in inner]
    return max(found, key=len)

"""An endless shuffled order of images, a function of (seed, position) alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

Key = tuple[int, int]  # (epoch, index)


class EndlessSampler(Sampler[Key]):
    """Yields (epoch, index) for ever; every epoch is a new permutation of all images.

    Position p of the global order is entry p mod size of the permutation of epoch p div size, so
    epochs follow each other without a short batch between them. Rank r of `world_size` takes the
    positions p with p mod world_size = r: whatever the number of ranks, the union of their batches
    of a step is the same images. `start` is the global position to begin at; to resume after
    `step` steps it is step · batch size · world size.
    """

    def __init__(
        self,
        size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        shuffle: bool = True,
    ) -> None:
        if size < 1:
            raise ValueError(f"size {size}: an endless order needs at least one image")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}: expected 0 <= rank < world_size")
        if start < 0 or start % world_size:
            raise ValueError(f"start {start}: expected a multiple of world_size {world_size}")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self.rank, self.world_size, self.start = rank, world_size, start

    def __iter__(self) -> Iterator[Key]:
        position, current, order = self.start + self.rank, -1, np.arange(self.size)
        while True:
            epoch, place = divmod(position, self.size)
            if self.shuffle and epoch != current:
                order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
                current = epoch
            yield epoch, int(order[place])
            position += self.world_size

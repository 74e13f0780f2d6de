"""Records straight between files and the arena on a real GPU: the checksum kernel, and kvikio where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.store.store_cases import SMALL_SCRATCH, contents, filled_store
from tidegs import crc
from tidegs.device.cuda import checksum, gds
from tidegs.device.cuda.device import CudaDevice
from tidegs.store.native import crc32c

PAGE = 4096


def test_checksums_are_those_of_the_host():
    """3 MiB records, as of blocks of 4096; and some zeros."""
    memory = torch.randint(0, 256, (8 << 20,), dtype=torch.uint8, device="cuda")
    memory[PAGE : 9 * PAGE] = 0
    pieces = [(0, PAGE), (PAGE, 8 * PAGE), (2 << 20, 700 * PAGE), (5 << 20, 768 * PAGE)]
    remainders, filled = checksum.fold(memory, pieces)
    np.testing.assert_array_equal(remainders, checksum.fold_twin(memory, pieces)[0])
    assert filled.tolist() == [True, False, True, True]
    for (first, nbytes), remainder in zip(pieces, remainders.tolist(), strict=True):
        assert crc.finish(remainder, nbytes // PAGE) == crc32c(memory[first : first + nbytes].cpu().numpy())


@pytest.mark.skipif(not gds.look().usable, reason=gds.look().says)
def test_records_go_there_and_back(tmp_path):
    gds.prepare()
    device = CudaDevice()
    device.open_arena(SMALL_SCRATCH, 9)
    device.arena.memory.fill_(0xA5)
    with filled_store(tmp_path / "s", layout=SMALL_SCRATCH) as store:
        store.connect(device.direct_slots())
        before, blocks = contents(store), np.flatnonzero(store.can_fetch(range(9))).tolist()
        store.fetch(blocks, blocks)
        host = [np.zeros(SMALL_SCRATCH.slot_nbytes, np.uint8) for _ in blocks]
        device.download(blocks, host)
        for block, slot in zip(blocks, host, strict=True):
            assert slot[: SMALL_SCRATCH.record_nbytes].tobytes() == before[block]
        store.stow(blocks, blocks)
        assert contents(store) == before
    device.close()

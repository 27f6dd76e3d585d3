"""The data set in order: every image once, whatever the size of a batch and the number of processes."""

import pytest
import torch
from robust.train import Recipe
from robust.train.data.batches import check_batch, in_order, numbers_in_order
from robust.train.data.datasets import ImageData
from robust.train.data.pixels import TensorPixels
from robust.train.machine.processes import Processes

from robustinfer.errors import ArgumentError, DataError

CPU = torch.device("cpu")


def data(images: int) -> ImageData:
    pixels = torch.arange(images, dtype=torch.uint8).view(-1, 1, 1, 1)
    return ImageData("counted", TensorPixels(pixels), torch.arange(images) % 2, ("even", "odd"))


@pytest.mark.parametrize(("total", "size", "lengths"), [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (2, 3, [2]), (0, 3, [])])
def test_numbers_come_once_and_in_order(total: int, size: int, lengths: list[int]) -> None:
    pieces = list(numbers_in_order(total, size))
    assert [len(piece) for piece in pieces] == lengths
    assert [int(number) for piece in pieces for number in piece] == list(range(total))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_processes_share_numbered_batches(world: int) -> None:
    shares = [list(in_order(data(11), 2, Processes(CPU, rank, world))) for rank in range(world)]
    for rank, share in enumerate(shares):
        assert [number % world for number, _ in share] == [rank] * len(share)
    batches = sorted((pair for share in shares for pair in share), key=lambda pair: pair[0])
    assert [number for number, _ in batches] == list(range(6))
    pixels = torch.cat([batch.image.flatten() for _, batch in batches])
    torch.testing.assert_close(pixels, torch.arange(11) / 255)
    assert torch.equal(torch.cat([batch.labels for _, batch in batches]), torch.arange(11) % 2)


def test_a_batch_that_cannot_be_filled_or_shared_is_refused() -> None:
    check_batch(Recipe(batch=6), data(6), Processes(CPU, 0, 3))
    with pytest.raises(DataError, match="A batch of 7 images needs as many to train on; counted leaves 6"):
        check_batch(Recipe(batch=7), data(6), Processes(CPU))
    with pytest.raises(ArgumentError, match="cannot be shared evenly by 4 processes"):
        check_batch(Recipe(batch=6), data(6), Processes(CPU, 0, 4))

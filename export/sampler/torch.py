"""The TorchScript sampler: the noise and the votes of `sampler_onnx`, as the method `sample` of a .pt file."""

import torch
from torch import Tensor, nn

from robustinfer.card import Card
from robustinfer.smoothing.lanes import LANE_BITS, lane_cells, lane_layout

from .stream import (
    CENTRAL,
    FAR_TAIL,
    FINE_LEVELS,
    KEY_STEPS,
    LEVELS,
    LOW_HALF,
    MULTIPLIERS,
    NEAR_TAIL,
    ROUNDS,
    SIGN,
    integer_table,
    sampler_sigma,
    signed,
)

__all__ = ["Sampler"]


class Sampler(nn.Module):
    """Scores by `forward`, votes by `sample`; both with the one network inside."""

    thresholds: Tensor
    cells: Tensor
    shifts: Tensor
    coefficients: Tensor
    factors: list[int]
    key_steps: list[int]

    def __init__(self, network: nn.Module, card: Card) -> None:
        super().__init__()
        self.network = network
        self.sigma = float(sampler_sigma(card))
        self.channels, self.height, self.width = card.input.shape
        self.size = card.input.size
        self.classes = len(card.classes)
        table = integer_table(self.sigma)
        self.smallest = table.smallest
        layout = lane_layout(self.sigma, self.size)
        self.lanes, self.reserve, self.lane_words = layout.lanes, layout.reserve, layout.words
        self.register_buffer("cells", torch.from_numpy(lane_cells(self.sigma).copy()))
        self.register_buffer("shifts", torch.arange(0, 64, LANE_BITS))
        self.register_buffer("thresholds", torch.from_numpy(table.thresholds[: table.count].copy()))
        self.register_buffer("coefficients", torch.tensor([CENTRAL, NEAR_TAIL, FAR_TAIL], dtype=torch.float64))
        self.factors = [signed(factor) for factor in MULTIPLIERS]
        self.key_steps = [signed(step) for step in KEY_STEPS]
        self.low_half = LOW_HALF
        self.sign = SIGN
        self.rounds = ROUNDS
        self.levels = LEVELS
        self.fine_levels = FINE_LEVELS

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.network(image)
        return scores

    @torch.jit.export
    def sample(self, image: Tensor, seed: int, first: int, count: int, noise: int = 0) -> Tensor:
        """Votes per class and invalid samples of samples first ... first + count - 1 of image (1, C, H, W).

        `noise` is 0 for the 8-bit and 1 for the 16-bit domain; a seed from 2^63 on is passed as seed - 2^64.
        """
        pixels = image[:1].reshape(1, self.size)
        if noise == 0:
            samples = self._eight_bits(self._words(seed, first, count, self.lane_words, image.device), pixels)
        else:
            samples = self._sixteen_bits(self._words(seed, first, count, self.size, image.device), pixels)
        scores = self.network(samples.reshape(count, self.channels, self.height, self.width))
        vote = torch.where(torch.isfinite(scores).all(1), scores.argmax(1), self.classes)
        return torch.bincount(vote, minlength=self.classes + 1)

    def _words(self, seed: int, first: int, count: int, size: int, device: torch.device) -> Tensor:
        """Philox4x64-10: block b of sample i has the counter 1 + i blocks + b, and the key is (seed, 0)."""
        blocks = (size + 3) // 4
        counter = torch.arange(count, device=device).reshape(-1, 1) + first
        word0 = counter * blocks + torch.arange(1, blocks + 1, device=device)
        word1, word2, word3 = torch.zeros_like(word0), torch.zeros_like(word0), torch.zeros_like(word0)
        key0, key1 = torch.full([1], seed, device=device), torch.zeros([1], dtype=torch.int64, device=device)
        for _ in range(self.rounds):
            high0, low0 = self._multiply(word0, self.factors[0])
            high1, low1 = self._multiply(word2, self.factors[1])
            word0, word1, word2, word3 = high1 ^ word1 ^ key0, low1, high0 ^ word3 ^ key1, low0
            key0, key1 = key0 + self.key_steps[0], key1 + self.key_steps[1]
        return torch.stack([word0, word1, word2, word3], dim=2).reshape(count, 4 * blocks)[:, :size]

    def _multiply(self, word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
        """High and low half of the 128-bit product, from products of 32-bit halves, none of which leaves 64 bits."""
        factor_low, factor_high = factor & self.low_half, (factor >> 32) & self.low_half
        low, high = word & self.low_half, self._upper(word)
        crossed = low * factor_high
        middle = self._upper(low * factor_low) + (crossed & self.low_half) + high * factor_low
        return high * factor_high + self._upper(crossed) + self._upper(middle), word * factor

    def _upper(self, word: Tensor) -> Tensor:
        """A logical shift by 32 bits: `>>` repeats the sign, the mask takes it away."""
        return (word >> 32) & self.low_half

    def _eight_bits(self, words: Tensor, pixels: Tensor) -> Tensor:
        """float32(x + N) * float32(1/255), with x on the grid of 8-bit images."""
        count = words.shape[0]
        lanes = (words[:, : self.lanes].unsqueeze(2) >> self.shifts) & 65535
        lanes = lanes.reshape(count, 4 * self.lanes)[:, : self.size]
        noise = self.cells[lanes]
        opened = torch.isinf(noise)
        # The rank of each open value among those of its sample chooses its word of the reserve.
        ranks = (torch.cumsum(opened.to(torch.int64), 1) - 1)[opened]
        rows = torch.arange(count, device=words.device).unsqueeze(1).expand(count, self.size)[opened]
        more = words[rows, self.lanes + ranks % self.reserve]
        whole = (lanes[opened] << 48) + ((more >> 16) & ((1 << 48) - 1))
        found = torch.searchsorted(self.thresholds, whole ^ self.sign, right=True)
        noise[opened] = (found + self.smallest).to(torch.float32)
        return (noise + torch.round(pixels * self.levels)) * (1 / self.levels)

    def _sixteen_bits(self, words: Tensor, pixels: Tensor) -> Tensor:
        """float32(x + N) * float32(1/65535), with x on the 16-bit grid and N = round(65535 sigma z).

        z is the quantile of the word's middle: the upper half is mirrored, then the sign. The sum is exact in doubles.
        """
        p = (torch.where(words < 0, -1 - words, words).to(torch.float64) + 0.5) * 2.0**-64
        q = p - 0.5
        central = q * self._ratio(0.180625 - q * q, 0)
        r = torch.sqrt(-torch.log(p))
        tail = -torch.where(r > 5.0, self._ratio(r - 5.0, 2), self._ratio(r - 1.6, 1))
        z = torch.where(q < -0.425, tail, central) * (self.fine_levels * self.sigma)
        total = torch.round(torch.where(words < 0, -z, z)) + torch.round(pixels.to(torch.float64) * self.fine_levels)
        return total.to(torch.float32) * (1 / self.fine_levels)

    def _ratio(self, x: Tensor, row: int) -> Tensor:
        numerator = torch.zeros_like(x)
        denominator = torch.zeros_like(x)
        for power in range(7, -1, -1):
            numerator = numerator * x + self.coefficients[row, 0, power]
            denominator = denominator * x + self.coefficients[row, 1, power]
        return numerator / denominator

"""A training loop over codes: shuffled, batched, flattened for a language model with the delay pattern.

    python examples/train_loop.py runs/demo --steps 50

The model is a toy; what is around it is meant to be copied.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pipeline import read_codes

CODEBOOK_SIZE = 2048
PAD = CODEBOOK_SIZE  # stands where a codebook has nothing
TOKENS = CODEBOOK_SIZE + 1  # of one codebook, with its PAD


def delayed(codes: Tensor) -> Tensor:
    """int64 [K, T] -> [K, T + K - 1]: codebook k comes k frames later, PAD where it has nothing."""
    num_codebooks, frames = codes.shape
    out = codes.new_full((num_codebooks, frames + num_codebooks - 1), PAD)
    for codebook, row in enumerate(codes):
        out[codebook, codebook : codebook + frames] = row
    return out


def undelayed(codes: Tensor) -> Tensor:
    """The inverse of `delayed`: [K, T + K - 1] -> [K, T]."""
    frames = codes.shape[1] - len(codes) + 1
    return torch.stack([row[codebook : codebook + frames] for codebook, row in enumerate(codes)])


def flattened(codes: Tensor) -> Tensor:
    """int64 [K, T] -> tokens [K * T], frame by frame; codebook k has the tokens from k * TOKENS on."""
    offsets = torch.arange(len(codes)) * TOKENS
    return (codes + offsets[:, None]).T.reshape(-1)


def unflattened(tokens: Tensor, num_codebooks: int) -> Tensor:
    """The inverse of `flattened`."""
    return tokens.reshape(-1, num_codebooks).T - torch.arange(num_codebooks)[:, None] * TOKENS


class Clips(IterableDataset):
    """Codes of all clips, int64 [K, at most `max_frames`], in an order that is another one each epoch.

    Files are dealt out to the workers (and, with `rank` and `world_size`, to the processes of a larger training), and
    shuffled; rows are shuffled within a buffer. Memory is the buffer and a row group, however many hours there are.
    """

    def __init__(
        self, run: str, *, max_frames: int = 250, buffer: int = 1000, seed: int = 0, rank: int = 0, world_size: int = 1
    ):
        self.files = sorted(str(path) for path in Path(run, "data").glob("*.parquet"))
        self.max_frames, self.buffer, self.seed = max_frames, buffer, seed
        self.rank, self.world_size = rank, world_size
        self.epoch = 0  # to be set before each epoch: the workers are given a copy

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        place, places = self.rank * workers + worker, self.world_size * workers
        rng = random.Random(f"{self.seed} {self.epoch}")  # the same in every worker: so each file goes to one of them
        files = rng.sample(self.files, len(self.files))[place::places]
        held: list[Tensor] = []
        for file in files:
            for clip in read_codes(file):
                codes = torch.from_numpy(clip.codes.astype("int64"))
                start = rng.randint(0, max(0, codes.shape[1] - self.max_frames))
                held.append(codes[:, start : start + self.max_frames])
                if len(held) > self.buffer:
                    yield held.pop(rng.randrange(len(held)))
        rng.shuffle(held)
        yield from held


def batched(clips: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Clips to tokens [B, L], padded to the longest, and their lengths [B]."""
    tokens = [flattened(delayed(codes)) for codes in clips]
    lengths = torch.tensor([len(each) for each in tokens])
    return nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=PAD), lengths


class Toy(nn.Module):
    """A language model in the least number of lines."""

    def __init__(self, num_codebooks: int, width: int = 32):
        super().__init__()
        self.embed = nn.Embedding(num_codebooks * TOKENS, width)
        self.run = nn.GRU(width, width, batch_first=True)
        self.guess = nn.Linear(width, num_codebooks * TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, L] -> logits [B, L, tokens of all codebooks]."""
        return self.guess(self.run(self.embed(tokens))[0])


def train(run: str, *, steps: int, batch_size: int = 4, workers: int = 0, max_frames: int = 50) -> list[float]:
    """Train the toy; the loss of each step."""
    clips = Clips(run, max_frames=max_frames)
    # Workers are spawned: a forked one may inherit locks of the parquet reader's threads.
    context = "spawn" if workers else None
    loader = DataLoader(clips, batch_size, num_workers=workers, collate_fn=batched, multiprocessing_context=context)
    num_codebooks = len(next(read_codes(run)).codes)
    torch.manual_seed(0)
    model = Toy(num_codebooks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    while len(losses) < steps:
        for tokens, lengths in loader:
            logits = model(tokens[:, :-1])
            real = torch.arange(1, tokens.shape[1]) < lengths[:, None]
            loss = nn.functional.cross_entropy(logits[real], tokens[:, 1:][real])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if len(losses) == steps:
                break
        clips.epoch += 1
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--workers", type=int, default=0)
    given = parser.parse_args()
    losses = train(given.run, steps=given.steps, workers=given.workers)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses)} steps")


if __name__ == "__main__":
    main()

"""`mimi-jobs bench --agreement`: how many codes of the user's own recordings another precision changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jobs.bench import load, machine_lines, usable_threads
from jobs.bench_clips import Clips
from pipeline.records import SAMPLE_RATE

LEAST_SECONDS = 1.0  # what is encoded first, to know how much there is time for
PATIENCE_S = 60.0  # of each precision: bfloat16 is slow on a CPU without instructions for it


@dataclass(slots=True)
class Agreement:
    """Codes of a precision against float32's. By codebook: how many differ, and how many do where none before does.

    A pick that changes changes what is left for all later codebooks of its frame; so the second is the precision's
    own doing, and most of the first follows from it.
    """

    precision: str
    seconds: float  # of audio compared
    times_real_time: float
    codes: int = 0  # of each codebook
    differ: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    first: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, reference: np.ndarray, codes: np.ndarray) -> None:
        """Count another clip: [K, T] both."""
        unlike = reference != codes
        before = np.cumsum(unlike, 0) - unlike
        if not self.codes:
            self.differ, self.first = np.zeros((2, len(unlike)), np.int64)
        self.codes += unlike.shape[1]
        self.differ += unlike.sum(1)
        self.first += (unlike & (before == 0)).sum(1)

    def summary(self) -> str:
        total = self.codes * len(self.differ)
        share = self.differ.sum() / max(1, total)
        return f"{self.precision}: {self.differ.sum()} of {total} codes ({share:.1%}) aren't float32's"


def agreement(
    clips: Clips,
    weights: str,
    *,
    revision: str | None = None,
    num_codebooks: int = 8,
    threads: int | None = None,
    say: Callable[[str], None] = print,
) -> list[Agreement]:
    """Encode the recordings in float32 and in each other precision of this machine, and print how far they agree.

    Raises ConfigError where the weights can't be had.
    """
    import torch

    threads = threads or usable_threads()
    torch.set_num_threads(threads)
    for line in (*machine_lines(threads), f"{clips.what}; {weights}", *clips.skipped):
        say(line)
    precisions = ["bfloat16"] + (["tf32"] if torch.cuda.is_available() else [])
    reference, rate = encode_all(weights, revision, "float32", num_codebooks, clips.samples)
    say(f"float32: {rate:.1f} times real time")
    results = []
    for precision in precisions:
        codes, rate = encode_all(weights, revision, precision, num_codebooks, clips.samples)
        seconds = sum(len(clip) for clip, _ in zip(clips.samples, codes, strict=False)) / SAMPLE_RATE
        result = Agreement(precision, seconds, rate)
        for ours, theirs in zip(reference, codes, strict=False):
            result.add(ours[:, : theirs.shape[1]], theirs)
        say(f"{precision}: {rate:.1f} times real time; compared over {result.codes / 12.5:.0f} s")
        results.append(result)
    for line in ("", *table(results), ""):
        say(line)
    for result in results:
        say(result.summary())
    return results


def encode_all(
    weights: str, revision: str | None, precision: str, num_codebooks: int, clips: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], float]:
    """([K, T] of each clip, times real time). What there is no time for is left out; of a clip, its end."""
    import time

    import torch

    mimi = load(weights, revision, precision, num_codebooks, "cuda" if precision == "tf32" else "cpu")
    size = round(LEAST_SECONDS * SAMPLE_RATE / mimi.config.frame_samples + 0.5) * mimi.config.frame_samples
    codes, samples, started = [], 0, time.perf_counter()
    for clip in clips:
        state, parts = mimi.new_state(1), []
        for chunk in torch.from_numpy(clip)[None, None].split(size, 2):
            if parts and time.perf_counter() - started > PATIENCE_S:
                break
            padded = torch.nn.functional.pad(chunk, (0, -chunk.shape[2] % mimi.config.frame_samples))
            parts.append(mimi.encode_step(padded.to(mimi.device), state).codes[0].cpu().numpy())
            samples += chunk.shape[2]
        codes.append(np.concatenate(parts, 1))
        if time.perf_counter() - started > PATIENCE_S:
            break
    return codes, samples / SAMPLE_RATE / (time.perf_counter() - started)


def table(results: Sequence[Agreement]) -> list[str]:
    """A Markdown table, a row a codebook."""
    heads = [f"{r.precision}: differ | of them the frame's first" for r in results]
    lines = [f"| codebook | {' | '.join(heads)} |", f"|---{'|---|---' * len(results)}|"]
    for k in range(len(results[0].differ)):
        cells = [f"{r.differ[k]} ({r.differ[k] / max(1, r.codes):.1%}) | {r.first[k]}" for r in results]
        lines.append(f"| {k} | {' | '.join(cells)} |")
    return lines

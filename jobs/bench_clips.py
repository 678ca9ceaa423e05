"""The recordings that a benchmark encodes: utterances made here, of LibriSpeech's lengths, or a folder's."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.errors import ConfigError
from pipeline.records import SAMPLE_RATE

# Seconds of 25 utterances, 180 in all, spread as those of LibriSpeech's dev-clean and in no order.
UTTERANCE_SECONDS = (7.3, 3.3, 11.6, 5.0, 2.0, 15.9, 4.0, 8.6, 6.1, 2.7, 10.2, 4.6, 22.4)
UTTERANCE_SECONDS += (5.5, 3.0, 9.3, 6.7, 13.4, 2.4, 4.3, 7.9, 3.6, 12.4, 5.2, 2.6)
MAX_SECONDS = 180.0  # of a folder's recordings, in all
MAX_CLIP_SECONDS = 30.0  # of each: the peers need memory for all of a recording at once


@dataclass(frozen=True, slots=True)
class Clips:
    """Recordings, decoded: float32 [n] each, mono at 24 kHz. `skipped`: files that aren't recordings, and why."""

    what: str
    samples: list[np.ndarray] = field(repr=False)
    skipped: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(map(len, self.samples)) / SAMPLE_RATE


def made_clips() -> Clips:
    """25 utterances of syllables and pauses, the same on every machine to rounding."""
    samples = [utterance(round(seconds * SAMPLE_RATE), seed) for seed, seconds in enumerate(UTTERANCE_SECONDS)]
    return Clips(f"{len(samples)} made utterances of LibriSpeech's lengths", samples)


def utterance(num_samples: int, seed: int) -> np.ndarray:
    """float32 [num_samples]: a gliding voice with formants and hiss, in syllables, with pauses."""
    random = np.random.default_rng(seed)
    time = np.arange(num_samples) / SAMPLE_RATE
    glide = 8 * np.sin(2 * np.pi * random.uniform(0.3, 0.8) * time + random.uniform(0, 6))
    phase = 2 * np.pi * random.uniform(90, 220) * time + glide
    formants = random.uniform(2, 9, 3)
    voice = sum(np.sin(k * phase + k * k) / (1 + np.abs(k - formants).min()) for k in range(1, 20))
    syllables = np.clip(np.sin(2 * np.pi * random.uniform(1.5, 2.5) * time) + 0.4, 0, None)
    hisses = np.clip(np.sin(2 * np.pi * random.uniform(1.5, 3) * time + 2) - 0.3, 0, None)
    sound = 0.05 * syllables * voice + 0.05 * hisses * random.standard_normal(num_samples)
    return sound.astype(np.float32)


def clips_of_folder(folder: str, clip_seconds: float = MAX_CLIP_SECONDS) -> Clips:
    """The first recordings of a folder, in order of their names, or the one of a file; of each its beginning.

    Raises ConfigError where there are none.
    """
    from pipeline.audio import open_audio
    from pipeline.errors import MimiJobsError
    from pipeline.records import Audio

    root = Path(folder).expanduser()
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    samples, skipped, left = [], [], round(MAX_SECONDS * SAMPLE_RATE)
    for path in files:
        if left <= 0:
            break
        try:
            with open_audio(Audio(None, str(path.resolve())), channel="mix") as stream:
                clip = first_samples(stream, min(left, round(clip_seconds * SAMPLE_RATE)))
        except (MimiJobsError, OSError) as error:
            skipped.append(f"{path}: {error}")
            continue
        samples.append(clip)
        left -= len(clip)
    if not samples:
        why = skipped[0] if skipped else f"{folder} has no files"
        raise ConfigError([f"command line: --audio: holds no recording that can be decoded ({why}); name another"])
    return Clips(f"{len(samples)} recordings of {folder}, at most {clip_seconds:g} s of each", samples, skipped)


def first_samples(blocks: Iterable[np.ndarray], count: int) -> np.ndarray:
    """float32 [up to count]: the beginning of a stream of blocks."""
    parts, have = [], 0
    for block in blocks:
        parts.append(block)
        have += len(block)
        if have >= count:
            break
    return np.concatenate(parts)[:count]

"""Codes back to sound: one recording of a run or of any parquet file of codes, into a WAV file, in bounded memory."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.clips import Clip, WeightsNote, load_mimi, read_clips, weights_of
from jobs.locations import find_code_files
from jobs.yaml_text import one_line
from pipeline.errors import ConfigError, MimiJobsError
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE

if TYPE_CHECKING:
    from mimi import Mimi

CHUNK_FRAMES = 50
CONTEXT_FRAMES = 1063  # 85 s: sound depends on just under 80 s of codes before it
MAX_WAV_BYTES = (1 << 32) - (1 << 16)  # beyond, the header has to be RF64


@dataclass(frozen=True, slots=True)
class Decoded:
    """What was written. `notes` are lines that the user should see."""

    output: str
    key: str
    seconds: float
    num_channels: int
    weights: str
    random_weights: bool
    notes: tuple[str, ...] = ()


def decode(
    path: str,
    key: str,
    output: str,
    *,
    weights: str | None = None,
    start: float | None = None,
    stop: float | None = None,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> Decoded:
    """Write the recording with this key as a WAV file: 24 kHz, 16 bit, a channel for each row where each was encoded.

    weights: where nothing beside the codes says which ones made them, or to use others. start, stop: seconds; what
    comes out is the same, to rounding, as that part of the whole. Raises MimiJobsError, one line; the file is whole or
    not there.
    """
    _check_span(start, stop)
    target = _checked_output(output, overwrite)
    found = find_code_files(path, storage_options)
    clips, notes = _find(found, path, key, storage_options)
    note = WeightsNote(weights) if weights else weights_of(found, storage_options)
    if note is None:
        raise ConfigError([f"{path}: nothing in it says which weights made the codes, name them with --weights"])
    noted = weights_of(found, storage_options) if weights else None
    if noted is not None and noted.name != weights:
        notes = [*notes, f"the codes were made with {noted.name}; with {weights} they may sound like nothing"]
    first, last = _samples(clips[0], start, stop)
    mimi = load_mimi(note, len(clips[0].codes))
    _write(target, sound(mimi, np.stack([clip.codes for clip in clips]), first, last), len(clips), last - first)
    return Decoded(str(target), key, (last - first) / SAMPLE_RATE, len(clips), note.name, note.is_random, tuple(notes))


def sound(mimi: "Mimi", codes: np.ndarray, start: int, stop: int) -> Iterator[np.ndarray]:
    """codes: [C, K, T] -> blocks of float32 [n, C]: samples [start, stop) of what the whole decodes to."""
    import torch

    size = mimi.config.frame_samples
    frame = max(0, start // size - CONTEXT_FRAMES)
    state = mimi.new_decoder_state(len(codes))
    end = min(codes.shape[2], -(-stop // size))
    while frame < end:
        chunk = torch.from_numpy(codes[:, :, frame : min(end, frame + CHUNK_FRAMES)].astype(np.int64))
        pcm, state = mimi.decode_step(chunk, state)
        at = frame * size
        block = pcm[:, 0, max(0, start - at) : max(0, stop - at)].to(torch.float32).numpy().T
        if not np.isfinite(block).all():
            raise MimiJobsError("the codes decode to NaN or infinity; were they made with these weights?")
        if len(block):
            yield block
        frame += chunk.shape[2]


def num_samples(clip: Clip) -> int:
    """Samples at 24 kHz of the recording: its own length where the file has it, else that of its frames."""
    samples = clip.codes.shape[1] * FRAME_SAMPLES
    duration = clip.columns.get("duration")
    if isinstance(duration, float) and duration > 0:
        samples = min(samples, max(1, round(duration * SAMPLE_RATE)))
    return samples


def _check_span(start: float | None, stop: float | None) -> None:
    for name, value in (("--start", start), ("--stop", stop)):
        if value is not None and not 0 <= value < 1e9:
            raise ConfigError([f"command line: {name}: is {value:g}, must be seconds of 0 or more"])
    if start is not None and stop is not None and stop <= start:
        raise ConfigError([f"command line: --stop: is {stop:g}, must be after --start ({start:g})"])


def _checked_output(output: str, overwrite: bool) -> Path:
    target = Path(output)
    if target.suffix.lower() != ".wav":
        raise ConfigError([f"{one_line(output)}: the sound is written as WAV, give a name that ends in .wav"])
    if target.is_dir() or (os.path.lexists(target) and not overwrite):
        raise ConfigError([f"{output}: is there already, choose another name or add --overwrite"])
    if not target.parent.is_dir():
        raise ConfigError([f"{output}: there is no folder {target.parent}, make it first"])
    return target


def _find(found: Any, path: str, key: str, storage_options: dict[str, Any] | None) -> tuple[list[Clip], list[str]]:
    """The rows of the recording: one, or one a channel, of equal shape; and lines about what was passed over."""
    clips: list[Clip] = []
    notes = list(found.problems)
    for name in found.data:
        try:
            clips += read_clips(found, name, keys=[key], storage_options=storage_options)
        except MimiJobsError as error:
            notes.append(str(error))
    if not clips:
        seen = f"; {len(notes)} files can't be read: {notes[0]}" if notes else ""
        raise MimiJobsError(f"{path}: no row has the key {one_line(repr(key), 80)}, see the column `key`{seen}")
    chosen = [clip for clip in clips if clip.recording == clips[0].recording]
    if any(clip.columns.get("channel") is None for clip in chosen):
        chosen = chosen[:1]
    chosen.sort(key=lambda clip: clip.columns.get("channel") or 0)
    if len(chosen) < len(clips):
        where = ", ".join(f"{name} {chosen[0].columns[name]}" for name in ("shard", "row") if name in chosen[0].columns)
        notes.append(f"{len(clips)} rows have the key {one_line(repr(key), 80)}; this is the first ({where or 'file'})")
    if len({clip.codes.shape for clip in chosen}) > 1:
        raise MimiJobsError(f"{chosen[0].file}: the channels of {one_line(repr(key), 80)} have different lengths")
    return chosen, notes


def _samples(clip: Clip, start: float | None, stop: float | None) -> tuple[int, int]:
    """[first, last) of the samples asked for."""
    samples = num_samples(clip)
    first = round((start or 0) * SAMPLE_RATE)
    last = samples if stop is None else min(samples, round(stop * SAMPLE_RATE))
    if first >= last:
        raise ConfigError([f"command line: --start: is {start or 0:g}, the recording has {samples / SAMPLE_RATE:g} s"])
    return first, last


def _write(target: Path, blocks: Iterator[np.ndarray], num_channels: int, samples: int) -> None:
    import soundfile

    kind = "RF64" if samples * num_channels * 2 > MAX_WAV_BYTES else "WAV"
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.partial")
    try:
        with soundfile.SoundFile(temporary, "x", SAMPLE_RATE, num_channels, "PCM_16", format=kind) as file:
            for block in blocks:
                file.write(np.clip(block, -1, 1))
        os.replace(temporary, target)
    except (OSError, soundfile.LibsndfileError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MimiJobsError(f"{target}: can't be written ({why}), choose another place") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()

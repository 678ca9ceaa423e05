"""A few clips to hear in a report: which ones, their originals where these can be had, and what their codes give."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.clips import Clip, WeightsNote, load_mimi, read_clips, weights_of
from jobs.code_files import CodeFile, CodeFileError
from jobs.decoding import num_samples, sound
from jobs.locations import CodeFiles
from jobs.originals import Originals
from jobs.pictures import codes_uri, spectrogram_uri, wav_uri
from jobs.yaml_text import one_line
from pipeline.errors import MimiJobsError
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE

if TYPE_CHECKING:
    from mimi import Mimi
    from pipeline.run_dir import RunDir

FEW = 4  # clips where no keys are given
MAX_CLIPS = 20
EXCERPT_FRAMES = 100  # 8 s: a minute of sound would be 4 MB of page
QUIET = 0.05  # root mean square that noise from random weights is brought down to


@dataclass(frozen=True, slots=True)
class Heard:
    """Sound with its picture, as data URIs."""

    audio: str
    spectrogram: str


@dataclass(slots=True)
class ClipToHear:
    """A clip as the page shows it. Where a sound is missing, `why_no_...` says why."""

    key: str
    codes: str  # picture, data URI
    num_codebooks: int
    picture_height: int  # pixels
    excerpt_seconds: float
    seconds: float
    facts: list[str] = field(default_factory=list)
    original: Heard | None = None
    why_no_original: str = ""
    reconstruction: Heard | None = None
    why_no_reconstruction: str = ""


def choose(
    found: CodeFiles, keys: Collection[str], storage_options: dict[str, Any] | None
) -> tuple[list[Clip], list[str]]:
    """The clips with these keys, or a few from all over; and lines about what couldn't be read or wasn't there."""
    clips: list[Clip] = []
    notes: list[str] = []
    wanted = _places(found) if not keys else ((name, None) for name in found.data)
    for name, rows in wanted:
        try:
            clips += read_clips(found, name, rows=rows, keys=keys or None, storage_options=storage_options)
        except MimiJobsError as error:
            notes.append(str(error))
        if len(clips) > MAX_CLIPS:
            notes.append(f"only the first {MAX_CLIPS} clips of the keys asked for are in the report")
            break
    missing = sorted(set(keys) - {clip.key for clip in clips if clip.key is not None})
    notes += [f"{found.path}: no row has the key {one_line(repr(key), 80)}, see the column `key`" for key in missing]
    return clips[:MAX_CLIPS], notes


def _places(found: CodeFiles) -> Iterator[tuple[str, list[int]]]:
    """(file, rows) spread evenly over the files, then over the rows of each."""
    if not found.data:
        return
    chosen = np.linspace(0, len(found.data) - 1, FEW).round().astype(int)
    for index in np.unique(chosen):
        name = found.data[index]
        try:
            rows = CodeFile.open(name, found.fs).parquet.metadata.num_rows
        except CodeFileError:
            continue  # what's wrong with it is among the inspection's problems
        share = (np.arange(count := int((chosen == index).sum())) + 0.5) / count
        if rows:
            yield name, sorted({int(place) for place in share * rows})


def prepare(
    found: CodeFiles, clips: list[Clip], run: "RunDir | None", storage_options: dict[str, Any] | None
) -> list[ClipToHear]:
    """Read, decode and draw; what can't be had is said in its place."""
    originals = _originals(run)
    note = weights_of(found, storage_options)
    mimi: Mimi | str = "nothing says which weights made these codes"
    if note is not None and clips:
        mimi = _mimi(note, max(len(clip.codes) for clip in clips))
    return [_prepared(clip, originals, mimi, note) for clip in clips]


def _originals(run: "RunDir | None") -> Originals | str:
    if run is None:
        return "these files don't say where the sound came from"
    try:
        return Originals.of(run)
    except MimiJobsError as error:
        return one_line(error, 300)


def _mimi(note: WeightsNote, num_codebooks: int) -> "Mimi | str":
    try:
        return load_mimi(note, num_codebooks)
    except MimiJobsError as error:
        return one_line(error, 300)


def _prepared(clip: Clip, originals: Originals | str, mimi: "Mimi | str", note: WeightsNote | None) -> ClipToHear:
    samples = num_samples(clip)
    length = min(samples, EXCERPT_FRAMES * FRAME_SAMPLES)
    shown = ClipToHear(
        key=clip.key or "(no key)",
        codes=codes_uri(clip.codes[:, :EXCERPT_FRAMES]),
        num_codebooks=len(clip.codes),
        picture_height=min(128, max(36, 8 * len(clip.codes))),
        excerpt_seconds=length / SAMPLE_RATE,
        seconds=samples / SAMPLE_RATE,
        facts=_facts(clip),
    )
    if isinstance(originals, str):
        shown.why_no_original = originals
    else:
        try:
            shard, row, channel = (clip.columns.get(name) for name in ("shard", "row", "channel"))
            if not isinstance(shard, int) or not isinstance(row, int):
                raise MimiJobsError("its file doesn't say which row of the source it is")
            shown.original = _heard(originals.samples(originals.row(shard, row), channel, 0, length))
        except MimiJobsError as error:
            shown.why_no_original = one_line(error, 300)
    if isinstance(mimi, str):
        shown.why_no_reconstruction = mimi
    else:
        try:
            made = np.concatenate([block[:, 0] for block in sound(mimi, clip.codes[None], 0, length)])
            shown.reconstruction = _heard(_quiet(made) if note is not None and note.is_random else made)
        except MimiJobsError as error:
            shown.why_no_reconstruction = one_line(error, 300)
    return shown


def _heard(samples: np.ndarray) -> Heard:
    return Heard(wav_uri(samples), spectrogram_uri(samples))


def _quiet(samples: np.ndarray) -> np.ndarray:
    loudness = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))
    return samples * np.float32(min(1.0, QUIET / max(loudness, 1e-9)))


def _facts(clip: Clip) -> list[str]:
    columns = clip.columns
    known = {name: value for name in ("shard", "row") if isinstance(value := columns.get(name), int)}
    facts = [f"{name} {value}" for name, value in known.items()] or [clip.file]
    if columns.get("channel") is not None:
        facts.append(f"channel {columns['channel']}")
    if isinstance(columns.get("sample_rate"), int):
        facts.append(f"{columns['sample_rate']:,} Hz")
    if isinstance(columns.get("num_channels"), int):
        facts.append(f"{columns['num_channels']} {'channel' if columns['num_channels'] == 1 else 'channels'}")
    return [*facts, f"{clip.codes.shape[1]:,} frames"]

"""The memory of a long recording through the whole pipeline, and the exactness of its last codes.

usage: python benchmarks/long_recording.py [--hours 3] [--weights random:0] [--work FOLDER]

Makes one FLAC of that length and one of a minute out of the example recording, submits each as a job, and samples the
resident memory of the job's driver and actor. Then judges the last 15 s of the long one against the codec in float64,
started 85 s earlier (a code depends on just under 80 s). Exit status 1 if a code is beyond the limit of 1e-6.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import soundfile
import soxr
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mimi import Mimi
from mimi.audit import LIMIT, excess_of
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE
from tests.torture.killing import Run

SPEECH = Path(__file__).resolve().parent.parent / "examples" / "recordings" / "1088-134315-whole.flac"
CONTEXT_S, JUDGED_S = 85, 15


def speech() -> np.ndarray:
    samples, rate = soundfile.read(SPEECH, dtype="float32")
    return soxr.resample(samples, rate, SAMPLE_RATE, quality="HQ")


def write_recording(path: Path, seconds: int) -> None:
    """The example's speech over and over, each time at another loudness, 24 kHz FLAC."""
    path.parent.mkdir(parents=True, exist_ok=True)
    base, rng, left = speech(), np.random.default_rng(0), seconds * SAMPLE_RATE
    with soundfile.SoundFile(path, "w", SAMPLE_RATE, 1, format="FLAC", subtype="PCM_16") as out:
        while left > 0:
            piece = (base * rng.uniform(0.2, 1.0))[:left]
            out.write(piece)
            left -= len(piece)


def resident_mb(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def run(folder: Path, name: str, weights: str, num_codebooks: int) -> dict[str, float]:
    """Encode `folder`/`name`; the peak MB of driver and actor. Prints a curve for runs of more than a minute."""
    job = folder / f"{name}.yaml"
    job.write_text(
        f"input: {{path: {folder / name}}}\nmodel: {{weights: '{weights}', num_codebooks: {num_codebooks}}}\n"
        f"output: {{path: {folder / (name + '-out')}}}\nray: {{actors: 1}}\n"
    )
    command = Run(["submit", str(job)], folder / f"{name}.log")
    peaks, started, shown = {"driver": 0.0, "actor": 0.0}, time.monotonic(), 0.0
    while command.process.poll() is None:
        now = {"driver": resident_mb(command.process.pid), "actor": sum(map(resident_mb, command.actors()))}
        peaks = {who: max(peaks[who], now[who]) for who in peaks}
        if time.monotonic() - started - shown >= 60:
            shown = time.monotonic() - started
            print(f"  {shown / 60:5.1f} min  driver {now['driver']:6.0f} MB  actor {now['actor']:6.0f} MB", flush=True)
        time.sleep(1)
    if command.process.returncode != 0:
        sys.exit(f"the job failed; see {command.log}")
    return peaks


def audit_end(recording: Path, out: Path, weights: str) -> tuple[int, int, float]:
    """Codes beyond the limit, codes judged, and the worst excess, of the last `JUDGED_S`."""
    codes = np.array(pq.read_table(out / "data")["codes"][0].as_py(), np.uint16)
    with soundfile.SoundFile(recording) as sound:
        first = max(0, codes.shape[1] - round((CONTEXT_S + JUDGED_S) * SAMPLE_RATE / FRAME_SAMPLES))
        sound.seek(first * FRAME_SAMPLES)
        samples = sound.read(dtype="float32")
    model = Mimi.load(weights, num_codebooks=codes.shape[0], dtype=torch.float64)
    excess = excess_of(model, torch.from_numpy(samples), torch.from_numpy(codes[:, first:].astype(np.int64))).numpy()
    judged = excess[:, -round(JUDGED_S * SAMPLE_RATE / FRAME_SAMPLES) :]
    return int((judged > LIMIT).sum()), judged.size, float(judged.max())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hours", type=float, default=3)
    parser.add_argument("--weights", default="random:0")
    parser.add_argument("--codebooks", type=int, default=32)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    folder = options.work or Path(tempfile.mkdtemp(prefix="mimi-jobs-long-"))
    write_recording(folder / "minute" / "a.flac", 60)
    write_recording(folder / "long" / "a.flac", round(options.hours * 3600))
    short = run(folder, "minute", options.weights, options.codebooks)
    long = run(folder, "long", options.weights, options.codebooks)
    for who in short:
        more = long[who] - short[who]
        print(
            f"{who}: peak {short[who]:.0f} MB at 1 minute, {long[who]:.0f} MB at {options.hours:g} h ({more:+.0f} MB)"
        )
    bad, size, worst = audit_end(folder / "long" / "a.flac", folder / "long-out", options.weights)
    print(f"last {JUDGED_S} s: {bad} of {size} codes beyond {LIMIT:g}, worst {worst:.1e}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

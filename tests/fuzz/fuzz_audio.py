"""Damaged recordings by the thousand: each must become samples or a reason, in bounded time and memory.

usage: python -m tests.fuzz.fuzz_audio [--count 10000] [--formats mp3 flac ...] [--keep FOLDER]

Each format is decoded in a process of its own, so that a crash or a hang is seen, counted and passed over. Prints a
table; the exit status is 1 if anything but samples and reasons came out. What a fault needs is written to FOLDER.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.audio import open_audio
from pipeline.errors import AudioError
from pipeline.records import Audio
from tests.fuzz.mutations import FORMATS, mutated

BATCH = 250  # recordings a process
START_S = 120.0  # of a process, until its first recording
TIMEOUT_S = 20.0  # of one recording
MEMORY_BYTES = 1 << 30  # above what a process holds once it has begun
MAX_SAMPLES = 24_000 * 3600  # what a user bounds with max_seconds


def outcome(data: bytes) -> str:
    """`codes`, or the kind of failure; whatever else is raised is a fault."""
    samples = 0
    try:
        with open_audio(Audio(data, None), channel="mix", allow_truncated=bool(len(data) % 2)) as stream:
            for block in stream:
                samples += len(block)
                if samples > MAX_SAMPLES:
                    return "too_long"
        return "codes"
    except AudioError as error:
        assert "\n" not in str(error)
        return error.kind


def work(format: str, seeds: range, results: Any) -> None:
    """Sends (seed, outcome, seconds, peak bytes) of each recording, and before it begins (seed, None, 0, 0)."""
    warnings.simplefilter("error")
    data = FORMATS[format]()
    outcome(data)
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (begun + 8 * MEMORY_BYTES, resource.RLIM_INFINITY))
    for seed in seeds:
        results.send((seed, None, 0.0, 0))
        start = time.perf_counter()
        try:
            found = outcome(mutated(data, seed))
        except Exception as error:  # noqa: BLE001 (a fault of ours, to be counted)
            found = f"FAULT {type(error).__name__}: {error}"[:200]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - begun
        results.send((seed, found, time.perf_counter() - start, peak))


@dataclass
class Tally:
    """What became of the mutations of one format."""

    outcomes: Counter = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)  # by seed
    slowest_s: float = 0.0
    peak_bytes: int = 0

    def add(self, seed: int, found: str, seconds: float = 0.0, peak: int = 0) -> None:
        if peak > MEMORY_BYTES:
            found = f"FAULT memory: {peak >> 20} MiB"
        if found.startswith("FAULT"):
            self.faults[seed] = found
        self.outcomes[found.split()[0]] += 1
        self.slowest_s, self.peak_bytes = max(self.slowest_s, seconds), max(self.peak_bytes, peak)


def run_batch(format: str, seeds: range, tally: Tally) -> int:
    """Decodes in a process what it can of `seeds`; returns the first seed that is left."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(format, seeds, sender))
    process.start()
    sender.close()
    last, busy, wait_s = seeds[0], False, START_S
    try:
        while receiver.poll(wait_s):
            last, found, seconds, peak = receiver.recv()
            busy, wait_s = found is None, TIMEOUT_S
            if found is not None:
                tally.add(last, found, seconds, peak)
            if peak > MEMORY_BYTES:  # the process doesn't get below its peak again
                return last + 1
        tally.add(last, f"FAULT hang: over {wait_s:.0f} s")
    except EOFError:
        process.join()
        if busy or process.exitcode:
            tally.add(last, f"FAULT crash: exit status {process.exitcode}")
    finally:
        process.kill()
        process.join()
    return last + 1


def fuzz(format: str, count: int) -> Tally:
    tally, next_seed = Tally(), 0
    while next_seed < count:
        next_seed = run_batch(format, range(next_seed, min(count, next_seed + BATCH)), tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Damage recordings and decode them.")
    parser.add_argument("--count", type=int, default=10_000, help="mutations of each format")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--keep", type=Path, help="folder for the recordings that caused a fault")
    args = parser.parse_args()
    kinds = ("codes", "unreadable", "truncated", "empty", "not_finite", "too_long", "FAULT")
    print(f"{'format':12}{'files':>8}" + "".join(f"{kind:>12}" for kind in kinds) + f"{'slowest s':>11}{'MiB':>6}")
    failed = False
    for format in args.formats:
        tally = fuzz(format, args.count)
        total = tally.outcomes.total()
        row = "".join(f"{tally.outcomes[kind]:12}" for kind in kinds)
        print(f"{format:12}{total:8}{row}{tally.slowest_s:11.2f}{tally.peak_bytes >> 20:6}", flush=True)
        for seed, fault in sorted(tally.faults.items()):
            print(f"  seed {seed}: {fault}", flush=True)
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                (args.keep / f"{format}_{seed}").write_bytes(mutated(FORMATS[format](), seed))
        failed |= bool(tally.faults) or total != args.count
    return int(failed)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

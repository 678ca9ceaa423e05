"""What a person sees while a job runs: a tqdm bar on a terminal, a line every 30 seconds elsewhere."""

import sys
import time
from dataclasses import dataclass
from typing import Any, TextIO

LINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Totals:
    """How far the run is, this driver's work and what was there before. `*_here`: done by this driver."""

    shards: int
    shards_done: int
    rows: int  # accounted for, in shards done and in flight
    failed: int
    skipped: int
    audio_seconds: float
    audio_seconds_here: float
    seconds: float  # since this driver began to encode
    share_done: float  # 0 to 1, by bytes where the plan knows them
    share_here: float
    actors: int = 0
    nodes: int = 0

    @property
    def times_real_time(self) -> float:
        return self.audio_seconds_here / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        if self.share_here <= 0 or self.seconds < 2:
            return None
        return (1 - self.share_done) * self.seconds / self.share_here


def clock_text(seconds: float | None) -> str:
    """90061 -> 25:01:01; None -> ?"""
    if seconds is None:
        return "?"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def line(totals: Totals) -> str:
    """One line: audio hours, times real time, rows, failed, shards, time left."""
    hours = totals.audio_seconds / 3600
    parts = [
        f"{hours:.2f} h of audio" if hours >= 0.1 else f"{totals.audio_seconds:.0f} s of audio",
        f"{totals.times_real_time:.1f}x real time",
        f"{totals.rows} rows",
        f"{totals.failed} failed",
    ]
    if totals.skipped:
        parts.append(f"{totals.skipped} skipped")
    parts.append(f"shard {totals.shards_done}/{totals.shards}")
    if totals.actors > 1:
        parts.append(f"{totals.actors} actors" + (f" on {totals.nodes} nodes" if totals.nodes > 1 else ""))
    parts.append(f"{clock_text(totals.seconds_left)} left")
    return ", ".join(parts)


class ProgressDisplay:
    """Shows `Totals` on `stream`; `note` prints a line without spoiling the bar."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._bar: Any = None
        self._shown = time.monotonic()
        if self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=100.0,
                file=self._stream,
                bar_format="{percentage:3.0f}%|{bar}| {desc}",
                dynamic_ncols=True,
                leave=False,
            )

    def note(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def update(self, totals: Totals) -> None:
        if self._bar is not None:
            self._bar.n = min(100.0, 100 * totals.share_done)
            self._bar.set_description_str(line(totals))
        elif time.monotonic() - self._shown >= LINE_S:
            self._shown = time.monotonic()
            self.note(line(totals))

    def close(self, totals: Totals | None) -> None:
        if self._bar is not None:
            self._bar.close()
        if totals is not None:
            print(line(totals), file=self._stream, flush=True)

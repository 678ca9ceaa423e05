"""How many codes are wrong: ours at every chunk length, and the peers', on one recording, judged in float64.

usage: python benchmarks/exactness.py [--weights random:0] [--audio FILE] [--seconds 56] [--chunks 1,10,25,125,250]

A pick is wrong where a nearer entry lies closer by more than 1e-6 of the distance (`mimi.audit`), along the residuals
of the codes given; one wrong pick changes what is left for the rest of its frame. Peers take part where installed.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from jobs.bench_clips import clips_of_folder, utterance
from jobs.peers import Checkpoints, missing_peers, moshi_streaming, rustymimi_encoder
from mimi import Mimi
from mimi.audit import LIMIT, latent_excess
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE

NUM_CODEBOOKS = 32
JUDGE_FRAMES = 25  # a step of the judge, whose float64 takes memory

Way = tuple[str, Callable[[], np.ndarray]]


def streamed(mimi: Mimi, pcm: np.ndarray, chunk_frames: int, slots: int = 1) -> np.ndarray:
    """int64 [K, T] of the last of `slots` slots; the others hear the recording backwards."""
    rows = torch.from_numpy(np.stack([pcm[::-1]] * (slots - 1) + [pcm]))[:, None]
    state = mimi.new_state(slots)
    steps = rows.split(chunk_frames * FRAME_SAMPLES, 2)
    return torch.cat([mimi.encode_step(step, state).codes[-1].cpu() for step in steps], 1).numpy()


def latents_of(judge: Mimi, pcm: np.ndarray) -> torch.Tensor:
    """float64 [T, dimension]."""
    state = judge.new_state(1)
    steps = torch.from_numpy(pcm).double()[None, None].split(JUDGE_FRAMES * FRAME_SAMPLES, 2)
    return torch.cat([judge.latents_step(step, state)[0] for step in steps])


def our_ways(weights: str, pcm: np.ndarray, chunks: list[int]) -> Iterator[Way]:
    mimi = Mimi.load(weights, num_codebooks=NUM_CODEBOOKS)
    for chunk in chunks:
        yield f"mimi-jobs, {chunk} frames a step", lambda chunk=chunk: streamed(mimi, pcm, chunk)
    yield "mimi-jobs, 25 frames a step, 4 slots", lambda: streamed(mimi, pcm, 25, 4)


def peer_ways(checkpoints: Checkpoints, pcm: np.ndarray, chunks: list[int]) -> Iterator[Way]:
    whole = torch.from_numpy(pcm)[None, None]
    if find_spec("moshi") is not None:
        from moshi.models.loaders import get_mimi

        model: Any = get_mimi(checkpoints.moshi, num_codebooks=NUM_CODEBOOKS).eval()
        yield "moshi, whole", lambda: model.encode(whole)[0].numpy()
        for chunk in chunks:
            yield f"moshi, {chunk} frames a step", lambda chunk=chunk: moshi_streaming(model, chunk)([pcm])[0]
        del model
    if find_spec("transformers") is not None:
        from transformers import MimiModel

        other: Any = MimiModel.from_pretrained(checkpoints.transformers).eval()
        yield "transformers, whole", lambda: other.encode(whole, num_quantizers=NUM_CODEBOOKS).audio_codes[0].numpy()
        del other
    if find_spec("rustymimi") is not None:
        yield "rustymimi, whole", lambda: rustymimi_encoder(checkpoints, NUM_CODEBOOKS)(pcm).astype(np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description="Wrong codes, ours and the peers'.")
    parser.add_argument("--weights", default="random:0")
    parser.add_argument("--audio", help="a recording; by default one is made")
    parser.add_argument("--seconds", type=float, default=56.0)
    parser.add_argument("--chunks", default="1,10,25,125,250", help="frames a step, comma separated")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    chunks = [int(chunk) for chunk in args.chunks.split(",")]
    if args.audio is None:
        pcm = utterance(round(args.seconds * SAMPLE_RATE), 0)
    else:
        pcm = clips_of_folder(args.audio, args.seconds).samples[0]
    pcm = pcm[: len(pcm) // FRAME_SAMPLES * FRAME_SAMPLES]
    judge = Mimi.load(args.weights, num_codebooks=NUM_CODEBOOKS, dtype=torch.float64)
    latents = latents_of(judge, pcm)
    exact = judge.quantizer.encode(latents[None])[0].numpy()
    source = args.audio or "a made recording"
    print(f"{source}, {len(pcm) / SAMPLE_RATE:.1f} s, {NUM_CODEBOOKS} codebooks; {args.weights}; {exact.size:,} codes")
    for line in missing_peers():
        print(line)
    print(f"\n| | wrong picks (beyond {LIMIT:g}) | codes unlike float64's | worst excess | s |\n|---|---|---|---|---|")
    with Checkpoints(args.weights) as checkpoints:
        for ways in (our_ways(args.weights, pcm, chunks), peer_ways(checkpoints, pcm, chunks)):
            for name, encode in ways:
                started = time.perf_counter()
                codes = encode()
                took = time.perf_counter() - started
                excess = latent_excess(judge.quantizer, latents, torch.from_numpy(codes.astype(np.int64)))
                wrong, unlike = int((excess > LIMIT).sum()), int((codes != exact).sum())
                share = unlike / exact.size
                print(f"| {name} | {wrong} | {unlike} ({share:.1%}) | {excess.max():.1e} | {took:.0f} |", flush=True)


if __name__ == "__main__":
    main()

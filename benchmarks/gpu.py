"""The encoder on one GPU, by slots and precision, beside the GPU's own matrix-multiply rate, moshi and transformers.

usage: python benchmarks/gpu.py [--weights random:0] [--slots 1,4,16,64,256,1024] [--chunk-frames 25] [--budget-s 170]

Needs torch, numpy, safetensors and the folder `mimi/`; moshi and transformers take part where they're installed. Each
step is fed from host memory and its codes are fetched, as the engine does it. Agreement is with float32 on the CPU.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from mimi import Mimi
from mimi.export import export_checkpoint
from mimi.graph import Runner, step_runner, use_precision

GFLOP_A_SECOND = 5.5
RATE, FRAME = 24_000, 1920
NUM_CODEBOOKS = 8
MEASURE_S = 1.0
CHECKED_FRAMES = 100  # 8 s, compared with the CPU
PEER_SECONDS = 10


def sound(samples: int) -> np.ndarray:
    """float32 [samples]: a gliding voice and hiss, in syllables."""
    time_ = np.arange(samples) / RATE
    phase = 2 * np.pi * 140 * time_ + 9 * np.sin(2 * np.pi * 0.7 * time_)
    voice = sum(np.sin(k * phase + k * k) / k for k in range(1, 12))
    hiss = np.random.default_rng(0).standard_normal(samples)
    syllables = np.clip(np.sin(2 * np.pi * 1.7 * time_) + 0.4, 0, None)
    return (0.1 * syllables * voice + 0.02 * hiss).astype(np.float32)


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """GFLOP/s of square matrix products at the precision that is set."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    seconds = timed(lambda: torch.mm(a, b), device, 0.3)
    return 2e-9 * size**3 / seconds


def timed(function: Callable[[], object], device: torch.device, least_s: float) -> float:
    """Seconds a call, over at least so long."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    function()
    wait()
    calls, started = 0, time.perf_counter()
    while True:
        function()
        calls += 1
        if calls % 4 == 0 or device.type != "cuda":
            wait()
            if time.perf_counter() - started > least_s:
                return (time.perf_counter() - started) / calls


def run_steps(runner: Runner, slots: int, chunk: np.ndarray) -> float:
    """Audio seconds a second of steps with every slot busy, `ahead` of them in flight."""
    fresh, work = np.zeros(slots, bool), [(slot, chunk) for slot in range(slots)]
    runner.launch(work, np.ones(slots, bool)).result()
    flying, steps, started = [], 0, time.perf_counter()
    while time.perf_counter() - started < MEASURE_S:
        flying.append(runner.launch(work, fresh))
        if len(flying) > runner.ahead:
            flying.pop(0).result()
            steps += 1
    for pending in flying:
        pending.result()
        steps += 1
    return steps * slots * len(chunk) / RATE / (time.perf_counter() - started)


def agreement(runner: Runner, slots: int, chunk_frames: int, pcm: np.ndarray, reference: np.ndarray) -> float:
    """Share of the last slot's codes that are the reference's, [K, frames]; other slots get other sound."""
    size = chunk_frames * FRAME
    codes = []
    for at in range(0, len(pcm), size):
        chunk = pcm[at : at + size]
        work = [(slot, chunk if slot == slots - 1 else chunk[::-1].copy()) for slot in range(max(0, slots - 4), slots)]
        codes.append(runner.launch(work, np.full(slots, at == 0)).result().codes[slots - 1, :, : len(chunk) // FRAME])
    return float((np.concatenate(codes, 1) == reference).mean())


def ours(args: argparse.Namespace, device: torch.device, left: Callable[[], float]) -> None:
    pcm = sound(CHECKED_FRAMES * FRAME)
    use_precision("float32")
    cpu = Mimi.load(args.weights, num_codebooks=NUM_CODEBOOKS)
    reference = cpu.encode(torch.from_numpy(pcm)[None, None])[0].numpy()
    del cpu
    print("| precision | slots | times real time | of products at it | memory, GiB | codes as float32's on the CPU |")
    print("|---|---|---|---|---|---|")
    for precision in args.precisions.split(","):
        dtype = use_precision(precision)
        mimi = Mimi.load(args.weights, num_codebooks=NUM_CODEBOOKS, device=str(device), dtype=dtype)
        peak = product_rate(device, dtype)
        for slots in map(int, args.slots.split(",")):
            if left() < 10:
                print(f"| {precision} | {slots} and more | left out: no time left | | | |")
                break
            row = measured(mimi, slots, args.chunk_frames, device, pcm, reference)
            if row is None:
                print(f"| {precision} | {slots} | out of memory | | | |", flush=True)
                break
            rate, memory, same = row
            share = rate * GFLOP_A_SECOND / peak
            print(f"| {precision} | {slots} | {rate:,.0f} | {share:.0%} | {memory:.1f} | {same:.2%} |", flush=True)
        print(f"| {precision} | the limit: {peak / 1000:,.1f} TFLOP/s | {peak / GFLOP_A_SECOND:,.0f} | 100% | | |")
        del mimi


def measured(
    mimi: Mimi, slots: int, chunk_frames: int, device: torch.device, pcm: np.ndarray, reference: np.ndarray
) -> tuple[float, float, float] | None:
    """(times real time, GiB, agreement); None where the memory isn't enough."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        runner = step_runner(mimi, slots, chunk_frames, device)
        rate = run_steps(runner, slots, pcm[: chunk_frames * FRAME])
        same = agreement(runner, slots, chunk_frames, pcm, reference)
    except torch.cuda.OutOfMemoryError:
        return None
    return rate, torch.cuda.max_memory_reserved() / 2**30 if on_gpu else 0.0, same


def peers(args: argparse.Namespace, device: torch.device, left: Callable[[], float]) -> None:
    """One call over a batch of recordings, and moshi streaming, in float32."""
    use_precision("float32")
    print("\n| peer, float32 | batch | times real time | memory, GiB |\n|---|---|---|---|")
    for name, encode in loaded_peers(args, device):
        for batch in map(int, args.slots.split(",")):
            if left() < 5 or batch > 256:
                break
            pcm = torch.from_numpy(sound(PEER_SECONDS * RATE)).to(device).expand(batch, 1, -1).contiguous()
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            try:
                with torch.inference_mode():
                    seconds = timed(lambda encode=encode, pcm=pcm: encode(pcm), device, MEASURE_S / 2)
            except torch.cuda.OutOfMemoryError:
                print(f"| {name} | {batch} | out of memory | |", flush=True)
                break
            memory = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else 0.0
            print(f"| {name} | {batch} | {batch * PEER_SECONDS / seconds:,.0f} | {memory:.1f} |", flush=True)


def loaded_peers(
    args: argparse.Namespace, device: torch.device
) -> Iterator[tuple[str, Callable[[torch.Tensor], object]]]:
    with tempfile.TemporaryDirectory() as folder:
        if find_spec("moshi") is not None:
            from moshi.models.loaders import get_mimi

            file = export_checkpoint(args.weights, Path(folder) / "moshi", "moshi")
            model = get_mimi(str(file), device=device, num_codebooks=NUM_CODEBOOKS).eval()
            yield "moshi, whole", model.encode

            def stream(pcm: torch.Tensor) -> None:
                with model.streaming(len(pcm)):
                    for chunk in pcm.split(args.chunk_frames * FRAME, 2):
                        model.encode(chunk)

            yield f"moshi, streaming {args.chunk_frames} frames", stream
            del model
        if find_spec("transformers") is not None:
            from transformers import MimiModel

            path = export_checkpoint(args.weights, Path(folder) / "transformers", "transformers")
            other = MimiModel.from_pretrained(path).eval().to(device)  # pyright: ignore[reportArgumentType]
            yield "transformers, whole", lambda pcm: other.encode(pcm, num_quantizers=NUM_CODEBOOKS)
    for name in ("moshi", "transformers"):
        if find_spec(name) is None:
            print(f"| {name} | not installed | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description="The encoder's speed on one GPU.")
    parser.add_argument("--weights", default="random:0")
    parser.add_argument("--slots", default="1,4,16,64,256,1024")
    parser.add_argument("--chunk-frames", type=int, default=25)
    parser.add_argument("--precisions", default="float32,tf32,bfloat16")
    parser.add_argument("--budget-s", type=float, default=170.0, help="what doesn't fit is left out")
    parser.add_argument("--device", default="cuda", help="cpu tries the script, and says nothing of a GPU")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: torch finds no GPU here; run it on a machine that has one")
    started = time.perf_counter()

    def left() -> float:
        return args.budget_s - (time.perf_counter() - started)

    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; {args.weights}, {args.chunk_frames / 12.5:g} s a chunk\n")
    ours(args, device, lambda: left() - 0.25 * args.budget_s)  # the rest is the peers'
    peers(args, device, left)
    print(f"\n{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()

"""At full size, against the official implementations: moshi in float64 judges codes and sound."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mimi.audit import LIMIT, latent_excess
from mimi.config import MimiConfig
from mimi.model import Mimi
from tests.mimi.checkpoints import write_random

pytestmark = pytest.mark.reference
FRAME = MimiConfig().frame_samples
SECONDS = 21  # more than twice what attention sees, and a chunk of 250 frames


def voice(samples: int, seed: int) -> torch.Tensor:
    """float32 [samples] with something of speech: syllables of a gliding hum and of hiss, and pauses."""
    time = torch.arange(samples, dtype=torch.float64) / 24_000
    generator = torch.Generator().manual_seed(seed)
    hiss = torch.rand(samples, generator=generator, dtype=torch.float64) - 0.5
    pitch = 2 * torch.pi * (140 + 7 * seed) * time + 9 * torch.sin(2 * torch.pi * 0.7 * time)
    hum = sum(torch.sin(k * pitch + k * k) / k for k in range(1, 12))
    syllables = (torch.sin(2 * torch.pi * 1.7 * time) + 0.4).clamp(min=0)
    return (0.1 * syllables * hum + 0.08 * hiss * (torch.sin(2 * torch.pi * 2.3 * time) - 0.3).clamp(min=0)).float()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """random:0 on disk, in either layout."""
    root = tmp_path_factory.mktemp("full_size")
    return {layout: write_random(root / layout, 0, layout) for layout in ("moshi", "transformers")}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Mimi]:
    """Ours in float32, by the layout it was read from."""
    return {layout: Mimi.load(str(folder)) for layout, folder in folders.items()}


@pytest.fixture(scope="module")
def official(folders: dict[str, Path]) -> Any:
    """moshi's own model, in float64."""
    loaders = pytest.importorskip("moshi.models.loaders")
    return loaders.get_mimi(str(folders["moshi"]), num_codebooks=32).double().eval()


@pytest.fixture(scope="module")
def clip() -> torch.Tensor:
    """float32 [samples], its last frame partial."""
    return voice(SECONDS * 24_000 - 700, 0)


@pytest.fixture(scope="module")
def latents(official: Any, clip: torch.Tensor) -> torch.Tensor:
    """float64 [frames, 512]: what the official model would quantize."""
    with torch.inference_mode():
        return official.encode_to_latent(clip.double()[None, None], quantize=False)[0].T


@pytest.fixture(scope="module")
def judge(folders: dict[str, Path]) -> Mimi:
    """Codebooks in float64; they're the official ones to the last bit (asserted below)."""
    return Mimi.load(str(folders["moshi"]), dtype=torch.float64)


def streamed(mimi: Mimi, clips: list[torch.Tensor], chunk_frames: int) -> torch.Tensor:
    """int64 [slots, K, frames of the longest], one clip a slot."""
    frames = -(-max(map(len, clips)) // FRAME)
    total = -(-frames // chunk_frames) * chunk_frames * FRAME
    pcm = torch.stack([torch.nn.functional.pad(clip, (0, total - len(clip))) for clip in clips])[:, None]
    state = mimi.new_state(len(clips))
    return torch.cat([mimi.encode_step(part, state).codes for part in pcm.split(chunk_frames * FRAME, 2)], 2)


def test_codebooks_are_the_official_ones(official: Any, judge: Mimi) -> None:
    layers = [*official.quantizer.rvq_first.vq.layers, *official.quantizer.rvq_rest.vq.layers]
    for ours, layer in zip(judge.quantizer.entries, layers, strict=True):
        assert torch.equal(ours, layer._codebook.embedding)


@pytest.mark.parametrize(
    ("layout", "chunk_frames"), [("transformers", 250), ("moshi", 125), ("moshi", 25), ("moshi", 10)]
)
def test_every_code_is_the_nearest_to_the_official_latent(
    models: dict[str, Mimi], judge: Mimi, clip: torch.Tensor, latents: torch.Tensor, layout: str, chunk_frames: int
) -> None:
    codes = streamed(models[layout], [clip], chunk_frames)[0, :, : len(latents)]
    excess = latent_excess(judge.quantizer, latents, codes)
    assert excess.shape == (32, len(latents))
    assert excess.max() <= LIMIT


@pytest.mark.parametrize("num_codebooks", [1, 8])
def test_steps_of_one_frame_and_fewer_codebooks_are_exact(
    folders: dict[str, Path], judge: Mimi, clip: torch.Tensor, latents: torch.Tensor, num_codebooks: int
) -> None:
    mimi = Mimi.load(str(folders["moshi"]), num_codebooks=num_codebooks)
    frames = 140 if num_codebooks == 1 else 30  # at 1 codebook, more than what attention sees
    codes = streamed(mimi, [clip[: frames * FRAME]], 1)[0]
    assert latent_excess(judge.quantizer, latents[: codes.shape[1]], codes).max() <= LIMIT


def test_codes_in_eight_slots_are_exact(
    models: dict[str, Mimi], judge: Mimi, clip: torch.Tensor, latents: torch.Tensor
) -> None:
    frames = 40
    neighbours = [voice(frames * FRAME, seed) for seed in range(1, 8)]
    codes = streamed(models["moshi"], [*neighbours[:3], clip[: frames * FRAME], *neighbours[3:]], 10)[3]
    assert latent_excess(judge.quantizer, latents[:frames], codes).max() <= LIMIT


def test_transformers_reads_its_layout_to_the_same_codes(folders: dict[str, Path], judge: Mimi) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.MimiModel.from_pretrained(folders["transformers"]).double().eval()
    pcm = voice(25 * FRAME, 2).double()[None, None]
    with torch.inference_mode():
        theirs = model.encode(pcm, num_quantizers=32).audio_codes
    assert torch.equal(theirs, judge.encode(pcm))


@pytest.mark.parametrize("num_codebooks", [1, 8, 32])
def test_sound_is_the_official_decoders_to_rounding(official: Any, models: dict[str, Mimi], num_codebooks: int) -> None:
    codes = torch.randint(2048, (1, num_codebooks, 30), generator=torch.Generator().manual_seed(0))
    sound = models["transformers"].decode(codes).double()
    with torch.inference_mode():
        expected = official.decode(codes)
    assert (sound - expected).norm() < 1e-4 * expected.norm()

"""Checkpoints: both layouts give the same tensors, kv_repeat other than 1 and damaged files are refused by name."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mimi.checkpoint import inspect_checkpoint, load_tensors, weights_sha256
from mimi.config import MimiConfig, config_from
from mimi.errors import CheckpointError
from mimi.model import Mimi
from tests.mimi.checkpoints import transformers_config, write
from tests.mimi.tiny import CONFIG, FRAME, noise, tensors, tiny_mimi


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny model in transformers' layout."""
    return write(tmp_path / "hub", tensors(), "transformers", CONFIG)


def change(folder: Path, **values: object) -> Path:
    """Rewrite the folder's config.json with these values."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def retensor(folder: Path, key: str, tensor: torch.Tensor | None) -> Path:
    """Rewrite the folder's weights with another tensor (None: without it) under `key`."""
    found = load_file(folder / "model.safetensors")
    found.pop(key, None)
    save_file(found if tensor is None else found | {key: tensor}, folder / "model.safetensors")
    return folder


def test_the_transformers_layout_loads_to_the_tensors_it_was_written_from(folder: Path) -> None:
    info = inspect_checkpoint(str(folder))
    assert (info.layout, info.config, info.num_codebooks) == ("transformers", CONFIG, 4)
    loaded = load_tensors(info, 4, decoder=True)
    expected = {name: tensor for name, tensor in tensors().items() if not name.endswith("_initialized")}
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_the_moshi_layout_loads_under_old_and_new_names(tmp_path: Path) -> None:
    small = MimiConfig(num_layers=1, num_filters=2, dimension=64, feed_forward=8, codebook_size=2, codebook_dim=2)
    from mimi.layouts import all_shapes
    from mimi.random_weights import random_tensors

    written = random_tensors(small, 0, all_shapes(small))
    old = write(tmp_path / "old", written, "moshi", small)
    names = {"in_proj_weight": "in_projs.0.weight", "out_proj.weight": "out_projs.0.weight"}
    renamed = dict(written)
    for name in written:
        for before, after in names.items():
            if name.endswith("self_attn." + before):
                renamed[name.replace(before, after)] = renamed.pop(name)
    new = write(tmp_path / "new", renamed, "moshi", small)
    config = json.dumps(
        {
            "seanet": {"n_filters": 2, "dimension": 64, "ratios": [8, 6, 5, 4]},
            "transformer": {"num_layers": 1, "dim_feedforward": 8, "kv_repeat": 1},
            "quantizer": {"bins": 2, "dimension": 2, "n_q": 32},
        }
    )
    for path in (old, new):
        (path.parent / "config.json").write_text(config)
        loaded = load_tensors(inspect_checkpoint(str(path)), 32, decoder=True)
        assert all(torch.equal(tensor, written[name]) for name, tensor in loaded.items())


def test_a_folder_loads_to_the_same_codes_and_only_the_codebooks_asked_for(folder: Path) -> None:
    pcm = noise(30 * FRAME, 0)[None, None]
    mimi = Mimi.load(str(folder), num_codebooks=2, dtype=torch.float64)
    assert torch.equal(mimi.encode(pcm), tiny_mimi().encode(pcm)[:, :2])
    names = load_tensors(inspect_checkpoint(str(folder)), 2)
    assert not any("rvq_rest.vq.layers.1." in name or name.startswith("decoder") for name in names)
    codes = mimi.encode(pcm)
    assert torch.equal(mimi.decode(codes), tiny_mimi().decode(codes))  # the decoder's weights come when they're needed


@pytest.mark.parametrize("count", [0, 5, 33, True, 2.0, "2"])
def test_a_number_of_codebooks_that_the_checkpoint_lacks_is_refused(folder: Path, count: int) -> None:
    with pytest.raises(CheckpointError, match=r"num_codebooks: .* from 1 to 4"):
        Mimi.load(str(folder), num_codebooks=count)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kv_repeat": 2}, "kv_repeat 2"),
        ({"kv_repeat": True}, "True"),
        ({"kv_repeat": 1.0}, "1.0"),
        ({"kv_repeat": "1"}, "'1'"),
        ({"num_key_value_heads": 1}, r"2 heads with 1 key-value heads \(kv_repeat 2\)"),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, "8 heads with 3"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"transformer": {"kv_repeat": 4}}, "kv_repeat 4"),
    ],
)
def test_kv_repeat_other_than_one_in_the_config_is_refused(folder: Path, values: dict[str, object], said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as refusal:
        inspect_checkpoint(str(change(folder, **values)))
    assert "config.json" in str(refusal.value) and "\n" not in str(refusal.value)


def test_kv_repeat_of_one_is_taken_in_every_spelling() -> None:
    for raw in ({}, {"kv_repeat": 1}, {"num_attention_heads": 8}, {"num_attention_heads": 8, "num_key_value_heads": 8}):
        assert config_from(raw, "config.json") == MimiConfig()


def test_grouped_keys_in_the_tensors_are_refused_where_the_config_hides_them(folder: Path) -> None:
    key = "encoder_transformer.layers.0.self_attn.k_proj.weight"
    with pytest.raises(CheckpointError, match=rf"kv_repeat.*{key} \(kv_repeat 2\)"):
        inspect_checkpoint(str(retensor(folder, key, torch.zeros(8, 16))))


def test_the_language_models_config_beside_a_moshi_file_is_not_mimis(tmp_path: Path) -> None:
    config = MimiConfig(num_filters=1, num_layers=1)
    path = write(tmp_path, {"encoder.model.0.conv.conv.weight": torch.zeros(1)}, "moshi", config)
    (tmp_path / "config.json").write_text('{"dep_q": 8, "text_card": 32000, "kv_repeat": 4}')
    with pytest.raises(CheckpointError, match=r"lacks tensor"):  # and not kv_repeat
        inspect_checkpoint(str(path))


@pytest.mark.parametrize(
    ("key", "tensor", "said"),
    [
        ("encoder.layers.0.conv.bias", None, "lacks tensor encoder.layers.0.conv.bias"),
        ("decoder.layers.0.conv.bias", None, "lacks tensor decoder.layers.0.conv.bias"),
        ("encoder.layers.0.conv.bias", torch.zeros(5), r"encoder.layers.0.conv.bias is \[5\], Mimi has \[4\]"),
        ("encoder.layers.0.conv.bias", torch.tensor([0.0, math.nan, 0, 0]), "encoder.layers.0.conv.bias holds NaN"),
        ("downsample.conv.weight", torch.full((16, 16, 4), math.inf), "downsample.conv.weight holds NaN or inf"),
        ("encoder.layers.0.conv.bias", torch.zeros(4, dtype=torch.int64), "holds torch.int64"),
        ("lm_head.weight", torch.zeros(1), "has the unknown tensor lm_head.weight"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(folder: Path, key: str, tensor: torch.Tensor | None, said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as refusal:
        Mimi.load(str(retensor(folder, key, tensor)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 8, b"\xff" * 100, b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7 + b"{{", b"version https:"],
)
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        inspect_checkpoint(str(tmp_path))


def test_a_cut_file_is_refused_when_it_loads(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="whole safetensors"):
        Mimi.load(str(folder))


@pytest.mark.parametrize("weights", ["random:", "random:x", "random:-1", "random:1.5", "random:99999999999999999999"])
def test_a_malformed_seed_is_refused(weights: str) -> None:
    with pytest.raises(CheckpointError, match="seed"):
        inspect_checkpoint(weights)


def test_what_does_not_exist_or_is_ambiguous_or_a_pickle_is_refused(tmp_path: Path) -> None:
    for weights in ("./nowhere", str(tmp_path / "nowhere"), "a/b/c", "x.safetensors", ""):
        with pytest.raises(CheckpointError, match="weights"):
            inspect_checkpoint(weights)
    with pytest.raises(CheckpointError, match="has none"):
        inspect_checkpoint(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="pickle"):
        inspect_checkpoint(str(tmp_path / "model.bin"))
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"a\.safetensors, b\.safetensors"):
        inspect_checkpoint(str(tmp_path))


def test_the_hash_is_the_files_and_tells_seeds_apart(folder: Path) -> None:
    before = weights_sha256(inspect_checkpoint(str(folder)))
    assert before == weights_sha256(inspect_checkpoint(str(folder / "model.safetensors")))
    retensor(folder, "encoder.layers.0.conv.bias", torch.ones(4))
    assert before != weights_sha256(inspect_checkpoint(str(folder)))
    hashes = {weights_sha256(inspect_checkpoint(f"random:{seed}")) for seed in (0, 0, 1)}
    assert len(hashes) == 2


def test_an_architecture_that_is_not_mimis_is_refused() -> None:
    raw = transformers_config(MimiConfig())
    for key, value in {"use_causal_conv": False, "hidden_act": "relu", "upsampling_ratios": 8, "norm_eps": "x"}.items():
        with pytest.raises(CheckpointError, match=f"{key}: config.json"):
            config_from(raw | {key: value}, "config.json")


def test_inspection_imports_no_torch() -> None:
    code = (
        "import sys; from mimi.checkpoint import inspect_checkpoint, weights_sha256;"
        "weights_sha256(inspect_checkpoint('random:0')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Architectures of transformers and timm, from small configurations with random weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

from tools.zoo.subjects import Batch, TorchSubject

__all__ = ["timm_subjects", "transformers_subjects"]

_V = 99  # words of a vocabulary
_SMALL = {
    "vocab_size": _V,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
_DECODER = {
    "vocab_size": _V,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SEQUENCE = {0: "batch", 1: "sequence"}


class OneOutput(nn.Module):
    """A transformers model as a function of tensors in order, with one tensor as its answer."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *tensors: Tensor) -> Tensor:
        found = self.model(**dict(zip(self.names, tensors, strict=True)))
        return getattr(found, self.output)


def _text(*names: str, length: int = 11) -> Callable[[np.random.Generator], Batch]:
    def make(rng: np.random.Generator) -> Batch:
        batch: dict[str, np.ndarray] = {}
        for name in names:
            if name.endswith("attention_mask"):
                mask = np.ones((3, length), np.int64)
                mask[1, length - 3 :] = 0
                batch[name] = mask
            else:
                batch[name] = rng.integers(3, _V, (3, length))
        return batch

    return make


def _image(size: int, channels: int = 3) -> Callable[[np.random.Generator], Batch]:
    def make(rng: np.random.Generator) -> Batch:
        return {"pixel_values": rng.standard_normal((2, channels, size, size)).astype(np.float32)}

    return make


def transformers_subjects() -> list[TorchSubject]:
    """All models of transformers in the zoo."""
    import transformers as t

    found: list[TorchSubject] = []

    def add(
        name: str,
        model: str,
        config: Callable[[], object],
        inputs: Callable[[np.random.Generator], Batch],
        *,
        output: str = "logits",
        axis: int = 1,
        loss: str = "ce",
        dynamic: dict[str, dict[int, str]] | None = None,
    ) -> None:
        names = tuple(inputs(np.random.default_rng(0)))

        def make() -> nn.Module:
            settings = config()
            settings.use_cache = False
            return OneOutput(getattr(t, model)(settings), names, output)

        shapes = {n: {0: "batch"} for n in names} if dynamic is None else dynamic
        found.append(
            TorchSubject(
                name, "transformers", make, inputs, loss, axis, shapes, ("torchscript", "dynamo")
            )
        )

    ids, masked = _text("input_ids"), _text("input_ids", "attention_mask")
    sequence = {"input_ids": _SEQUENCE}
    with_mask = {"input_ids": _SEQUENCE, "attention_mask": _SEQUENCE}
    add(
        "bert",
        "BertForSequenceClassification",
        lambda: t.BertConfig(**_SMALL),
        ids,
        dynamic=sequence,
    )
    add(
        "bert-mlm",
        "BertForMaskedLM",
        lambda: t.BertConfig(**_SMALL),
        masked,
        axis=2,
        dynamic=with_mask,
    )
    add(
        "distilbert",
        "DistilBertForSequenceClassification",
        lambda: t.DistilBertConfig(
            vocab_size=_V,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=64,
            max_position_embeddings=40,
            dropout=0.0,
            attention_dropout=0.0,
            seq_classif_dropout=0.0,
        ),
        ids,
        dynamic=sequence,
    )
    add(
        "roberta",
        "RobertaForTokenClassification",
        lambda: t.RobertaConfig(**_SMALL),
        ids,
        axis=2,
        dynamic=sequence,
    )
    add(
        "albert",
        "AlbertForSequenceClassification",
        lambda: t.AlbertConfig(**_SMALL, embedding_size=16, classifier_dropout_prob=0.0),
        ids,
        dynamic=sequence,
    )
    add(
        "electra",
        "ElectraForSequenceClassification",
        lambda: t.ElectraConfig(**_SMALL, embedding_size=16),
        masked,
        dynamic=with_mask,
    )
    add(
        "deberta-v2",
        "DebertaV2ForSequenceClassification",
        lambda: t.DebertaV2Config(
            **_SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], pooler_dropout=0.0
        ),
        ids,
        dynamic=sequence,
    )
    add(
        "gpt2",
        "GPT2LMHeadModel",
        lambda: t.GPT2Config(
            vocab_size=_V,
            n_positions=40,
            n_embd=32,
            n_layer=2,
            n_head=4,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        ),
        ids,
        axis=2,
        dynamic=sequence,
    )
    add(
        "gpt-neox",
        "GPTNeoXForCausalLM",
        lambda: t.GPTNeoXConfig(
            **{k: v for k, v in _DECODER.items() if k != "num_key_value_heads"}
        ),
        ids,
        axis=2,
        dynamic=sequence,
    )
    add(
        "opt",
        "OPTForCausalLM",
        lambda: t.OPTConfig(
            vocab_size=_V,
            hidden_size=32,
            num_hidden_layers=2,
            ffn_dim=64,
            num_attention_heads=4,
            max_position_embeddings=40,
            word_embed_proj_dim=32,
            dropout=0.0,
        ),
        masked,
        axis=2,
        dynamic=with_mask,
    )
    add(
        "bloom",
        "BloomForCausalLM",
        lambda: t.BloomConfig(
            vocab_size=_V,
            hidden_size=32,
            n_layer=2,
            n_head=4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        masked,
        axis=2,
        dynamic=with_mask,
    )
    add(
        "llama",
        "LlamaForCausalLM",
        lambda: t.LlamaConfig(**_DECODER),
        ids,
        axis=2,
        dynamic=sequence,
    )
    add(
        "mistral",
        "MistralForCausalLM",
        lambda: t.MistralConfig(**_DECODER),
        ids,
        axis=2,
        dynamic=sequence,
    )
    add(
        "qwen2",
        "Qwen2ForCausalLM",
        lambda: t.Qwen2Config(**_DECODER),
        ids,
        axis=2,
        dynamic=sequence,
    )
    add(
        "gemma",
        "GemmaForCausalLM",
        lambda: t.GemmaConfig(**_DECODER, head_dim=8),
        ids,
        axis=2,
        dynamic=sequence,
    )
    add(
        "phi",
        "PhiForCausalLM",
        lambda: t.PhiConfig(**_DECODER, resid_pdrop=0.0),
        ids,
        axis=2,
        dynamic=sequence,
    )
    add(
        "t5",
        "T5ForConditionalGeneration",
        lambda: t.T5Config(
            vocab_size=_V,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        ),
        _text("input_ids", "decoder_input_ids"),
        axis=2,
        dynamic={"input_ids": _SEQUENCE, "decoder_input_ids": {0: "batch", 1: "target"}},
    )
    add(
        "bart",
        "BartForConditionalGeneration",
        lambda: t.BartConfig(
            vocab_size=_V,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=40,
            dropout=0.0,
        ),
        _text("input_ids", "decoder_input_ids"),
        axis=2,
        dynamic={"input_ids": _SEQUENCE, "decoder_input_ids": {0: "batch", 1: "target"}},
    )

    vit = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "image_size": 32,
        "patch_size": 8,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    add("vit", "ViTForImageClassification", lambda: t.ViTConfig(**vit), _image(32))
    add("deit", "DeiTForImageClassification", lambda: t.DeiTConfig(**vit), _image(32))
    add(
        "beit",
        "BeitForImageClassification",
        lambda: t.BeitConfig(
            **vit, drop_path_rate=0.0, use_relative_position_bias=True, layer_scale_init_value=0.1
        ),
        _image(32),
    )
    add(
        "dinov2",
        "Dinov2ForImageClassification",
        lambda: t.Dinov2Config(**{k: v for k, v in vit.items() if k != "intermediate_size"}),
        _image(32),
    )
    add(
        "swin",
        "SwinForImageClassification",
        lambda: t.SwinConfig(
            image_size=32,
            patch_size=4,
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            drop_path_rate=0.0,
        ),
        _image(32),
    )
    add(
        "convnext",
        "ConvNextForImageClassification",
        lambda: t.ConvNextConfig(
            hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], image_size=32, drop_path_rate=0.0
        ),
        _image(32),
    )
    add(
        "convnext-v2",
        "ConvNextV2ForImageClassification",
        lambda: t.ConvNextV2Config(
            hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], image_size=32, drop_path_rate=0.0
        ),
        _image(32),
    )
    add(
        "segformer",
        "SegformerForSemanticSegmentation",
        lambda: t.SegformerConfig(
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 16, 24, 32],
            decoder_hidden_size=16,
            num_attention_heads=[1, 2, 2, 2],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
            drop_path_rate=0.0,
            num_labels=5,
        ),
        _image(64),
    )
    add(
        "mobilevit",
        "MobileViTForImageClassification",
        lambda: t.MobileViTConfig(
            image_size=32,
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 48],
            num_attention_heads=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
        ),
        _image(32),
    )
    add(
        "mobilenet-v2",
        "MobileNetV2ForImageClassification",
        lambda: t.MobileNetV2Config(
            image_size=32, depth_multiplier=0.25, classifier_dropout_prob=0.0
        ),
        _image(32),
    )
    add(
        "resnet",
        "ResNetForImageClassification",
        lambda: t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
        _image(32),
    )
    add(
        "regnet",
        "RegNetForImageClassification",
        lambda: t.RegNetConfig(
            embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], groups_width=4
        ),
        _image(32),
    )
    add(
        "yolos",
        "YolosForObjectDetection",
        lambda: t.YolosConfig(**{**vit, "image_size": [32, 32]}, num_detection_tokens=5),
        _image(32),
        axis=2,
    )
    add(
        "dpt",
        "DPTForDepthEstimation",
        lambda: t.DPTConfig(
            **{**vit, "num_hidden_layers": 4},
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 8, 8],
            fusion_hidden_size=8,
            is_hybrid=False,
        ),
        _image(32),
        output="predicted_depth",
        loss="mse",
    )

    clip_text = {
        k: _SMALL[k]
        for k in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
    }

    def clip(rng: np.random.Generator) -> Batch:
        tokens = rng.integers(3, _V - 1, (3, 11))
        tokens[:, -1] = _V - 1
        return {"input_ids": tokens, "pixel_values": _image(32)(rng)["pixel_values"]}

    add(
        "clip",
        "CLIPModel",
        lambda: t.CLIPConfig(
            text_config={
                **clip_text,
                "max_position_embeddings": 40,
                "eos_token_id": _V - 1,
                "bos_token_id": 1,
                "pad_token_id": 0,
            },
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 32,
                "patch_size": 8,
            },
            projection_dim=16,
        ),
        clip,
        output="logits_per_image",
        dynamic={"input_ids": {0: "texts"}, "pixel_values": {0: "images"}},
    )

    def audio(rng: np.random.Generator) -> Batch:
        return {"input_values": rng.standard_normal((2, 800)).astype(np.float32)}

    wave = {
        "vocab_size": 20,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "conv_dim": (16, 16, 16),
        "conv_stride": (5, 2, 2),
        "conv_kernel": (10, 3, 2),
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "feat_proj_dropout": 0.0,
        "activation_dropout": 0.0,
        "layerdrop": 0.0,
        "final_dropout": 0.0,
        "mask_time_prob": 0.0,
    }
    add(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        lambda: t.Wav2Vec2Config(**wave),
        audio,
        axis=2,
        dynamic={"input_values": {0: "batch", 1: "samples"}},
    )
    add(
        "hubert",
        "HubertForSequenceClassification",
        lambda: t.HubertConfig(**wave, classifier_proj_size=16),
        audio,
    )

    def spectrogram(rng: np.random.Generator) -> Batch:
        return {
            "input_features": rng.standard_normal((2, 20, 64)).astype(np.float32),
            "decoder_input_ids": rng.integers(3, _V, (2, 7)),
        }

    add(
        "whisper",
        "WhisperForConditionalGeneration",
        lambda: t.WhisperConfig(
            vocab_size=_V,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_mel_bins=20,
            max_source_positions=32,
            max_target_positions=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            dropout=0.0,
        ),
        spectrogram,
        axis=2,
        dynamic={"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "target"}},
    )

    def mel(rng: np.random.Generator) -> Batch:
        return {"input_values": rng.standard_normal((2, 32, 16)).astype(np.float32)}

    add(
        "ast",
        "ASTForAudioClassification",
        lambda: t.ASTConfig(
            **{k: v for k, v in vit.items() if k not in ("image_size", "patch_size")},
            patch_size=8,
            frequency_stride=8,
            time_stride=8,
            max_length=32,
            num_mel_bins=16,
        ),
        mel,
    )
    return found


def _without_torchvision() -> None:
    """The package timm imports torchvision for its data loaders; its networks need none of it."""
    for name in ("", ".transforms", ".transforms.functional", ".datasets", ".datasets.folder",
                 ".ops", ".ops.misc", ".models", ".models.feature_extraction", ".utils"):  # fmt: skip
        stand_in = MagicMock(name=f"torchvision{name}")
        stand_in.__spec__ = ModuleSpec(f"torchvision{name}", None)
        stand_in.__path__, stand_in.__version__ = [], "0.0"
        sys.modules.setdefault(f"torchvision{name}", stand_in)


_TIMM = {
    "efficientnet_b0": 64, "efficientnetv2_rw_t": 64, "mobilenetv3_small_050": 64, "densenet121": 64,
    "resnext26ts": 64, "seresnet18": 64, "vgg11_bn": 32, "inception_v3": 96, "mixer_s32_224": 224,
    "poolformer_s12": 64, "ghostnet_050": 64, "xcit_nano_12_p16_224": 64, "edgenext_xx_small": 64,
    "repvgg_a0": 64, "hrnet_w18_small": 64, "nf_resnet26": 64, "fastvit_t8": 64,
}  # fmt: skip


def timm_subjects() -> list[TorchSubject]:
    """All models of timm in the zoo. Call it in a process that does not use torchvision."""
    _without_torchvision()
    import timm

    def make(name: str, size: int) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            extra = {"img_size": size} if name.startswith(("mixer", "xcit")) else {}
            return timm.create_model(name, num_classes=10, drop_rate=0.0, **extra)

        return build

    def images(size: int) -> Callable[[np.random.Generator], Batch]:
        def draw(rng: np.random.Generator) -> Batch:
            return {"x": rng.standard_normal((4, 3, size, size)).astype(np.float32)}

        return draw

    torch.manual_seed(0)
    return [
        TorchSubject(
            name,
            "timm",
            make(name, size),
            images(size),
            dynamic={"x": {0: "batch"}},
            exporters=("dynamo",) if number % 2 else ("torchscript",),
        )
        for number, (name, size) in enumerate(_TIMM.items())
    ]

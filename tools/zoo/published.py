"""Architectures of transformers and timm, from small configurations with random weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

from tools.zoo.subjects import Batch, TorchSubject

__all__ = ["timm_subjects", "transformers_subjects"]

_V = 99  # words of a vocabulary
_TOKEN_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ENCODER = {
    "vocab_size": _V, **_SIZES, "max_position_embeddings": 40, **_NO_DROPOUT, "pad_token_id": 0,
}  # fmt: skip
_DECODER = {
    "vocab_size": _V, **_SIZES, "num_key_value_heads": 2, "max_position_embeddings": 40, **_TOKEN_IDS,
}  # fmt: skip
_GPT = {
    "vocab_size": _V, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
_T5 = {
    "vocab_size": _V, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip
_BART = {
    "vocab_size": _V, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "dropout": 0.0,
}  # fmt: skip
_SEQ2SEQ = {
    **_BART, "max_position_embeddings": 40, **_TOKEN_IDS, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
_VISION = {**_SIZES, "image_size": 32, "patch_size": 8, **_NO_DROPOUT}
_WAVE = {
    "vocab_size": 20, **_SIZES, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0,
    "activation_dropout": 0.0, "layerdrop": 0.0, "final_dropout": 0.0, "mask_time_prob": 0.0,
}  # fmt: skip
_WAVE_HEAD = {**_WAVE, "classifier_proj_size": 16}
_WIDTHS = [8, 16, 24, 32]
_STAGES = {"hidden_sizes": _WIDTHS, "depths": [1, 1, 1, 1]}
_CONVNEXT = {
    "hidden_sizes": _WIDTHS, "depths": [1, 1, 2, 1], "image_size": 32, "drop_path_rate": 0.0,
}  # fmt: skip
_SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4],
    "window_size": 4, "drop_path_rate": 0.0,
}  # fmt: skip


def _without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


# Model, settings, kind of inputs, class axis.
_MODELS: Mapping[str, tuple[str, Mapping[str, Any], str, int]] = {
    "bert": ("BertForSequenceClassification", _ENCODER, "text", 1),
    "bert-mlm": ("BertForMaskedLM", _ENCODER, "masked", 2),
    "distilbert": ("DistilBertForSequenceClassification", {
        "vocab_size": _V, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64,
        "max_position_embeddings": 40, "dropout": 0.0, "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0}, "text", 1),
    "roberta": ("RobertaForTokenClassification", _ENCODER, "text", 2),
    "albert": ("AlbertForSequenceClassification",
               {**_ENCODER, "embedding_size": 16, "classifier_dropout_prob": 0.0}, "text", 1),
    "electra": ("ElectraForSequenceClassification", {**_ENCODER, "embedding_size": 16}, "masked", 1),
    "deberta-v2": ("DebertaV2ForSequenceClassification",
                   {**_ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
                    "pooler_dropout": 0.0}, "text", 1),
    "gpt2": ("GPT2LMHeadModel", _GPT, "text", 2),
    "gpt-neox": ("GPTNeoXForCausalLM", _without(_DECODER, "num_key_value_heads"), "text", 2),
    "opt": ("OPTForCausalLM", {
        "vocab_size": _V, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 64,
        "num_attention_heads": 4, "max_position_embeddings": 40, "word_embed_proj_dim": 32,
        "dropout": 0.0}, "masked", 2),
    "bloom": ("BloomForCausalLM", {
        "vocab_size": _V, "hidden_size": 32, "n_layer": 2, "n_head": 4, "hidden_dropout": 0.0,
        "attention_dropout": 0.0}, "masked", 2),
    "llama": ("LlamaForCausalLM", _DECODER, "text", 2),
    "mistral": ("MistralForCausalLM", _DECODER, "text", 2),
    "qwen2": ("Qwen2ForCausalLM", _DECODER, "text", 2),
    "gemma": ("GemmaForCausalLM", {**_DECODER, "head_dim": 8}, "text", 2),
    "phi": ("PhiForCausalLM", {**_DECODER, "resid_pdrop": 0.0}, "text", 2),
    "t5": ("T5ForConditionalGeneration", _T5, "text2-equal", 2),
    "bart": ("BartForConditionalGeneration", {**_BART, "max_position_embeddings": 40},
             "text2-equal", 2),
    "vit": ("ViTForImageClassification", _VISION, "image", 1),
    "deit": ("DeiTForImageClassification", _VISION, "image", 1),
    "beit": ("BeitForImageClassification",
             {**_VISION, "drop_path_rate": 0.0, "use_relative_position_bias": True,
              "layer_scale_init_value": 0.1}, "image", 1),
    "dinov2": ("Dinov2ForImageClassification", _without(_VISION, "intermediate_size"), "image", 1),
    "swin": ("SwinForImageClassification", {**_SWIN, "depths": [2, 2]}, "image", 1),
    "convnext": ("ConvNextForImageClassification", _CONVNEXT, "image", 1),
    "convnext-v2": ("ConvNextV2ForImageClassification", _CONVNEXT, "image", 1),
    "segformer": ("SegformerForSemanticSegmentation",
                  {**_STAGES, "decoder_hidden_size": 16, "num_attention_heads": [1, 2, 2, 2],
                   **_NO_DROPOUT, "classifier_dropout_prob": 0.0, "drop_path_rate": 0.0,
                   "num_labels": 5}, "image64", 1),
    "mobilevit": ("MobileViTForImageClassification",
                  {"image_size": 32, "hidden_sizes": [16, 24, 32],
                   "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 48], "num_attention_heads": 2,
                   **_NO_DROPOUT, "classifier_dropout_prob": 0.0}, "image", 1),
    "mobilenet-v2": ("MobileNetV2ForImageClassification",
                     {"image_size": 32, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.0},
                     "image", 1),
    "resnet": ("ResNetForImageClassification", {"embedding_size": 8, **_STAGES}, "image", 1),
    "regnet": ("RegNetForImageClassification",
               {"embedding_size": 8, **_STAGES, "groups_width": 4}, "image", 1),
    "yolos": ("YolosForObjectDetection",
              {**_VISION, "image_size": [32, 32], "num_detection_tokens": 5}, "image", 2),
    "dpt": ("DPTForDepthEstimation",
            {**_VISION, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
             "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "is_hybrid": False},
            "image", 1),
    "clip": ("CLIPModel", {
        "text_config": {"vocab_size": _V, **_SIZES, "max_position_embeddings": 40,
                        **_TOKEN_IDS, "eos_token_id": _V - 1},
        "vision_config": {**_SIZES, "image_size": 32, "patch_size": 8},
        "projection_dim": 16}, "captioned", 1),
    "wav2vec2": ("Wav2Vec2ForCTC", _WAVE, "wave-any", 2),
    "hubert": ("HubertForSequenceClassification", _WAVE_HEAD, "wave", 1),
    "whisper": ("WhisperForConditionalGeneration",
                {**_BART, "num_mel_bins": 20, "max_source_positions": 32,
                 "max_target_positions": 16, **_TOKEN_IDS, "decoder_start_token_id": 1},
                "spectrogram", 2),
    "ast": ("ASTForAudioClassification",
            {**_without(_VISION, "image_size"), "frequency_stride": 8, "time_stride": 8,
             "max_length": 32, "num_mel_bins": 16}, "mel", 1),
    "xlnet": ("XLNetForSequenceClassification", {
        "vocab_size": _V, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "dropout": 0.0,
        "summary_last_dropout": 0.0}, "text", 1),
    "fnet": ("FNetForSequenceClassification", {
        k: v for k, v in _ENCODER.items() if "attention" not in k}, "text", 1),
    "squeezebert": ("SqueezeBertForSequenceClassification",
                    {**_ENCODER, "embedding_size": 32}, "text", 1),
    "mobilebert": ("MobileBertForTokenClassification",
                   {**_ENCODER, "embedding_size": 16, "true_hidden_size": 16,
                    "intra_bottleneck_size": 16, "num_feedforward_networks": 2}, "text", 2),
    "convbert": ("ConvBertForSequenceClassification",
                 {**_ENCODER, "embedding_size": 16, "conv_kernel_size": 3,
                  "classifier_dropout": 0.0}, "text", 1),
    "roformer": ("RoFormerForMaskedLM", {**_ENCODER, "embedding_size": 16}, "text", 2),
    "esm": ("EsmForSequenceClassification",
            {**_ENCODER, "position_embedding_type": "rotary", "mask_token_id": 5}, "text", 1),
    "nystromformer": ("NystromformerForSequenceClassification",
                      {**_ENCODER, "num_landmarks": 4, "segment_means_seq_len": 8}, "text8", 1),
    "layoutlm": ("LayoutLMForTokenClassification", _ENCODER, "text", 2),
    "mpnet": ("MPNetForSequenceClassification", _ENCODER, "text", 1),
    "ibert": ("IBertForSequenceClassification", {**_ENCODER, "quant_mode": False}, "text", 1),
    "megatron-bert": ("MegatronBertForMaskedLM", _ENCODER, "text", 2),
    "modernbert": ("ModernBertForSequenceClassification",
                   {**_DECODER, "cls_token_id": 3, "sep_token_id": 4, "local_attention": 8}, "text", 1),
    "gptj": ("GPTJForCausalLM", {**_GPT, "rotary_dim": 4, **_TOKEN_IDS}, "text", 2),
    "codegen": ("CodeGenForCausalLM", {**_GPT, "rotary_dim": 4, **_TOKEN_IDS}, "text", 2),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", {**_GPT, **_TOKEN_IDS}, "text", 2),
    "falcon": ("FalconForCausalLM", {
        "vocab_size": _V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "attention_dropout": 0.0, "hidden_dropout": 0.0, "alibi": True, **_TOKEN_IDS}, "text", 2),
    "stablelm": ("StableLmForCausalLM", _DECODER, "text", 2),
    "olmo2": ("Olmo2ForCausalLM", _DECODER, "text", 2),
    "phi3": ("Phi3ForCausalLM", {**_DECODER, "resid_pdrop": 0.0}, "text", 2),
    "gemma2": ("Gemma2ForCausalLM",
               {**_DECODER, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}, "text", 2),
    "qwen3": ("Qwen3ForCausalLM", {**_DECODER, "head_dim": 8}, "text", 2),
    "cohere": ("CohereForCausalLM", _DECODER, "text", 2),
    "granite": ("GraniteForCausalLM", _DECODER, "text", 2),
    "mixtral": ("MixtralForCausalLM", {**_DECODER, "num_local_experts": 2}, "text", 2),
    "mamba": ("MambaForCausalLM", {
        "vocab_size": _V, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **_TOKEN_IDS},
        "text-fixed", 2),
    "pegasus": ("PegasusForConditionalGeneration", _SEQ2SEQ, "text2", 2),
    "marian": ("MarianMTModel", {**_SEQ2SEQ, "decoder_vocab_size": _V}, "text2", 2),
    "blenderbot": ("BlenderbotSmallForConditionalGeneration", _SEQ2SEQ, "text2", 2),
    "m2m100": ("M2M100ForConditionalGeneration", _SEQ2SEQ, "text2", 2),
    "mt5": ("MT5ForConditionalGeneration", _T5, "text2", 2),
    "levit": ("LevitForImageClassification", {
        "image_size": 32, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2],
        "depths": [1, 1, 1], "key_dim": [8, 8, 8], "drop_path_rate": 0.0,
        "attention_ratio": [2, 2, 2], "mlp_ratio": [2, 2, 2]}, "image", 1),
    "cvt": ("CvtForImageClassification", {
        "embed_dim": [8, 16, 24], "num_heads": [1, 2, 2], "depth": [1, 1, 1],
        "drop_path_rate": [0.0, 0.0, 0.0], "drop_rate": [0.0, 0.0, 0.0]}, "image", 1),
    "pvt": ("PvtForImageClassification", {
        "image_size": 64, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4], "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0}, "image64", 1),
    "focalnet": ("FocalNetForImageClassification", {
        "image_size": 32, "embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2],
        "focal_windows": [3, 3], "drop_path_rate": 0.0, "hidden_dropout_prob": 0.0}, "image", 1),
    "bit": ("BitForImageClassification",
            {"embedding_size": 8, **_STAGES, "num_groups": 4}, "image", 1),
    "efficientnet-hf": ("EfficientNetForImageClassification",
                     {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.25,
                      "hidden_dim": 64, "dropout_rate": 0.0, "drop_connect_rate": 0.0}, "image", 1),
    "mobilevit-v2": ("MobileViTV2ForImageClassification",
                    {"image_size": 64, "width_multiplier": 0.25, "classifier_dropout_prob": 0.0,
                     "attn_dropout": 0.0, "ffn_dropout": 0.0}, "image64", 1),
    "swin-v2": ("Swinv2ForImageClassification", _SWIN, "image", 1),
    "mobilenet-v1": ("MobileNetV1ForImageClassification",
                     {"image_size": 32, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.0}, "image", 1),
    "dinov2-registers": ("Dinov2WithRegistersForImageClassification",
                         {k: v for k, v in _VISION.items() if k != "intermediate_size"}, "image", 1),
    "vit-msn": ("ViTMSNForImageClassification", _VISION, "image", 1),
    "timesformer": ("TimesformerForVideoClassification",
                    {**_VISION, "num_frames": 4, "drop_path_rate": 0.0}, "video", 1),
    "videomae": ("VideoMAEForVideoClassification",
                 {**_VISION, "num_frames": 4, "tubelet_size": 2}, "video", 1),
    "vivit": ("VivitForVideoClassification",
              {**_VISION, "num_frames": 4, "tubelet_size": [2, 8, 8]}, "video", 1),
    "wavlm": ("WavLMForSequenceClassification", {**_WAVE_HEAD, "num_buckets": 32}, "wave", 1),
    "unispeech-sat": ("UniSpeechSatForSequenceClassification", _WAVE_HEAD, "wave", 1),
    "sew": ("SEWForSequenceClassification", {**_WAVE_HEAD, "squeeze_factor": 2}, "wave", 1),
    "wav2vec2-conformer": ("Wav2Vec2ConformerForSequenceClassification",
                           {**_WAVE_HEAD, "conv_depthwise_kernel_size": 7, "conformer_conv_dropout": 0.0}, "wave", 1),
    "data2vec-audio": ("Data2VecAudioForSequenceClassification",
                       {**_WAVE_HEAD, "conv_pos_kernel_size": 5, "num_conv_pos_embeddings": 2}, "wave", 1),
}  # fmt: skip
# Output, unless it is ``logits``, and loss, unless it is the cross entropy.
_OUTPUTS = {"clip": "logits_per_image", "dpt": "predicted_depth"}
_LOSSES = {"dpt": "mse"}


def _inputs(kind: str) -> tuple[Callable[[np.random.Generator], Batch], dict[str, dict[int, str]]]:
    """A generator of batches, and the symbolic axes of its inputs."""

    def tokens(rng: np.random.Generator, length: int = 11) -> Any:
        return rng.integers(3, _V, (3, length))

    def floats(rng: np.random.Generator, *shape: int) -> Any:
        return rng.standard_normal((2, *shape)).astype(np.float32)

    def masked(rng: np.random.Generator) -> Batch:
        mask = np.ones((3, 11), np.int64)
        mask[1, 8:] = 0
        return {"input_ids": tokens(rng), "attention_mask": mask}

    def captioned(rng: np.random.Generator) -> Batch:
        captions = rng.integers(3, _V - 1, (3, 11))
        captions[:, -1] = _V - 1  # the end of a text
        return {"input_ids": captions, "pixel_values": floats(rng, 3, 32, 32)}

    def spectrogram(rng: np.random.Generator) -> Batch:
        return {
            "input_features": floats(rng, 20, 64),
            "decoder_input_ids": rng.integers(3, _V, (2, 7)),
        }

    def two(target: int) -> Callable[[np.random.Generator], Batch]:
        return lambda rng: {"input_ids": tokens(rng), "decoder_input_ids": tokens(rng, target)}

    def pixels(*shape: int) -> tuple[Callable[[np.random.Generator], Batch], Any]:
        return lambda rng: {"pixel_values": floats(rng, *shape)}, {"pixel_values": batch}

    sequence = {0: "batch", 1: "sequence"}
    batch = {0: "batch"}
    pair = {"input_ids": sequence, "decoder_input_ids": {0: "batch", 1: "target"}}
    return {
        "text": (lambda rng: {"input_ids": tokens(rng)}, {"input_ids": sequence}),
        "masked": (masked, {"input_ids": sequence, "attention_mask": sequence}),
        "text8": (lambda rng: {"input_ids": tokens(rng, 8)}, {"input_ids": batch}),
        "text-fixed": (lambda rng: {"input_ids": tokens(rng, 6)}, {"input_ids": batch}),
        "text2": (two(7), pair),
        "text2-equal": (two(11), pair),
        "image": pixels(3, 32, 32),
        "image64": pixels(3, 64, 64),
        "video": pixels(4, 3, 32, 32),
        "captioned": (captioned, {"input_ids": {0: "texts"}, "pixel_values": {0: "images"}}),
        "wave": (lambda rng: {"input_values": floats(rng, 800)}, {"input_values": batch}),
        "wave-any": (
            lambda rng: {"input_values": floats(rng, 800)},
            {"input_values": {0: "batch", 1: "samples"}},
        ),
        "mel": (lambda rng: {"input_values": floats(rng, 32, 16)}, {"input_values": batch}),
        "spectrogram": (
            spectrogram,
            {"input_features": batch, "decoder_input_ids": {0: "batch", 1: "target"}},
        ),
    }[kind]


class OneOutput(nn.Module):
    """A transformers model as a function of tensors in order, with one tensor as its result."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *tensors: Tensor) -> Tensor:
        found = self.model(**dict(zip(self.names, tensors, strict=True)))
        return getattr(found, self.output)


def transformers_subjects() -> list[TorchSubject]:
    """All models of transformers in the zoo."""
    import transformers

    def subject(name: str) -> TorchSubject:
        model, settings, kind, axis = _MODELS[name]
        make_batch, dynamic = _inputs(kind)
        names = tuple(make_batch(np.random.default_rng(0)))

        def make() -> nn.Module:
            kind = getattr(transformers, model)
            config = kind.config_class(**settings)
            config.use_cache = False
            return OneOutput(kind(config), names, _OUTPUTS.get(name, "logits"))

        loss = _LOSSES.get(name, "ce")
        return TorchSubject(name, "transformers", make, make_batch, loss, axis, dynamic)

    return [subject(name) for name in _MODELS]


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

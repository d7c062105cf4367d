"""More architectures of transformers: a table, so that one more costs a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from tools.zoo.published import OneOutput
from tools.zoo.subjects import Batch, TorchSubject

__all__ = ["more_transformers"]

_V = 99
_TOKEN_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_ENCODER = {
    "vocab_size": _V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "pad_token_id": 0,
}  # fmt: skip
_DECODER = {
    "vocab_size": _V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 40, **_TOKEN_IDS,
}  # fmt: skip
_SEQ2SEQ = {
    "vocab_size": _V, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_position_embeddings": 40, "dropout": 0.0, **_TOKEN_IDS,
    "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_WAVE = {
    "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0,
    "activation_dropout": 0.0, "layerdrop": 0.0, "final_dropout": 0.0, "mask_time_prob": 0.0,
    "classifier_proj_size": 16,
}  # fmt: skip
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4],
    "window_size": 4, "drop_path_rate": 0.0,
}  # fmt: skip

# Model, settings, kind of inputs, class axis.
_MODELS: Mapping[str, tuple[str, Mapping[str, Any], str, int]] = {
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
    "gptj": ("GPTJForCausalLM", {
        "vocab_size": _V, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "rotary_dim": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **_TOKEN_IDS}, "text", 2),
    "codegen": ("CodeGenForCausalLM", {
        "vocab_size": _V, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "rotary_dim": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **_TOKEN_IDS}, "text", 2),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", {
        "vocab_size": _V, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **_TOKEN_IDS}, "text", 2),
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
    "mt5": ("MT5ForConditionalGeneration", {
        "vocab_size": _V, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
        "dropout_rate": 0.0, "decoder_start_token_id": 0}, "text2", 2),
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
    "wavlm": ("WavLMForSequenceClassification", {**_WAVE, "num_buckets": 32}, "wave", 1),
    "unispeech-sat": ("UniSpeechSatForSequenceClassification", _WAVE, "wave", 1),
    "sew": ("SEWForSequenceClassification", {**_WAVE, "squeeze_factor": 2}, "wave", 1),
    "wav2vec2-conformer": ("Wav2Vec2ConformerForSequenceClassification",
                           {**_WAVE, "conv_depthwise_kernel_size": 7, "conformer_conv_dropout": 0.0}, "wave", 1),
    "data2vec-audio": ("Data2VecAudioForSequenceClassification",
                       {**_WAVE, "conv_pos_kernel_size": 5, "num_conv_pos_embeddings": 2}, "wave", 1),
}  # fmt: skip


def _inputs(kind: str) -> tuple[Callable[[np.random.Generator], Batch], dict[str, dict[int, str]]]:
    """A generator of batches, and the symbolic axes of its inputs."""

    def tokens(rng: np.random.Generator, length: int = 11) -> Any:
        return rng.integers(3, _V, (3, length))

    def pixels(rng: np.random.Generator, *shape: int) -> Batch:
        return {"pixel_values": rng.standard_normal((2, *shape)).astype(np.float32)}

    sequence = {0: "batch", 1: "sequence"}
    batch = {0: "batch"}
    return {
        "text": (lambda rng: {"input_ids": tokens(rng)}, {"input_ids": sequence}),
        "text8": (lambda rng: {"input_ids": tokens(rng, 8)}, {"input_ids": batch}),
        "text-fixed": (lambda rng: {"input_ids": tokens(rng, 6)}, {"input_ids": batch}),
        "text2": (
            lambda rng: {"input_ids": tokens(rng), "decoder_input_ids": tokens(rng, 7)},
            {"input_ids": sequence, "decoder_input_ids": {0: "batch", 1: "target"}},
        ),
        "image": (lambda rng: pixels(rng, 3, 32, 32), {"pixel_values": batch}),
        "image64": (lambda rng: pixels(rng, 3, 64, 64), {"pixel_values": batch}),
        "video": (lambda rng: pixels(rng, 4, 3, 32, 32), {"pixel_values": batch}),
        "wave": (
            lambda rng: {"input_values": rng.standard_normal((2, 800)).astype(np.float32)},
            {"input_values": batch},
        ),
    }[kind]


def more_transformers() -> list[TorchSubject]:
    """The table as subjects."""
    import transformers

    def subject(name: str) -> TorchSubject:
        model, settings, kind, axis = _MODELS[name]
        make_batch, dynamic = _inputs(kind)
        names = tuple(make_batch(np.random.default_rng(0)))

        def make() -> nn.Module:
            kind = getattr(transformers, model)
            config = kind.config_class(**settings)
            config.use_cache = False
            return OneOutput(kind(config), names, "logits")

        return TorchSubject(name, "transformers", make, make_batch, "ce", axis, dynamic)

    return [subject(name) for name in _MODELS]

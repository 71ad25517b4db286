"""Fields of Hugging Face's config.json that change no output here, and why.

A field is read, or it stands in this list, or it refuses the file by its name. Sources: PretrainedConfig of
transformers 4.0 to 5.24, and the configurations of the Vision Transformers that models/vit reads.
"""

WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "for the generation of text; transformers 4 wrote them into the file of every model": (
        "add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "constraints", "cross_attention_hidden_size",
        "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
        "epsilon_cutoff", "eta_cutoff", "force_words_ids", "generation_config", "guidance_scale", "low_memory",
        "max_new_tokens", "max_time", "min_new_tokens", "min_p", "output_logits", "penalty_alpha",
        "renormalize_logits", "sequence_bias",
        "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "is_decoder",
        "is_encoder_decoder", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
        "num_beams", "num_return_sequences", "output_past", "output_scores", "prefix", "remove_invalid_values",
        "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature", "tie_encoder_decoder",
        "tie_word_embeddings", "top_k", "top_p", "typical_p", "use_cache",
    ),
    "names of classes, tokens, tasks, versions and files": (
        "architectures", "bos_token_id", "cls_token_id", "custom_pipelines", "eos_token_id", "eos_token_ids",
        "finetuning_task", "framework", "id2label", "label2id", "language", "license", "model_input_names",
        "revision", "transformers_weights", "unk_token_id",
        "mask_token_id", "model_name", "name_or_path", "num_labels", "pad_token_id", "sep_token_id",
        "tags", "task_specific_params", "tokenizer_class", "torch_version", "transformers_version", "vocab_size",
    ),
    "how transformers runs the model and returns its outputs; weights are read in float32": (
        "attn_implementation", "chunk_size_feed_forward", "dtype", "output_attentions", "output_hidden_states",
        "return_dict", "tf_legacy_loss", "torch_dtype", "torchscript", "use_bfloat16", "use_return_dict",
        "xla_device",
    ),
    "of transformers' class of configurations, not of the network": (
        "attribute_map", "base_config_key", "base_model_ep_plan", "base_model_pp_plan", "base_model_tp_plan",
        "has_no_defaults_at_init", "is_composition", "keys_to_ignore_at_inference", "pp_plan", "sub_configs", "tp_plan",
    ),
    "for training alone: first weights, dropout, losses, memory": (
        "attention_dropout", "attention_probs_dropout_prob", "attn_dropout", "classifier_dropout",
        "classifier_dropout_prob", "drop_path_rate", "dropout", "gradient_checkpointing",
        "gradient_checkpointing_kwargs", "hidden_dropout", "hidden_dropout_prob", "initializer_factor",
        "initializer_range", "label_smoothing", "layerdrop", "layerscale_value", "logit_scale_init_value", "loss_type",
        "mask_ratio", "norm_pix_loss", "pos_embed_jitter", "pos_embed_rescale", "pos_embed_shift", "problem_type",
        "semantic_loss_ignore_index", "use_mask_token",
    ),
    "of decoders, of text towers and of poolers, which no classifier reads": (
        "decoder_hidden_size", "decoder_intermediate_size", "decoder_num_attention_heads", "decoder_num_hidden_layers",
        "encoder_stride", "max_position_embeddings", "pooler_act", "pooler_output_size",
    ),
    "of backbones for detection, which return the features of several stages": (
        "apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "stage_names",
    ),
    "shown by the tensors": (
        "key_bias", "mlp_bias", "mlp_ratio", "num_channels", "num_patches", "projection_dim", "proj_bias", "qkv_bias",
        "query_bias", "value_bias", "vision_use_head",
    ),
}  # fmt: skip
"""Names of fields, by the reason why they change no output."""
PREFIXES = ("_", "transformers.js_config")
"""Begin names of fields that transformers keeps for itself, and of other programs' own fields."""
HARMLESS = frozenset(name for names in WITHOUT_EFFECT.values() for name in names)


def is_without_effect(name: str) -> bool:
    """True for a field that changes no output."""
    return name in HARMLESS or name.startswith(PREFIXES)

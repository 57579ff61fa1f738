//! Which config keys a run may change when it is resumed.

/// How a changed value of a key is treated when a run is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// It would be a different run: refused.
    Fixed,
    /// It may change, and the change is reported. If the key names something that is compared itself, as
    /// `model.name_or_path` names the weights, that comparison decides.
    Free,
    /// It does not affect what is trained: neither refused nor reported.
    Unrelated,
}

use Rule::{Fixed, Free, Unrelated};

/// All config keys.
const KEYS: &[(&str, Rule)] = &[
    ("name", Unrelated),
    ("output_dir", Unrelated),
    ("seed", Fixed),
    ("device", Free),
    ("threads", Free),
    // The architecture and the weights are compared themselves, whatever names them.
    ("model.name_or_path", Free),
    ("model.transformer", Free),
    ("model.transformer_2", Free),
    // The resulting clips are compared themselves.
    ("model.vae", Free),
    ("model.text_encoder", Free),
    ("model.tokenizer", Free),
    ("model.num_layers", Free),
    ("model.attention_head_dim", Free),
    ("model.ffn_dim", Free),
    ("model.freq_dim", Free),
    ("model.text_dim", Free),
    ("model.in_channels", Free),
    ("model.scale_factor_spatial", Free),
    ("model.model_type", Free),
    ("model.hidden_size", Free),
    ("model.intermediate_size", Free),
    ("model.num_hidden_layers", Free),
    ("model.num_attention_heads", Free),
    ("model.num_key_value_heads", Free),
    ("model.head_dim", Free),
    ("model.rope_theta", Free),
    ("model.rms_norm_eps", Free),
    ("model.tie_word_embeddings", Free),
    ("model.initializer_range", Free),
    ("model.quantization", Fixed),
    ("model.boundary_ratio", Fixed),
    // Where weights are stored does not change any number.
    ("model.profile", Free),
    ("model.low_vram", Free),
    ("model.blocks_to_swap", Free),
    ("model.offload_fraction", Free),
    ("model.max_memory", Free),
    ("model.device_map", Free),
    ("model.ring_slots", Free),
    ("model.offload_folder", Free),
    // What determines the shape and scale of an adapter.
    ("adapter", Fixed),
    ("adapter.r", Fixed),
    ("adapter.lora_alpha", Fixed),
    ("adapter.lora_dropout", Free),
    ("adapter.use_rslora", Fixed),
    ("adapter.use_dora", Fixed),
    ("adapter.target_modules", Fixed),
    ("adapter.exclude_modules", Fixed),
    ("adapter.layers_to_transform", Fixed),
    ("adapter.layers_pattern", Fixed),
    ("adapter.modules_to_save", Fixed),
    ("adapter.bias", Fixed),
    ("adapter.rank_pattern", Fixed),
    ("adapter.alpha_pattern", Fixed),
    ("adapter.loraplus_lr_ratio", Free),
    ("adapter.loraplus_lr_embedding", Free),
    ("adapter.save_merged", Free),
    ("adapter.format", Free),
    ("adapter.resume_from", Free),
    // The tokens are compared themselves, wherever they come from.
    ("data.dataset", Free),
    ("data.path", Free),
    // The same for each data set, and how many examples each has.
    ("data.mixture", Free),
    ("data.stopping_strategy", Free),
    ("data.subset", Free),
    ("data.split", Free),
    ("data.eval_split", Free),
    ("data.format", Free),
    ("data.columns", Free),
    // This changes the evaluation, not the training; the held-out fraction of `path` changes both.
    ("data.eval_dataset", Free),
    ("data.block_size", Fixed),
    ("data.packing", Fixed),
    ("data.validation_shuffle", Fixed),
    ("data.validation_fraction", Fixed),
    ("data.tokenizer", Fixed),
    ("data.vocab_size", Fixed),
    // The clips and captions of videos are compared themselves, whatever cuts them.
    ("data.resolution", Free),
    ("data.encoded_by", Free),
    ("data.num_frames", Free),
    ("data.frame_extraction", Free),
    ("data.frame_stride", Free),
    ("data.frame_sample", Free),
    ("data.max_frames", Free),
    ("data.fps", Free),
    ("data.enable_bucket", Free),
    ("data.bucket_no_upscale", Free),
    ("data.caption_extension", Free),
    ("data.trigger_word", Free),
    ("data.caption_dropout", Free),
    ("data.num_repeats", Free),
    ("data.image_to_video", Fixed),
    ("data.cache_dir", Free),
    ("train.max_steps", Free),
    ("train.num_train_epochs", Free),
    ("train.per_device_train_batch_size", Free),
    ("train.per_device_eval_batch_size", Free),
    ("train.gradient_accumulation_steps", Free),
    // The 8-bit and the fp32 format of the moments cannot be read as each other.
    ("train.optim", Fixed),
    ("train.learning_rate", Free),
    ("train.min_lr", Free),
    ("train.lr_scheduler_type", Free),
    ("train.lr_scheduler_kwargs", Free),
    ("train.warmup_steps", Free),
    ("train.warmup_ratio", Free),
    ("train.adam_beta1", Free),
    ("train.adam_beta2", Free),
    ("train.adam_epsilon", Free),
    ("train.weight_decay", Free),
    ("train.parameter_groups", Free),
    // An average over the steps so far has one decay.
    ("train.ema_decay", Fixed),
    ("train.max_grad_norm", Free),
    ("train.bf16", Free),
    ("train.gradient_checkpointing", Free),
    ("train.activation_offload", Free),
    ("train.logging_steps", Free),
    ("train.eval_strategy", Free),
    ("train.eval_steps", Free),
    ("train.max_eval_samples", Free),
    ("train.save_strategy", Free),
    ("train.save_steps", Free),
    ("train.save_total_limit", Free),
    ("train.load_best_model_at_end", Free),
    // The best checkpoint so far was determined by it.
    ("train.metric_for_best_model", Fixed),
    ("train.early_stopping_patience", Free),
    ("train.early_stopping_threshold", Free),
    ("train.verify", Free),
    ("train.transfer_deadline", Free),
    ("train.rank_timeout", Unrelated),
    ("train.ddp_backend", Unrelated),
    ("train.reduce_dtype", Free),
    ("train.weighting_scheme", Free),
    ("train.flow_shift", Free),
    ("train.logit_mean", Free),
    ("train.logit_std", Free),
    ("train.min_sigma", Free),
    ("train.max_sigma", Free),
    ("train.experts", Fixed),
    ("train.steps_per_expert", Free),
    ("train.resume_from_checkpoint", Unrelated),
    ("sample.sample_steps", Free),
    ("sample.prompts", Free),
    ("sample.max_new_tokens", Free),
    ("sample.temperature", Free),
    ("sample.top_p", Free),
    ("notify.url", Unrelated),
    ("sample.negative_prompt", Free),
    ("sample.width", Free),
    ("sample.height", Free),
    ("sample.num_frames", Free),
    ("sample.seed", Free),
    ("sample.num_inference_steps", Free),
    ("sample.guidance_scale", Free),
    ("sample.guidance_scale_2", Free),
    ("sample.flow_shift", Free),
    ("sample.image", Free),
];

/// The rule for a key.
pub(super) fn rule(key: &str) -> Option<Rule> {
    let found = KEYS.iter().find(|(known, _)| *known == key);
    found.map(|(_, rule)| *rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AdapterConfig, Config};

    #[test]
    fn every_key_of_a_config_has_a_rule() {
        let config = Config {
            adapter: Some(AdapterConfig::default()),
            ..Config::default()
        };
        let leaves = config.leaves().unwrap();
        let forgotten: Vec<_> = leaves.keys().filter(|key| rule(key).is_none()).collect();
        assert!(
            forgotten.is_empty(),
            "may these change when a run is resumed? Add them to `KEYS`: {forgotten:?}"
        );
        let gone = KEYS.iter().filter(|(key, _)| !leaves.contains_key(*key));
        let gone: Vec<_> = gone.map(|(key, _)| *key).collect();
        assert_eq!(gone, ["adapter"], "these are no longer keys of a config");
    }
}

//! What other trainers call the keys of a config: one table, for what is suggested beside an unknown key, and for whoever
//! reads a config of theirs.
//!
//! The words are those of transformers, PEFT and TRL, axolotl, LLaMA-Factory, unsloth, nanoGPT, kohya's sd-scripts,
//! musubi-tuner, ai-toolkit and the scripts of diffusers. Words that are keys here, too, are not listed.

use serde_json::Value;

use super::declared::plain;

/// One line for each of our keys: the key, and the words of others for it.
const WORDS: &str = "\
name output_name run_name project_name exp_name
output_dir out_dir output_path save_dir training_folder
seed random_state random_seed training_seed data_seed
model.name_or_path model_name_or_path pretrained_model_name_or_path base_model model_name model_id model_path ckpt_path
model.transformer dit dit_path dit_high_noise transformer_path
model.vae vae_path
model.text_encoder t5 text_encoder_path llm_path clip_path
model.tokenizer tokenizer_name_or_path tokenizer_path
model.quantization load_in_4bit load_in_8bit quantization_bit quantization_method
model.boundary_ratio timestep_boundary
model.hidden_size n_embd d_model dim
model.num_hidden_layers n_layer n_layers
model.num_attention_heads n_head n_heads num_heads
adapter.r rank lora_r lora_rank network_dim lora_dim linear
adapter.lora_alpha alpha network_alpha linear_alpha
adapter.lora_dropout network_dropout dropout
adapter.target_modules lora_target lora_target_modules lora_target_linear target_layers
adapter.modules_to_save lora_modules_to_save additional_target
adapter.use_dora peft_use_dora
adapter.use_rslora peft_use_rslora
adapter.resume_from network_weights adapter_name_or_path lora_model_dir lora_path
data.path datasets dataset_path dataset_name data_path train_file train_files train_data train_data_dir
data.path image_directory image_dir video_directory folder_path
data.subset dataset_config_name dataset_config
data.eval_dataset validation_file eval_file val_data test_datasets
data.block_size max_seq_length max_seq_len max_length cutoff_len sequence_len seq_length
data.block_size seq_len model_max_length context_length
data.packing sample_packing neat_packing pack_sequences
data.validation_fraction val_set_size val_size test_size validation_split_percentage
data.num_frames target_frames max_num_frames
data.fps target_fps frame_rate
data.caption_extension caption_ext
data.caption_dropout caption_dropout_rate caption_dropout_prob
data.num_repeats repeats dataset_repeats
data.cache_dir cache_directory latents_cache_dir
train.max_steps max_train_steps steps max_iters total_steps num_steps iterations
train.num_train_epochs epochs num_epochs max_train_epochs n_epochs max_epochs
train.per_device_train_batch_size batch_size micro_batch_size micro_batch_size_per_gpu
train.per_device_eval_batch_size eval_batch_size val_batch_size
train.gradient_accumulation_steps gradient_accumulation grad_accum_steps grad_accumulation_steps
train.optim optimizer optimizer_type
train.learning_rate lr unet_lr max_lr peak_lr
train.lr_scheduler_type lr_scheduler lr_schedule
train.lr_scheduler_kwargs lr_scheduler_args lr_scheduler_params
train.warmup_steps lr_warmup_steps num_warmup_steps warmup_iters
train.adam_beta1 beta1
train.adam_beta2 beta2
train.adam_epsilon adam_eps eps
train.weight_decay wd adam_weight_decay
train.max_grad_norm grad_clip gradient_clipping clip_grad_norm
train.bf16 mixed_precision fp16 dtype torch_dtype
train.gradient_checkpointing use_gradient_checkpointing activation_checkpointing
train.logging_steps log_interval log_every log_steps
train.eval_strategy evaluation_strategy
train.eval_steps eval_interval eval_every val_interval validation_steps
train.save_steps save_every save_every_n_steps checkpointing_steps
train.save_total_limit max_step_saves_to_keep checkpoints_total_limit saves_to_keep
train.weighting_scheme timestep_sampling timestep_type
train.flow_shift discrete_flow_shift
train.min_sigma min_timestep
train.max_sigma max_timestep
train.resume_from_checkpoint resume resume_from_ckpt
sample.prompts sample_prompts validation_prompt validation_prompts
sample.sample_steps sample_every sample_every_n_steps
sample.negative_prompt neg negative_prompts
sample.guidance_scale guidance cfg_scale
sample.max_new_tokens max_tokens max_gen_length";

/// Values that are written differently here: their word, their value and ours.
const VALUES: &[(&str, &str, &str)] = &[
    ("load_in_4bit", "true", "nf4"),
    ("load_in_8bit", "true", "int8"),
    ("quantization_bit", "4", "nf4"),
    ("quantization_bit", "8", "int8"),
    ("lora_target_linear", "true", "all-linear"),
    ("lora_target", "all", "all-linear"),
    ("mixed_precision", "bf16", "true"),
    ("mixed_precision", "no", "false"),
    ("fp16", "true", "auto"),
    ("dtype", "bf16", "true"),
    ("dtype", "bfloat16", "true"),
    ("torch_dtype", "bfloat16", "true"),
    ("resume", "true", "latest"),
    ("caption_ext", "txt", ".txt"),
];

/// Words for the same number in another unit, and how much ours is of theirs.
const UNITS: [(&str, f64); 3] = [
    ("min_timestep", 1e-3),
    ("max_timestep", 1e-3),
    ("validation_split_percentage", 1e-2),
];

/// Our key for another trainer's word, with its section; and the value to write there, unless it has to be chosen.
pub fn translated(word: &str, value: &Value) -> Option<(&'static str, Option<Value>)> {
    let mut entries = entries();
    let (ours, _) = entries.find(|(_, theirs)| theirs.clone().any(|theirs| theirs == word))?;
    let written = plain(value);
    let mut values = VALUES
        .iter()
        .filter(|(theirs, ..)| *theirs == word)
        .peekable();
    if values.peek().is_some() {
        let found = values.find(|(_, theirs, _)| *theirs == written);
        let found = found.map(|(.., ours)| serde_json::from_str(ours).unwrap_or((*ours).into()));
        return Some((ours, found));
    }
    let unit = UNITS.iter().find(|(theirs, _)| *theirs == word);
    let value = match (unit, value.as_f64()) {
        (Some((_, factor)), Some(number)) => (number * factor).into(),
        _ => value.clone(),
    };
    Some((ours, Some(value)))
}

/// Our keys, each with the words of others for it; a key may be there more than once.
pub(super) fn entries() -> impl Iterator<Item = (&'static str, std::str::Split<'static, char>)> {
    WORDS.lines().map(|line| {
        let mut words = line.split(' ');
        (words.next().unwrap_or_default(), words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::{key, keys};
    use serde_json::json;

    #[test]
    fn every_word_stands_for_one_key_and_is_none_itself() {
        let mut seen = std::collections::BTreeSet::new();
        for (ours, theirs) in entries() {
            assert!(key(ours).is_some(), "{ours}");
            for word in theirs {
                assert!(seen.insert(word), "{word} stands for two keys");
                assert!(keys().iter().all(|key| key.name != word), "{word} is a key");
            }
        }
        let converted = VALUES.iter().map(|(word, ..)| word);
        for word in converted.chain(UNITS.iter().map(|(word, _)| word)) {
            assert!(seen.contains(word), "{word} is no word of the table");
        }
    }

    #[test]
    fn a_value_is_translated_with_its_word() {
        for (word, theirs, ours, value) in [
            ("lr", json!(1e-4), "train.learning_rate", Some(json!(1e-4))),
            (
                "load_in_4bit",
                json!(true),
                "model.quantization",
                Some(json!("nf4")),
            ),
            ("load_in_4bit", json!(false), "model.quantization", None),
            (
                "mixed_precision",
                json!("bf16"),
                "train.bf16",
                Some(json!(true)),
            ),
            (
                "max_timestep",
                json!(500),
                "train.max_sigma",
                Some(json!(0.5)),
            ),
        ] {
            assert_eq!(translated(word, &theirs), Some((ours, value)), "{word}");
        }
        assert_eq!(translated("no_such_word", &json!(1)), None);
    }
}

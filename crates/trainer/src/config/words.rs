//! What other trainers call the keys of a config: one table, for what is suggested beside an unknown key, and for whoever
//! reads a config of theirs.
//!
//! The words are those of transformers, PEFT and TRL, axolotl, LLaMA-Factory, unsloth, nanoGPT, kohya's sd-scripts,
//! musubi-tuner, ai-toolkit and the scripts of diffusers. Words that are keys here, too, are not listed.

use serde_json::Value;

use super::declared::plain;
use super::keys::key_names;

/// One line for each of our keys: the key, and the words of others for it.
const WORDS: &str = "\
name output_name run_name project_name exp_name
output_dir out_dir output_path save_dir training_folder
seed random_state random_seed training_seed data_seed
model.name_or_path model_name_or_path pretrained_model_name_or_path base_model model_name model_id model_path ckpt_path pretrained_model_name
model.transformer dit dit_path dit_high_noise transformer_path
model.training_adapter assistant_lora_path base_weights
model.vae vae_path ae vae_checkpoint
model.text_encoder t5 text_encoder_path llm_path clip_path text_encoder1 clip_l
model.text_encoder_2 t5xxl text_encoder2
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
adapter.target_parameters lora_target_parameters
adapter.modules_to_save lora_modules_to_save additional_target
adapter.use_dora peft_use_dora dora_wd
adapter.layers_to_transform peft_layers_to_transform lora_layers_to_transform
adapter.layers_pattern peft_layers_pattern
adapter.type lycoris_type
adapter.decompose_factor lokr_factor
adapter.use_rslora peft_use_rslora
adapter.init_lora_weights peft_init_lora_weights
adapter.resume_from network_weights adapter_name_or_path lora_model_dir lora_path
data.path datasets dataset_path dataset_name data_path train_file train_files train_data train_data_dir
data.path image_directory image_dir video_directory folder_path
data.subset dataset_config_name dataset_config
data.split dataset_train_split train_split
data.eval_split dataset_test_split test_split
data.eval_dataset validation_file eval_file val_data test_datasets
data.block_size max_seq_length max_seq_len max_length cutoff_len sequence_len seq_length max_source_length
data.block_size seq_len model_max_length context_length
data.packing sample_packing neat_packing pack_sequences
data.validation_fraction val_set_size val_size test_size validation_split_percentage
data.resolution max_resolution
data.control_path control_directory control_image_directory conditioning_data_dir control_dir
data.num_frames target_frames max_num_frames num_frames_list
data.fps target_fps frame_rate
data.caption_extension caption_ext
data.caption_dropout caption_dropout_rate caption_dropout_prob
data.reg_data_dir regularization_path reg_path class_data_dir
data.caption_tag_dropout_rate tag_dropout tag_dropout_rate
data.shuffle_caption shuffle_tokens shuffle_tags
data.num_repeats repeats dataset_repeats
train.prior_loss_weight prior_preservation_weight reg_weight
data.cache_dir cache_directory latents_cache_dir
preference.loss_type pref_loss
preference.beta pref_beta rl_beta dpo_beta orpo_alpha
preference.label_smoothing dpo_label_smoothing
preference.desirable_weight kto_chosen_weight kto_desirable_weight
preference.undesirable_weight kto_rejected_weight kto_undesirable_weight
preference.precompute_ref_log_probs dpo_precompute_ref_log_probs
train.text_encoder train_text_encoder
train.text_encoder_lr text_encoder_learning_rate
train.max_steps max_train_steps steps max_iters total_steps num_steps iterations
train.num_train_epochs epochs num_epochs max_train_epochs n_epochs max_epochs
train.per_device_train_batch_size batch_size train_batch_size micro_batch_size micro_batch_size_per_gpu
train.per_device_eval_batch_size eval_batch_size val_batch_size
train.group_by_length train_sampling_strategy
train.neftune_noise_alpha neftune_alpha noisy_embedding_alpha
train.gradient_accumulation_steps gradient_accumulation grad_accum_steps grad_accumulation_steps
train.optim optimizer optimizer_type
train.optim_args optimizer_args optimizer_params optimizer_kwargs
train.learning_rate lr unet_lr max_lr peak_lr
train.report_to log_with
train.find_learning_rate find_lr auto_lr_find lr_find
train.lr_scheduler_type lr_scheduler lr_schedule
train.lr_scheduler_kwargs lr_scheduler_args lr_scheduler_params
train.warmup_ratio lr_warmup
train.warmup_steps lr_warmup_steps num_warmup_steps warmup_iters
train.adam_beta1 beta1
train.adam_beta2 beta2
train.adam_epsilon adam_eps eps
train.weight_decay wd adam_weight_decay
train.max_grad_norm grad_clip gradient_clipping clip_grad_norm
train.bf16 mixed_precision fp16 dtype torch_dtype
train.gradient_checkpointing use_gradient_checkpointing activation_checkpointing
train.activation_offload activation_offloading activation_cpu_offloading
train.logging_steps log_interval log_every log_steps
train.eval_strategy evaluation_strategy
train.eval_steps eval_interval eval_every val_interval validation_steps
train.save_steps save_every save_every_n_steps checkpointing_steps
train.save_total_limit max_step_saves_to_keep checkpoints_total_limit saves_to_keep
train.weighting_scheme timestep_sampling timestep_type
train.flow_shift discrete_flow_shift
train.logit_std sigmoid_scale
train.min_sigma min_timestep
train.max_sigma max_timestep
train.steps_per_expert switch_boundary_every
train.resume_from_checkpoint resume resume_from_ckpt
sample.prompts sample_prompts validation_prompt validation_prompts
sample.sample_steps sample_every sample_every_n_steps
sample.negative_prompt neg negative_prompts
sample.guidance_scale guidance cfg_scale
sample.transformer turbo_dit
sample.control_image control_image_path ctrl_img ctrl_img_1
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
    ("caption_ext", ".txt", ".txt"),
    ("dtype", "fp32", "false"),
    ("dtype", "float32", "false"),
    ("torch_dtype", "float32", "false"),
    ("use_gradient_checkpointing", "unsloth", "true"),
    ("use_gradient_checkpointing", "true", "true"),
    ("use_gradient_checkpointing", "false", "false"),
    ("train_sampling_strategy", "group_by_length", "true"),
    ("train_sampling_strategy", "random", "false"),
    ("timestep_sampling", "shift", "logit_normal"),
    ("timestep_sampling", "flux_shift", "logit_normal"),
    ("timestep_sampling", "flux2_shift", "logit_normal"),
    ("timestep_sampling", "krea2_shift", "logit_normal"),
    ("timestep_sampling", "qwen_shift", "logit_normal"),
    ("timestep_sampling", "uniform", "uniform"),
    ("timestep_sampling", "sigmoid", "logit_normal"),
    ("timestep_type", "shift", "shift"),
    ("timestep_type", "linear", "uniform"),
    ("timestep_type", "sigmoid", "logit_normal"),
];

/// Values of our keys that are written differently elsewhere: the key, in small letters theirs, and ours.
const OUR_VALUES: &[(&str, &str, &str)] = &[
    ("train.optim", "adamw", "adamw_torch_fused"),
    ("train.optim", "adamw_hf", "adamw_torch"),
    ("train.optim", "adamw_torch_8bit", "adamw_8bit"),
    ("train.optim", "adamw8bit", "adamw_8bit"),
    ("train.optim", "bitsandbytes.optim.adamw8bit", "adamw_8bit"),
    ("train.optim", "pagedadamw8bit", "adamw_8bit"),
    ("train.optim", "paged_adamw_8bit", "adamw_8bit"),
    ("train.optim", "paged_adamw_32bit", "adamw_torch_fused"),
    ("train.optim", "paged_adamw", "adamw_torch_fused"),
    ("train.optim", "lion_32bit", "lion"),
    ("train.optim", "lion_pytorch", "lion"),
    ("train.optim", "paged_lion_32bit", "lion"),
    ("train.optim", "lion8bit", "lion_8bit"),
    ("train.optim", "pagedlion8bit", "lion_8bit"),
    ("train.optim", "paged_lion_8bit", "lion_8bit"),
    ("train.optim", "adamwschedulefree", "schedule_free_adamw"),
    ("train.optim", "came_pytorch", "came"),
    ("train.optim", "came_pytorch.came", "came"),
    ("train.optim", "prodigyopt.prodigy", "prodigy"),
    ("train.gradient_checkpointing", "unsloth", "true"),
    ("train.bf16", "full", "true"),
    ("train.resume_from_checkpoint", "true", "latest"),
    ("train.weighting_scheme", "none", "uniform"),
];

/// Our value for what is written elsewhere for the key of ours with this full name.
pub(crate) fn value_of(ours: &str, value: &Value) -> Value {
    let written = plain(value).to_lowercase();
    let mut known = OUR_VALUES.iter();
    let found = known.find(|(key, theirs, _)| *key == ours && *theirs == written);
    match (found, ours) {
        (Some((.., ours)), _) => serde_json::from_str(ours).unwrap_or((*ours).into()),
        // `AdamW`, `Prodigy` and `CAME` are classes elsewhere.
        (None, "train.optim") => written.into(),
        (None, _) => value.clone(),
    }
}

/// Words of others that nothing here corresponds to, and why; a line for each reason.
const NEEDLESS: &str = "\
attention kernels are chosen by themselves: flash_attention flash_attn attn_implementation xformers xformers_attention sdpa sdpa_attention mem_eff_attn use_flash_attention_2 attn_mode split_attn experts_implementation
kernels are chosen by themselves: plugins use_kernels use_scattermoe lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel liger_rope liger_rms_norm liger_glu_activation liger_layer_norm liger_fused_linear_cross_entropy liger_cross_entropy use_liger_kernel enable_liger_kernel cut_cross_entropy torch_compile compile dynamo_backend use_unsloth use_reentrant gradient_checkpointing_kwargs
models larger than a GPU are streamed (`model.offload`), and each process has all of it: fsdp fsdp_config fsdp_version deepspeed dp_shard_size tensor_parallel_size context_parallel_size
metrics are always written to the run folder, also for TensorBoard: logging_dir wandb_project wandb_entity wandb_name wandb_run_id wandb_watch wandb_log_model use_tensorboard log_tracker_name plot_loss logging_first_step include_num_input_tokens_seen performance_log_every
data is read and cached as it is needed: dataset_processes dataset_num_proc preprocessing_num_workers dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor max_data_loader_n_workers persistent_data_loader_workers num_workers dataset_prepared_path overwrite_cache cache_latents cache_latents_to_disk cache_text_encoder_outputs cache_text_encoder_outputs_to_disk cache_text_embeddings unload_text_encoder vae_batch_size skip_cache_check latents_to_disk
a run takes a free name and overwrites no other: overwrite_output_dir
the loss is that of the answers: instruction_part response_part
prompts and answers are cut where a row ends (`data.block_size`): max_prompt_length max_completion_length max_target_length truncation_mode
a step that runs out of memory is repeated in smaller passes and learns the same, so that the size of the batch stays: auto_find_batch_size
this is what a run does here: job meta sample_start_step do_train do_eval strict pad_to_sequence_len pad_to_max_length eval_sample_packing eval_packing save_safetensors save_model_as train_unet network_train_unet_only remove_unused_columns ddp_find_unused_parameters ddp_timeout
class, tokenizer and noise schedule follow from the files of the model: special_tokens processor_type eot_tokens model_type tokenizer_type trust_remote_code tokenizer_use_fast use_fast_tokenizer arch text_encoder_type model_version task noise_scheduler sampler sample_sampler guidance_embedding v_parameterization zero_terminal_snr
the chat template and the form of the records are read from the model and the data: chat_template template type ds_type default_system_message dataset_text_field prompt_template message_property_mappings message_field_role message_field_content roles
`model.quantization: int8` or `nf4` keeps the frozen weights of a model under an adapter in fewer bits: fp8_base fp8_scaled fp8_t5 fp8_llm fp8_text_encoder fp8_vl quantize quantize_te qtype qtype_te
matrix products are as precise as `train.bf16` says, and weights are in fp32 where they are trained: tf32 full_bf16 full_fp16 vae_dtype save_precision no_half_vae upcast_layernorm auto_cast pure_bf16 disable_gradient_checkpointing_offload bnb_4bit_quant_type bnb_4bit_compute_dtype bnb_4bit_use_double_quant double_quantization
tokens come from the environment (`HF_TOKEN`) and from `hf auth login`: token hf_token use_auth_token hub_token push_to_hub hub_model_id hub_strategy";

/// Why a word of another trainer has no counterpart, if that is known.
pub(crate) fn needless(word: &str) -> Option<&'static str> {
    let mut lines = NEEDLESS.lines().filter_map(|line| line.rsplit_once(": "));
    let found = lines.find(|(_, words)| words.split(' ').any(|theirs| theirs == word));
    found.map(|(reason, _)| reason)
}

/// Words for the same number in another unit, and how much ours is of theirs.
const UNITS: [(&str, f64); 4] = [
    ("lr_warmup", 1e-2),
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

/// Our key for a word of another trainer that is in a section with this name: by the table, or because it is our word, too.
pub(crate) fn our_key(word: &str, section: &str) -> Option<&'static str> {
    if let Some((ours, _)) =
        entries().find(|(_, theirs)| theirs.clone().any(|theirs| theirs == word))
    {
        return Some(ours);
    }
    // A section is no key with a value.
    let is_section = |name: &str| {
        key_names()
            .iter()
            .any(|key| key.split_once('.').is_some_and(|(above, _)| above == name))
    };
    let same = || {
        key_names()
            .iter()
            .filter(|name| name.rsplit('.').next() == Some(word) && !is_section(name))
    };
    let inside = |section: &str| {
        same().find(|name| name.rsplit_once('.').map_or("", |(above, _)| above) == section)
    };
    let order = [
        section,
        "",
        "train",
        "adapter",
        "data",
        "model",
        "sample",
        "notify",
        "preference",
    ];
    order.into_iter().find_map(inside).map(String::as_str)
}

/// Whether the value of this word is a map that stays one.
pub(crate) fn keeps_maps(word: &str) -> bool {
    const MAPS: [&str; 5] = [
        "train.lr_scheduler_kwargs",
        "train.optim_args",
        "adapter.rank_pattern",
        "adapter.alpha_pattern",
        "data.columns",
    ];
    our_key(word, "").is_some_and(|key| MAPS.contains(&key))
}

/// A value as YAML on one line.
pub(crate) fn one_line(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", joined(items.iter().map(one_line).collect())),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| {
                format!("{}: {}", one_line(&key.as_str().into()), one_line(value))
            });
            format!("{{{}}}", joined(entries.collect()))
        }
        Value::String(text) => {
            let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
            let begins = text.starts_with(|first: char| {
                first.is_ascii_alphabetic() || "/.".contains(first) && text.len() > 1
            });
            let means_more = [
                "true", "false", "yes", "no", "on", "off", "null", "y", "n", ".nan", ".inf",
            ];
            match begins
                && text.chars().all(is_word)
                && !means_more.contains(&text.to_lowercase().as_str())
            {
                true => text.clone(),
                false => value.to_string(),
            }
        }
        other => other.to_string(),
    }
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
    fn a_word_without_a_counterpart_has_one_reason_and_is_in_no_other_table() {
        let mut seen = std::collections::BTreeSet::new();
        for line in NEEDLESS.lines() {
            let (_, words) = line.rsplit_once(": ").unwrap();
            for word in words.split(' ') {
                assert!(seen.insert(word), "{word} has two reasons");
                assert!(
                    entries().all(|(_, mut theirs)| theirs.all(|theirs| theirs != word)),
                    "{word} is translated"
                );
                // Keys of other meaning: the family of a model that is trained from scratch, and the kind of an adapter.
                let others = ["model.model_type", "adapter.type"];
                let is_ours = our_key(word, "").is_some_and(|ours| !others.contains(&ours));
                assert!(!is_ours, "{word} is a key");
            }
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

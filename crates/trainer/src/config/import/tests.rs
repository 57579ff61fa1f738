//! Files in the style of each trainer, made for these tests. All that is written is loaded by our own parser.

mod media;
mod preferences;
mod recipes;

use serde_json::json;

use super::*;

/// A file of this name with this text, imported.
fn imported(name: &str, text: &str) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let imported = import(&path).unwrap();
    let loaded = Config::parse("imported.yaml", &imported.config, &[]);
    loaded.unwrap_or_else(|error| panic!("{error}\n{}", imported.config));
    imported
}

/// Compares keys of ours; a missing one is null.
fn expect(imported: &Imported, wanted: &[(&str, Value)]) {
    for (key, value) in wanted {
        let found = imported
            .set
            .iter()
            .find(|set| set.key == *key)
            .map(|set| &set.value);
        assert_eq!(
            found.unwrap_or(&Value::Null),
            value,
            "{key}\n{}",
            imported.config
        );
    }
}

/// The reason why a key is not in the config.
fn reason<'a>(imported: &'a Imported, key: &str) -> &'a str {
    let found = imported.left_out.iter().find(|left| left.key == key);
    &found
        .unwrap_or_else(|| panic!("{key}\n{}", imported.config))
        .reason
}

/// Every key of the file is set, or there is a comment for it.
fn none_is_dropped(imported: &Imported, keys: &[&str]) {
    for key in keys {
        let is_set = imported.set.iter().any(|set| set.from == *key);
        let is_told = imported.left_out.iter().any(|left| left.key == *key);
        assert!(is_set || is_told, "{key}\n{}", imported.config);
    }
    for left in &imported.left_out {
        assert!(
            imported.config.contains(&format!("\n# {}: ", left.key)),
            "{}",
            left.key
        );
    }
}

#[test]
fn axolotl() {
    let imported = imported(
        "lora.yaml",
        "base_model: org/small\n\
         model_type: AutoModelForCausalLM\n\
         load_in_4bit: true\n\
         load_in_8bit: false\n\
         adapter: qlora\n\
         datasets:\n  - path: org/chats\n    type: chat_template\n    split: train\n    field_messages: talk\n\
         val_set_size: 0.1\n\
         sequence_len: 2048\n\
         sample_packing: true\n\
         lora_r: 32\n\
         lora_alpha: 16\n\
         lora_target_linear: true\n\
         micro_batch_size: 2\n\
         gradient_accumulation_steps: 4\n\
         num_epochs: 3\n\
         optimizer: paged_adamw_8bit\n\
         lr_scheduler: cosine\n\
         learning_rate: 0.0002\n\
         bf16: auto\n\
         tf32: false\n\
         gradient_checkpointing: true\n\
         flash_attention: true\n\
         warmup_ratio: 0.1\n\
         evals_per_epoch: 4\n\
         saves_per_epoch: 1\n\
         weight_decay: 0.01\n\
         wandb_project:\n\
         watchdog: 5\n\
         special_tokens:\n  pad_token: <pad>\n",
    );
    assert_eq!(imported.origin, Origin::Axolotl);
    expect(
        &imported,
        &[
            ("model.name_or_path", json!("org/small")),
            ("model.quantization", json!("nf4")),
            ("adapter.r", json!(32)),
            ("adapter.target_modules", json!("all-linear")),
            ("data.path", json!("org/chats")),
            ("data.columns", json!({"messages": "talk"})),
            ("data.block_size", json!(2048)),
            ("data.packing", json!(true)),
            ("data.validation_fraction", json!(0.1)),
            ("train.optim", json!("adamw_8bit")),
            ("train.per_device_train_batch_size", json!(2)),
            ("train.save_strategy", json!("epoch")),
            ("train.warmup_ratio", json!(0.1)),
        ],
    );
    assert!(reason(&imported, "flash_attention").contains("attention kernels"));
    assert!(reason(&imported, "special_tokens.pad_token").contains("the files of the model"));
    assert!(reason(&imported, "watchdog").contains("no counterpart"));
    assert!(reason(&imported, "evals_per_epoch").contains("train.eval_steps"));
    assert!(reason(&imported, "wandb_project").contains("not set there"));
    assert_eq!(imported.fill_in, [""; 0]);
    none_is_dropped(
        &imported,
        &[
            "model_type",
            "load_in_8bit",
            "tf32",
            "weight_decay",
            "lora_alpha",
            "datasets",
        ],
    );
}

#[test]
fn several_sets_are_a_mixture() {
    let imported = imported(
        "two.yml",
        "base_model: m\nwarmup_steps: 0.1\ndatasets:\n  - path: a.jsonl\n  - path: org/b\n    name: fr\n    split: train\n",
    );
    let wanted = json!([{"path": "a.jsonl"}, {"path": "org/b", "subset": "fr", "split": "train"}]);
    expect(
        &imported,
        &[
            ("data.mixture", wanted),
            ("data.path", Value::Null),
            ("train.warmup_ratio", json!(0.1)),
        ],
    );
}

#[test]
fn llama_factory() {
    let imported = imported(
        "sft.yaml",
        "model_name_or_path: org/small\n\
         stage: sft\n\
         do_train: true\n\
         finetuning_type: lora\n\
         lora_rank: 8\n\
         lora_target: q_proj,v_proj\n\
         dataset: mine\n\
         template: llama3\n\
         cutoff_len: 1024\n\
         quantization_bit: 4\n\
         output_dir: saves/one\n\
         per_device_train_batch_size: 1\n\
         learning_rate: 1.0e-4\n\
         num_train_epochs: 3.0\n\
         lr_scheduler_type: cosine\n\
         bf16: true\n\
         ddp_timeout: 180000000\n\
         plot_loss: true\n\
         optim: lion_32bit\n",
    );
    assert_eq!(imported.origin, Origin::LlamaFactory);
    expect(
        &imported,
        &[
            ("adapter.r", json!(8)),
            ("adapter.target_modules", json!(["q_proj", "v_proj"])),
            ("data.path", json!("mine")),
            ("data.block_size", json!(1024)),
            ("model.quantization", json!("nf4")),
            ("train.bf16", json!(true)),
            ("train.optim", json!("lion")),
            ("output_dir", json!("saves/one")),
        ],
    );
    assert!(reason(&imported, "dataset").contains("`dataset_info.json`"));
    none_is_dropped(
        &imported,
        &["stage", "do_train", "template", "ddp_timeout", "plot_loss"],
    );
}

#[test]
fn llama_factory_names_of_data_sets_are_looked_up() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(
        folder.path().join("data/dataset_info.json"),
        r#"{"mine": {"file_name": "mine.json"}, "far": {"hf_hub_url": "org/far"}}"#,
    )
    .unwrap();
    let path = folder.path().join("sft.yaml");
    std::fs::write(
        &path,
        "model_name_or_path: m\nfinetuning_type: full\ndataset: mine, far\n",
    )
    .unwrap();
    let imported = import(&path).unwrap();
    let mine = folder.path().join("data/mine.json").display().to_string();
    expect(
        &imported,
        &[("data.mixture", json!([{"path": mine}, {"path": "org/far"}]))],
    );
    assert!(!imported.config.contains("adapter:"));
}

#[test]
fn a_command_line_of_trl() {
    let imported = imported(
        "run.sh",
        "#!/bin/sh\n\
         # --learning_rate 9 is only a comment\n\
         accelerate launch --num_processes 2 --mixed_precision bf16 sft.py \\\n\
           --model_name_or_path org/small --dataset_name org/chats \\\n\
           --dataset_train_split=train_sft --learning_rate 2e-4 \\\n\
           --lora_target_modules q_proj v_proj --use_peft --max-steps -1 \\\n\
           --gradient_checkpointing --optim_args 'betas=(0.9, 0.95), eps=1e-7' --report_to none\n",
    );
    assert_eq!(imported.origin, Origin::Trl);
    expect(
        &imported,
        &[
            ("data.path", json!("org/chats")),
            ("data.split", json!("train_sft")),
            ("adapter.target_modules", json!(["q_proj", "v_proj"])),
            ("train.gradient_checkpointing", json!(true)),
            ("train.learning_rate", json!(2e-4)),
            ("train.adam_beta2", json!(0.95)),
            ("train.adam_epsilon", json!(1e-7)),
            ("train.bf16", json!(true)),
            ("train.max_steps", Value::Null),
        ],
    );
    assert!(reason(&imported, "launcher.num_processes").contains("launcher"));
    assert!(reason(&imported, "max_steps").contains("epochs"));
}

const UNSLOTH: &str = r#"
from unsloth import FastLanguageModel
max_seq_length = 2048  # any length
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/small", # "fourbit, too"
    max_seq_length = max_seq_length,
    dtype = None,
    load_in_4bit = True,
)
model = FastLanguageModel.get_peft_model(
    model, r = 16, target_modules = ["q_proj", "k_proj",],
    lora_alpha = 16, lora_dropout = 0, bias = "none",
    use_gradient_checkpointing = "unsloth", random_state = 3407, loftq_config = None,
)
dataset = load_dataset("org/chats", split = "train")
trainer = SFTTrainer(
    model = model, tokenizer = tokenizer, train_dataset = dataset,
    dataset_text_field = "text",
    args = TrainingArguments(
        per_device_train_batch_size = 2, warmup_steps = 5, max_steps = 60,
        num_train_epochs = 1, learning_rate = 2e-4,
        fp16 = not is_bfloat16_supported(), logging_steps = 1,
        optim = "adamw_8bit", seed = 3407, output_dir = "outputs",
    ),
)
"#;

#[test]
fn a_program_and_a_notebook_of_unsloth() {
    let lines: Vec<String> = UNSLOTH.lines().map(|line| format!("{line}\n")).collect();
    let notebook = json!({"cells": [
        {"cell_type": "markdown", "source": ["# r = 99"]},
        {"cell_type": "code", "source": lines},
    ]});
    for imported in [
        imported("train.py", UNSLOTH),
        imported("train.ipynb", &notebook.to_string()),
    ] {
        assert_eq!(imported.origin, Origin::Unsloth);
        expect(
            &imported,
            &[
                ("model.name_or_path", json!("unsloth/small")),
                ("model.quantization", json!("nf4")),
                ("adapter.r", json!(16)),
                ("adapter.target_modules", json!(["q_proj", "k_proj"])),
                ("data.path", json!("org/chats")),
                ("data.split", json!("train")),
                ("data.block_size", json!(2048)),
                ("seed", json!(3407)),
                ("train.gradient_checkpointing", json!(true)),
                ("train.max_steps", json!(60)),
                ("train.num_train_epochs", Value::Null),
                ("train.optim", json!("adamw_8bit")),
            ],
        );
        assert!(reason(&imported, "TrainingArguments.fp16").contains("computed"));
        assert!(reason(&imported, "TrainingArguments.num_train_epochs").contains("steps count"));
        assert!(reason(&imported, "get_peft_model.loftq_config").contains("not set"));
    }
}

#[test]
fn kohya_toml_and_its_data_set() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("data.toml"),
        "[general]\ncaption_extension = \".txt\"\nshuffle_caption = true\n\
         [[datasets]]\nresolution = 1024\nbatch_size = 2\n[[datasets.subsets]]\nimage_dir = \"pictures\"\nnum_repeats = 10\n",
    )
    .unwrap();
    let path = folder.path().join("train.toml");
    std::fs::write(
        &path,
        "pretrained_model_name_or_path = \"sdxl.safetensors\"\ndataset_config = \"data.toml\"\n\
         network_module = \"networks.lora\"\nnetwork_dim = 32\nnetwork_alpha = 16\n\
         network_args = [\"conv_dim=4\", \"loraplus_lr_ratio=4\"]\n\
         optimizer_type = \"Prodigy\"\nlearning_rate = 1.0\n\
         optimizer_args = [\"weight_decay=0.01\", \"d_coef=2\", \"betas=0.9,0.99\", \"decouple=True\"]\n\
         lr_scheduler = \"constant\"\nmax_train_epochs = 10\nmax_train_steps = 1600\nmin_snr_gamma = 5\n\
         mixed_precision = \"bf16\"\nsave_every_n_epochs = 1\ncache_latents = true\n",
    )
    .unwrap();
    let imported = import(&path).unwrap();
    Config::parse("imported.yaml", &imported.config, &[]).unwrap();
    assert_eq!(imported.origin, Origin::Kohya);
    let args = json!({"d_coef": 2, "betas": [0.9, 0.99], "decouple": true});
    expect(
        &imported,
        &[
            ("model.name_or_path", json!("sdxl.safetensors")),
            ("adapter.r", json!(32)),
            ("adapter.loraplus_lr_ratio", json!(4)),
            ("data.path", json!("pictures")),
            ("data.resolution", json!(1024)),
            ("data.num_repeats", json!(10)),
            ("data.shuffle_caption", json!(true)),
            ("train.optim", json!("prodigy")),
            ("train.optim_args", args),
            ("train.weight_decay", json!(0.01)),
            ("train.num_train_epochs", json!(10)),
            ("train.max_steps", Value::Null),
            ("train.save_strategy", json!("epoch")),
            ("train.per_device_train_batch_size", json!(2)),
            ("train.min_snr_gamma", json!(5)),
        ],
    );
    assert!(reason(&imported, "max_train_steps").contains("epochs count"));
    assert!(reason(&imported, "cache_latents").contains("cached"));
}

#[test]
fn kohya_with_two_text_encoders() {
    let imported = imported(
        "picture.toml",
        "pretrained_model_name_or_path = \"model.safetensors\"\nclip_l = \"clip_l.safetensors\"\n\
         t5xxl = \"t5xxl_fp16.safetensors\"\nae = \"ae.safetensors\"\nnetwork_module = \"networks.lora_flux\"\n\
         network_dim = 16\nguidance_scale = 1.0\ntimestep_sampling = \"flux_shift\"\ntrain_data_dir = \"pictures\"\n",
    );
    assert_eq!(imported.origin, Origin::Kohya);
    expect(
        &imported,
        &[
            ("model.name_or_path", json!("model.safetensors")),
            ("model.text_encoder", json!("clip_l.safetensors")),
            ("model.text_encoder_2", json!("t5xxl_fp16.safetensors")),
            ("model.vae", json!("ae.safetensors")),
            ("train.guidance_scale", json!(1.0)),
            ("train.weighting_scheme", json!("logit_normal")),
        ],
    );
}

/// The shift by the size of a picture is that for 1024 × 1024 here.
#[test]
fn shifts_by_size_are_those_of_the_model() {
    for how in ["flux2_shift", "krea2_shift", "qwen_shift"] {
        let text = format!(
            "dit = \"model.safetensors\"\nnetwork_module = \"networks.lora_krea2\"\ntimestep_sampling = \"{how}\"\n\
             discrete_flow_shift = 3.0\n"
        );
        let imported = imported("musubi.toml", &text);
        expect(
            &imported,
            &[("train.weighting_scheme", json!("logit_normal"))],
        );
        assert!(reason(&imported, "discrete_flow_shift").contains("no notice"));
    }
}

#[test]
fn timesteps_from_the_whole_range_are_not_shifted() {
    for (how, ours, shift) in [
        ("uniform", "uniform", json!(1)),
        ("sigmoid", "logit_normal", json!(1)),
        ("shift", "logit_normal", json!(3.0)),
    ] {
        let text = format!(
            "dit = \"model.safetensors\"\nnetwork_module = \"networks.lora_wan\"\ntimestep_sampling = \"{how}\"\n\
             discrete_flow_shift = 3.0\n"
        );
        let imported = imported("musubi.toml", &text);
        expect(
            &imported,
            &[
                ("train.weighting_scheme", json!(ours)),
                ("train.flow_shift", shift),
            ],
        );
    }
}

#[test]
fn a_command_line_of_musubi() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("data.toml"),
        "[general]\nresolution = [960, 544]\nenable_bucket = true\n\
         [[datasets]]\nvideo_directory = \"clips\"\ntarget_frames = [1, 25]\nframe_extraction = \"head\"\n\
         control_directory = \"before\"\n\
         [[datasets]]\nimage_directory = \"stills\"\n",
    )
    .unwrap();
    let path = folder.path().join("train.bat");
    std::fs::write(
        &path,
        "accelerate launch wan_train_network.py ^\n --task t2v-1.3B --dit wan.safetensors --vae vae.pth ^\n\
         --dataset_config data.toml --network_module networks.lora_wan --network_dim 32 ^\n\
         --timestep_sampling shift --discrete_flow_shift 3.0 --blocks_to_swap 20 --fp8_base ^\n\
         --optimizer_type adamw8bit --max_train_epochs 16 --seed 42 --sdpa\n",
    )
    .unwrap();
    let imported = import(&path).unwrap();
    Config::parse("imported.yaml", &imported.config, &[]).unwrap();
    assert_eq!(imported.origin, Origin::Musubi);
    expect(
        &imported,
        &[
            ("model.name_or_path", json!("wan.safetensors")),
            ("model.offload", json!(20)),
            ("data.path", json!("clips")),
            ("data.resolution", json!([960, 544])),
            ("data.num_frames", json!([1, 25])),
            ("data.control_path", json!("before")),
            ("train.flow_shift", json!(3.0)),
            ("train.weighting_scheme", json!("logit_normal")),
            ("train.optim", json!("adamw_8bit")),
        ],
    );
    assert!(reason(&imported, "datasets[1].image_directory").contains("same folder"));
    assert!(reason(&imported, "fp8_base").contains("model.quantization"));
    assert_eq!(imported.fill_in, [""; 0]);
}

#[test]
fn ai_toolkit() {
    let imported = imported(
        "job.yaml",
        "job: extension\nconfig:\n  name: mine\n  process:\n    - type: sd_trainer\n      training_folder: output\n\
         \x20     device: cuda:0\n      trigger_word: sks\n\
         \x20     network:\n        type: lora\n        linear: 16\n        linear_alpha: 16\n\
         \x20     save:\n        dtype: float16\n        save_every: 250\n        max_step_saves_to_keep: 4\n\
         \x20     datasets:\n        - folder_path: pictures\n          caption_ext: txt\n          caption_dropout_rate: 0.05\n\
         \x20         resolution: [512, 768, 1024]\n          control_path_1: before\n          control_path_2: mask\n\
         \x20     train:\n        batch_size: 1\n        steps: 2000\n        lr: 0.0001\n        optimizer: adamw8bit\n\
         \x20       dtype: bf16\n        ema_config:\n          use_ema: false\n          ema_decay: 0.99\n\
         \x20     model:\n        name_or_path: org/picture-model\n        low_vram: true\n\
         \x20       assistant_lora_path: undo.safetensors\n\
         \x20     sample:\n        sampler: flowmatch\n        sample_every: 250\n        width: 1024\n        sample_steps: 20\n\
         \x20       prompts:\n          - a cat\n        neg: ''\n        seed: 42\n",
    );
    assert_eq!(imported.origin, Origin::AiToolkit);
    expect(
        &imported,
        &[
            ("name", json!("mine")),
            ("device", json!("gpu:0")),
            ("model.name_or_path", json!("org/picture-model")),
            ("model.offload", json!("all")),
            ("adapter.r", json!(16)),
            ("data.path", json!("pictures")),
            ("data.caption_extension", json!(".txt")),
            ("data.resolution", json!(1024)),
            ("data.other_resolutions", json!([768, 512])),
            ("data.control_path", json!(["before", "mask"])),
            ("model.training_adapter", json!("undo.safetensors")),
            ("data.trigger_word", json!("sks")),
            ("train.max_steps", json!(2000)),
            ("train.optim", json!("adamw_8bit")),
            ("train.bf16", json!(true)),
            ("train.ema_decay", Value::Null),
            ("sample.num_inference_steps", json!(20)),
            ("sample.sample_steps", json!(250)),
            ("sample.seed", json!(42)),
        ],
    );
    assert!(reason(&imported, "config.process[0].save.dtype").contains("LoRA files"));
    assert!(
        reason(&imported, "config.process[0].sample.sampler").contains("the files of the model")
    );
}

#[test]
fn what_the_parser_refuses_is_left_out_with_its_reason() {
    let imported = imported(
        "bad.yaml",
        "base_model: m\ndatasets: [{path: a.jsonl}]\nlr_scheduler: rex\nlearning_rate: 1000\nlora_dropout: 0.1\nadapter: lora\n",
    );
    expect(
        &imported,
        &[
            ("train.lr_scheduler_type", Value::Null),
            ("adapter.lora_dropout", json!(0.1)),
        ],
    );
    assert!(reason(&imported, "lr_scheduler").contains("left out"));
    assert!(reason(&imported, "learning_rate").contains("left out"));
}

#[test]
fn an_unknown_form_says_which_are_known() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, told) in [
        ("config.ini", "a = 1", "kohya"),
        ("empty.yaml", "", "no keys"),
        ("broken.toml", "= 1", "broken.toml"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let error = import(&path).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

/// In the form of the examples that come with each of them.
#[test]
fn examples_of_loras_need_few_changes() {
    for (name, text, most) in [
        (
            "axolotl.yml",
            "base_model: m\nload_in_8bit: true\nadapter: lora\ndatasets:\n  - {path: org/d, type: alpaca}\n\
          val_set_size: 0.05\nsequence_len: 4096\nsample_packing: true\nlora_r: 32\nlora_alpha: 16\n\
          lora_target_linear: true\nmicro_batch_size: 2\nnum_epochs: 4\noptimizer: adamw_bnb_8bit\n\
          lr_scheduler: cosine\nlearning_rate: 0.0002\nbf16: auto\nevals_per_epoch: 4\nsaves_per_epoch: 1\n\
          eval_sample_packing: false\nwarmup_steps: 10\nflash_attention: true\n",
            1,
        ),
        (
            "factory.yaml",
            "model_name_or_path: org/m\nstage: dpo\ndo_train: true\nfinetuning_type: lora\nlora_rank: 8\n\
          lora_target: all\npref_beta: 0.1\npref_loss: sigmoid\ndataset: mine\ntemplate: llama3\ncutoff_len: 2048\n\
          max_samples: 1000\noutput_dir: saves/lora\nlogging_steps: 10\nsave_steps: 500\nplot_loss: true\n\
          per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nlearning_rate: 5.0e-6\n\
          num_train_epochs: 3.0\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\nbf16: true\n",
            1,
        ),
        (
            "trl.sh",
            "trl sft --model_name_or_path org/m --dataset_name org/d --learning_rate 2.0e-4 --num_train_epochs 1 \\\n\
          --packing --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --eval_strategy steps \\\n\
          --eval_steps 100 --use_peft --lora_r 32 --lora_alpha 16 --output_dir out --push_to_hub\n",
            0,
        ),
        ("unsloth.py", UNSLOTH, 5),
        (
            "kohya.sh",
            "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path m.safetensors \\\n\
          --train_data_dir pictures --resolution 1024 --network_module networks.lora --network_dim 32 \\\n\
          --network_alpha 16 --optimizer_type AdamW8bit --learning_rate 1e-4 --max_train_epochs 10 \\\n\
          --save_every_n_epochs 1 --mixed_precision bf16 --gradient_checkpointing --sdpa\n",
            0,
        ),
        (
            "toolkit.yaml",
            "config:\n  name: mine\n  process:\n    - type: sd_trainer\n      device: cuda:0\n\
          \x20     network: {type: lora, linear: 16, linear_alpha: 16}\n      save: {dtype: float16, save_every: 250}\n\
          \x20     datasets:\n        - {folder_path: pictures, caption_ext: txt, resolution: [512, 1024]}\n\
          \x20     train: {batch_size: 1, steps: 2000, lr: 0.0001, optimizer: adamw8bit, dtype: bf16}\n\
          \x20     model: {name_or_path: org/m, quantize: true}\n",
            0,
        ),
    ] {
        let imported = imported(name, text);
        let found = imported.to_change;
        assert!(found <= most, "{name}: {found}\n{}", imported.config);
    }
}

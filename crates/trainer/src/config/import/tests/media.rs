//! Files of trainers of images.

use super::*;

/// A command line with this text in a folder with a file of prompts, imported.
fn command(options: &str, prompts: &str) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("prompts.txt"), prompts).unwrap();
    let path = folder.path().join("train.sh");
    std::fs::write(
        &path,
        format!("accelerate launch train_network.py {options}\n"),
    )
    .unwrap();
    let imported = import(&path).unwrap();
    Config::parse("imported.yaml", &imported.config, &[]).unwrap();
    imported
}

#[test]
fn options_of_prompts_are_no_words_of_them() {
    let imported = command(
        "--network_dim 4 --train_data_dir p --sample_prompts prompts.txt",
        "# two\na girl --n low quality, bad --w 832 --h 1216 --d 7 --l 7.5 --s 28 --am 2\nanother -- one --n ugly --s 28\n",
    );
    expect(
        &imported,
        &[
            ("sample.prompts", json!(["a girl", "another"])),
            ("sample.negative_prompt", json!("low quality, bad")),
            ("sample.width", json!(832)),
            ("sample.height", json!(1216)),
            ("sample.seed", json!(7)),
            ("sample.guidance_scale", json!(7.5)),
            ("sample.num_inference_steps", json!(28)),
        ],
    );
    let told: Vec<_> = imported.left_out.iter().map(|left| &*left.reason).collect();
    for reason in [
        "`--am 2`",
        "`-- one`",
        "sets `sample.negative_prompt` already",
    ] {
        assert!(
            told.iter().any(|told| told.contains(reason)),
            "{reason}: {told:?}"
        );
    }
}

#[test]
fn lycoris_is_its_algorithm() {
    let imported = command(
        "--network_module=lycoris.kohya --network_dim=32 --train_data_dir p \
         --network_args \"algo=lokr\" \"factor=8\" \"preset=attn-mlp\"",
        "",
    );
    expect(
        &imported,
        &[
            ("adapter.type", json!("lokr")),
            ("adapter.decompose_factor", json!(8)),
            ("adapter.r", json!(32)),
        ],
    );
    let told: Vec<_> = imported.left_out.iter().map(|left| &*left.reason).collect();
    assert_eq!(told, ["`preset=attn-mlp`: there is no counterpart"]);
    let imported = command(
        "--network_module=networks.loha --network_dim=8 --train_data_dir p --network_args dora_wd=True",
        "",
    );
    expect(&imported, &[("adapter.type", json!("loha"))]);
}

#[test]
fn a_text_encoder_is_a_part_of_the_model() {
    let imported = command(
        "--dit z.safetensors --text_encoder qwen.safetensors --network_dim 4",
        "",
    );
    expect(
        &imported,
        &[
            ("model.text_encoder", json!("qwen.safetensors")),
            ("train.text_encoder", Value::Null),
        ],
    );
}

#[test]
fn a_schedule_keeps_what_it_takes() {
    for (name, options, ours) in [
        (
            "cosine_with_restarts",
            "--lr_scheduler_num_cycles 3",
            json!({"num_cycles": 3.0}),
        ),
        (
            "polynomial",
            "--lr_scheduler_num_cycles 3 --lr_scheduler_power 2",
            json!({"power": 2.0}),
        ),
        (
            "cosine_with_min_lr",
            "--lr_scheduler_num_cycles 1 --lr_scheduler_min_lr_ratio 0.1",
            json!({"num_cycles": 0.5, "min_lr_rate": 0.1}),
        ),
        ("cosine", "--lr_scheduler_num_cycles 3", Value::Null),
    ] {
        let imported = command(
            &format!(
                "--network_dim 4 --train_data_dir p --lr_scheduler {name} {options} --lr_warmup_steps 0.05"
            ),
            "",
        );
        expect(
            &imported,
            &[
                ("train.lr_scheduler_kwargs", ours),
                ("train.warmup_ratio", json!(0.05)),
            ],
        );
    }
}

#[test]
fn masks_and_losses_are_those_of_pictures() {
    let imported = command(
        "--network_dim 4 --train_data_dir p --masked_loss --conditioning_data_dir masks --loss_type huber",
        "",
    );
    expect(
        &imported,
        &[
            ("data.mask_path", json!("masks")),
            ("data.control_path", Value::Null),
        ],
    );
    assert!(reason(&imported, "loss_type").contains("squares"));
    none_is_dropped(&imported, &["masked_loss"]);
}

#[test]
fn regularisation_pictures_are_their_own_folder() {
    let kohya = "network_dim = 4\n[[datasets]]\nresolution = 512\n[[datasets.subsets]]\nimage_dir = \"own\"\n\
                 [[datasets.subsets]]\nis_reg = true\nimage_dir = \"others\"\nnum_repeats = 2\n";
    let toolkit = "config:\n  process:\n    - datasets:\n      - folder_path: own\n      - folder_path: others\n\
                   \x20       is_reg: true\n        num_repeats: 2\n";
    for (name, text) in [("kohya.toml", kohya), ("job.yaml", toolkit)] {
        let imported = imported(name, text);
        expect(
            &imported,
            &[
                ("data.path", json!("own")),
                ("data.reg_data_dir", json!("others")),
                ("data.num_repeats", Value::Null),
            ],
        );
    }
}

#[test]
fn what_one_prompt_has_is_that_of_all_unless_all_have_it() {
    let text = "config:\n  process:\n    - network:\n        type: lokr\n        lokr_full_rank: true\n      sample:\n\
                \x20       samples:\n          - prompt: one\n            seed: 7\n            width: 640\n\
                \x20         - prompt: two\n        seed: 42\n";
    let imported = imported("job.yaml", text);
    expect(
        &imported,
        &[
            ("seed", Value::Null),
            ("sample.seed", json!(42)),
            ("sample.width", json!(640)),
            ("sample.prompts", json!(["one", "two"])),
        ],
    );
    let left: Vec<_> = imported.left_out.iter().map(|left| &*left.key).collect();
    assert_eq!(
        left,
        [
            "config.process[0].network.lokr_full_rank",
            "config.process[0].sample.samples[0].seed"
        ]
    );
}

#[test]
fn the_interface_of_kohyas_scripts_writes_what_is_not_set_as_nothing() {
    let imported = imported(
        "gui.json",
        r#"{"LoRA_type": "LyCORIS/LoKr", "factor": -1, "network_dim": 32, "vae": "", "reg_data_dir": "", "seed": "1234",
            "lr_warmup": 10, "max_resolution": "1024,768", "max_train_epochs": 0, "max_train_steps": 1600,
            "sample_every_n_epochs": 0, "sample_prompts": "a cat --w 640\nb", "train_data_dir": "p",
            "pretrained_model_name_or_path": "m.safetensors", "text_encoder_lr": 5e-5}"#,
    );
    expect(
        &imported,
        &[
            ("seed", json!(1234)),
            ("model.vae", Value::Null),
            ("adapter.type", json!("lokr")),
            ("adapter.decompose_factor", json!(-1)),
            ("data.reg_data_dir", Value::Null),
            ("data.resolution", json!([1024, 768])),
            ("train.max_steps", json!(1600)),
            ("train.warmup_ratio", json!(0.1)),
            ("train.text_encoder", json!(true)),
            ("train.text_encoder_lr", json!(5e-5)),
            ("sample.prompts", json!(["a cat", "b"])),
            ("sample.width", json!(640)),
        ],
    );
    assert_eq!(imported.to_change, 0, "{}", imported.config);
    none_is_dropped(&imported, &["vae", "reg_data_dir", "max_train_epochs"]);
}

#[test]
fn a_config_of_onetrainer_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(
        &path,
        r#"{"training_method": "LORA", "concept_file_name": "c.json", "lora_rank": 16}"#,
    )
    .unwrap();
    let error = import(&path).unwrap_err().to_string();
    assert!(error.contains("OneTrainer"), "{error}");
}

#[test]
fn of_two_experts_the_first_is_that_of_much_noise() {
    let imported = command(
        "--dit low.safetensors --dit_high_noise high.safetensors --network_dim 4",
        "",
    );
    expect(
        &imported,
        &[
            ("model.name_or_path", json!(BLANK)),
            ("model.transformer", json!("high.safetensors")),
            ("model.transformer_2", json!("low.safetensors")),
        ],
    );
}

#[test]
fn a_data_set_whose_file_is_not_there_is_asked_for() {
    let text = "pretrained_model_name_or_path = \"model.safetensors\"\ndataset_config = \"nowhere.toml\"\nnetwork_dim = 4\n";
    let imported = imported("kohya.toml", text);
    assert!(
        imported.config.contains("this file is not there"),
        "{}",
        imported.config
    );
    assert!(!imported.config.contains("subset"), "{}", imported.config);
}

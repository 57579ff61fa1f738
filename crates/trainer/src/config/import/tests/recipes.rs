//! Recipes as the documentation of other trainers has them.

use super::*;

/// `model="org/m"` is the name of a model, whatever our section is called.
#[test]
fn a_trainer_that_gets_the_name_of_its_model() {
    let imported = imported(
        "train.py",
        "trainer = SFTTrainer(\n    model=\"org/m\",\n    train_dataset=load_dataset(\"org/d\"),\n\
         args=SFTConfig(assistant_only_loss=True, learning_rate=1e-4),\n    peft_config=LoraConfig(r=4),\n)\n",
    );
    expect(
        &imported,
        &[
            ("model.name_or_path", json!("org/m")),
            ("adapter.r", json!(4)),
        ],
    );
    assert_eq!(imported.fill_in, [""; 0]);
    assert!(reason(&imported, "SFTConfig.assistant_only_loss").contains("as there"));
}

/// What is inside of a map means something else than at the top.
#[test]
fn maps_of_axolotl_set_nothing_else() {
    let imported = imported(
        "groups.yaml",
        "base_model: org/m\nadapter: lora\nlearning_rate: 0.00001\nlr_groups:\n  - {name: a, modules: [m], lr: 0.5}\n\
         overrides_of_model_config:\n  rope_scaling: {type: linear, factor: 2}\n\
         pretraining_dataset:\n  - {path: org/d, name: en}\n",
    );
    expect(
        &imported,
        &[
            ("name", Value::Null),
            ("train.learning_rate", json!(0.00001)),
            ("data.path", json!("org/d")),
            ("data.subset", json!("en")),
        ],
    );
    none_is_dropped(
        &imported,
        &[
            "lr_groups[0].lr",
            "overrides_of_model_config.rope_scaling.type",
        ],
    );
}

#[test]
fn revisions_stand_behind_names() {
    for (name, text, model, data) in [
        (
            "a.yaml",
            "base_model: org/m\nrevision_of_model: v2\ndatasets: [{path: org/d, revision: abc}]\n",
            "org/m@v2",
            "org/d@abc",
        ),
        (
            "a.sh",
            "trl sft --model_name_or_path org/m --model_revision main --dataset_name org/d\n",
            "org/m",
            "org/d",
        ),
        (
            "a.py",
            "AutoModelForCausalLM.from_pretrained(\"org/m\", revision=\"v2\")\n\
             load_dataset(\"org/d\", revision=\"abc\")\nSFTConfig(learning_rate=1e-4)\n",
            "org/m@v2",
            "org/d@abc",
        ),
    ] {
        let imported = imported(name, text);
        expect(
            &imported,
            &[
                ("model.name_or_path", json!(model)),
                ("data.path", json!(data)),
            ],
        );
    }
}

#[test]
fn lists_and_maps_that_are_texts_there() {
    let imported = imported(
        "sft.yaml",
        "model_name_or_path: org/m\nfinetuning_type: lora\nadditional_target: embed_tokens,lm_head\npissa_init: true\n\
         learning_rate: 0.0001\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: '{\"min_lr_rate\": 0.1}'\n",
    );
    expect(
        &imported,
        &[
            (
                "adapter.modules_to_save",
                json!(["embed_tokens", "lm_head"]),
            ),
            ("adapter.init_lora_weights", json!("pissa")),
            ("train.lr_scheduler_kwargs", json!({"min_lr_rate": 0.1})),
        ],
    );
}

#[test]
fn what_axolotl_calls_otherwise() {
    let imported = imported(
        "cosine.yaml",
        "base_model: org/m\nadapter: lora\nlora_target_linear: true\npeft_layers_to_transform: [0, 1]\n\
         peft_layers_pattern: layers\noptimizer: lion_pytorch\nlr_scheduler: cosine\ncosine_min_lr_ratio: 0.1\n",
    );
    expect(
        &imported,
        &[
            ("adapter.layers_to_transform", json!([0, 1])),
            ("adapter.layers_pattern", json!("layers")),
            ("train.optim", json!("lion")),
            ("train.lr_scheduler_type", json!("cosine_with_min_lr")),
            ("train.lr_scheduler_kwargs", json!({"min_lr_rate": 0.1})),
        ],
    );
}

#[test]
fn files_stand_for_the_form_that_they_have() {
    for (name, text, key, wanted) in [
        (
            "a.py",
            "load_dataset(\"json\", data_files=\"mine.jsonl\", split=\"train\")\nSFTConfig(learning_rate=1e-4)\n",
            "data.path",
            json!("mine.jsonl"),
        ),
        (
            "a.yaml",
            "base_model: m\ndatasets: [{path: json, data_files: mine.jsonl, type: alpaca}]\n",
            "data.path",
            json!("mine.jsonl"),
        ),
        (
            "b.py",
            "load_dataset(\"csv\", data_files=[\"a.csv\", \"b.csv\"])\nSFTConfig(learning_rate=1e-4)\n",
            "data.mixture",
            json!([{"path": "a.csv"}, {"path": "b.csv"}]),
        ),
    ] {
        let imported = imported(name, text);
        expect(&imported, &[(key, wanted), ("data.split", Value::Null)]);
    }
}

#[test]
fn switches_of_axolotl_with_more_than_two_places() {
    let imported = imported(
        "offload.yaml",
        "base_model: m\ngradient_checkpointing: offload\nbf16: full\n",
    );
    expect(
        &imported,
        &[
            ("train.gradient_checkpointing", json!(true)),
            ("train.activation_offload", json!(true)),
            ("train.bf16", json!(true)),
        ],
    );
}

/// A schedule without what it needs takes nothing else with it.
#[test]
fn only_what_is_wrong_is_left_out() {
    let imported = imported(
        "short.yaml",
        "base_model: m\noptimizer: lion\nlearning_rate: 0.0001\nnum_epochs: 2\nlr_scheduler: warmup_stable_decay\n",
    );
    expect(
        &imported,
        &[
            ("train.optim", json!("lion")),
            ("train.learning_rate", json!(0.0001)),
            ("train.num_train_epochs", json!(2)),
            ("train.lr_scheduler_type", Value::Null),
        ],
    );
}

#[test]
fn calls_of_unsloth_on_chats_are_told() {
    let text = format!(
        "{UNSLOTH}tokenizer = get_chat_template(tokenizer, chat_template = \"llama-3.1\")\n\
         trainer = train_on_responses_only(trainer, response_part = \"A:\")\n"
    );
    let imported = imported("chat.py", &text);
    assert!(reason(&imported, "get_chat_template.chat_template").contains("read from the model"));
    assert!(reason(&imported, "train_on_responses_only.response_part").contains("answers"));
}

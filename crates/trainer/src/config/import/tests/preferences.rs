//! Learning from preferences, and what else the trainers for texts have in common.

use super::*;

/// The keys of a config that learns from preferences: loss, β, and one more.
fn preference(imported: &Imported) -> [Value; 3] {
    ["loss_type", "beta", "cpo_alpha"].map(|name| {
        let key = format!("preference.{name}");
        let found = imported.set.iter().find(|set| set.key == key);
        found.map_or(Value::Null, |set| set.value.clone())
    })
}

#[test]
fn preferences_by_the_words_of_each_trainer() {
    let factory = |more: &str| {
        format!(
            "model_name_or_path: m\nfinetuning_type: lora\nlora_rank: 8\ndataset_dir: sets\n\
             dataset: mine\ncutoff_len: 2048\n{more}\n"
        )
    };
    let axolotl = |more: &str| {
        format!("base_model: m\nadapter: lora\ndatasets: [{{path: a.jsonl}}]\n{more}\n")
    };
    let trl = |more: &str| {
        format!(
            "model_name_or_path: m\nuse_peft: true\ndataset_name: org/d\nmax_length: 512\n{more}\n"
        )
    };
    let python = |trainer: &str, more: &str| {
        format!(
            "model = AutoModelForCausalLM.from_pretrained(\"m\")\ndata = load_dataset(\"org/d\")\n\
             args = {trainer}Config(output_dir=\"out\", {more})\n\
             trainer = {trainer}Trainer(model=model, args=args, train_dataset=data, peft_config=LoraConfig(r=8))\n"
        )
    };
    let no = Value::Null;
    for (name, text, wanted) in [
        ("a.yaml", factory("stage: dpo\npref_beta: 0.2"), [json!("sigmoid"), json!(0.2), no.clone()]),
        ("b.yaml", factory("stage: dpo\npref_loss: orpo"), [json!("orpo"), no.clone(), no.clone()]),
        ("c.yaml", factory("stage: kto\npref_beta: 0.1"), [json!("kto"), json!(0.1), no.clone()]),
        ("d.yaml", factory("stage: dpo\npref_loss: simpo\nsimpo_gamma: 0.4"), [json!("simpo"), json!(0.1), no.clone()]),
        ("e.yaml", axolotl("rl: ipo\nrl_beta: 0.3"), [json!("ipo"), json!(0.3), no.clone()]),
        ("f.yaml", axolotl("rl: orpo\norpo_alpha: 0.15"), [json!("orpo"), json!(0.15), no.clone()]),
        ("g.yaml", axolotl("rl: simpo\nrl_beta: 2"), [json!("simpo"), json!(2), json!(1.0)]),
        ("h.yaml", trl("loss_type: [robust]\nbeta: 0.1\nlabel_smoothing: 0.2"), [json!("robust"), json!(0.1), no.clone()]),
        ("i.sh", "trl kto --model_name_or_path m --dataset_name org/d --use_peft --beta 0.3\n".into(), [json!("kto"), json!(0.3), no.clone()]),
        ("j.sh", "accelerate launch trl/scripts/dpo.py --model_name_or_path m --dataset_name org/d\n".into(), [json!("sigmoid"), no.clone(), no.clone()]),
        ("k.py", python("DPO", "beta=0.2, max_prompt_length=64"), [json!("sigmoid"), json!(0.2), no.clone()]),
        ("l.py", python("ORPO", "beta=0.2"), [json!("orpo"), json!(0.2), no.clone()]),
        ("m.py", python("CPO", "loss_type=\"simpo\", beta=2.0, cpo_alpha=0.0"), [json!("simpo"), json!(2.0), json!(0.0)]),
        // What is not for preferences has none.
        ("n.yaml", factory("stage: sft\nneftune_alpha: 5"), [no.clone(), no.clone(), no.clone()]),
        ("o.py", "model = AutoModelForCausalLM.from_pretrained(\"m\")\nSFTConfig(loss_type=\"nll\", label_smoothing=0.1)\n".into(), [no.clone(), no.clone(), no.clone()]),
    ] {
        let imported = imported(name, &text);
        assert_eq!(preference(&imported), wanted, "{name}\n{}", imported.config);
    }
}

#[test]
fn a_loss_that_is_not_known_is_a_guess_that_is_told() {
    for (name, text, told) in [
        ("a.py", "DPOConfig(loss_type=\"apo_zero\")\n", "`apo_zero`"),
        (
            "b.yaml",
            "model_name_or_path: m\ndataset_name: d\nbeta: 0.2\n",
            "not said",
        ),
        ("c.sh", "trl cpo --model_name_or_path m\n", "`cpo`"),
        (
            "e.py",
            "DPOConfig(loss_type=[\"apo_zero\", \"sft\"])\n",
            "[\"apo_zero\",\"sft\"]",
        ),
    ] {
        let imported = imported(name, text);
        assert_eq!(
            preference(&imported)[0],
            json!("sigmoid"),
            "{}",
            imported.config
        );
        let line = imported
            .fill_in
            .iter()
            .find(|line| line.starts_with("preference.loss_type"));
        assert!(line.unwrap().contains(told), "{:?}", imported.fill_in);
    }
    let rewards = imported("d.yaml", "base_model: m\ndatasets: [{path: a}]\nrl: grpo\n");
    assert!(reason(&rewards, "rl").contains("another training"));
}

#[test]
fn of_a_sum_of_losses_one_is_a_guess_that_names_them_all() {
    for (name, text) in [
        (
            "a.py",
            "DPOConfig(loss_type=[\"sft\", \"hinge\"], loss_weights=[0.25, 0.5])\n",
        ),
        (
            "b.yaml",
            "model_name_or_path: m\ndataset_name: d\nloss_type: [sft, hinge]\nloss_weights: [0.25, 0.5]\n",
        ),
    ] {
        let imported = imported(name, text);
        assert_eq!(preference(&imported)[0], json!("hinge"), "{name}");
        let told = imported
            .fill_in
            .iter()
            .filter(|line| line.contains("[\"sft\",\"hinge\"]") && line.contains("[0.25,0.5]"));
        assert_eq!(told.count(), 1, "{name}: {:?}", imported.fill_in);
        assert!(imported.to_change >= imported.fill_in.len());
    }
}

#[test]
fn ways_to_regularise() {
    let imported = imported(
        "lora.yaml",
        "model_name_or_path: m\ndataset_name: org/d\nneftune_noise_alpha: 5\nlabel_smoothing_factor: 0.1\n\
         packing: false\ntrain_sampling_strategy: group_by_length\n",
    );
    expect(
        &imported,
        &[
            ("train.neftune_noise_alpha", json!(5)),
            ("train.label_smoothing_factor", json!(0.1)),
            ("train.group_by_length", json!(true)),
        ],
    );
    assert_eq!(imported.to_change, 0);
}

#[test]
fn a_batch_of_any_size_stays_one_and_one_that_shrinks_keeps_its_size() {
    let with = |size: &str| {
        let text = format!("micro_batch_size: {size}\nauto_find_batch_size: true\n");
        imported("a.yaml", &format!("base_model: m\n{text}"))
    };
    let key = "train.per_device_train_batch_size";
    let (auto, fixed) = (with("auto"), with("4"));
    expect(&auto, &[(key, json!("auto"))]);
    expect(&fixed, &[(key, json!(4))]);
    let told = "`train.gradient_accumulation_steps` says: set that";
    let asks = |imported: &Imported| imported.fill_in.iter().any(|line| line.ends_with(told));
    assert!(asks(&auto) && !asks(&fixed), "{}", auto.config);
    assert!(reason(&fixed, "auto_find_batch_size").contains("in smaller passes"));
}

//! Everything that is trained besides adapters on linear layers: embedding and head, whole modules, biases.

mod larger;

use std::collections::BTreeMap;

use super::*;

/// A fresh adapter on a golden model.
fn fresh(base: &str, config: &LoraConfig) -> Result<Adapted, crate::Error> {
    adapted(
        &golden(&format!("models/{base}")),
        Attachment::fresh(config)?,
    )
}

fn on(targets: &[&str]) -> LoraConfig {
    LoraConfig {
        target_modules: Modules::Suffixes(targets.iter().map(|name| (*name).into()).collect()),
        ..LoraConfig::default()
    }
}

fn saving(targets: &[&str], modules: &[&str]) -> LoraConfig {
    LoraConfig {
        modules_to_save: modules.iter().map(|name| (*name).into()).collect(),
        ..on(targets)
    }
}

/// Names and shapes in an adapter's file, but for the copies of biases that PEFT never reads, and for other parts of a model.
fn tensors(folder: &Path) -> BTreeMap<String, Vec<i64>> {
    let file = SafetensorsFile::open(&folder.join("adapter_model.safetensors")).unwrap();
    let left_out = [".original_module.", ".modules_to_save.", ".vision_tower."];
    let is_kept = |name: &String| !left_out.iter().any(|part| name.contains(part));
    let names = file.names().into_iter().filter(is_kept);
    names
        .map(|name| (name.clone(), file.shape(&name).unwrap()))
        .collect()
}

/// `adapter_config.json` as it was written for this adapter.
fn written(adapted: &Adapted, naming: Naming) -> (tempfile::TempDir, Value) {
    let folder = tempfile::tempdir().unwrap();
    let how = ("m", naming);
    write_peft(folder.path(), &adapted.attached, &adapted.parameters, how).unwrap();
    let text = std::fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
    (folder, serde_json::from_str(&text).unwrap())
}

#[test]
fn files_have_pefts_names_and_shapes() {
    for (name, base) in ADAPTERS {
        let (folder, mut config) = written(&from_peft(name, base), naming(base));
        let theirs = golden(&format!("adapters/{name}"));
        assert_eq!(tensors(folder.path()), tensors(&theirs), "{name}");
        let text = std::fs::read_to_string(theirs.join("adapter_config.json")).unwrap();
        let mut theirs: Value = serde_json::from_str(&text).unwrap();
        if naming(base) == Naming::PART {
            // Written out.
            for config in [&mut config, &mut theirs] {
                let modules = config["modules_to_save"].as_array_mut();
                config["modules_to_save"] = modules.map_or(0, |modules| modules.len()).into();
            }
        }
        for key in [
            "bias",
            "modules_to_save",
            "r",
            "lora_alpha",
            "alpha",
            "use_rslora",
            "use_dora",
            "decompose_both",
            "decompose_factor",
            "peft_type",
        ] {
            assert_eq!(config[key], theirs[key], "{key} of {name}");
        }
    }
}

#[test]
fn fresh_forms_change_nothing_and_learn_what_their_names_say() {
    let whole = |modules: &[&str], bias| LoraConfig {
        bias,
        ..saving(&["q_proj"], modules)
    };
    let dora = LoraConfig {
        dora: true,
        ..on(&["embed_tokens", "lm_head"])
    };
    for (config, learned) in [
        (on(&["embed_tokens", "lm_head"]), 4),
        (dora, 6),
        // Two adapters of two matrices each, beside what is counted.
        (whole(&[], Biases::LoraOnly), 4 + 2),
        (whole(&[], Biases::All), 4 + 14),
        (whole(&["lm_head"], Biases::None), 4 + 1),
        (whole(&["embed_tokens", "lm_head"], Biases::None), 4 + 2),
        // Three matrices with a bias each, and the biases of the others.
        (whole(&["layers.1.mlp"], Biases::All), 4 + 6 + 11),
        (whole(&["norm"], Biases::None), 4 + 5),
    ] {
        let base = golden("models/llama-tied-biases");
        let adapted = fresh("llama-tied-biases", &config).unwrap();
        let expected = SafetensorsFile::open(&base.join("expected.safetensors")).unwrap();
        let tokens = expected.read("tokens", Kind::Int64).unwrap();
        let logits = adapted.model.logits(&tokens, Pass::Evaluate).unwrap();
        let difference =
            largest_difference(&logits, &expected.read("logits", Kind::Float).unwrap());
        assert!(difference <= 1e-5, "{config:?}: {difference}");
        assert_eq!(adapted.parameters.iter().len(), learned, "{config:?}");
        // Every one has a gradient, and the frozen base has none.
        let loss = adapted
            .model
            .logits(&tokens, Pass::Train { checkpoint: false })
            .unwrap()
            .square()
            .sum(Kind::Float);
        loss.backward();
        for parameter in adapted.parameters.iter() {
            assert!(parameter.tensor.grad().defined(), "{}", parameter.name);
        }
    }
}

#[test]
fn a_module_that_learns_leaves_what_it_was_tied_to() {
    for (name, other) in [("lm_head", "embed_tokens"), ("embed_tokens", "lm_head")] {
        let adapted = fresh("llama-tied-biases", &saving(&["q_proj"], &[name])).unwrap();
        let whole = adapted.parameters.iter().find(|p| !p.name.contains("lora"));
        let whole = whole.unwrap();
        assert!(whole.name.ends_with(&format!("{name}.weight")) && whole.decay);
        let tokens = Tensor::from_slice(&[3i64, 1, 4]).unsqueeze(0);
        let logits = || adapted.model.logits(&tokens, Pass::Evaluate).unwrap();
        let before = logits();
        // Tokens of the text do not matter to the head, nor those of no text to the embedding.
        let _ = whole.tensor.detach().narrow(0, 40, 1).fill_(0.0);
        let after = logits();
        let changed = (after - before)
            .abs()
            .sum_dim_intlist(&[0i64, 1][..], false, Kind::Float);
        let changed: Vec<f32> = changed.try_into().unwrap();
        let expected = |token: usize| name == "lm_head" && token == 40;
        for (token, change) in changed.iter().enumerate() {
            assert_eq!(*change > 0.0, expected(token), "{token} when {other} stays");
        }
    }
}

#[test]
fn norms_and_biases_do_not_decay_and_matrices_do() {
    let config = LoraConfig {
        bias: Biases::All,
        ..saving(&["q_proj"], &["norm", "embed_tokens", "layers.0.mlp"])
    };
    for parameter in fresh("qwen2", &config).unwrap().parameters.iter() {
        assert_eq!(
            parameter.decay,
            parameter.tensor.dim() == 2,
            "{}",
            parameter.name
        );
    }
}

#[test]
fn dropout_acts_on_the_head_too_and_on_no_embedding() {
    let loss = |targets: &[&str]| {
        let config = LoraConfig {
            dropout: 0.5,
            ..on(targets)
        };
        let adapted = fresh("llama-grouped", &config).unwrap();
        for tensor in adapted.parameters.tensors() {
            let _ = tensor
                .detach()
                .g_add_(&(tensor.detach().randn_like() * 0.1));
        }
        let tokens = Tensor::from_slice(&[3i64, 1, 4]).unsqueeze(0);
        let targets = Tensor::from_slice(&[1i64, 4, 1]).unsqueeze(0);
        let losses = [(); 2].map(|()| {
            let pass = Pass::Train { checkpoint: false };
            let hidden = adapted.model.hidden(&tokens, pass).unwrap();
            let loss = crate::loss::mean_cross_entropy(&adapted.model, &hidden, &targets, pass);
            f64::try_from(loss.unwrap()).unwrap()
        });
        losses[0] == losses[1]
    };
    assert!(!loss(&["lm_head"]), "no dropout on the head");
    assert!(loss(&["embed_tokens"]), "dropout on the embedding");
}

/// Chunks of the vocabulary's logits are made again in the backward pass.
#[test]
fn the_loss_of_an_adapted_head_has_the_textbooks_gradients() {
    for config in [
        LoraConfig {
            dora: true,
            ..on(&["lm_head", "q_proj"])
        },
        saving(&["q_proj"], &["lm_head"]),
    ] {
        let tokens = Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9]).view([2, 3]);
        let targets = Tensor::from_slice(&[1i64, 4, -100, 5, 9, 2]).view([2, 3]);
        let pass = Pass::Train { checkpoint: true };
        let gradients = [true, false].map(|textbook| {
            tch::manual_seed(3);
            let adapted = fresh("qwen3-untied", &config).unwrap();
            for tensor in adapted.parameters.tensors() {
                let _ = tensor
                    .detach()
                    .g_add_(&(tensor.detach().randn_like() * 0.1));
            }
            let hidden = adapted.model.hidden(&tokens, pass).unwrap();
            let loss = match textbook {
                true => adapted
                    .model
                    .head(&hidden, pass)
                    .unwrap()
                    .view([-1, 48])
                    .cross_entropy_loss::<Tensor>(
                        &targets.view(-1),
                        None,
                        tch::Reduction::Mean,
                        -100,
                        0.0,
                    ),
                false => crate::loss::mean_cross_entropy(&adapted.model, &hidden, &targets, pass)
                    .unwrap(),
            };
            torch_ext::backward(&loss).unwrap();
            let gradients = adapted.parameters.tensors().map(Tensor::grad);
            gradients.collect::<Vec<_>>()
        });
        for (theirs, ours) in gradients[0].iter().zip(&gradients[1]) {
            assert!(theirs.allclose(ours, 1e-4, 1e-7, false));
        }
    }
}

#[test]
fn modules_that_cannot_learn_whole_are_refused_by_name() {
    for (modules, reason) in [
        (
            &["lm_haed"][..],
            "no module of this model with weights is called lm_haed",
        ),
        (
            &["rotary_emb"],
            "no module of this model with weights is called rotary_emb",
        ),
        (
            &["mlp", "up_proj"],
            "`model.layers.0.mlp.up_proj` is part of `model.layers.0.mlp`",
        ),
        (&["layers"], "`model.layers` is a list of blocks"),
        (
            &["roj"],
            "`modules_to_save` has the end of `model.layers.0.self_attn.q_proj`",
        ),
        (&["("], "is not a supported regular expression"),
    ] {
        let built = fresh("qwen2", &saving(&["q_proj"], modules));
        let error = built.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(reason), "{modules:?}: {error}");
    }
}

#[test]
fn a_module_that_learns_whole_gets_no_adapter() {
    let adapted = fresh("qwen2", &saving(&["q_proj", "up_proj"], &["layers.0.mlp"])).unwrap();
    let modules = &adapted.attached.modules;
    assert_eq!(modules.len(), 3, "{modules:?}");
    assert!(
        !modules
            .iter()
            .any(|name| name.starts_with("model.layers.0.mlp"))
    );
    assert_eq!(adapted.attached.saved_modules, ["model.layers.0.mlp"]);
}

#[test]
fn what_is_written_lists_only_what_the_model_has() {
    let adapter = tempfile::tempdir().unwrap();
    let theirs = golden("adapters/plain");
    let tensors = "adapter_model.safetensors";
    std::fs::copy(theirs.join(tensors), adapter.path().join(tensors)).unwrap();
    let mut config = plain();
    config["target_modules"] = json!(["q_proj", "v_proj", "k_proj", "query"]);
    config["layers_to_transform"] = json!([0, 1, 7]);
    config["exclude_modules"] = json!(["k_proj", "key"]);
    config["modules_to_save"] = json!(["classifier"]);
    config["rank_pattern"] = json!({"query": 7, "q_proj": 4});
    config["alpha_pattern"] = json!({"query": 7});
    let path = adapter.path().join("adapter_config.json");
    std::fs::write(path, config.to_string()).unwrap();
    let saved = Attachment::saved(PeftAdapter::open(adapter.path()).unwrap()).unwrap();
    let read = adapted(&golden("models/llama-grouped"), saved).unwrap();
    let (_folder, written) = written(&read, Naming::ALONE);
    assert_eq!(written["target_modules"], json!(["q_proj", "v_proj"]));
    assert_eq!(written["exclude_modules"], json!(["k_proj"]));
    assert_eq!(written["modules_to_save"], json!(null));
    assert_eq!(written["layers_to_transform"], json!([0, 1]));
    assert_eq!(written["rank_pattern"], json!({"q_proj": 4}));
    assert_eq!(written["alpha_pattern"], json!({}));
}

/// The adapter of a golden model with tables beside it.
fn with_tables(base: &str, tables: &[(&str, &Tensor)]) -> Result<Adapted, crate::Error> {
    let folder = tempfile::tempdir().unwrap();
    let (name, _) = ADAPTERS.iter().find(|(_, model)| *model == base).unwrap();
    let theirs = golden(&format!("adapters/{name}"));
    let config = "adapter_config.json";
    std::fs::copy(theirs.join(config), folder.path().join(config)).unwrap();
    let file = SafetensorsFile::open(&theirs.join("adapter_model.safetensors")).unwrap();
    let tables = tables.iter();
    let tensors: Vec<(String, Tensor)> = file
        .names()
        .into_iter()
        .map(|name| (name.clone(), file.read(&name, Kind::Float).unwrap()))
        .chain(tables.map(|(name, table)| ((*name).to_owned(), table.copy())))
        .collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, t)| (name.clone(), t)).collect();
    let path = folder.path().join("adapter_model.safetensors");
    crate::formats::write_tensors(&path, &tensors).unwrap();
    let saved = PeftAdapter::open(folder.path())?;
    adapted(
        &golden(&format!("models/{base}")),
        Attachment::saved(saved)?,
    )
}

/// PEFT saves tables whose vocabulary was changed beside an adapter that does not target them.
#[test]
fn a_table_in_an_adapters_file_takes_the_place_of_the_models() {
    let table = Tensor::randn([48, 16], (Kind::Float, Device::Cpu));
    let tokens = Tensor::from_slice(&[3i64, 1, 4]).unsqueeze(0);
    let head = "base_model.model.lm_head.weight";
    let replaced = with_tables("llama-grouped", &[(head, &table)]).unwrap();
    let hidden = replaced.model.hidden(&tokens, Pass::Evaluate).unwrap();
    let logits = replaced.model.head(&hidden, Pass::Evaluate).unwrap();
    assert!(largest_difference(&logits, &hidden.matmul(&table.tr())) < 1e-5);
    let (folder, _) = written(&replaced, Naming::ALONE);
    assert!(tensors(folder.path()).contains_key(head));
    // Other weights of the base have no such place.
    let norm = "base_model.model.model.norm.weight";
    let error = with_tables("llama-grouped", &[(norm, &table)]);
    let error = error.map(|_| ()).unwrap_err();
    assert!(
        error.to_string().contains("does not exist in this model"),
        "{error}"
    );
}

#[test]
fn two_tables_for_one_must_be_equal() {
    let table = || Tensor::randn([48, 16], (Kind::Float, Device::Cpu));
    let (one, other) = (table(), table());
    let names = ["model.embed_tokens", "lm_head"].map(|name| {
        let end = if name == "lm_head" {
            "weight"
        } else {
            "base_layer.weight"
        };
        format!("base_model.model.{name}.{end}")
    });
    let [embedding, head] = [names[0].as_str(), names[1].as_str()];
    let equal = with_tables("llama-tied-biases", &[(embedding, &one), (head, &one)]);
    let tokens = Tensor::from_slice(&[3i64, 1, 4]).unsqueeze(0);
    let model = equal.unwrap().model;
    let hidden = model.hidden(&tokens, Pass::Evaluate).unwrap();
    let logits = model.head(&hidden, Pass::Evaluate).unwrap();
    assert!(largest_difference(&logits, &hidden.matmul(&one.tr())) < 1e-5);
    let differ = with_tables("llama-tied-biases", &[(embedding, &one), (head, &other)]);
    let error = differ.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(embedding) && error.contains(head), "{error}");
}

/// As PEFT 0.21.2 does ("Target module … is not supported").
#[test]
fn targets_that_match_more_than_layers_are_refused_with_what_they_match() {
    let regex = |text: &str| LoraConfig {
        target_modules: Modules::from_text(text).unwrap(),
        ..LoraConfig::default()
    };
    for (config, module) in [
        (
            regex(r"model\.layers\.0\..*"),
            "model.layers.0.input_layernorm",
        ),
        (regex(r".*self_attn.*"), "model.layers.0.self_attn"),
        (regex(".*(q_proj|act_fn)"), "model.layers.0.mlp.act_fn"),
        (regex(".*q_proj|.*rotary_emb"), "model.rotary_emb"),
        (on(&["q_proj", "mlp"]), "model.layers.0.mlp"),
        (on(&["q_proj", "model.norm"]), "model.norm"),
    ] {
        let error = fresh("qwen3", &config).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&format!("match `{module}`")), "{error}");
        assert!(error.contains("q_proj, up_proj, v_proj"), "{error}");
    }
    let excluded = LoraConfig {
        exclude_modules: Some(Modules::from_text(r".*(norm|mlp|self_attn|act_fn)").unwrap()),
        ..regex(r"model\.layers\.0\..*")
    };
    assert_eq!(fresh("qwen3", &excluded).unwrap().attached.modules.len(), 7);
}

#[test]
fn an_adapter_that_is_not_finite_is_refused_by_the_tensors_name() {
    for bad in [f64::NAN, f64::NEG_INFINITY] {
        let table = Tensor::ones([48, 16], (Kind::Float, Device::Cpu));
        let _ = table.get(3).get(1).fill_(bad);
        let head = "base_model.model.lm_head.weight";
        let error = with_tables("llama-grouped", &[(head, &table)]);
        let error = error.map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`{head}` has 1 NaN or infinite values of 768")),
            "{error}"
        );
    }
}

#[test]
fn of_a_mixture_of_experts_the_attention_is_adapted_and_the_rest_is_refused_by_name() {
    let config = LoraConfig {
        target_modules: Modules::AllLinear,
        ..LoraConfig::default()
    };
    for base in ["qwen3-moe", "qwen3-moe-stacked", "gpt-oss"] {
        let adapted = fresh(base, &config).unwrap();
        let modules = adapted.attached.modules.iter();
        let mut modules = modules.map(|name| name.split_once("self_attn."));
        assert!(modules.all(|found| found.is_some()));
        let (_, written) = written(&adapted, Naming::ALONE);
        assert_eq!(
            written["target_modules"],
            json!(["k_proj", "o_proj", "q_proj", "v_proj"])
        );
    }
    let refusal = |config: &LoraConfig, base: &str| match fresh(base, config) {
        Ok(_) => panic!("{config:?}"),
        Err(error) => error.to_string(),
    };
    for (targets, layer) in [
        (
            &["q_proj", "down_proj"][..],
            "layers.0.mlp.experts.0.down_proj",
        ),
        (&["gate"], "layers.0.mlp.gate"),
        (&["layers.1.mlp.up_proj"], "layers.1.mlp.up_proj"),
    ] {
        let reason = refusal(&on(targets), "qwen3-moe-stacked");
        let expected = format!("`target_modules` match `model.{layer}`: routers and");
        assert!(reason.contains(&expected), "{reason}");
    }
    let biases = LoraConfig {
        bias: Biases::All,
        ..on(&["q_proj"])
    };
    let reason = refusal(&biases, "gpt-oss");
    assert!(
        reason.contains("`bias: all`: the biases of experts"),
        "{reason}"
    );
    let reason = refusal(&on(&["router"]), "gpt-oss");
    assert!(
        reason.contains("match `model.layers.0.mlp.router`"),
        "{reason}"
    );
    for modules in ["layers.0.mlp", "experts"] {
        let reason = refusal(&saving(&["q_proj"], &[modules]), "qwen3-moe");
        assert!(
            reason.contains("has experts, which are not trained in full beside an adapter"),
            "{reason}"
        );
    }
}

/// What has no adapter, and what is not trained beside one.
#[test]
fn routers_and_tables_in_host_memory_are_refused_by_name() {
    let refusal = |base: &str, config: LoraConfig| {
        let base = golden(&format!("models/{base}"));
        let adapted = adapted(&base, Attachment::fresh(&config).unwrap());
        adapted.err().unwrap().to_string()
    };
    let on = |target: &str| LoraConfig {
        target_modules: Modules::Suffixes(vec![target.into()]),
        ..LoraConfig::default()
    };
    for (base, target) in [("gemma4", "embed_tokens_per_layer"), ("gemma4-moe", "proj")] {
        let reason = refusal(base, on(target));
        assert!(reason.contains("cannot have adapters"), "{reason}");
        assert!(reason.contains(target), "{reason}");
    }
    let saved = |module: &str| LoraConfig {
        modules_to_save: vec![module.into()],
        ..LoraConfig::default()
    };
    let reason = refusal("gemma4", saved("embed_tokens_per_layer"));
    assert!(reason.contains("stays in host memory"), "{reason}");
    let reason = refusal("gemma4-moe", saved("layers.0"));
    assert!(reason.contains("has experts"), "{reason}");
}

#[test]
fn tensors_of_experts_that_a_model_lacks_are_refused_by_name() {
    let on_experts = |targets: &[&str]| LoraConfig {
        target_parameters: targets.iter().map(|name| (*name).into()).collect(),
        ..on(&["q_proj"])
    };
    let refusal = |base: &str, config: &LoraConfig| match fresh(base, config) {
        Ok(_) => panic!("{config:?}"),
        Err(error) => error.to_string(),
    };
    let both = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"];
    let reason = refusal("qwen3-moe", &on_experts(&["mlp.experts.up_proj", both[1]]));
    let expected = "`target_parameters`: mlp.experts.up_proj is no tensor of experts of this model; those that can have \
                    an adapter are mlp.experts.gate_up_proj, mlp.experts.down_proj";
    assert_eq!(reason, expected);
    let reason = refusal("qwen3", &on_experts(&both));
    assert!(reason.contains("since it has no experts"), "{reason}");
    for (config, what) in [
        (
            LoraConfig {
                dora: true,
                ..on_experts(&both)
            },
            "DoRA",
        ),
        (
            LoraConfig {
                dropout: 0.1,
                ..on_experts(&both)
            },
            "dropout",
        ),
    ] {
        let reason = refusal("qwen3-moe", &config);
        assert!(
            reason.ends_with(&format!("do not work with {what}")),
            "{reason}"
        );
    }
    // Of one block alone; and without another layer.
    let one = LoraConfig {
        target_modules: Modules::Suffixes(Vec::new()),
        ..on_experts(&["layers.1.mlp.experts.down_proj"])
    };
    let adapted = fresh("gpt-oss", &one).unwrap();
    let name = "base_model.model.model.layers.1.mlp.experts.lora_";
    let names: Vec<_> = adapted.parameters.iter().map(|p| p.name.clone()).collect();
    assert_eq!(
        names,
        [format!("{name}A.weight"), format!("{name}B.weight")]
    );
    let (_, written) = written(&adapted, Naming::ALONE);
    assert_eq!(written["target_modules"], json!([]));
    assert_eq!(
        written["target_parameters"],
        json!(["layers.1.mlp.experts.down_proj"])
    );
}

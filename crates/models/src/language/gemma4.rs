//! Gemma 4 and the text part of its multimodal models: windows and heads of two widths; in the small models embeddings for each block, and blocks
//! that use the keys and values of earlier ones; in the large ones keys that are values, or experts beside the feed-forward layer.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::gemma3::{DEFAULTS, refuse_variants};
use super::windows::layer_types;
use super::{
    Activation, DecoderConfig, EmbeddingScale, Family, Gguf, LocalLayers, Mixture, PartOf,
    PerLayerInputs, QkNorm, Sharing, TokenizerClass, WholeHeads, per_layer,
};
use crate::Error;
use crate::json::Object;
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma4_text",
    class: "Gemma4ForCausalLM",
    part_of: Some(&MULTIMODAL),
    keys: &[
        &[
            "attention_bias",
            CAP,
            "hidden_activation",
            "layer_types",
            "sliding_window",
            "use_bidirectional_attention",
            SHARED,
            "use_double_wide_mlp",
        ],
        &[KEYS_ARE_VALUES, WIDTH, KEY_HEADS, BY_LAYER],
        &[EXPERTS, "num_experts", USED, "moe_intermediate_size"],
        per_layer::KEYS,
    ],
    read,
    write,
    norms: super::gemma3::NORMS,
    gguf: Some(Gguf {
        parts: &[
            ("attn_norm", "input_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
            ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
            ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
            ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
            ("ffn_gate_inp", "router.proj"),
            ("ffn_gate_up_exps", "experts.gate_up_proj"),
            ("ffn_down_exps", "experts.down_proj"),
        ],
        whole: &[
            ("layer_output_scale.weight", "layer_scalar"),
            ("ffn_gate_inp.scale", "router.scale"),
            ("ffn_down_exps.scale", "router.per_expert_scale"),
        ],
        outside: &[
            (
                "per_layer_token_embd.weight",
                "model.embed_tokens_per_layer.weight",
            ),
            (
                "per_layer_model_proj.weight",
                "model.per_layer_model_projection.weight",
            ),
            (
                "per_layer_proj_norm.weight",
                "model.per_layer_projection_norm.weight",
            ),
        ],
        keys: &[
            ("attention.key_length", WIDTH),
            ("attention.key_length_swa", "head_dim"),
            ("attention.value_length_swa", LOCAL_WIDTHS[0]),
            ("rope.dimension_count_swa", LOCAL_WIDTHS[1]),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("attention.sliding_window", "sliding_window"),
            ("attention.sliding_window_pattern", "layer_types"),
            ("attention.shared_kv_layers", SHARED),
            ("feed_forward_length", "intermediate_size"),
            ("rope.freq_base_swa", LOCAL_THETA),
            ("final_logit_softcapping", CAP),
            (
                "embedding_length_per_layer_input",
                "hidden_size_per_layer_input",
            ),
            ("expert_count", "num_experts"),
            ("expert_used_count", USED),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ],
        keys_are_values: Some(KEYS_ARE_VALUES),
        sentencepiece: "gemma4",
        shown: &[
            "<|channel>",
            "<channel|>",
            "<|tool_call>",
            "<tool_call|>",
            "<|tool_response>",
            "<tool_response|>",
            "<|\"|>",
        ],
        derive: from_gguf,
        more: to_gguf,
        yarn: None,
        ..Gguf::plain("gemma4")
    }),
    tokenizer_class: TokenizerClass::OfFile,
};

/// The models for text, images and sound.
static MULTIMODAL: PartOf = PartOf {
    model_type: "gemma4",
    section: "text_config",
    tied: true,
    prefixes: &[("model.language_model.", "model.")],
    others: &[
        "model.vision_tower.",
        "model.audio_tower.",
        "model.embed_vision.",
        "model.embed_audio.",
    ],
};

const CAP: &str = "final_logit_softcapping";
const SHARED: &str = "num_kv_shared_layers";
const KEYS_ARE_VALUES: &str = "attention_k_eq_v";
/// Width and number of keys of the blocks that see the whole text, in published files.
const WIDTH: &str = "global_head_dim";
const KEY_HEADS: &str = "num_global_key_value_heads";
/// The same in files of transformers from 5.23 on, by block.
const BY_LAYER: &str = "per_layer_config";
const EXPERTS: &str = "enable_moe_block";
const USED: &str = "top_k_experts";
/// Of [`from_gguf`] alone: widths of values and rotations in blocks with a window, and their base.
const LOCAL_WIDTHS: [&str; 2] = ["local_value_width", "local_rotated_width"];
const LOCAL_THETA: &str = "local_theta";

/// The blocks that see the whole text.
const WHOLE: Place = Place {
    section: Some("full_attention"),
    theta: 1_000_000.0,
    proportional: Some(0.25),
    ..Place::FLAT
};

/// The blocks with a window.
const LOCAL: Place = Place {
    section: Some("sliding_attention"),
    theta_key: None,
    scaled: false,
    ..Place::FLAT
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    refuse_variants(object, &[])?;
    if let Some(kind) = object.text("use_bidirectional_attention")?
        // Without pictures, it changes nothing.
        && kind != "vision"
    {
        let reason = format!("is {kind:?}; only causal models are supported");
        return Err(object.error("use_bidirectional_attention", reason));
    }
    let defaults = Defaults {
        vocab_size: Some(262_144),
        num_hidden_layers: Some(30),
        rope: WHOLE,
        ..DEFAULTS
    };
    let config = config::read(&FAMILY, object, &defaults)?;
    let mut local = LocalLayers {
        window: object.integer("sliding_window", Some(512), 1..=1 << 30)?,
        ..LocalLayers::read(object, &config, 6, [&WHOLE, &LOCAL])?
    };
    // As in transformers.
    if let Some(last) = local.layers.last_mut() {
        if *last && object.get("layer_types").is_some() {
            tracing::warn!(
                "`{}`: `layer_types` gives the last layer a window, but it sees the whole text, as in transformers",
                object.path().display()
            );
        }
        *last = false;
    }
    let whole_heads = whole_heads(object, &config, &local.layers)?;
    let bias = object.flag("attention_bias", false)?;
    let cap = object.get(CAP).map(|_| object.positive(CAP, None));
    Ok(DecoderConfig {
        qk_norm: QkNorm::Head,
        value_norm: true,
        whole_heads: Some(whole_heads),
        sharing: sharing(object, &local.layers)?,
        local: Some(local),
        score_scale: Some(1.0),
        embedding_scale: EmbeddingScale::RootOfWidth,
        activation: Activation::GeluTanh,
        per_layer: PerLayerInputs::read(object)?,
        layer_scalar: true,
        logits_cap: cap.transpose()?,
        experts: experts(object, config.num_hidden_layers)?,
        qkv_bias: bias,
        output_bias: bias,
        ..config
    })
}

/// The heads of blocks that see the whole text: those without a window, of which `local` tells each.
fn whole_heads(
    object: &Object,
    config: &DecoderConfig,
    local: &[bool],
) -> Result<WholeHeads, Error> {
    let keys_are_values = object.flag(KEYS_ARE_VALUES, false)?;
    let (head_dim, heads) = (config.head_dim, config.num_key_value_heads);
    let published = WholeHeads {
        head_dim: object.integer(WIDTH, Some(512), 2..=4096)?,
        num_key_value_heads: match keys_are_values {
            true => object.integer(KEY_HEADS, Some(heads), 1..=4096)?,
            false => heads,
        },
        keys_are_values,
    };
    let mut found = None;
    if let Some(layers) = object.object(BY_LAYER)? {
        let unknown = |layer: &&String| {
            let number = layer.parse::<usize>();
            number.map_or(true, |number| number >= local.len())
        };
        if let Some(layer) = layers.keys().map(|(layer, _)| layer).find(unknown) {
            return Err(layers.error(layer, "is no layer of this model"));
        }
        for (layer, is_local) in local.iter().enumerate() {
            let number = layer.to_string();
            let own = layers.object(&number)?;
            let own = own.as_ref();
            let known = ["head_dim", "num_key_value_heads"];
            if let Some(own) = own
                && let Some((key, _)) = own.keys().find(|(key, _)| !known.contains(&key.as_str()))
            {
                let reason = format!("is not supported; supported: {}", known.join(", "));
                return Err(own.error(key, reason));
            }
            let of = |key: &str, default, most| {
                own.map_or(Ok(default), |own| own.integer(key, Some(default), most))
            };
            let heads = WholeHeads {
                head_dim: of("head_dim", head_dim, 2..=4096)?,
                num_key_value_heads: of("num_key_value_heads", heads, 1..=4096)?,
                keys_are_values,
            };
            let is_plain = (heads.head_dim, heads.num_key_value_heads)
                == (head_dim, config.num_key_value_heads);
            if (*is_local && !is_plain) || (!is_local && *found.get_or_insert(heads) != heads) {
                let reason = "has other heads than the other layers of its kind";
                return Err(layers.error(&number, reason));
            }
        }
    }
    let heads = found.unwrap_or(published);
    if heads.head_dim % 2 != 0 {
        let reason = format!(
            "must be even for the rotary embedding, not {}",
            heads.head_dim
        );
        return Err(object.error(WIDTH, reason));
    }
    let queries = config.num_attention_heads;
    if queries % heads.num_key_value_heads != 0 {
        let reason = format!(
            "must divide the {queries} query heads; {} does not",
            heads.num_key_value_heads
        );
        return Err(object.error(KEY_HEADS, reason));
    }
    Ok(heads)
}

/// The last blocks use the keys and values of the last block of their kind before them.
fn sharing(object: &Object, local: &[bool]) -> Result<Option<Sharing>, Error> {
    let wide = object.flag("use_double_wide_mlp", false)?;
    let count = object.integer(SHARED, Some(0), 0..=local.len() as i64 - 1)?;
    let first = local.len() - count as usize;
    let (before, sharers) = local.split_at(first);
    if let Some(kind) = sharers.iter().find(|kind| !before.contains(kind)) {
        let kind = if *kind { "with" } else { "without" };
        let reason = format!(
            "is {count}, and no layer before these is one {kind} a window, whose keys and values they could use"
        );
        return Err(object.error(SHARED, reason));
    }
    Ok((count > 0).then_some(Sharing { first, wide }))
}

/// The experts beside the feed-forward layer, if there are some.
fn experts(object: &Object, blocks: i64) -> Result<Option<Mixture>, Error> {
    if !object.flag(EXPERTS, false)? {
        return Ok(None);
    }
    let required = |key| object.integer(key, None, 1..=4096);
    let (count, used) = (required("num_experts")?, required(USED)?);
    if used > count {
        let reason = format!("is {used}, and there are {count} experts (`num_experts`)");
        return Err(object.error(USED, reason));
    }
    Ok(Some(Mixture {
        count,
        used,
        width: object.integer("moe_intermediate_size", None, 1..=1 << 20)?,
        shared: None,
        normalised: true,
        layers: (0..blocks).map(|_| true).collect(),
        balance: None,
        router: "router.proj",
        biased: false,
        alternating: false,
        beside: true,
    }))
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    if let Some(local) = &config.local {
        local.write(keys);
    }
    // It has no place for them but the sections.
    keys.remove("rope_theta");
    keys.remove("rope_scaling");
    for (key, value) in [
        ("hidden_activation", json!("gelu_pytorch_tanh")),
        ("attention_bias", config.output_bias.into()),
        // Its class takes no whole number.
        (CAP, json!(config.logits_cap)),
        (EXPERTS, config.experts.is_some().into()),
    ] {
        keys.insert(key.into(), value);
    }
    PerLayerInputs::write(config.per_layer, keys);
    if let Some(sharing) = &config.sharing {
        let count = config.num_hidden_layers - sharing.first as i64;
        keys.insert(SHARED.into(), count.into());
        keys.insert("use_double_wide_mlp".into(), sharing.wide.into());
    }
    if let Some(heads) = config.whole_heads {
        keys.insert(KEYS_ARE_VALUES.into(), heads.keys_are_values.into());
        keys.insert(WIDTH.into(), heads.head_dim.into());
        keys.insert(KEY_HEADS.into(), heads.num_key_value_heads.into());
        // The number of keys does not count there if they are not values.
        if !heads.keys_are_values && heads.num_key_value_heads != config.num_key_value_heads {
            let own = json!({"head_dim": heads.head_dim, "num_key_value_heads": heads.num_key_value_heads});
            let local = config.local.as_ref().map(|local| &local.layers[..]);
            keys.insert(BY_LAYER.into(), of_whole(local.unwrap_or_default(), &own));
        }
    }
    if let Some(mixture) = &config.experts {
        keys.insert("num_experts".into(), mixture.count.into());
        keys.insert(USED.into(), mixture.used.into());
        keys.insert("moe_intermediate_size".into(), mixture.width.into());
    }
}

/// `own` for each block that sees the whole text: those without a window, of which `local` tells each.
fn of_whole(local: &[bool], own: &Value) -> Value {
    let whole = local.iter().enumerate().filter(|(_, local)| !**local);
    let all: Map<_, _> = whole.map(|(at, _)| (at.to_string(), own.clone())).collect();
    all.into()
}

/// What llama.cpp says of each block and of both widths of heads, as transformers says it.
fn from_gguf(keys: &mut Map<String, Value>) -> Result<(), String> {
    let blocks = keys.get("num_hidden_layers").and_then(Value::as_u64);
    let pattern = match keys.remove("layer_types") {
        Some(Value::Array(list)) => list.iter().map(Value::as_bool).collect(),
        _ => None,
    };
    let local: Vec<bool> = pattern
        .filter(|list: &Vec<bool>| Some(list.len() as u64) == blocks)
        .ok_or("`gemma4.attention.sliding_window_pattern` must be true or false for each block")?;
    for key in LOCAL_WIDTHS {
        let width = keys.remove(key).filter(|width| !width.is_null());
        if width.is_some_and(|width| Some(&width) != keys.get("head_dim")) {
            return Err(
                "`gemma4.attention.value_length_swa` and `gemma4.rope.dimension_count_swa` must be \
                 `gemma4.attention.key_length_swa`"
                    .into(),
            );
        }
    }
    // For each block one number, or the same for all.
    let each = |keys: &Map<String, Value>, key: &str| match keys.get(key) {
        Some(Value::Array(list)) if list.len() == local.len() => list.clone(),
        Some(Value::Array(_)) | None => Vec::new(),
        Some(number) => vec![number.clone(); local.len()],
    };
    let heads = each(keys, "num_key_value_heads");
    let of = |is_local: bool| {
        let all = || local.iter().zip(&heads);
        let same = all().filter(|(local, _)| **local == is_local);
        let mut same = same.map(|(_, heads)| heads);
        let first = same.next().or(heads.first());
        first
            .filter(|first| same.all(|other| other == *first))
            .cloned()
    };
    let (Some(of_local), Some(of_whole_text)) = (of(true), of(false)) else {
        return Err("`gemma4.attention.head_count_kv` must be one number for the blocks with a window and one for the others".into());
    };
    let is_value = keys.get(KEYS_ARE_VALUES) == Some(&json!(true));
    if !is_value && of_local != of_whole_text {
        let own = json!({"head_dim": keys.get(WIDTH), "num_key_value_heads": of_whole_text});
        keys.insert(BY_LAYER.into(), of_whole(&local, &own));
    }
    keys.insert("num_key_value_heads".into(), of_local);
    keys.insert(KEY_HEADS.into(), of_whole_text);
    let shared = keys.get(SHARED).and_then(Value::as_u64).unwrap_or(0) as usize;
    let first = local.len().saturating_sub(shared);
    if shared > 0 && !local[..first].ends_with(&[true, false]) {
        return Err(format!(
            "`gemma4.attention.shared_kv_layers` is {shared}, and llama.cpp takes keys and values of the last two blocks \
             before: these must be one with a window and one without"
        ));
    }
    let widths: Vec<_> = each(keys, "intermediate_size")
        .iter()
        .map(Value::as_u64)
        .collect();
    let width = widths.first().copied().flatten().unwrap_or(0);
    let is_wide = widths.last().copied().flatten() == Some(2 * width);
    let expected = |block| {
        Some(if is_wide && block >= first {
            2 * width
        } else {
            width
        })
    };
    if width == 0
        || widths
            .iter()
            .enumerate()
            .any(|(block, width)| *width != expected(block))
    {
        return Err("`gemma4.feed_forward_length` must be one number, and at most twice that for the blocks that share keys".into());
    }
    if !keys.get("rope_scaling").is_none_or(Value::is_null) {
        return Err("`gemma4.rope.scaling.type` is not supported".into());
    }
    let mut sliding = json!({"rope_type": "default"});
    if let Some(theta) = keys.remove(LOCAL_THETA).filter(|theta| !theta.is_null()) {
        sliding["rope_theta"] = theta;
    }
    let whole = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": keys.remove("rope_theta")});
    let has_experts = keys
        .get("num_experts")
        .is_some_and(|count| !count.is_null());
    for (key, value) in [
        ("layer_types", layer_types(&local)),
        ("intermediate_size", width.into()),
        ("use_double_wide_mlp", is_wide.into()),
        (
            "rope_parameters",
            json!({"sliding_attention": sliding, "full_attention": whole}),
        ),
        (EXPERTS, has_experts.into()),
        (
            "vocab_size_per_layer_input",
            keys.get("vocab_size").cloned().unwrap_or_default(),
        ),
    ] {
        keys.insert(key.into(), value);
    }
    Ok(())
}

/// The opposite of [`from_gguf`].
fn to_gguf(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let blocks = 0..config.num_hidden_layers as usize;
    // One number where all are the same, as llama.cpp's converter.
    let each = |of: &dyn Fn(usize) -> i64| {
        let all: Vec<i64> = blocks.clone().map(of).collect();
        match all.iter().all(|one| *one == all[0]) {
            true => json!(all[0]),
            false => json!(all),
        }
    };
    let local = config.local.as_ref();
    for (key, value) in [
        (
            "num_key_value_heads",
            each(&|block| config.heads(config.is_local(block)).0),
        ),
        ("intermediate_size", each(&|block| config.inner(block))),
        ("layer_types", json!(local.map(|local| &local.layers))),
        (LOCAL_THETA, json!(local.map(|local| local.rope.theta))),
        (LOCAL_WIDTHS[0], config.head_dim.into()),
        (LOCAL_WIDTHS[1], config.head_dim.into()),
    ] {
        keys.insert(key.into(), value);
    }
    keys.entry(SHARED).or_insert(json!(0));
}

//! What the weights are called.

use crate::diffusion::BlockNames;
use crate::diffusion::files::{PartNames, bare, renamed};

/// The transformer.
pub(super) const TRANSFORMER: PartNames = PartNames {
    rename: |name, _| {
        table(name).or_else(|| renamed(name, &[&LAYERWISE, &REFINER, &BLOCKS], OTHERS))
    },
    tables: &[(".scale_shift_table", 6)],
    ..PartNames::DIFFUSERS
};

/// diffusers' name of a table that is added to what the time makes of a stream.
fn table(name: &str) -> Option<String> {
    let name = bare(name);
    if ["final_layer.scale_shift_table", "last.modulation.lin"].contains(&name) {
        return Some("final_layer.scale_shift_table".into());
    }
    let block = match name.strip_suffix(".mod.lin") {
        Some(block) => block.strip_prefix("blocks."),
        None => name
            .strip_suffix(".scale_shift_table")?
            .strip_prefix("transformer_blocks."),
    };
    let number: u32 = block?.parse().ok()?;
    Some(format!("transformer_blocks.{number}.scale_shift_table"))
}

const fn blocks(name: &'static str, original: &'static str) -> BlockNames {
    BlockNames {
        name,
        original,
        linear: &[
            ("attn.to_q", "attn.wq"),
            ("attn.to_k", "attn.wk"),
            ("attn.to_v", "attn.wv"),
            ("attn.to_gate", "attn.gate"),
            ("attn.to_out.0", "attn.wo"),
            ("ff.gate", "mlp.gate"),
            ("ff.up", "mlp.up"),
            ("ff.down", "mlp.down"),
        ],
        others: &[
            ("attn.norm_q", "attn.qknorm.qnorm"),
            ("attn.norm_k", "attn.qknorm.knorm"),
            ("norm1", "prenorm"),
            ("norm2", "postnorm"),
        ],
    }
}

/// The blocks that attend across the states of a token of the text.
pub(super) const LAYERWISE: BlockNames =
    blocks("text_fusion.layerwise_blocks", "txtfusion.layerwise_blocks");

/// The blocks that attend across the tokens of the text.
pub(super) const REFINER: BlockNames =
    blocks("text_fusion.refiner_blocks", "txtfusion.refiner_blocks");

/// The blocks that attend across text and picture.
pub(super) const BLOCKS: BlockNames = blocks("transformer_blocks", "blocks");

/// Parts outside the blocks.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("img_in", "first"),
    ("time_embed.linear_1", "tmlp.0"),
    ("time_embed.linear_2", "tmlp.2"),
    ("time_mod_proj", "tproj.1"),
    ("text_fusion.projector", "txtfusion.projector"),
    ("txt_in.norm", "txtmlp.0"),
    ("txt_in.linear_1", "txtmlp.1"),
    ("txt_in.linear_2", "txtmlp.3"),
    ("final_layer.norm", "last.norm"),
    ("final_layer.linear", "last.linear"),
];

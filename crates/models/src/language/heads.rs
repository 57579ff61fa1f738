//! Heads of keys and values that are not those of all blocks: others where the whole text is seen, and another block's.

use super::DecoderConfig;

/// Heads of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WholeHeads {
    /// Width of one; even. That of queries, too.
    pub head_dim: i64,
    /// Their number; divides the query heads.
    pub num_key_value_heads: i64,
    /// Whether what makes keys makes values, too.
    pub keys_are_values: bool,
}

/// Blocks at the end that use the keys and values of the last block of their kind before them, which has a window or has none as
/// they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// The first of them.
    pub first: usize,
    /// Whether their feed-forward layers are twice as wide.
    pub wide: bool,
}

impl DecoderConfig {
    /// Number of heads of keys and values of blocks with a window or of the others, and the width of one.
    pub fn heads(&self, is_local: bool) -> (i64, i64) {
        match self.whole_heads {
            Some(heads) if !is_local => (heads.num_key_value_heads, heads.head_dim),
            _ => (self.num_key_value_heads, self.head_dim),
        }
    }

    /// Whether the keys of block `index` are its values.
    pub fn keys_are_values(&self, index: usize) -> bool {
        let heads = self.whole_heads.filter(|_| !self.is_local(index));
        heads.is_some_and(|heads| heads.keys_are_values)
    }

    /// The block whose keys and values block `index` uses, if not its own.
    pub fn takes_from(&self, index: usize) -> Option<usize> {
        let Sharing { first, .. } = self.sharing.filter(|sharing| index >= sharing.first)?;
        let is_local = self.is_local(index);
        (0..first)
            .rev()
            .find(|other| self.is_local(*other) == is_local)
    }

    /// Width of the dense feed-forward layer of block `index`.
    pub fn inner(&self, index: usize) -> i64 {
        let wide = self
            .sharing
            .is_some_and(|sharing| sharing.wide && index >= sharing.first);
        self.intermediate_size * if wide { 2 } else { 1 }
    }

    /// Whether files may have the tensor `name` although no block uses it: what would make the keys and values that a block
    /// takes from another.
    pub(crate) fn is_dead(&self, name: &str) -> bool {
        let of_block = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'));
        let Some((index, part)) = of_block else {
            return false;
        };
        let part = part
            .strip_prefix("self_attn.")
            .and_then(|part| part.split_once('.'));
        let keys_values = ["k_proj", "v_proj", "k_norm", "v_norm"];
        part.is_some_and(|(part, _)| keys_values.contains(&part))
            && index
                .parse()
                .is_ok_and(|index| self.takes_from(index).is_some())
    }
}

//! What the language tasks share: the position in the data, and which blocks are held out.

use serde_json::Value;

use crate::Error;
use crate::data::{BlockOrder, OrderState};

/// The blocks that a run trains on, in their order, and the data that they are cut from.
pub(super) struct TrainingBlocks {
    order: BlockOrder,
    /// What must be the same where a run goes on: an object.
    identity: Value,
}

/// Keys of an identity that checkpoints of earlier versions lack.
const LATER_KEYS: [&str; 2] = ["training_tokens", "moment"];

impl TrainingBlocks {
    /// Blocks in this order, of data that `identity` tells apart from other data.
    pub(super) fn new(order: BlockOrder, identity: Value) -> Self {
        Self { order, identity }
    }

    /// The starts of the next `count` blocks.
    pub(super) fn next_starts(&mut self, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.order.next_start()).collect()
    }

    /// The position, for a checkpoint.
    pub(super) fn state(&self) -> Value {
        let mut state = self.identity.clone();
        state["order"] = serde_json::json!(self.order.state());
        state
    }

    /// Continues from a state that [`TrainingBlocks::state`] gave.
    ///
    /// # Errors
    /// When the state is of other data, or of other blocks.
    pub(super) fn restore(&mut self, state: &Value) -> Result<(), Error> {
        let keys = |value: &Value| -> Vec<String> {
            let object = value.as_object().into_iter().flatten();
            object.map(|(key, _)| key.clone()).collect()
        };
        let mut keys = [keys(&self.identity), keys(state)].concat();
        let unknown = |key: &str| LATER_KEYS.contains(&key) && state[key].is_null();
        keys.retain(|key| key != "order" && !unknown(key));
        // That number differs with most of the others, which tell more.
        keys.sort_by_key(|key| key == "training_tokens");
        for key in keys {
            if state[&key] != self.identity[&key] {
                return Err(Error::Data(format!(
                    "the data differs from that of the checkpoint: `{key}` was {}, and is {}",
                    state[&key], self.identity[&key]
                )));
            }
        }
        let order: OrderState = serde_json::from_value(state["order"].clone())
            .map_err(|error| Error::Data(format!("the checkpoint's data position: {error}")))?;
        self.order.restore(order);
        Ok(())
    }
}

/// Starts of the `block_size` blocks of `tokens` held-out tokens, each with a token after it: of
/// all, or of `limit` spread evenly over them; and whether that is all. Fewer tokens than a block
/// has are one short block.
pub(super) fn held_out_starts(
    tokens: u64,
    block_size: usize,
    limit: Option<u64>,
) -> (Vec<u64>, bool) {
    let block = block_size as u64;
    let full = tokens.saturating_sub(1) / block;
    let count = full.max(u64::from(tokens > 1));
    let (numbers, complete) = spread(count, limit);
    let starts = numbers.into_iter().map(|number| number * block);
    (starts.collect(), complete)
}

/// The numbers of `count` rows, or of `limit` spread evenly over them; and whether those are all.
pub(super) fn spread(count: u64, limit: Option<u64>) -> (Vec<u64>, bool) {
    let take = limit.map_or(count, |limit| count.min(limit));
    let numbers = (0..take).map(|index| index * count / take);
    (numbers.collect(), take == count)
}

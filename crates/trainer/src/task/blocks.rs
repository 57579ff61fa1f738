//! What the language tasks share: the position in the data, and which blocks are held out.

use serde_json::Value;

use super::epochs::Epochs;
use crate::Error;
use crate::config::TrainConfig;
use crate::data::{BlockOrder, OrderState};

/// The blocks that a run trains on, in their order, and the data that they are cut from.
pub(super) struct TrainingBlocks {
    order: BlockOrder,
    /// Blocks in a batch.
    batch: usize,
    /// Whether a batch ends where a pass over the data does.
    by_epoch: bool,
    /// What must be the same where a run goes on: an object.
    identity: Value,
}

/// Keys of an identity that checkpoints of earlier versions lack.
const LATER_KEYS: [&str; 2] = ["training_tokens", "moment"];

impl TrainingBlocks {
    /// Blocks in this order, of data that `identity` tells apart from other data.
    pub(super) fn new(order: BlockOrder, train: &TrainConfig, identity: Value) -> Self {
        Self {
            batch: train.batch() as usize,
            // Blocks in the order of their file belong together by batches.
            by_epoch: train.by_epoch() || !order.is_shuffled(),
            order,
            identity,
        }
    }

    /// The starts of the blocks of the next batch.
    pub(super) fn next_starts(&mut self) -> Vec<usize> {
        let mut starts = vec![self.order.next_start()];
        let more = match self.by_epoch {
            true => self.order.left().min(self.batch - 1),
            false => self.batch - 1,
        };
        starts.extend((0..more).map(|_| self.order.next_start()));
        starts
    }

    /// Blocks in the first pass.
    pub(super) fn blocks_in_epoch(&self) -> u64 {
        self.order.blocks_in(0) as u64
    }

    /// The starts of the first blocks that are trained on, at most `count`, and no more than a pass has.
    pub(super) fn first_starts(&self, count: u64) -> impl Iterator<Item = u64> {
        let count = count.min(self.blocks_in_epoch());
        self.order
            .starts()
            .iter()
            .take(count as usize)
            .map(|start| u64::from(*start))
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
                    "the data differs from that of the checkpoint: `{key}` was {}, and is now {}",
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

impl Epochs for TrainingBlocks {
    fn batches_in(&self, epoch: u64) -> u64 {
        self.order.blocks_in(epoch).div_ceil(self.batch) as u64
    }

    fn position(&self) -> (u64, u64) {
        let OrderState { epoch, position } = self.order.state();
        match self.order.left() {
            0 => (epoch + 1, 0),
            _ => (epoch, position.div_ceil(self.batch as u64)),
        }
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

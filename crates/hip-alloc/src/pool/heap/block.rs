//! Blocks: memory from the driver, split into spans.

use super::Region;
use super::span::SpanIndex;
use crate::units::MIB;

/// Index of a block in the [`BlockTable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) struct BlockIndex(pub(super) u32);

/// One allocation from the driver.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) region: Region,
    /// It was allocated for one request larger than shared blocks, and serves only such.
    pub(crate) direct: bool,
    /// It is the step block: its spans are placed by lifetime.
    pub(crate) serves_step: bool,
    /// Bytes of spans that are in use.
    pub(crate) used: u64,
    pub(super) first: SpanIndex,
    /// Serial number: older blocks are filled first.
    pub(crate) rank: u32,
}

/// Larger blocks count as large.
const LARGE: u64 = 64 * MIB;

impl Block {
    /// A block for transient requests that pins much memory if one of them stays.
    pub(super) fn is_large_and_transient(&self) -> bool {
        (self.region == Region::Transient) & (self.bytes > LARGE)
    }
}

/// All blocks of a pool, by index.
#[derive(Default)]
pub(super) struct BlockTable {
    blocks: Vec<Option<Block>>,
    retired: Vec<BlockIndex>,
}

impl BlockTable {
    pub(super) fn add(&mut self, block: Block) -> BlockIndex {
        if let Some(index) = self.retired.pop() {
            self.blocks[index.0 as usize] = Some(block);
            return index;
        }
        self.blocks.push(Some(block));
        BlockIndex(self.blocks.len() as u32 - 1)
    }

    pub(super) fn remove(&mut self, index: BlockIndex) {
        self.blocks[index.0 as usize] = None;
        self.retired.push(index);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockIndex, &Block)> {
        self.blocks
            .iter()
            .enumerate()
            .filter_map(|(number, block)| Some((BlockIndex(number as u32), block.as_ref()?)))
    }
}

impl std::ops::Index<BlockIndex> for BlockTable {
    type Output = Block;

    #[inline(always)]
    fn index(&self, index: BlockIndex) -> &Block {
        match &self.blocks[index.0 as usize] {
            Some(block) => block,
            None => unreachable!("a span refers to a block that was removed"),
        }
    }
}

impl std::ops::IndexMut<BlockIndex> for BlockTable {
    #[inline(always)]
    fn index_mut(&mut self, index: BlockIndex) -> &mut Block {
        match &mut self.blocks[index.0 as usize] {
            Some(block) => block,
            None => unreachable!("a span refers to a block that was removed"),
        }
    }
}

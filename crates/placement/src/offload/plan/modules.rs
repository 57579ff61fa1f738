//! What a plan places: components, their modules, and the storages they share.

use std::collections::HashMap;

use serde::Serialize;

use platform::Bytes;

/// A part of the model that is loaded and used as a whole: text encoder, VAE, transformer, adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Component {
    /// Its name, the first part of its modules' names by convention.
    pub name: String,
    /// In the order of execution.
    pub modules: Vec<Module>,
}

/// The smallest unit that is placed: a block, an embedding, a head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Its full name: `transformer.blocks.7`.
    pub name: String,
    /// Its parameters and buffers.
    pub tensors: Vec<TensorSize>,
    /// What may be done with it.
    pub handling: Handling,
}

/// One parameter or buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TensorSize {
    /// The memory it lives in. Tied weights name the same one, and are counted once.
    pub storage: u64,
    /// The size of that memory.
    pub bytes: Bytes,
}

/// What may be done with a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    /// It is trained: it must be on the device while it is used, and its bytes exist nowhere else.
    Trained,
    /// It is frozen, and must be on the device while its component is used.
    Resident,
    /// It is frozen and one of a row of blocks: it may be streamed in for the moment it is used.
    Streamable,
}

/// A stretch of the work, and what it uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// As the plan prints it: `encode text`, `train`.
    pub name: String,
    /// The names of the components in use.
    pub active: Vec<String>,
    /// What else the device must hold meanwhile: activations, gradients, optimizer state.
    pub working: Bytes,
}

impl Module {
    /// A module with one tensor of its own. `storage` must be no other's.
    pub fn new(name: impl Into<String>, storage: u64, bytes: Bytes, handling: Handling) -> Module {
        Module {
            name: name.into(),
            tensors: vec![TensorSize { storage, bytes }],
            handling,
        }
    }

    /// The size of its storages, each counted once.
    pub fn bytes(&self) -> Bytes {
        unique_bytes(&self.tensors)
    }
}

/// Modules that must go together because they share memory. Most are alone in theirs.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Indices into the flat list of modules, ascending.
    pub(crate) members: Vec<usize>,
    pub(crate) bytes: Bytes,
    /// The strictest of the members'.
    pub(crate) handling: Handling,
}

/// Finds the modules that share storages, directly or through others.
pub(crate) fn tie(modules: &[&Module]) -> Vec<Group> {
    let mut parent: Vec<usize> = (0..modules.len()).collect();
    let mut owner: HashMap<u64, usize> = HashMap::new();
    for (index, module) in modules.iter().enumerate() {
        for tensor in &module.tensors {
            let first = *owner.entry(tensor.storage).or_insert(index);
            let (a, b) = (root(&mut parent, first), root(&mut parent, index));
            // The smaller index leads, so that groups come out in the order of execution.
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut group_of: HashMap<usize, usize> = HashMap::new();
    for (index, module) in modules.iter().enumerate() {
        let leader = root(&mut parent, index);
        let at = *group_of.entry(leader).or_insert_with(|| {
            groups.push(Group {
                members: Vec::new(),
                bytes: Bytes::ZERO,
                handling: Handling::Streamable,
            });
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.members.push(index);
        group.handling = strictest(group.handling, module.handling);
    }
    for group in &mut groups {
        let members = group.members.iter();
        let tensors: Vec<TensorSize> = members
            .flat_map(|index| modules[*index].tensors.iter().copied())
            .collect();
        group.bytes = unique_bytes(&tensors);
    }
    groups
}

fn root(parent: &mut [usize], mut index: usize) -> usize {
    while parent[index] != index {
        parent[index] = parent[parent[index]];
        index = parent[index];
    }
    index
}

fn strictest(a: Handling, b: Handling) -> Handling {
    match (a, b) {
        (Handling::Trained, _) | (_, Handling::Trained) => Handling::Trained,
        (Handling::Resident, _) | (_, Handling::Resident) => Handling::Resident,
        _ => Handling::Streamable,
    }
}

/// The sum over the storages. Where views of one storage name different sizes, the largest counts.
fn unique_bytes(tensors: &[TensorSize]) -> Bytes {
    let mut sizes: HashMap<u64, Bytes> = HashMap::new();
    for tensor in tensors {
        let size = sizes.entry(tensor.storage).or_default();
        *size = tensor.bytes.max(*size);
    }
    sizes.into_values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tied_modules_are_one_group_and_counted_once() {
        let embedding = Module::new("embedding", 1, Bytes(100), Handling::Streamable);
        let block = Module::new("block", 2, Bytes(10), Handling::Streamable);
        let mut head = Module::new("head", 1, Bytes(100), Handling::Resident);
        head.tensors.push(TensorSize {
            storage: 3,
            bytes: Bytes(5),
        });
        let groups = tie(&[&embedding, &block, &head]);
        assert_eq!(groups.len(), 2);
        assert_eq!(
            (groups[0].members.as_slice(), groups[0].bytes),
            ([0, 2].as_slice(), Bytes(105))
        );
        assert_eq!(groups[0].handling, Handling::Resident);
        assert_eq!(
            (groups[1].members.as_slice(), groups[1].bytes),
            ([1].as_slice(), Bytes(10))
        );
    }

    #[test]
    fn ties_reach_through_others() {
        let two = |name, a, b| {
            let mut module = Module::new(name, a, Bytes(1), Handling::Streamable);
            module.tensors.push(TensorSize {
                storage: b,
                bytes: Bytes(1),
            });
            module
        };
        let (a, b, c) = (two("a", 1, 2), two("b", 3, 4), two("c", 2, 3));
        let groups = tie(&[&a, &b, &c]);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].bytes, Bytes(4));
    }
}

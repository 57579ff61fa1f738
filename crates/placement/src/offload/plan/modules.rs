//! The input of a plan: components, their modules, and the storages they share.

use std::collections::HashMap;

use serde::Serialize;

use platform::Bytes;

/// A part of the model that is loaded and used as a unit: text encoder, VAE, transformer, adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Component {
    /// Its name, by convention the first part of its modules' names.
    pub name: String,
    /// In execution order.
    pub modules: Vec<Module>,
}

/// The smallest unit that is placed: a block, an embedding, a head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Full name, such as `transformer.blocks.7`.
    pub name: String,
    /// Its parameters and buffers.
    pub tensors: Vec<TensorSize>,
    /// Where it may be placed.
    pub constraint: PlacementConstraint,
}

/// One parameter or buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TensorSize {
    /// Identifies its storage. Tied weights have the same one and are counted once.
    pub storage: u64,
    /// Size of the storage.
    pub bytes: Bytes,
}

/// Where a module may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacementConstraint {
    /// Trainable: it must be on the device while in use, and its contents exist nowhere else.
    Trained,
    /// Frozen, and must be on the device while its component is in use.
    Resident,
    /// Frozen, and one of a sequence of blocks: it may be streamed in just when it is used.
    Streamable,
}

/// A phase of a run, and what it uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// The name in the printed plan: `encode text`, `train`.
    pub name: String,
    /// Names of the components in use.
    pub active: Vec<String>,
    /// Bytes the device must also hold meanwhile: activations, gradients, optimizer state.
    pub working: Bytes,
}

impl Module {
    /// A module with a single tensor. No other may have the same `storage`.
    pub fn new(
        name: impl Into<String>,
        storage: u64,
        bytes: Bytes,
        constraint: PlacementConstraint,
    ) -> Module {
        Module {
            name: name.into(),
            tensors: vec![TensorSize { storage, bytes }],
            constraint,
        }
    }

    /// The size of its storages, each counted once.
    pub fn bytes(&self) -> Bytes {
        unique_bytes(&self.tensors)
    }
}

/// Modules that must stay together because they share memory. Most groups have one module.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Indices into the flat list of modules, ascending.
    pub(crate) members: Vec<usize>,
    pub(crate) bytes: Bytes,
    /// The strictest constraint of its members.
    pub(crate) constraint: PlacementConstraint,
}

/// Finds the modules that share storage, directly or transitively.
pub(crate) fn tie(modules: &[&Module]) -> Vec<Group> {
    let mut parent: Vec<usize> = (0..modules.len()).collect();
    let mut owner: HashMap<u64, usize> = HashMap::new();
    for (index, module) in modules.iter().enumerate() {
        for tensor in &module.tensors {
            let first = *owner.entry(tensor.storage).or_insert(index);
            let (a, b) = (root(&mut parent, first), root(&mut parent, index));
            // The smaller index is the root, so that groups are in execution order.
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
                constraint: PlacementConstraint::Streamable,
            });
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.members.push(index);
        group.constraint = strictest(group.constraint, module.constraint);
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

fn strictest(a: PlacementConstraint, b: PlacementConstraint) -> PlacementConstraint {
    match (a, b) {
        (PlacementConstraint::Trained, _) | (_, PlacementConstraint::Trained) => {
            PlacementConstraint::Trained
        }
        (PlacementConstraint::Resident, _) | (_, PlacementConstraint::Resident) => {
            PlacementConstraint::Resident
        }
        _ => PlacementConstraint::Streamable,
    }
}

/// The total over the storages. If views of a storage have different sizes, the largest counts.
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
        let embedding = Module::new("embedding", 1, Bytes(100), PlacementConstraint::Streamable);
        let block = Module::new("block", 2, Bytes(10), PlacementConstraint::Streamable);
        let mut head = Module::new("head", 1, Bytes(100), PlacementConstraint::Resident);
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
        assert_eq!(groups[0].constraint, PlacementConstraint::Resident);
        assert_eq!(
            (groups[1].members.as_slice(), groups[1].bytes),
            ([1].as_slice(), Bytes(10))
        );
    }

    #[test]
    fn ties_reach_through_others() {
        let two = |name, a, b| {
            let mut module = Module::new(name, a, Bytes(1), PlacementConstraint::Streamable);
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

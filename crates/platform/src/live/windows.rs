//! The registry and the memory of this Windows.

use super::Live;
use crate::Bytes;
use crate::memory::HostMemory;
use crate::windows_source::WindowsSource;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use windows_registry::{Key, LOCAL_MACHINE, Type};

impl WindowsSource for Live {
    fn keys(&self, key: &str) -> Vec<String> {
        let opened = LOCAL_MACHINE.open(key);
        let names = opened.and_then(|key| Ok(key.keys()?.collect()));
        // Keys that must not be read are treated as missing.
        names.unwrap_or_default()
    }

    fn value(&self, key: &str, name: &str) -> Option<String> {
        text(&LOCAL_MACHINE.open(key).ok()?, name)
    }

    fn memory(&self) -> HostMemory {
        let wanted = RefreshKind::nothing().with_memory(MemoryRefreshKind::everything());
        let system = System::new_with_specifics(wanted);
        let known = |bytes: u64| (system.total_memory() > 0).then_some(Bytes(bytes));
        HostMemory {
            total: known(system.total_memory()),
            available: known(system.available_memory()),
            swap_total: known(system.total_swap()),
            swap_free: known(system.free_swap()),
        }
    }
}

/// A value of any type that a driver uses for it: sizes are numbers, or their bytes.
fn text(key: &Key, name: &str) -> Option<String> {
    let value = key.get_value(name).ok()?;
    match value.ty() {
        Type::U32 => key.get_u32(name).ok().map(|number| number.to_string()),
        Type::U64 => key.get_u64(name).ok().map(|number| number.to_string()),
        Type::String | Type::ExpandString => key.get_string(name).ok(),
        Type::MultiString => key.get_multi_string(name).ok().map(|lines| lines.join(" ")),
        _ => {
            let bytes: &[u8] = &value;
            let mut number = [0; 8];
            number.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(u64::from_le_bytes(number).to_string())
        }
    }
}

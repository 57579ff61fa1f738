//! Files of DRM, TTM and `/proc` without a KFD tree, as people collect them by hand
//! for the memory of an APU (`cat /sys/class/drm/card1/device/mem_info_*`).

use platform::Bytes;
use platform::machine::Gpu;
use platform::pci::{DeviceId, PciAddress};
use platform::snapshot::Snapshot;

/// One GPU for each DRM folder with facts about an AMD GPU. `card1` and
/// `renderD128` are the same device; if the second exists, the first is not read.
pub(super) fn gpus(snapshot: &Snapshot) -> Vec<Gpu> {
    let names = snapshot.children("drm/");
    let has_render_nodes = names.iter().any(|name| name.starts_with("renderD"));
    let mut gpus = Vec::new();
    for name in names {
        // `card1-DP-1` is a connector.
        let wanted = if has_render_nodes { "renderD" } else { "card" };
        let is_device = name
            .strip_prefix(wanted)
            .is_some_and(|number| number.parse::<u32>().is_ok());
        if !is_device {
            continue;
        }
        let folder = format!("drm/{name}/device");
        let value = |file: &str| snapshot.value(&format!("{folder}/{file}"));
        let size = |file: &str| value(file).and_then(Bytes::parse_tool_output);
        let uevent = |key: &str| {
            value("uevent")?
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        };
        let mut gpu = Gpu {
            vram_bytes: size("mem_info_vram_total"),
            gtt_bytes: size("mem_info_gtt_total"),
            device_id: value("device").and_then(DeviceId::parse),
            pci: uevent("PCI_SLOT_NAME").and_then(PciAddress::parse),
            ..Gpu::default()
        };
        if gpu == Gpu::default() {
            continue;
        }
        if has_render_nodes {
            gpu.render_node = Some(format!("/dev/dri/{name}"));
        }
        gpus.push(gpu);
    }
    gpus
}

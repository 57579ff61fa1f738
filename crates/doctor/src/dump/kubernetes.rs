//! The labels that AMD's device plugin and node labeller give to a node of Kubernetes.
//!
//! ```text
//! beta.amd.com/gpu.device-id.1638=1
//! amd.com/gpu.device-id=74a1
//! amd.com/gpu.product-name=AMD_Instinct_MI300X_OAM
//! ```

use super::gpu_mention::GpuMention;
use crate::pattern::patterns;
use platform::pci::DeviceId;

patterns! {
    LABEL = r"\bamd\.com/gpu\.device-id(?:\.([0-9a-f]{4})=(\d+)|[=:] ?\x22?([0-9a-f]{4})\b)";
}

/// The GPUs of the labels on a line: as many of a device as the label counts.
pub(super) fn mentions(line: &str) -> Vec<GpuMention> {
    let mut found = Vec::new();
    for label in LABEL.captures_iter(line).take(16) {
        let digits = label.get(1).or(label.get(3)).map_or("", |id| id.as_str());
        let Some(id) = DeviceId::from_hex(digits) else {
            continue;
        };
        let count = label
            .get(2)
            .and_then(|count| count.as_str().parse::<u32>().ok());
        for index in 0..count.unwrap_or(1).clamp(1, 16) {
            let mut one = GpuMention::new("kubernetes", Some(index));
            one.gpu.device_id = Some(id);
            found.push(one);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_count_the_gpus() {
        assert_eq!(mentions("beta.amd.com/gpu.device-id.1638=1").len(), 1);
        assert_eq!(mentions("beta.amd.com/gpu.device-id.74a1=8").len(), 8);
        assert_eq!(mentions("amd.com/gpu.device-id=74a1").len(), 1);
        assert!(mentions("beta.amd.com/gpu.family.RV=1").is_empty());
    }
}

//! Values that name several cards at once, and the processors among the agents of a list.

use crate::names;
use platform::machine::Gpu;
use platform::pci::DeviceId;

/// The GPUs of several lists of one machine: each as often as the list has it that has it most often.
pub(super) fn listed_once(lists: Vec<Vec<Gpu>>) -> Vec<Gpu> {
    let mut all: Vec<Gpu> = Vec::new();
    for list in lists {
        let mut is_taken = vec![false; all.len()];
        for gpu in list {
            let is_same = |known: &Gpu| {
                let names = (&known.product, &gpu.product);
                known.gfx == gpu.gfx
                    && (known.pci == gpu.pci || known.pci.is_none() || gpu.pci.is_none())
                    && (names.0 == names.1 || names.0.is_none() || names.1.is_none())
            };
            let known = (0..is_taken.len()).find(|&at| !is_taken[at] && is_same(&all[at]));
            match known {
                Some(at) => is_taken[at] = true,
                None => all.push(gpu),
            }
        }
    }
    all
}

/// The processors that `rocminfo` lists as agents, before the GPUs.
pub(super) fn is_processor(name: &str) -> bool {
    [
        "Ryzen",
        "EPYC",
        "Xeon",
        "Intel(R)",
        "Threadripper",
        "Processor",
    ]
    .iter()
    .any(|word| name.contains(word))
}

/// `Device 66a1`, as tools name a card that is younger than their list.
pub(super) fn is_unnamed_device(name: &str) -> bool {
    let digits = name.trim().strip_prefix("Device ").unwrap_or_default();
    let id = DeviceId::from_hex(digits);
    id.is_some_and(|id| id.gfx().is_some())
}

/// The cards of `7900 XTX, 7800 XT`, `2x MI210` or `RX 6800 x2`, where a value names several.
pub(super) fn products(value: &str) -> Vec<&str> {
    let is_card = |name: &&str| {
        names::architecture_of(name).is_some()
            && name.matches('(').count() == name.matches(')').count()
            && name.matches('[').count() == name.matches(']').count()
    };
    let parts: Vec<&str> = [", ", " and ", " + ", " & "]
        .iter()
        .map(|mark| value.split(mark).collect::<Vec<_>>())
        .find(|parts| parts.len() > 1)
        .unwrap_or_default();
    if (2..=8).contains(&parts.len()) && parts.iter().all(is_card) {
        return parts;
    }
    const WORDS: [(&str, usize); 4] = [("dual", 2), ("two", 2), ("three", 3), ("four", 4)];
    let by_word = value.split_once(' ').and_then(|(word, name)| {
        let known = WORDS
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(word))?;
        is_card(&name).then(|| vec![name.trim(); known.1])
    });
    if let Some(cards) = by_word {
        return cards;
    }
    let first = value.trim_start_matches('(');
    let (count, name) = match first.split_once(['x', 'X', '×']) {
        Some((count, name)) if count.trim().parse::<u8>().is_ok() => (count, name),
        _ => match value.rsplit_once([' ', '(']) {
            Some((name, count)) if count.starts_with(['x', 'X', '×']) => (count, name),
            _ => return Vec::new(),
        },
    };
    let digits = count.trim_matches(|c: char| !c.is_ascii_digit());
    match digits.parse::<usize>() {
        Ok(count) if (2..=8).contains(&count) && is_card(&name) => vec![name.trim(); count],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_can_name_several_cards() {
        for (value, cards) in [
            ("7900xtx, 7800xt", 2),
            ("2x AMD Radeon RX 7900 XTX", 2),
            ("8 x Instinct MI300X", 8),
            ("RX 6800 XT (x2)", 2),
            ("RX 6800 XT x2", 2),
            ("dual Vega 64 8GB VRAM each", 2),
            ("two monitors", 0),
            ("AMD Radeon RX 7900 XTX, gfx1100", 0),
            ("AMD Radeon RX 6700 XT and a monitor", 0),
            ("Radeon 8060S (gfx1151, Strix Halo)", 0),
            ("Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]", 0),
            ("x", 0),
        ] {
            assert_eq!(products(value).len(), cards, "{value}");
        }
    }
}

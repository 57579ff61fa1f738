//! A GPU that passes for another one: its product and its architecture contradict each other.

use super::context::product_of;
use super::{Confidence, Match};
use platform::Gfx;

/// A product next to an architecture that is not its own, as with an override.
///
/// `rocminfo` prints the architecture and then the product, `clinfo` the product first.
#[derive(Default)]
pub(super) struct Pairing {
    product_comes_first: Option<bool>,
    last: Option<(Gfx, String, usize)>,
    pub(super) contradiction: Option<Match>,
}

impl Pairing {
    /// Lines between the two.
    const NEAR: usize = 4;

    pub(super) fn read(&mut self, line: &str, number: usize) {
        let Some((key, value)) = line.split_once(':') else {
            return;
        };
        let (is_product, gfx) = match key.trim().trim_start_matches("Device ").trim() {
            "Marketing Name" => (true, product_of(value)),
            key if key.eq_ignore_ascii_case("Board name") => (true, product_of(value)),
            "Name" => (false, value.trim().parse().ok()),
            _ => return,
        };
        let Some(gfx) = gfx else { return };
        let product_comes_first = *self.product_comes_first.get_or_insert(is_product);
        if is_product == product_comes_first {
            self.last = Some((gfx, value.trim().to_owned(), number));
            return;
        }
        let Some((first, name, line_number)) = self.last.take() else {
            return;
        };
        let (product, named, shown) = if is_product {
            (value.trim().to_owned(), first, gfx)
        } else {
            (name, gfx, first)
        };
        let is_other = (named.major, named.minor) != (shown.major, shown.minor);
        if self.contradiction.is_none() && is_other && number - line_number <= Self::NEAR {
            self.contradiction = Some(renamed(&product, shown, named, line, number));
        }
    }
}

/// The GPU passes for one that it is not.
fn renamed(product: &str, is: Gfx, named: Gfx, line: &str, line_number: usize) -> Match {
    Match {
        line: super::clip(line.trim(), 500).to_owned(),
        line_number,
        confidence: Confidence::High,
        cause: format!(
            "{product} is a {is} and is listed as {named}: HSA_OVERRIDE_GFX_VERSION is set (in a shell profile, a container or a service) and makes it pass for another chip, whose code it cannot run."
        ),
        fix: vec![
            "unset HSA_OVERRIDE_GFX_VERSION, and remove it from ~/.bashrc, ~/.profile, /etc/environment and the container".to_owned(),
            "HSA_OVERRIDE_GFX_VERSION_<N> sets it for one GPU alone, where one needs it".to_owned(),
        ],
        source: "https://github.com/ROCm/ROCm/issues/5238".to_owned(),
        ..Match::new("override-renames-gpu")
    }
}

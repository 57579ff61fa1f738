//! A GPU that passes for another one: its product and its architecture contradict each other.

use super::context::product_of;
use platform::Gfx;

/// A product next to an architecture that is not its own, as with an override.
///
/// `rocminfo` prints the architecture and then the product, `clinfo` the product first.
#[derive(Default)]
pub(super) struct Pairing {
    product_comes_first: Option<bool>,
    last: Option<(Gfx, String, usize)>,
    pub(super) contradiction: Option<Contradiction>,
}

/// The product, what it is, and what it is listed as; and where.
pub(super) struct Contradiction {
    pub(super) values: Vec<(&'static str, String)>,
    pub(super) line: String,
    pub(super) line_number: usize,
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
            self.contradiction = Some(Contradiction {
                values: vec![
                    ("product", product),
                    ("is", shown.to_string()),
                    ("listed", named.to_string()),
                ],
                line: line.to_owned(),
                line_number: number,
            });
        }
    }
}

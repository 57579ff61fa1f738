//! Prints every known GPU architecture, with its products and form factor.
//!
//! ```sh
//! cargo run -p surefoot-platform --example 01-architectures
//! ```

use surefoot_platform::gfx;

fn main() {
    for architecture in gfx::known() {
        println!("{architecture:?}");
    }
}

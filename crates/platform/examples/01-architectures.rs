//! Every GPU architecture that is known: the products, and whether it is an APU.
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

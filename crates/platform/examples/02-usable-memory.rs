//! How much memory can a program use on an APU? Not what the firmware says.
//!
//! ```sh
//! cargo run -p surefoot-platform --example 02-usable-memory
//! ```

use surefoot_platform::Bytes;
use surefoot_platform::memory::{DeviceKind, HostMemory, Inputs, capacity};

fn main() {
    // 128 GB of RAM, a carve-out of half a gigabyte, and the kernel's default: half for the GPU.
    let mut machine = Inputs::new(DeviceKind::Apu);
    machine.vram_total = Some(Bytes::mib(512));
    machine.gtt_total = Some(Bytes::gib(62));
    machine.kfd_pool = Some(Bytes::gib(62));
    machine.host = HostMemory::parse("MemTotal: 131072000 kB\nMemAvailable: 94371840 kB\n");
    let by_default = capacity(&machine);
    println!(
        "by default: {}, bounded by {:?}",
        by_default.total, by_default.limited_by
    );

    // The same with `ttm.pages_limit` raised.
    machine.gtt_total = Some(Bytes::gib(110));
    machine.kfd_pool = Some(Bytes::gib(110));
    let raised = capacity(&machine);
    println!(
        "raised:     {}, bounded by {:?}",
        raised.total, raised.limited_by
    );
}

//! No answer contradicts its text: every device id and product name, in the forms in which
//! tools print them, alone, beside other GPUs and under an override.

use platform::Gfx;
use platform::gfx::FormFactor;
use platform::machine::{Class, ReadFrom};
use platform::pci::DeviceId;
use surefoot_doctor::{Report, diagnose_text};

/// Products as drivers and forms name them, each with its architecture.
const PRODUCTS: &[(&str, &str)] = &[
    ("AMD Radeon VII", "gfx906"),
    ("AMD Instinct MI50", "gfx906"),
    ("AMD Instinct MI100", "gfx908"),
    ("AMD Instinct MI210", "gfx90a"),
    ("AMD Instinct MI250X/MI250", "gfx90a"),
    ("AMD Instinct MI300X", "gfx942"),
    ("AMD Instinct MI325X", "gfx942"),
    ("AMD Instinct MI350X", "gfx950"),
    ("AMD Radeon RX Vega 64", "gfx900"),
    ("AMD Radeon RX 5700 XT", "gfx1010"),
    ("AMD Radeon RX 5600 XT", "gfx1010"),
    ("AMD Radeon RX 5500 XT", "gfx1012"),
    ("AMD Radeon RX 6950 XT", "gfx1030"),
    ("AMD Radeon RX 6900 XT", "gfx1030"),
    ("AMD Radeon RX 6800", "gfx1030"),
    ("AMD Radeon Pro W6800", "gfx1030"),
    ("AMD Radeon RX 6750 XT", "gfx1031"),
    ("AMD Radeon RX 6700 XT", "gfx1031"),
    ("AMD Radeon RX 6700M", "gfx1031"),
    ("AMD Radeon RX 6800M", "gfx1031"),
    ("AMD Radeon RX 6650 XT", "gfx1032"),
    ("AMD Radeon RX 6600", "gfx1032"),
    ("AMD Radeon RX 6600M", "gfx1032"),
    ("AMD Radeon RX 6500 XT", "gfx1034"),
    ("AMD Radeon 680M", "gfx1035"),
    ("AMD Radeon RX 7900 XTX", "gfx1100"),
    ("AMD Radeon RX 7900 XT", "gfx1100"),
    ("AMD Radeon RX 7900 GRE", "gfx1100"),
    ("AMD Radeon PRO W7900", "gfx1100"),
    ("AMD Radeon RX 7800 XT", "gfx1101"),
    ("AMD Radeon RX 7700 XT", "gfx1101"),
    ("AMD Radeon RX 7600 XT", "gfx1102"),
    ("AMD Radeon RX 7600S", "gfx1102"),
    ("AMD Radeon RX 7700S", "gfx1102"),
    ("AMD Radeon 780M Graphics", "gfx1103"),
    ("AMD Radeon 890M Graphics", "gfx1150"),
    ("AMD Radeon 8060S Graphics", "gfx1151"),
    ("AMD Radeon 860M Graphics", "gfx1152"),
    ("AMD Radeon RX 9060 XT", "gfx1200"),
    ("AMD Radeon RX 9070 XT", "gfx1201"),
    ("AMD Radeon AI PRO R9700", "gfx1201"),
];

/// Forms that name a product only.
const BY_NAME: &[&str] = &[
    "Device: cuda:0 {name} : native\n",
    "Total VRAM 16368 MB, total RAM 64000 MB\n[INFO] Device: cuda:0 {name} : native\n",
    "- GPU: {name}\n- OS: Ubuntu 24.04\n",
    "### GPU\n\n{name}\n\n### ROCm Version\n\nROCm 7.1\n",
    "GPU0:\n\tvendorID           = 0x1002\n\tdeviceName         = {name}\n",
    "ggml_vulkan: 0 = {name} (RADV) | uma: 0 | fp16: 1\n",
    "GPU 1: {name} @ 2.57 GHz [Discrete]\n",
    "Card name: {name}\nManufacturer: Advanced Micro Devices, Inc.\n",
    "  Device-1: {name} driver: amdgpu v: kernel\n",
    "GPU[0]\t\t: Card Series: \t\t{name}\n",
];

/// Forms that name a product and what the runtime calls it.
const BY_BOTH: &[&str] = &[
    "  Device 0: {name}, {gfx} (0x1100), VMM: no, Wave Size: 32\n",
    "Collecting environment information...\nPyTorch version: 2.9.1+rocm6.4\nIs debug build: False\nGPU models and configuration: {name} ({gfx})\n",
    "level=INFO msg=\"inference compute\" id=0 library=rocm compute={gfx} driver=6.3 name=\"{name}\" total=\"15.9 GiB\"\n",
    "AMD arch: {gfx}\nDevice: cuda:0 {name} : native\n",
    "_CudaDeviceProperties(name='{name}', major=11, minor=0, gcnArchName='{gfx}', total_memory=16368MB)\n",
    "device#                           0\nName:                             {name}\ngcnArchName:                      {gfx}\n",
    "*******\nAgent 2\n*******\n  Name:                    {gfx}\n  Marketing Name:          {name}\n  Device Type:             GPU\n",
];

/// Forms that give a device id, in hexadecimal.
const BY_ID: &[&str] = &[
    "03:00.0 VGA compatible controller [0300]: Advanced Micro Devices, Inc. [AMD/ATI] Device [1002:{id}] (rev c1)\n",
    "03:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Device {id} (rev c1)\n",
    "[drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x{id} 0x1043:0x05BF 0xC5).\n",
    "[drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x{id} 0x1002:0x0B36 0xC5).\n",
    "kfd kfd: amdgpu: added device 1002:{id}\n",
    "GPU: 0\n    ASIC:\n        MARKET_NAME: AMD Radeon Graphics\n        VENDOR_ID: 0x1002\n        DEVICE_ID: 0x{id}\n",
    "GPU[0]\t\t: Device ID: \t\t0x{id}\n",
    "GPU0:\n\tvendorID           = 0x1002\n\tdeviceID           = 0x{id}\n\tdeviceName         = AMD Radeon Graphics\n",
    "           Card name: AMD Radeon(TM) Graphics\n          Device Key: Enum\\PCI\\VEN_1002&DEV_{id}&SUBSYS_16811458&REV_C1\n",
];

fn filled(form: &str, name: &str, gfx: &str) -> String {
    form.replace("{name}", name).replace("{gfx}", gfx)
}

fn gfx(name: &str) -> Gfx {
    name.parse().expect("an architecture")
}

fn report(text: &str) -> Report {
    diagnose_text(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn architectures(report: &Report) -> Vec<Gfx> {
    report
        .gpus
        .iter()
        .filter_map(|entry| entry.gpu.gfx)
        .collect()
}

/// Of GPUs that HIP sees and of those that it does not.
fn all_ids(report: &Report) -> Vec<Gfx> {
    let unseen = report.machine.unseen.iter();
    let unseen = unseen.filter_map(|gpu| gpu.device_id?.gfx());
    architectures(report).into_iter().chain(unseen).collect()
}

/// An APU is none with memory of its own, and a card shares none.
fn assert_class(report: &Report, text: &str) {
    for entry in &report.gpus {
        let Some(known) = entry.gpu.gfx.and_then(Gfx::architecture) else {
            continue;
        };
        let fits = match known.sold_as {
            FormFactor::Apu => entry.gpu.class == Some(Class::Apu),
            FormFactor::Discrete => entry.gpu.class == Some(Class::Dgpu),
            FormFactor::Either => true,
        };
        assert!(fits, "{:?} of {text}", entry.gpu);
    }
}

#[test]
fn every_device_id_is_its_chip_in_every_form() {
    for id in 0..=u16::MAX {
        let Some(chip) = DeviceId(id).gfx() else {
            continue;
        };
        // Those from before Vega are many, and all treated alike.
        if chip.is_too_old() && id % 16 != 0 {
            continue;
        }
        for form in BY_ID {
            let text = form.replace("{id}", &format!("{id:04x}"));
            let report = report(&text);
            assert_eq!(all_ids(&report), [chip], "{text}");
            assert_class(&report, &text);
            assert!(!report.verdict().contains("ready to train"), "{text}");
        }
    }
}

#[test]
fn every_product_is_its_chip_in_every_form() {
    for (name, chip) in PRODUCTS {
        for form in BY_NAME.iter().chain(BY_BOTH) {
            let text = filled(form, name, chip);
            let report = report(&text);
            assert_eq!(architectures(&report), [gfx(chip)], "{text}");
            assert_class(&report, &text);
            assert!(
                !report
                    .machine
                    .variables
                    .contains_key("HSA_OVERRIDE_GFX_VERSION"),
                "{text}"
            );
        }
    }
}

/// What the runtime reports is either the chip, or an override; never a third thing.
#[test]
fn a_chip_that_is_called_another_one_is_under_an_override() {
    let targets = [
        "gfx900", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1201",
    ];
    for (name, chip) in PRODUCTS {
        for target in targets.iter().filter(|target| *target != chip) {
            // rocminfo and hipInfo are believed: they print what HIP has.
            for form in &BY_BOTH[..5] {
                let text = filled(form, name, target);
                let report = report(&text);
                assert_eq!(architectures(&report), [gfx(chip)], "{text}");
                let value = report.machine.variable("HSA_OVERRIDE_GFX_VERSION");
                assert_eq!(value, Some(gfx(target).as_override().as_str()), "{text}");
            }
        }
    }
}

/// Of a card and integrated graphics, in either order, the card is trained on, and neither has
/// the memory of the other.
#[test]
fn integrated_graphics_are_not_taken_for_the_card() {
    let integrated = [
        ("AMD Radeon 780M Graphics", "gfx1103"),
        ("AMD Radeon 890M Graphics", "gfx1150"),
        ("AMD Radeon Graphics", "gfx1036"),
    ];
    let cards = PRODUCTS.iter().filter(|(_, chip)| {
        gfx(chip)
            .architecture()
            .is_some_and(|known| known.sold_as == FormFactor::Discrete)
    });
    for card in cards {
        for apu in integrated {
            for (first, second) in [(*card, apu), (apu, *card)] {
                let size = |one: (&str, &str)| {
                    if one == *card {
                        ("15.9 GiB", 16304)
                    } else {
                        ("31.1 GiB", 31846)
                    }
                };
                let texts = [
                    format!(
                        "ggml_cuda_init: found 2 ROCm devices:\n  Device 0: {}, {}, VMM: no, Wave Size: 32, VRAM: {} MiB\n  Device 1: {}, {}, VMM: no, Wave Size: 32, VRAM: {} MiB\n",
                        first.0,
                        first.1,
                        size(first).1,
                        second.0,
                        second.1,
                        size(second).1
                    ),
                    format!(
                        "level=INFO msg=\"inference compute\" id=0 library=rocm compute={} name=\"{}\" total=\"{}\"\nlevel=INFO msg=\"inference compute\" id=1 library=rocm compute={} name=\"{}\" total=\"{}\"\n",
                        first.1,
                        first.0,
                        size(first).0,
                        second.1,
                        second.0,
                        size(second).0
                    ),
                    format!(
                        "HSA Agents\n*******\nAgent 1\n*******\n  Name: CPU\n  Device Type: CPU\n*******\nAgent 2\n*******\n  Name: {}\n  Marketing Name: {}\n  Device Type: GPU\n*******\nAgent 3\n*******\n  Name: {}\n  Marketing Name: {}\n  Device Type: GPU\n*** Done ***\n",
                        first.1, first.0, second.1, second.0
                    ),
                ];
                for text in texts {
                    let report = report(&text);
                    assert_eq!(
                        architectures(&report),
                        [gfx(first.1), gfx(second.1)],
                        "{text}"
                    );
                    assert_class(&report, &text);
                    let picked = report.pick.and_then(|index| report.gpus[index].gpu.gfx);
                    assert_eq!(picked, Some(gfx(card.1)), "{text}");
                    for entry in &report.gpus {
                        let is_card = entry.gpu.gfx == Some(gfx(card.1));
                        let Some(bytes) = entry.gpu.usable_bytes else {
                            continue;
                        };
                        assert_eq!(
                            is_card,
                            bytes < platform::Bytes::gib(17),
                            "{bytes} of {text}"
                        );
                    }
                }
            }
        }
    }
}

/// What is of another vendor, or of no GPU at all, is no GPU of AMD.
#[test]
fn what_is_no_gpu_of_amd_stays_none() {
    for text in [
        "Card name: Intel(R) HD Graphics P630\nDedicated Memory: 128 MB\n",
        "Card name: Intel(R) Iris(R) Xe Graphics\nDedicated Memory: 128 MB\nDisplay Memory: 8192 MB\n",
        "Card name: NVIDIA GeForce GTX 680M\nDedicated Memory: 2048 MB\n",
        "00:00.0 Host bridge: Advanced Micro Devices, Inc. [AMD] Phoenix Root Complex\n00:00.2 IOMMU: Advanced Micro Devices, Inc. [AMD] Phoenix IOMMU\n",
        "    device     = 'Raven/Raven2 Root Complex'\n    class      = bridge\n    device     = 'Raven/Raven2 IOMMU'\n    class      = bridge\n",
        "Device: AMD Ryzen 9 5950X 16-Core Processor\n",
        "Number of platforms: 1\n  Platform Profile: FULL_PROFILE\n  Platform Name: NVIDIA CUDA\n  Platform Extensions: cl_khr_icd\n",
        "\"targets\": [\"gfx1030\", \"gfx1100\", \"gfx1201\"]\n",
        "Mem:  780M free\nSwap: 890M\n",
    ] {
        let Ok(report) = diagnose_text(text) else {
            continue;
        };
        assert!(report.gpus.is_empty(), "{text}: {:?}", report.gpus);
        assert_ne!(report.machine.read_from, ReadFrom::Kfd);
        assert!(!report.verdict().contains("ready to train"), "{text}");
    }
}

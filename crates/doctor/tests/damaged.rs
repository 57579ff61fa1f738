//! The outputs of tools for machines that are known by construction, damaged in the ways of
//! real posts: whatever the tool and the damage, the GPUs, their class and the one to train
//! on are the same.

use platform::Gfx;
use platform::machine::Class;
use std::fmt::Write as _;
use surefoot_doctor::dump::decode;
use surefoot_doctor::{Report, diagnose_text};

/// A GPU as tools describe it.
#[derive(Clone, Copy)]
struct Card {
    name: &'static str,
    gfx: &'static str,
    id: u16,
    is_apu: bool,
}

const fn card(name: &'static str, gfx: &'static str, id: u16) -> Card {
    Card {
        name,
        gfx,
        id,
        is_apu: false,
    }
}

const fn apu(name: &'static str, gfx: &'static str, id: u16) -> Card {
    Card {
        name,
        gfx,
        id,
        is_apu: true,
    }
}

const XTX: Card = card("AMD Radeon RX 7900 XTX", "gfx1100", 0x744c);
const W7900: Card = card("AMD Radeon PRO W7900", "gfx1100", 0x7448);
const RX_9070: Card = card("AMD Radeon RX 9070 XT", "gfx1201", 0x7550);
const RX_7700S: Card = card("AMD Radeon RX 7700S", "gfx1102", 0x7480);
const RX_6700: Card = card("AMD Radeon RX 6700 XT", "gfx1031", 0x73df);
const MI300X: Card = card("AMD Instinct MI300X", "gfx942", 0x74a1);
const RAPHAEL: Card = apu("AMD Radeon Graphics", "gfx1036", 0x164e);
const CEZANNE: Card = apu("AMD Radeon Graphics", "gfx90c", 0x1638);
const PHOENIX: Card = apu("AMD Radeon 780M Graphics", "gfx1103", 0x15bf);
const HALO: Card = apu("AMD Radeon 8060S Graphics", "gfx1151", 0x1586);

/// Machines, and the architecture to train on.
const MACHINES: &[(&[Card], &str)] = &[
    (&[XTX], "gfx1100"),
    (&[HALO], "gfx1151"),
    (&[RX_9070, RAPHAEL], "gfx1201"),
    (&[PHOENIX, RX_7700S], "gfx1102"),
    (&[RX_6700, CEZANNE], "gfx1031"),
    (&[W7900, W7900], "gfx1100"),
    (&[MI300X, MI300X, MI300X, MI300X], "gfx942"),
];

/// The text of `one` for each GPU, with its number.
fn each(cards: &[Card], one: impl Fn(usize, &Card) -> String) -> String {
    let texts = cards.iter().enumerate();
    texts.map(|(number, card)| one(number, card)).collect()
}

fn bus(number: usize) -> String {
    format!("{:02x}:00.0", 3 + number)
}

fn rocminfo(cards: &[Card]) -> String {
    let head = "ROCk module is loaded\n=====================    \nHSA System Attributes    \n=====================    \nRuntime Version:         1.15\n==========               \nHSA Agents               \n==========               \n*******                  \nAgent 1                  \n*******                  \n  Name:                    AMD EPYC 7402P 24-Core Processor\n  Uuid:                    CPU-XX                             \n  Marketing Name:          AMD EPYC 7402P 24-Core Processor\n  Vendor Name:             CPU                                \n  Node:                    0                                  \n  Device Type:             CPU                                \n  Chip ID:                 0(0x0)                             \n  BDFID:                   0                                  \n";
    let agents = each(cards, |number, card| {
        let (agent, node) = (number + 2, number + 1);
        let (name, gfx, id) = (card.name, card.gfx, card.id);
        let properties = if card.is_apu { "APU" } else { "" };
        format!(
            "*******                  \nAgent {agent}                  \n*******                  \n  Name:                    {gfx}                            \n  Uuid:                    GPU-XX                             \n  Marketing Name:          {name}             \n  Vendor Name:             AMD                                \n  Node:                    {node}                                  \n  Device Type:             GPU                                \n  Chip ID:                 {id}(0x{id:x})                      \n  BDFID:                   {}                                \n  Internal Node ID:        {node}                                  \n  Compute Unit:            40                                 \n  Memory Properties:       {properties}\n  Wavefront Size:          32(0x20)                           \n  ISA Info:                \n    ISA 1                    \n      Name:                    amdgcn-amd-amdhsa--{gfx}         \n",
            (3 + number) * 256
        )
    });
    format!("{head}{agents}*** Done ***             \n")
}

fn rocminfo_names(cards: &[Card]) -> String {
    let lines = rocminfo(cards);
    let names = lines.lines().filter(|line| line.contains("Name:"));
    let names: Vec<&str> = names.collect();
    format!("$ rocminfo | grep -E 'Name:'\n{}\n", names.join("\n"))
}

fn enumerator(cards: &[Card]) -> String {
    let names = each(cards, |_, card| format!("{}\n", card.gfx));
    format!("$ rocm_agent_enumerator\ngfx000\n{names}")
}

fn hipinfo(cards: &[Card]) -> String {
    each(cards, |number, card| {
        let (name, gfx, bus) = (card.name, card.gfx, 3 + number);
        let integrated = u8::from(card.is_apu);
        format!(
            "--------------------------------------------------------------------------------\ndevice#                           {number}\nName:                             {name}\npciBusID:                         {bus}\npciDeviceID:                      0\nmultiProcessorCount:              20\nisMultiGpuBoard:                  0\ntotalConstMem:                    2147483647\nisIntegrated:                     {integrated}\ngcnArchName:                      {gfx}\npeers:                            \n\n"
        )
    })
}

fn uuid(number: usize, card: &Card) -> String {
    format!(
        "{:02x}ff{:04x}-0000-1000-80b6-aabd5b5f3b00",
        number + 16,
        card.id
    )
}

fn smi_list(cards: &[Card]) -> String {
    each(cards, |number, card| {
        let (bus, uuid) = (bus(number), uuid(number, card));
        format!(
            "GPU: {number}\n    BDF: 0000:{bus}\n    UUID: {uuid}\n    KFD_ID: 4000\n    NODE_ID: {}\n    PARTITION_ID: 0\n\n",
            number + 1
        )
    })
}

fn smi_list_json(cards: &[Card]) -> String {
    let entries = each(cards, |number, card| {
        let (bus, uuid) = (bus(number), uuid(number, card));
        let comma = if number == 0 { "" } else { ",\n" };
        format!(
            "{comma}    {{\n        \"gpu\": {number},\n        \"bdf\": \"0000:{bus}\",\n        \"uuid\": \"{uuid}\",\n        \"node_id\": {}\n    }}",
            number + 1
        )
    });
    format!("[\n{entries}\n]\n")
}

fn smi_static(cards: &[Card]) -> String {
    each(cards, |number, card| {
        let (name, gfx, id, bus) = (card.name, card.gfx, card.id, bus(number));
        format!(
            "GPU: {number}\n    ASIC:\n        MARKET_NAME: {name}\n        VENDOR_ID: 0x1002\n        DEVICE_ID: 0x{id:04x}\n        REV_ID: 0xc8\n        NUM_COMPUTE_UNITS: 40\n        TARGET_GRAPHICS_VERSION: {gfx}\n    BUS:\n        BDF: 0000:{bus}\n        MAX_PCIE_WIDTH: 16\n    DRIVER:\n        NAME: amdgpu\n        VERSION: 6.12.12\n    BOARD:\n        PRODUCT_NAME: N/A\n\n"
        )
    })
}

fn smi_static_csv(cards: &[Card]) -> String {
    let rows = each(cards, |number, card| {
        format!(
            "{number},{},0x1002,0x{:04x},40,{}\n",
            card.name, card.id, card.gfx
        )
    });
    format!("gpu,market_name,vendor_id,device_id,num_compute_units,target_graphics_version\n{rows}")
}

fn old_smi_table(cards: &[Card]) -> String {
    let rows = each(cards, |number, card| {
        format!(
            "{number}       {}     0x{:04x},   210{number}2  41.0°C  25.0W  N/A, N/A, 0         37Mhz  96Mhz  0%   auto  327.0W  5%     2%    \n",
            number + 1,
            card.id
        )
    });
    format!(
        "============================ ROCm System Management Interface ============================\n====================================== Concise Info ======================================\nDevice  Node  IDs              Temp    Power  Partitions          SCLK   MCLK   Fan  Perf  PwrCap  VRAM%  GPU%  \n              (DID,     GUID)  (Edge)  (Avg)  (Mem, Compute, ID)                                                \n==========================================================================================\n{rows}==========================================================================================\n================================== End of ROCm SMI Log ===================================\n"
    )
}

fn old_smi_products(cards: &[Card]) -> String {
    let lines = each(cards, |number, card| {
        format!(
            "GPU[{number}]\t\t: Card Series: \t\t{}\nGPU[{number}]\t\t: Card Model: \t\t0x{:04x}\nGPU[{number}]\t\t: Card Vendor: \t\tAdvanced Micro Devices, Inc. [AMD/ATI]\nGPU[{number}]\t\t: Node ID: \t\t{}\nGPU[{number}]\t\t: GFX Version: \t\t{}\n",
            card.name,
            card.id,
            number + 1,
            card.gfx
        )
    });
    format!(
        "============================ ROCm System Management Interface ============================\n====================================== Product Info ======================================\n{lines}================================== End of ROCm SMI Log ===================================\n"
    )
}

fn lspci(cards: &[Card]) -> String {
    each(cards, |number, card| {
        let bus = bus(number);
        format!(
            "{bus} VGA compatible controller [0300]: Advanced Micro Devices, Inc. [AMD/ATI] Device [1002:{:04x}] (rev c8)\n\tSubsystem: Sapphire Technology Limited Device [1da2:471e]\n\tKernel driver in use: amdgpu\n\tKernel modules: amdgpu\n",
            card.id
        )
    })
}

fn kernel_log(cards: &[Card]) -> String {
    each(cards, |number, card| {
        let (id, bus) = (card.id, bus(number));
        format!(
            "[    3.2{number}0000] amdgpu 0000:{bus}: enabling device (0006 -> 0007)\n[    3.2{number}0100] [drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x{id:04X} 0x1DA2:0x471E 0xC8).\n[    3.2{number}0400] amdgpu 0000:{bus}: amdgpu: Fetched VBIOS from VFCT\n[    3.9{number}0200] kfd kfd: amdgpu: added device 1002:{id:04x}\n"
        )
    })
}

fn vulkaninfo(cards: &[Card]) -> String {
    let gpus = each(cards, |number, card| {
        let kind = if card.is_apu {
            "INTEGRATED"
        } else {
            "DISCRETE"
        };
        format!(
            "GPU{number}:\n\tapiVersion         = 1.4.305\n\tvendorID           = 0x1002\n\tdeviceID           = 0x{:04x}\n\tdeviceType         = PHYSICAL_DEVICE_TYPE_{kind}_GPU\n\tdeviceName         = {} (RADV X)\n\tdriverName         = radv\n",
            card.id, card.name
        )
    });
    format!(
        "==========\nVULKANINFO\n==========\n\nVulkan Instance Version: 1.3.275\n\nDevices:\n========\n{gpus}"
    )
}

fn ollama(cards: &[Card]) -> String {
    each(cards, |number, card| {
        let (name, gfx, bus) = (card.name, card.gfx, bus(number));
        let kind = if card.is_apu { "iGPU" } else { "discrete" };
        format!(
            "time=2025-11-03T20:15:03.050+01:00 level=INFO source=types.go:42 msg=\"inference compute\" id={number} library=ROCm compute={gfx} name=ROCm{number} description=\"{name}\" pci_id=0000:{bus} type={kind}\n"
        )
    })
}

fn llama_cpp(cards: &[Card]) -> String {
    let lines = each(cards, |number, card| {
        format!(
            "  Device {number}: {}, {} (0x1100), VMM: no, Wave Size: 32\n",
            card.name, card.gfx
        )
    });
    format!(
        "ggml_cuda_init: found {} ROCm devices:\n{lines}",
        cards.len()
    )
}

fn clinfo(cards: &[Card]) -> String {
    let devices = each(cards, |number, card| {
        format!(
            "  Device Name                                     {}\n  Device Vendor                                   Advanced Micro Devices, Inc.\n  Device Type                                     GPU\n  Device Board Name (AMD)                         {}\n  Device PCI-e ID (AMD)                           0x{:04x}\n  Device Topology (AMD)                           PCI-E, 0000:{}\n  Max compute units                               20\n\n",
            card.gfx,
            card.name,
            card.id,
            bus(number)
        )
    });
    format!(
        "Number of platforms                               1\n  Platform Name                                   AMD Accelerated Parallel Processing\nNumber of devices                                 {}\n{devices}",
        cards.len()
    )
}

type Tool = fn(&[Card]) -> String;

const TOOLS: &[(&str, Tool)] = &[
    ("rocminfo", rocminfo),
    ("rocminfo, names only", rocminfo_names),
    ("rocm_agent_enumerator", enumerator),
    ("hipInfo", hipinfo),
    ("amd-smi list", smi_list),
    ("amd-smi list --json", smi_list_json),
    ("amd-smi static", smi_static),
    ("amd-smi static --csv", smi_static_csv),
    ("rocm-smi", old_smi_table),
    ("rocm-smi --showproductname", old_smi_products),
    ("lspci", lspci),
    ("dmesg", kernel_log),
    ("vulkaninfo", vulkaninfo),
    ("ollama", ollama),
    ("llama.cpp", llama_cpp),
    ("clinfo", clinfo),
];

/// Every line that is not empty between two texts.
fn lines(text: &str, before: &str, after: &str) -> String {
    text.lines().fold(String::new(), |mut all, line| {
        // Writing to a string does not fail.
        let _ = match line.trim().is_empty() {
            true => writeln!(all),
            false => writeln!(all, "{before}{line}{after}"),
        };
        all
    })
}

fn escaped(text: &str) -> String {
    let mut all = String::new();
    for character in text.chars() {
        if "[]_*#".contains(character) {
            all.push('\\');
        }
        all.push(character);
    }
    all
}

fn as_html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn as_utf16(text: &str) -> String {
    let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    decode(&bytes)
}

type Damage = fn(&str) -> String;

const DAMAGES: &[(&str, Damage)] = &[
    ("none", str::to_owned),
    ("quoted", |text| lines(text, "> ", "")),
    ("indented", |text| lines(text, "    ", "")),
    ("prefixed by a container", |text| {
        lines(text, "comfyui-1  | ", "")
    }),
    ("prefixed by a container without number", |text| {
        lines(text, "llm  | ", "")
    }),
    ("prefixed by a clock", |text| {
        lines(text, "2025-05-30T19:10:08.644588 - ", "")
    }),
    ("prefixed by the journal", |text| {
        lines(text, "Nov  3 20:15:01 host tool[1234]: ", "")
    }),
    ("a list", |text| lines(text, "- ", "")),
    ("bold", |text| lines(text, "**", "**")),
    ("coloured", |text| lines(text, "\u{1b}[1;32m", "\u{1b}[0m")),
    ("from Windows", |text| text.replace('\n', "\r\n")),
    ("with empty lines", |text| text.replace('\n', "\n\n")),
    ("with spaces that do not break", |text| {
        text.replace("  ", "\u{a0} ")
    }),
    ("escaped for Markdown", escaped),
    ("escaped for HTML", as_html),
    ("UTF-16 without a mark", as_utf16),
    ("folded", |text| {
        format!("<details><summary>output</summary>\n\n```\n{text}```\n\n</details>\n")
    }),
    ("twice", |text| format!("{text}\n{text}")),
];

fn architectures(report: &Report) -> Vec<Gfx> {
    let mut all: Vec<Gfx> = report
        .gpus
        .iter()
        .filter_map(|entry| entry.gpu.gfx)
        .collect();
    all.sort();
    all
}

/// What is wrong about the answer to a text.
fn complaint(text: &str, cards: &[Card], pick: &str) -> Option<String> {
    let Ok(report) = diagnose_text(text) else {
        return Some("not recognised".to_owned());
    };
    let mut expected: Vec<Gfx> = cards
        .iter()
        .filter_map(|card| card.gfx.parse().ok())
        .collect();
    expected.sort();
    let found = architectures(&report);
    if found != expected || report.gpus.len() != cards.len() {
        return Some(format!("{found:?} of {} GPUs", report.gpus.len()));
    }
    for entry in &report.gpus {
        let card = cards
            .iter()
            .find(|card| card.gfx.parse().ok() == entry.gpu.gfx)?;
        let class = if card.is_apu { Class::Apu } else { Class::Dgpu };
        if entry.gpu.class != Some(class) {
            return Some(format!("{} is {:?}", card.gfx, entry.gpu.class));
        }
    }
    let picked = report.pick.and_then(|index| report.gpus[index].gpu.gfx);
    if picked != pick.parse().ok() {
        return Some(format!("picks {picked:?}"));
    }
    if report
        .machine
        .variable("HSA_OVERRIDE_GFX_VERSION")
        .is_some()
    {
        return Some("an override that nobody set".to_owned());
    }
    let without_wheel = ["architecture-without-wheel"];
    let alarm = report.findings.iter().find(|finding| {
        finding.severity == surefoot_doctor::findings::Severity::Error
            && !without_wheel.contains(&finding.id.as_str())
    });
    alarm.map(|finding| format!("{}: {}", finding.id, finding.title))
}

#[test]
fn no_damage_changes_what_is_read() {
    let mut complaints = Vec::new();
    for (number, (tool, print)) in TOOLS.iter().enumerate() {
        for (place, (damage, spoil)) in DAMAGES.iter().enumerate() {
            // Undamaged, every machine; damaged, one of them in turn.
            let is_turn =
                |at: usize| place == 0 || (at + number + place).is_multiple_of(MACHINES.len());
            for (at, (cards, pick)) in MACHINES.iter().enumerate() {
                if !is_turn(at) {
                    continue;
                }
                let text = spoil(&print(cards));
                if let Some(complaint) = complaint(&text, cards, pick) {
                    complaints.push(format!("{tool}, {damage}, machine {at}: {complaint}"));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

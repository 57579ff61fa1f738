//! What training on several machines asks of this one: a library that sums between GPUs, an interface to the
//! others, a name and ports that they reach, clocks that agree.

use std::net::{IpAddr, Ipv4Addr, TcpListener, ToSocketAddrs};

use platform::Gfx;
use platform::machine::Machine;
use platform::network::{Interface, Medium};
use platform::snapshot::Content;
use platform::source::Source;
use serde::Serialize;

use crate::needs::Need;

/// Where `torchrun` puts the store unless told otherwise.
const MASTER_PORT: u16 = 29_500;
/// The libraries that sum between GPUs, as their wheels and packages name them.
const LIBRARIES: [&str; 3] = ["librccl.so.1", "librccl.so", "libnccl.so.2"];
/// What the name of each architecture's code begins with in such a library.
const CODE_PREFIX: &str = "hipv4-amdgcn-amd-amdhsa--";
/// Where the system's libraries are.
const SYSTEM_FOLDERS: [&str; 4] = [
    "/opt/rocm/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];
const SERVICES: &str = "/sys/fs/cgroup/system.slice";
/// Services that keep a clock right.
const CLOCK_SERVICES: [&str; 6] = [
    "systemd-timesyncd.service",
    "chronyd.service",
    "chrony.service",
    "ntpd.service",
    "ntp.service",
    "ntpsec.service",
];

/// What is read for it, beside the facts of the [`Machine`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Network {
    /// The interfaces that are up.
    pub interfaces: Vec<Interface>,
    /// This machine's name.
    pub host: Option<String>,
    /// What this machine itself takes its name for.
    pub host_addresses: Vec<IpAddr>,
    /// Whether the port of `torchrun`'s store is free.
    pub master_port_is_free: bool,
    /// The ports that the kernel chooses from, which Gloo listens on.
    pub local_ports: Option<(u16, u16)>,
    /// A firewall that is at work, if one was recognised.
    pub firewall: Option<&'static str>,
    /// What keeps the clock right, if that is known.
    pub clock_service: Option<String>,
    /// The system's services could be listed.
    pub services_are_known: bool,
    /// The library that sums between GPUs, and the architectures that it has code for, where it tells.
    pub library: Option<(String, Vec<Gfx>)>,
}

impl Network {
    /// Reads this machine. `folders` are searched for the library before the system's. Binds a port for a moment;
    /// sends nothing but what finding out the own name's address takes.
    #[must_use]
    pub fn read(source: &dyn Source, folders: &[&str]) -> Self {
        let text = |path: &str| match source.read(path) {
            Some(Content::Text(text)) => Some(text),
            _ => None,
        };
        let host = text("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned());
        let resolved = host
            .as_deref()
            .and_then(|host| (host, MASTER_PORT).to_socket_addrs().ok());
        let services = source.list(SERVICES);
        let clock_service = CLOCK_SERVICES
            .iter()
            .find(|name| services.iter().any(|service| service == *name));
        Self {
            interfaces: Interface::all(source),
            host_addresses: resolved
                .map(|found| found.map(|address| address.ip()).collect())
                .unwrap_or_default(),
            host,
            master_port_is_free: TcpListener::bind((Ipv4Addr::UNSPECIFIED, MASTER_PORT)).is_ok(),
            local_ports: text("/proc/sys/net/ipv4/ip_local_port_range").and_then(|line| {
                let mut numbers = line.split_whitespace().map(str::parse);
                Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
            }),
            firewall: firewall(text("/etc/ufw/ufw.conf").as_deref(), &services),
            clock_service: clock_service.map(|name| (*name).to_owned()),
            services_are_known: !services.is_empty(),
            library: library(source, folders),
        }
    }
}

fn firewall(ufw: Option<&str>, services: &[String]) -> Option<&'static str> {
    let is_on = |line: &str| line.trim().eq_ignore_ascii_case("ENABLED=yes");
    if ufw.is_some_and(|text| text.lines().any(is_on)) {
        return Some("ufw");
    }
    let runs = |name: &str| services.iter().any(|service| service == name);
    runs("firewalld.service").then_some("firewalld")
}

fn library(source: &dyn Source, folders: &[&str]) -> Option<(String, Vec<Gfx>)> {
    let path = folders.iter().chain(&SYSTEM_FOLDERS).find_map(|folder| {
        let names = source.list(folder);
        let name = LIBRARIES
            .iter()
            .find(|name| names.iter().any(|found| found == *name))?;
        Some(format!("{folder}/{name}"))
    })?;
    let mut architectures: Vec<Gfx> = source
        .words(&path, CODE_PREFIX)
        .iter()
        .filter_map(|word| {
            word.strip_prefix(CODE_PREFIX)?
                .split(':')
                .next()?
                .parse()
                .ok()
        })
        .collect();
    architectures.sort_unstable();
    architectures.dedup();
    Some((path, architectures))
}

/// All that training on several machines asks for, and what of it this machine has.
#[must_use]
pub fn needs(machine: &Machine, network: &Network) -> Vec<Need> {
    vec![
        sums(machine, network),
        starter(machine),
        interface(network),
        name(network),
        ports(network),
        clock(network),
    ]
}

fn need(what: &'static str, met: impl Into<Option<bool>>, text: impl Into<String>) -> Need {
    Need {
        what,
        met: met.into(),
        text: text.into(),
    }
}

fn sums(machine: &Machine, network: &Network) -> Need {
    let what = "RCCL";
    let Some((path, architectures)) = &network.library else {
        return need(
            what,
            false,
            "neither RCCL nor NCCL was found: gradients are summed by Gloo, in host memory, which works",
        );
    };
    let mut missing = machine
        .gpus
        .iter()
        .filter_map(|gpu| gpu.gfx)
        .filter(|gfx| !architectures.contains(gfx));
    match (machine.gpus.is_empty(), missing.next()) {
        (true, _) => need(
            what,
            None,
            format!("{path} is there, and no GPU: gradients are summed by Gloo, in host memory"),
        ),
        (false, _) if architectures.is_empty() => need(
            what,
            None,
            format!(
                "{path} does not tell for which GPUs it has code: each run tries it before the first step, and takes \
                 Gloo where it fails"
            ),
        ),
        (false, Some(gfx)) => need(
            what,
            false,
            format!(
                "{path} has no code for {gfx}: set `train.ddp_backend: gloo`, or take the PyTorch wheel for {gfx}"
            ),
        ),
        (false, None) => need(
            what,
            true,
            format!("{path} has code for the GPUs here; each run tries it before the first step"),
        ),
    }
}

fn starter(machine: &Machine) -> Need {
    let torch = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref());
    match torch.is_some() {
        true => need(
            "torchrun",
            true,
            "comes with the PyTorch of the active environment",
        ),
        false => need(
            "torchrun",
            false,
            "comes with PyTorch, and the active environment has none; `surefoot train --nproc` on one machine does \
             without",
        ),
    }
}

fn interface(network: &Network) -> Need {
    let of = |media: &[Medium]| {
        let found = network.interfaces.iter();
        let found: Vec<_> = found
            .filter(|one| media.contains(&one.medium))
            .map(Interface::describe)
            .collect();
        found.join(", ")
    };
    let cables = of(&[Medium::Cable, Medium::Thunderbolt]);
    let what = "interface";
    if !cables.is_empty() {
        return need(
            what,
            true,
            format!("{cables}; `surefoot probe --link HOST` measures the way to another machine"),
        );
    }
    let guests = of(&[Medium::Guest]);
    if !guests.is_empty() {
        return need(
            what,
            true,
            format!(
                "{guests}, so that only its host knows what carries the packets; `surefoot probe --link HOST` \
                 measures the way to another machine"
            ),
        );
    }
    let (wireless, others) = (of(&[Medium::Wireless]), of(&[Medium::Virtual]));
    match (wireless.is_empty(), others.is_empty()) {
        (false, _) => need(
            what,
            false,
            format!("{wireless} alone: slow and uneven, a cable between the machines is better"),
        ),
        (true, false) => need(
            what,
            None,
            format!(
                "{others} alone, as in a container: whether other machines reach it is not known here"
            ),
        ),
        (true, true) => need(
            what,
            false,
            "none is up with an address that others could reach",
        ),
    }
}

fn name(network: &Network) -> Need {
    let host = network.host.as_deref().unwrap_or("this machine");
    let what = "name";
    match network.host_addresses.as_slice() {
        [] => need(
            what,
            false,
            format!(
                "{host} does not find its own address by its name, and other machines hardly will: give torchrun \
                 addresses instead of names, for `--rdzv-endpoint` and `--local-addr`"
            ),
        ),
        all if all.iter().all(IpAddr::is_loopback) => need(
            what,
            false,
            format!(
                "{host} takes its own name for {}, which no other machine reaches (a line of /etc/hosts): give torchrun \
                 `--local-addr` and an address for `--rdzv-endpoint`, or fix that line",
                all[0]
            ),
        ),
        all => {
            let all: Vec<_> = all.iter().map(IpAddr::to_string).collect();
            need(what, true, format!("{host} is {}", all.join(", ")))
        }
    }
}

fn ports(network: &Network) -> Need {
    let what = "ports";
    if !network.master_port_is_free {
        return need(
            what,
            false,
            format!(
                "another program holds port {MASTER_PORT}: end it, or give torchrun another one in `--rdzv-endpoint`"
            ),
        );
    }
    let range = match network.local_ports {
        Some((first, last)) => format!("{MASTER_PORT} and {first} to {last}"),
        None => format!("{MASTER_PORT}, and those that the kernel chooses"),
    };
    let opened = match network.firewall {
        Some("ufw") => "`sudo ufw allow from OTHER-MACHINE`",
        Some(_) => "`sudo firewall-cmd --zone=trusted --add-source=OTHER-MACHINE`",
        None => {
            return need(
                what,
                None,
                format!(
                    "port {MASTER_PORT} is free; neither ufw nor firewalld is at work here. Between the machines {range} \
                     have to be open (TCP)"
                ),
            );
        }
    };
    let firewall = network.firewall.unwrap_or_default();
    need(
        what,
        None,
        format!(
            "port {MASTER_PORT} is free; {firewall} is at work here, and has to let the other machines through on \
             {range} (TCP): {opened}"
        ),
    )
}

fn clock(network: &Network) -> Need {
    let what = "clock";
    match (&network.clock_service, network.services_are_known) {
        (Some(service), _) => need(what, true, format!("is kept right by {service}")),
        (None, true) => need(
            what,
            false,
            "nothing keeps it right (`timedatectl set-ntp true`): training does not mind, but the logs of several \
             machines are hard to read side by side",
        ),
        (None, false) => need(
            what,
            None,
            "whether something keeps it right is not known here; `surefoot probe --link HOST` compares two",
        ),
    }
}

#[cfg(test)]
mod tests {
    use platform::machine::Gpu;

    use super::*;

    fn cable(name: &str, medium: Medium) -> Interface {
        Interface {
            name: name.into(),
            medium,
            megabits_per_second: None,
            addresses: Vec::new(),
        }
    }

    fn told(machine: &Machine, network: &Network, what: &str) -> (Option<bool>, String) {
        let needs = needs(machine, network);
        let need = needs.into_iter().find(|need| need.what == what).unwrap();
        (need.met, need.text)
    }

    fn with_gpu() -> Machine {
        Machine {
            gpus: vec![Gpu {
                gfx: Some(Gfx::new(11, 5, 1)),
                ..Gpu::default()
            }],
            ..Machine::default()
        }
    }

    #[test]
    fn a_library_is_for_the_gpus_that_it_has_code_for() {
        let machine = with_gpu();
        let of = |architectures: Vec<Gfx>| {
            let network = Network {
                library: Some(("/x/librccl.so.1".into(), architectures)),
                ..Network::default()
            };
            told(&machine, &network, "RCCL")
        };
        assert_eq!(of(vec![Gfx::new(11, 5, 1)]).0, Some(true));
        let (met, text) = of(vec![Gfx::new(9, 4, 2)]);
        assert_eq!(met, Some(false));
        assert!(text.contains("no code for gfx1151"), "{text}");
        assert_eq!(of(Vec::new()).0, None);
        let none = told(&machine, &Network::default(), "RCCL");
        assert!(none.0 == Some(false) && none.1.contains("Gloo"));
    }

    #[test]
    fn interfaces_of_containers_are_no_way_to_another_machine() {
        let of = |interfaces| {
            let network = Network {
                interfaces,
                ..Network::default()
            };
            told(&Machine::default(), &network, "interface")
        };
        let docker = || cable("docker0", Medium::Virtual);
        let (met, text) = of(vec![docker(), cable("enp3s0", Medium::Cable)]);
        assert_eq!(met, Some(true));
        assert!(
            text.contains("enp3s0") && !text.contains("docker0"),
            "{text}"
        );
        let (met, text) = of(vec![docker(), cable("wlp4s0", Medium::Wireless)]);
        assert!(met == Some(false) && text.contains("a cable"), "{text}");
        let (met, text) = of(vec![docker(), cable("ens3", Medium::Guest)]);
        assert_eq!(met, Some(true));
        assert!(text.contains("only its host knows"), "{text}");
        assert_eq!(of(vec![docker()]).0, None);
        assert_eq!(of(vec![cable("lo", Medium::Loopback)]).0, Some(false));
    }

    #[test]
    fn a_name_that_means_the_machine_itself_is_found() {
        let of = |addresses: &[&str]| {
            let network = Network {
                host: Some("box1".into()),
                host_addresses: addresses.iter().map(|one| one.parse().unwrap()).collect(),
                ..Network::default()
            };
            told(&Machine::default(), &network, "name")
        };
        let (met, text) = of(&["127.0.1.1"]);
        assert!(met == Some(false) && text.contains("127.0.1.1"), "{text}");
        assert_eq!(of(&[]).0, Some(false));
        assert_eq!(of(&["192.0.2.1"]), (Some(true), "box1 is 192.0.2.1".into()));
    }

    #[test]
    fn a_firewall_is_recognised_by_what_it_leaves() {
        let services = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(firewall(Some("# x\nENABLED=yes\n"), &[]), Some("ufw"));
        assert_eq!(firewall(Some("ENABLED=no\n"), &[]), None);
        assert_eq!(
            firewall(None, &services(&["firewalld.service"])),
            Some("firewalld")
        );
        let network = Network {
            master_port_is_free: true,
            local_ports: Some((32768, 60999)),
            firewall: Some("ufw"),
            ..Network::default()
        };
        let (_, text) = told(&Machine::default(), &network, "ports");
        assert!(
            text.contains("29500 and 32768 to 60999") && text.contains("ufw allow"),
            "{text}"
        );
        let (met, text) = told(&Machine::default(), &Network::default(), "ports");
        assert!(
            met == Some(false) && text.contains("holds port 29500"),
            "{text}"
        );
    }

    #[test]
    fn this_machine_is_read() {
        let network = Network::read(&platform::live::Live::default(), &[]);
        assert!(network.host.is_some() && network.local_ports.is_some());
        assert_eq!(needs(&Machine::default(), &network).len(), 6);
    }
}

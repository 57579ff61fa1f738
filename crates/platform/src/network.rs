//! The network between machines: by which interface another machine is reached, and how fast that is.

use crate::snapshot::Content;
use crate::source::Source;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

/// The address that packets from this machine to `host` carry, as the kernel's routing table says.
/// Nothing is sent, unless a name has to be resolved.
#[must_use]
pub fn source_address(host: &str, port: u16) -> Option<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let targets = (host, port).to_socket_addrs().ok()?;
    targets
        .filter_map(|target| {
            let any = if target.is_ipv4() {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            };
            let socket = UdpSocket::bind(any).ok()?;
            // Connecting a datagram socket only looks up the route.
            socket.connect(target).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
        .next()
}

/// What carries an interface's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Ethernet, or any other interface with a device.
    Cable,
    /// A virtual machine's network card: only its host knows the physical one.
    Guest,
    /// A Thunderbolt or USB4 cable.
    Thunderbolt,
    /// Wi-Fi.
    Wireless,
    /// No device: a bridge of containers, a tunnel, a namespace's end.
    Virtual,
    /// This machine itself.
    Loopback,
}

impl Medium {
    /// A few words for people.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Cable => "cable",
            Self::Guest => "card of a virtual machine",
            Self::Thunderbolt => "Thunderbolt or USB4",
            Self::Wireless => "Wi-Fi",
            Self::Virtual => "virtual",
            Self::Loopback => "loopback",
        }
    }
}

/// Drivers of cards that are in virtual machines alone, as in KVM, VMware, Hyper-V, Xen and the clouds' own;
/// an Intel card that is imitated cannot be told from a real one.
const GUEST_DRIVERS: [&str; 7] = [
    "/virtio_net",
    "/vmxnet3",
    "/hv_netvsc",
    "/vif",
    "/ena",
    "/gve",
    "/mana",
];

/// A network interface of this machine that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// As in `enp3s0`.
    pub name: String,
    /// What carries its packets.
    pub medium: Medium,
    /// Its nominal speed in megabits per second, if its driver reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub megabits_per_second: Option<u64>,
    /// Its addresses, without those that hold on the link alone (`fe80::`).
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// All that are up and have an address, by name.
    #[must_use]
    pub fn all(source: &dyn Source) -> Vec<Self> {
        let mut addresses: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for found in if_addrs::get_if_addrs().unwrap_or_default() {
            if !found.is_link_local() {
                let ip = found.ip();
                addresses.entry(found.name).or_default().push(ip);
            }
        }
        let interfaces = addresses.into_iter();
        interfaces
            .map(|(name, addresses)| Self::read(source, name, addresses))
            .collect()
    }

    fn read(source: &dyn Source, name: String, addresses: Vec<IpAddr>) -> Self {
        let folder = format!("/sys/class/net/{name}");
        let has = |entry: &str| source.list(&folder).iter().any(|found| found == entry);
        let driver = source.real_path(&format!("{folder}/device/driver"));
        let driver = driver.unwrap_or_default();
        let medium = match () {
            () if addresses.iter().all(IpAddr::is_loopback) => Medium::Loopback,
            () if has("wireless") || has("phy80211") => Medium::Wireless,
            () if driver.contains("thunderbolt") => Medium::Thunderbolt,
            () if GUEST_DRIVERS.iter().any(|name| driver.ends_with(name)) => Medium::Guest,
            () if has("device") => Medium::Cable,
            () => Medium::Virtual,
        };
        let speed = match source.read(&format!("{folder}/speed")) {
            // Minus one where the driver does not know.
            Some(Content::Text(text)) => text.trim().parse().ok().filter(|speed| *speed > 0),
            _ => None,
        };
        Self {
            name,
            // A virtual interface says 10,000 whatever is below it.
            megabits_per_second: speed.filter(|_| medium != Medium::Virtual),
            medium,
            addresses,
        }
    }

    /// As in `enp3s0 (cable, 2.5 Gb/s)`.
    #[must_use]
    pub fn describe(&self) -> String {
        let medium = self.medium.describe();
        match self.megabits_per_second {
            Some(speed) if speed >= 1000 => {
                format!("{} ({medium}, {} Gb/s)", self.name, speed as f64 / 1e3)
            }
            Some(speed) => format!("{} ({medium}, {speed} Mb/s)", self.name),
            None => format!("{} ({medium})", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of a few files.
    struct Files(&'static [(&'static str, &'static str)]);

    impl Source for Files {
        fn read(&self, path: &str) -> Option<Content> {
            let found = self.0.iter().find(|(name, _)| *name == path)?;
            Some(Content::Text(found.1.to_owned()))
        }
        fn list(&self, folder: &str) -> Vec<String> {
            let below = self.0.iter().filter_map(|(name, _)| {
                let rest = name.strip_prefix(folder)?.strip_prefix('/')?;
                rest.split('/').next()
            });
            below.map(str::to_owned).collect()
        }
        fn open_device(&self, _: &str) -> String {
            String::new()
        }
        fn owner(&self, _: &str) -> Option<String> {
            None
        }
        fn variables(&self) -> Vec<(String, String)> {
            Vec::new()
        }
        fn real_path(&self, path: &str) -> Option<String> {
            let found = self.0.iter().find(|(name, _)| *name == path)?;
            Some(found.1.to_owned())
        }
        fn words(&self, _: &str, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    const MACHINE: Files = Files(&[
        ("/sys/class/net/enp3s0/speed", "2500\n"),
        (
            "/sys/class/net/enp3s0/device/driver",
            "/sys/bus/pci/drivers/r8169",
        ),
        ("/sys/class/net/wlp4s0/speed", "-1\n"),
        ("/sys/class/net/wlp4s0/wireless/x", ""),
        (
            "/sys/class/net/wlp4s0/device/driver",
            "/sys/bus/pci/drivers/mt7925e",
        ),
        (
            "/sys/class/net/thunderbolt0/device/driver",
            "/sys/bus/thunderbolt/drivers/thunderbolt-net",
        ),
        (
            "/sys/class/net/ens3/device/driver",
            "/sys/bus/virtio/drivers/virtio_net",
        ),
        ("/sys/class/net/docker0/speed", "10000\n"),
    ]);

    fn described(name: &str, address: &str) -> String {
        let address: IpAddr = address.parse().unwrap();
        Interface::read(&MACHINE, name.into(), vec![address]).describe()
    }

    #[test]
    fn an_interface_is_what_its_folder_says() {
        assert_eq!(described("enp3s0", "192.0.2.1"), "enp3s0 (cable, 2.5 Gb/s)");
        assert_eq!(described("wlp4s0", "192.0.2.2"), "wlp4s0 (Wi-Fi)");
        assert_eq!(
            described("thunderbolt0", "192.0.2.3"),
            "thunderbolt0 (Thunderbolt or USB4)"
        );
        assert_eq!(
            described("ens3", "192.0.2.4"),
            "ens3 (card of a virtual machine)"
        );
        assert_eq!(described("docker0", "172.17.0.1"), "docker0 (virtual)");
        assert_eq!(described("lo", "127.0.0.1"), "lo (loopback)");
    }

    #[cfg(feature = "live")]
    #[test]
    fn this_machine_reaches_itself_by_its_loopback() {
        let own = source_address("127.0.0.1", 29500).unwrap();
        assert!(own.is_loopback());
        let all = Interface::all(&crate::live::Live::default());
        let mine = all.iter().find(|one| one.addresses.contains(&own));
        assert_eq!(mine.map(|one| one.medium), Some(Medium::Loopback));
    }

    #[test]
    fn a_host_that_is_not_there_has_no_route() {
        assert_eq!(source_address("no-such-host.invalid", 29500), None);
    }
}

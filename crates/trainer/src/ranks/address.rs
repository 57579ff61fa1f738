//! The address of this machine at which other ranks can reach it.
//!
//! It is the source address of packets to them, according to the kernel's routing table. The first address of the
//! machine may be that of a container bridge.

use std::net::IpAddr;

use platform::network::source_address;

/// The address to listen on. `own` is the address towards the store, and `all` are those of all ranks. The result is
/// `own`, unless that is a loopback address and another rank is on a different machine: then it is the address towards
/// that rank.
pub(super) fn listen_address(own: IpAddr, all: &[IpAddr]) -> Option<IpAddr> {
    if !own.is_loopback() {
        return Some(own);
    }
    match all.iter().find(|address| !address.is_loopback()) {
        None => Some(own),
        Some(elsewhere) => {
            // Any port: nothing is sent to it.
            source_address(&elsewhere.to_string(), 9).filter(|address| !address.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_on_one_machine_talk_within_it() {
        let own = source_address("127.0.0.1", 29500).unwrap();
        assert!(own.is_loopback());
        assert_eq!(listen_address(own, &[own, own]), Some(own));
    }

    #[test]
    fn an_address_that_others_reach_is_kept() {
        let own: IpAddr = "192.0.2.4".parse().unwrap();
        let other: IpAddr = "192.0.2.5".parse().unwrap();
        assert_eq!(listen_address(own, &[own, other]), Some(own));
    }

    #[test]
    fn the_machine_of_the_store_does_not_listen_to_itself_alone() {
        // Debian's /etc/hosts names a machine 127.0.1.1 to itself.
        let own: IpAddr = "127.0.1.1".parse().unwrap();
        let other: IpAddr = "192.0.2.5".parse().unwrap();
        let chosen = listen_address(own, &[own, other]);
        assert!(
            chosen.is_none_or(|address| !address.is_loopback()),
            "{chosen:?}"
        );
    }
}

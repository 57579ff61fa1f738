//! Connections that have not brought the token yet: where there are too many, the oldest of these make room, so that
//! nobody keeps the page from its owner by opening connections and saying nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use super::lock;

/// A connection.
#[derive(Default)]
pub(super) struct Guest {
    is_known: AtomicBool,
    leave: Notify,
}

impl Guest {
    /// It has brought the token.
    pub(super) fn welcome(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Completes when it is to be closed.
    pub(super) async fn asked_to_leave(&self) {
        self.leave.notified().await;
    }
}

/// All connections, the oldest first.
#[derive(Default)]
pub(super) struct Guests(Mutex<VecDeque<Weak<Guest>>>);

impl Guests {
    /// A new connection.
    pub(super) fn add(&self) -> Arc<Guest> {
        let guest = Arc::new(Guest::default());
        let mut guests = lock(&self.0);
        guests.retain(|guest| guest.strong_count() > 0);
        guests.push_back(Arc::downgrade(&guest));
        guest
    }

    /// Closes the oldest that has not brought the token.
    pub(super) fn make_room(&self) {
        let mut guests = lock(&self.0);
        let is_stranger = |guest: &Weak<Guest>| {
            let guest = guest.upgrade();
            guest.is_some_and(|guest| !guest.is_known.load(Ordering::Relaxed))
        };
        if let Some(at) = guests.iter().position(is_stranger)
            && let Some(guest) = guests.remove(at).and_then(|guest| guest.upgrade())
        {
            guest.leave.notify_one();
        }
    }
}

//! The tables of `catalogue/tables`, and what their rows are.

use crate::schema::Fact;

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// A family of distributions that does not install with apt.
pub(crate) struct Distribution {
    pub(crate) fact: Fact,
    pub(crate) name: &'static str,
    /// What shows it in a log.
    pub(crate) signs: &'static [&'static str],
    /// What `{apt}` becomes there.
    pub(crate) apt: &'static str,
    /// What `{initramfs}` becomes there.
    pub(crate) initramfs: &'static str,
}

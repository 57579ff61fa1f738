//! The rank of this process, from `torchrun`'s environment variables.

use crate::Error;

/// This process as one of several ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Host of the store.
    pub(super) master: String,
    pub(super) port: u16,
    /// Whether another process hosts the store (`torchrun`'s agent, or `surefoot train --nproc`) instead of rank 0.
    pub(super) agent_store: bool,
    /// Prefix of keys in the store that remain valid when ranks are restarted.
    pub(super) job: String,
}

impl Membership {
    /// Reads the environment; `None` for a process that trains alone.
    pub(super) fn from_environment() -> Result<Option<Self>, Error> {
        Self::parse(|name| std::env::var(name).ok())
    }

    /// A key of one rank that remains valid when ranks are restarted.
    pub(super) fn key(&self, name: &str, rank: usize) -> String {
        format!("{}/{name}/{rank}", self.job)
    }

    /// A key of all ranks that remains valid when ranks are restarted.
    pub(super) fn key_of_all(&self, name: &str) -> String {
        format!("{}/{name}", self.job)
    }

    fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let number = |name: &str| -> Result<Option<usize>, Error> {
            let Some(text) = variable(name) else {
                return Ok(None);
            };
            match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Error::RankDiffers(format!(
                    "the environment variable {name} is `{text}`, and has to be a number"
                ))),
            }
        };
        let size = number("WORLD_SIZE")?.unwrap_or(1);
        if size <= 1 {
            return Ok(None);
        }
        let missing = |name: &str| {
            Error::RankDiffers(format!(
                "WORLD_SIZE={size} in the environment means {size} processes that train together, \
                 and {name} is not set: start them by `torchrun --no-python` or `surefoot train \
                 --nproc {size}`, or unset WORLD_SIZE"
            ))
        };
        let rank = number("RANK")?.ok_or_else(|| missing("RANK"))?;
        if rank >= size {
            return Err(Error::RankDiffers(format!(
                "RANK={rank} in the environment is none of 0 to {}, with WORLD_SIZE={size}",
                size - 1
            )));
        }
        let port = number("MASTER_PORT")?.ok_or_else(|| missing("MASTER_PORT"))?;
        let port = u16::try_from(port).map_err(|_| {
            Error::RankDiffers(format!("MASTER_PORT={port} in the environment is no port"))
        })?;
        let text = |name: &str| variable(name).unwrap_or_default();
        Ok(Some(Self {
            rank,
            size,
            master: variable("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?,
            port,
            agent_store: text("TORCHELASTIC_USE_AGENT_STORE").eq_ignore_ascii_case("true"),
            job: format!("surefoot/{}", text("TORCHELASTIC_RUN_ID")),
        }))
    }
}

/// The rank of this process on its machine, which is also the index of its GPU, and the number of ranks on the machine,
/// which share its cores.
pub(crate) fn on_this_machine() -> (usize, usize) {
    let number = |name: &str| std::env::var(name).ok()?.trim().parse::<usize>().ok();
    match number("WORLD_SIZE") {
        Some(size) if size > 1 => (
            number("LOCAL_RANK").unwrap_or(0),
            number("LOCAL_WORLD_SIZE").unwrap_or(1).max(1),
        ),
        _ => (0, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Option<Membership>, Error> {
        Membership::parse(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const WHOLE: [(&str, &str); 4] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "ryzen"),
        ("MASTER_PORT", "29500"),
    ];

    #[test]
    fn a_process_without_the_variables_or_alone_is_no_rank() {
        assert_eq!(parse(&[]).unwrap(), None);
        assert_eq!(parse(&[("WORLD_SIZE", "1"), ("RANK", "0")]).unwrap(), None);
    }

    #[test]
    fn torchruns_variables_are_read() {
        let plain = parse(&WHOLE).unwrap().unwrap();
        assert_eq!((plain.rank, plain.size), (1, 4));
        assert_eq!((&*plain.master, plain.port), ("ryzen", 29500));
        assert!(!plain.agent_store);
        let elastic = [
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RUN_ID", "none"),
        ];
        let elastic = parse(&[&WHOLE[..], &elastic].concat()).unwrap().unwrap();
        assert!(elastic.agent_store);
        assert_eq!(elastic.job, "surefoot/none");
    }

    #[test]
    fn what_is_missing_or_no_number_is_named() {
        for left_out in ["RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let some: Vec<_> = WHOLE
                .into_iter()
                .filter(|(key, _)| *key != left_out)
                .collect();
            let error = parse(&some).unwrap_err().to_string();
            assert!(error.contains(&format!("{left_out} is not set")), "{error}");
        }
        for (key, value, told) in [
            ("RANK", "4", "RANK=4"),
            ("RANK", "one", "RANK is `one`"),
            ("WORLD_SIZE", "-2", "WORLD_SIZE is `-2`"),
            ("MASTER_PORT", "70000", "MASTER_PORT=70000"),
        ] {
            let mut other = WHOLE.to_vec();
            other.retain(|(name, _)| *name != key);
            other.push((key, value));
            let error = parse(&other).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}

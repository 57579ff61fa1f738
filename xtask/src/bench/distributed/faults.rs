//! `cargo xtask bench distributed --faults`: the effect on a run under the real `torchrun` when ranks are
//! killed, a link fails or a machine is switched off. `bench/distributed/faults.py` has the cases.

use anyhow::{Result, ensure};
use xshell::{Shell, cmd};

use super::DistributedBench;
use crate::{setup, train, workspace};

pub(super) fn run(options: &DistributedBench, shell: &Shell) -> Result<()> {
    let nft = cmd!(shell, "nft --version").quiet().ignore_stdout();
    ensure!(
        nft.run().is_ok(),
        "a link that loses packets needs nft (Debian, Ubuntu: `apt install nftables`)"
    );
    let libtorch = setup::ensure()?;
    let python = setup::reference_python()?;
    let surefoot = train::build(&libtorch)?;
    let trainer = surefoot.with_file_name("surefoot-trainer");
    let target = workspace::target(shell)?.join("bench/distributed-faults.json");
    let out = options.out.clone().unwrap_or(target);
    let kills = options.kills.to_string();
    cmd!(
        shell,
        "{python} bench/distributed/faults.py --trainer {trainer} --kills {kills} --out {out}"
    )
    .run()?;
    eprintln!("every case is in `{}`", out.display());
    Ok(())
}

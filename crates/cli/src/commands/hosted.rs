//! The trainer as a library, in a process of the Python that has PyTorch: so PyTorch finds its libraries, and ROCm's, its own
//! way. On Windows there is no other.

use super::activation;
use super::trainer_libraries::{Start, own_environment};
use platform::live::Live;
use platform::requests::{PROCESS, process};
use platform::rocm_libraries::{Torch, find_python};
use std::path::PathBuf;
use surefoot_cli::cache;
use surefoot_cli::output::Failure;

/// The first release of PyTorch whose C interface has what the library calls.
const OLDEST: [u32; 2] = [2, 10];

/// What Python runs: the arguments are the library, and those of the trainer. Ctrl-C is the trainer's.
const HOST: &str = "\
import sys
sys.path[:] = filter(None, sys.path)
import ctypes, signal, torch
signal.signal(signal.SIGINT, signal.SIG_DFL)
library = ctypes.CDLL(sys.argv[1])
library.surefoot_bridge.restype = ctypes.c_char_p
exec(compile(library.surefoot_bridge().decode(), 'bridge.py', 'exec'), {})
sys.exit(library.surefoot_trainer_main())
";

/// The library that is installed with this program, if there is one.
pub(super) fn library() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    let mut candidates =
        activation::library_candidates(&here, &activation::library_name("surefoot_trainer"));
    candidates.retain(|path| path.is_file());
    candidates.into_iter().next()
}

/// Python with this library: that of the active environment, or of the one that this program was installed into.
///
/// # Errors
/// When neither has a PyTorch that is new enough.
pub(super) fn start(library: PathBuf) -> Result<Start, Failure> {
    let own = own_environment();
    let wanted = std::iter::once(None).chain(own.as_deref().map(Some));
    let found: Vec<(String, Torch)> = wanted
        .filter_map(|wanted| find_python(&Live::default(), wanted))
        .collect();
    let Some((python, _)) = found.iter().find(|(_, torch)| is_new_enough(torch)) else {
        return Err(Failure::usage(refusal(found.first())));
    };
    let launcher = std::env::current_exe()?;
    let mut variables = vec![
        (surefoot_cli::LAUNCHER, launcher.into()),
        (PROCESS, process().to_string().into()),
    ];
    // The trainer's words for folders of the user, which Windows has by other names.
    if let Some(home) = std::env::var_os("USERPROFILE").filter(|_| cfg!(windows)) {
        variables.push(("HOME", home));
        variables.push(("SUREFOOT_CACHE", cache::folder().into()));
    }
    Ok(Start {
        program: python.into(),
        arguments: vec!["-c".into(), HOST.into(), library.into()],
        variables,
    })
}

fn is_new_enough(torch: &Torch) -> bool {
    let mut numbers = torch
        .release()
        .split('.')
        .map_while(|number| number.parse().ok());
    [numbers.next(), numbers.next()] >= OLDEST.map(Some)
}

fn refusal(found: Option<&(String, Torch)>) -> String {
    let found = match found {
        Some((python, torch)) => format!("`{python}` has PyTorch {}", torch.version),
        None => "no Python with PyTorch was found".to_owned(),
    };
    let [major, minor] = OLDEST;
    format!(
        "the trainer runs in a Python with PyTorch {major}.{minor} or newer, and {found}: install torch for your GPU \
         (or `pip install torch` for the CPU) into an environment, and activate it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torch(version: &str) -> Torch {
        Torch {
            version: version.to_owned(),
            folder: "/lib".to_owned(),
        }
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for (version, expected) in [
            ("2.13.0", true),
            ("2.13.0+rocm7.2", true),
            ("2.10.0+rocm7.1", true),
            ("2.9.1", false),
            ("3.0.0", true),
            ("2.13.0.dev20261101+rocm7.2", true),
            ("2", false),
        ] {
            assert_eq!(is_new_enough(&torch(version)), expected, "{version}");
        }
    }

    #[test]
    fn what_was_found_is_told() {
        let old = refusal(Some(&("/env/bin/python".to_owned(), torch("2.9.1"))));
        assert!(
            old.contains("PyTorch 2.10 or newer, and `/env/bin/python` has PyTorch 2.9.1:"),
            "{old}"
        );
        assert!(refusal(None).contains("no Python with PyTorch was found"));
    }
}

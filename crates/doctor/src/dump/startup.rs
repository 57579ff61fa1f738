//! What programs say about themselves when they start: that they compute on the CPU, and
//! that ZLUDA runs them. A line that only suggests ZLUDA, or says that it is off, is no sign of it.

use crate::pattern::patterns;
use crate::signs::{ENGINE, ENGINES};

patterns! {
    ON_CPU = concat!(
        r"(?i)\b(?:",
        // SD.Next and its relatives.
        r"using CPU-only torch|compute=cpu\b.{0,60}\bdevice=cpu",
        // InvokeAI, in the words of its versions.
        r"|using torch device:? \W?cpu\b|using device_type cpu\b|GPU device = cpu\b|PyTorch device: cpu\b",
        // Unsloth and others.
        r"|installing CPU-only PyTorch|hardware detected: CPU\b|^JAX backend:? cpu\b|^\[CpuDevice\(id=0\)\]",
        r"|no GPU (?:is )?(?:found|detected|available)\W{1,4}(?:using|running on|will use) (?:the )?CPU",
        r")",
    );
    NO_ZLUDA = concat!(
        r"(?i)(?:",
        r"\b(?:for|try|consider|recommends?|recommended|suggests?|want|wants|without|no|not|disabled?|skip\w*|unavailable|instead of|or|either|supports?) (?:\w+ )?(?:--use-)?zluda",
        r"|\bzluda (?:support|is (?:not|recommended|available|an option)|not\b|unavailable|disabled|instead)",
        r"|(?:specify|add|use|set|pass|option|flag|run)\b.{0,12}--use-zluda\b.{0,3}(?:$|\bto\b|\bfor\b|\bif\b|or\b|option|flag)",
        r"|\bwith\b.{0,12}--use-zluda\b.{0,3}(?:\bto\b|\bfor\b|\bif\b|or\b|option|flag)",
        // A folder or an address of that name may hold any program.
        r"|^[^\[]{0,40}(?:VENV|file=|path=|url=|https?://|bin=)\S*.{0,80}zluda[\\/][^\[]*$",
        r"|zluda\w*[=:] ?[\x22']?(?:false|no\b|none|null|0\b|off)",
        r")",
    );
    /// With ZLUDA something else was run, for comparison.
    COMPARED = r"(?i)\bzluda\b.{0,10}\bthe same\b|\bthe same\b.{0,40}\bzluda\b|\bon windows (?:with|under|through) zluda\b.{0,40}\b(?:works?|goes on|runs|is fine)\b";
    TORCH_SEES_NONE = r"(?i)\btorch reports (?:GPU|CUDA|HIP|ROCm) (?:is )?not available";
}

/// The words in which a program says that it computes on the CPU.
pub(super) fn on_cpu(text: &str) -> Option<String> {
    let line = text.lines().find(|line| ON_CPU.is_match(line))?;
    let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(crate::explain::clip(&words, 160).to_owned())
}

/// What a text computes with, in small letters, where it is not PyTorch.
pub(super) fn framework(text: &str) -> Option<&'static str> {
    let has = |name: &str| {
        let is_letter = |c: char| c.is_ascii_alphanumeric();
        text.match_indices(name).any(|(at, _)| {
            !text[..at].ends_with(is_letter) && !text[at + name.len()..].starts_with(is_letter)
        })
    };
    let other = [("tensorflow", "TensorFlow"), ("jax", "JAX")];
    let named = other.into_iter().find(|(name, _)| has(name));
    let engine = || {
        let is_one = ENGINES.iter().any(|name| text.contains(name));
        is_one.then_some(("", ENGINE))
    };
    named
        .or_else(engine)
        .filter(|_| !text.contains("torch") && !text.contains("comfyui"))
        .map(|(_, name)| name)
}

/// Whether a line says that ZLUDA is used, and none only names it as a possibility.
pub(super) fn runs_on_zluda(text: &str) -> bool {
    let names_it = |line: &str| line.to_ascii_lowercase().contains("zluda");
    text.lines()
        .any(|line| names_it(line) && !NO_ZLUDA.is_match(line) && !COMPARED.is_match(line))
}

/// Whether a launcher says that its torch sees no GPU.
pub(super) fn torch_sees_none(text: &str) -> bool {
    TORCH_SEES_NONE.is_match(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suggestion_is_no_use() {
        for line in [
            "12:11:51-560951 INFO     For ZLUDA support specify '--use-zluda'",
            "DEBUG Torch overrides: cuda=False rocm=True ipex=False directml=False zluda=False",
            "INFO no ROCm GPU: consider ZLUDA",
            "you can try zluda instead",
            "Using VENV: C:\\ai\\zluda\\automatic\\venv",
            "12:11:49 INFO  Logger: file=\"C:\\ai\\zluda\\automatic\\sdnext.log\" level=INFO",
            "ZLUDA is not installed",
            "On Windows with ZLUDA the same prompt needs no more memory than the card has",
        ] {
            assert!(!runs_on_zluda(line), "{line}");
        }
        for line in [
            "Device: cuda:0 AMD Radeon RX 6800 [ZLUDA] : native",
            "13:25:40-667948 INFO     Args: ['--use-zluda']",
            "INFO     ZLUDA load: path='C:\\sdnext\\.zluda' nightly=False",
            ".\\zluda\\zluda.exe -- python main.py",
            "set COMMANDLINE_ARGS=--use-zluda --medvram",
        ] {
            assert!(runs_on_zluda(line), "{line}");
        }
    }

    #[test]
    fn a_framework_is_named_by_its_own_word() {
        assert_eq!(framework("import jax\njax.devices()"), Some("JAX"));
        assert_eq!(framework("tensorflow version: 2.11.0"), Some("TensorFlow"));
        assert_eq!(framework("no tensorflow found, using torch"), None);
        assert_eq!(framework("ajax"), None);
    }

    #[test]
    fn programs_say_in_many_words_that_they_use_the_cpu() {
        for line in [
            "12:11:51-561950 INFO     Using CPU-only torch",
            "Engine: backend=Backend.ORIGINAL compute=cpu mode=no_grad device=cpu",
            "[InvokeAI]::INFO --> Using torch device: CPU",
            "[InvokeAI]::INFO --> GPU device = cpu",
            ">> Using device_type cpu",
            "Installing CPU-only PyTorch (AMD GPU arch unknown)",
            "No GPU found, using CPU",
        ] {
            assert!(on_cpu(line).is_some(), "{line}");
        }
        for line in [
            "[InvokeAI]::INFO --> Using torch device: AMD Radeon RX 7900 XTX",
            "load_backend: loaded CPU backend from libggml-cpu-haswell.so",
            "offload_device=cpu",
        ] {
            assert_eq!(on_cpu(line), None, "{line}");
        }
    }
}

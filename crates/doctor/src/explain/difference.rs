//! What somebody found to make the difference: an option with or without which it works, a version that worked, a
//! library that is the faster one.

use super::{Catalogue, Match, from_entry};
use crate::pattern::{Pattern, patterns};

/// The entry of an override with which it works.
pub(crate) const NEEDS_OVERRIDE: &str = "said-works-with-override";

/// A way to say so: the entry of the catalogue, and its patterns, whose group is what makes the difference.
const WAYS: [(&str, &Pattern); 6] = [
    (NEEDS_OVERRIDE, &WITH_OVERRIDE),
    ("said-works-without", &WITHOUT),
    ("said-works-with", &WITH),
    ("said-works-with", &OPTION),
    ("said-worked-before", &BEFORE),
    ("said-faster-with", &FASTER),
];

patterns! {
    WITH_OVERRIDE = r"(?i)\b(?:with|using|setting|after)\b[^.;?]{0,30}?\b(HSA_OVERRIDE_GFX_VERSION ?= ?[\x22']?\d+\.\d+\.\d+)(?:[^;?]{0,80}?) (?:works?|runs?|trains?|is fine)\b";
    WITHOUT = r"(?i)\b(?:without|removing|dropping)\b (?:the )?(?:option |flag |argument )?[`\x22']?(--?[a-z][\w-]*(?: (?:row|layer|on|1))?)[`\x22']?[,)]?(?: \S+){0,4}? (?:works?|runs?|trains?|fine|ok|okay|gone|goes away|disappears?|correct|normal|right)\b";
    WITH = r"(?i)\b(?:with|using|adding|setting)\b (?:the )?(?:option |flag |argument )?[`\x22']?(--?[a-z][\w-]*|[A-Z][A-Z0-9]*_[A-Z0-9_]+ ?= ?\w+)[`\x22']?[,)]?(?: \S+){0,4}? (?:works?|runs?|trains?|fine|ok|okay|gone|goes away|disappears?|correct|normal|right)\b";
    OPTION = r"(?i)^[`\x22']?(--[a-z][\w-]*|[A-Z][A-Z0-9]*_[A-Z0-9_]+ ?= ?\w+)[`\x22']? (?:helps|cures it|makes it (?:work|run)|works around)\b";
    BEFORE = r"(?i)\b(?:worked|ran|was fine|were fine|did(?:n.t| not) (?:happen|occur|crash|hang)|(?:works|runs) (?:fine|well|ok))(?: (?:fine|well|perfectly|ok|correctly|before))? (?:in|with|on|under|until|up to) (?:the |version |build |release )*((?:(?:py)?torch |rocm |linux |kernel |driver |comfyui |ollama |llama\.cpp |transformers )?(?:v?\d+\.\d+[\w.+]*\w|b\d{4,5})(?: (?:with|and) rocm \d+\.\d+(?:\.\d+)?)?)";
    FASTER = r"(?i)\bslower than (?:with |using |the )?((?:py)?torch(?:.s)? sdpa|sdpa|vulkan|triton|rocblas|hipblaslt)\b";
    /// Options that say whether the GPU computes at all; that it works without it isolates nothing.
    OF_GPU = r"(?i)cpu|gpu|ngl|cuda|--device";
    /// It does not, or only in part.
    DENIED = r"(?i)\b(?:not|\w+n.t|never|still|no longer|only|neither|nor|cannot)\b";
}

/// The message about what makes the difference according to a sentence of a line.
pub(super) fn read(
    sentence: &str,
    line: &str,
    number: usize,
    catalogue: &Catalogue,
) -> Option<Match> {
    let (id, what) = of(sentence)?;
    let (_, entry) = catalogue.entry(id)?;
    Some(Match {
        values: vec![("what", what)],
        ..from_entry(entry, line, number)
    })
}

/// What makes the difference, with the entry that tells of it.
fn of(sentence: &str) -> Option<(&'static str, String)> {
    WAYS.iter().find_map(|(id, pattern)| {
        let found = pattern.captures(sentence)?;
        let (whole, what) = (found.get(0)?, found.get(1)?);
        let rest = &sentence[what.end()..whole.end()];
        (!DENIED.is_match(rest) && !OF_GPU.is_match(what.as_str()))
            .then(|| (*id, what.as_str().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_the_difference_is_named() {
        let told = |text: &str| of(text).map(|(id, what)| (id, what.clone()));
        for (text, id, what) in [
            (
                "With HSA_OVERRIDE_GFX_VERSION=11.5.1 the image (of somebody) runs",
                NEEDS_OVERRIDE,
                "HSA_OVERRIDE_GFX_VERSION=11.5.1",
            ),
            (
                "Without --fast the pictures are fine.",
                "said-works-without",
                "--fast",
            ),
            (
                "With `--no-mmap` the hang is gone",
                "said-works-with",
                "--no-mmap",
            ),
            (
                "MIOPEN_FIND_MODE=2 helps a lot",
                "said-works-with",
                "MIOPEN_FIND_MODE=2",
            ),
            ("It worked in b4528", "said-worked-before", "b4528"),
            (
                "It worked fine with ROCm 6.3.1 on this card",
                "said-worked-before",
                "ROCm 6.3.1",
            ),
            (
                "The backward is 3x slower than SDPA",
                "said-faster-with",
                "SDPA",
            ),
        ] {
            assert_eq!(told(text), Some((id, what.to_owned())), "{text}");
        }
        for text in [
            "With HSA_OVERRIDE_GFX_VERSION=11.0.0 it never runs",
            "Without --fast it is still not fine",
            "It worked with the RX 6800 that I had",
            "It is slower than my old 3060",
            "Without --n-gpu-layers 100 it is ok",
            "It runs with ROCm 7.2 and crashes",
        ] {
            assert_eq!(told(text), None, "{text}");
        }
    }
}

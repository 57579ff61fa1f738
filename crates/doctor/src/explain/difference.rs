//! What somebody found to make the difference: an option with or without which it works, a version that worked or an
//! update with which it began, a library that is the faster one.

use super::{Catalogue, Match, from_entry};
use crate::pattern::{Pattern, patterns};

/// The entry of an override with which it works.
pub(crate) const NEEDS_OVERRIDE: &str = "said-works-with-override";
/// That of a version that worked.
const WORKED: &str = "said-worked-before";
/// That of an update.
const BEGAN: &str = "said-since-update";

/// A version, with the name of what has it.
macro_rules! version {
    () => {
        r"((?:(?:py)?torch |rocm |linux |kernel |driver |adrenalin |comfyui |ollama |llama\.cpp |transformers )?(?:v?\d+\.\d+[\w.+]*\w|b\d{4,5})(?: (?:with|and) rocm \d+\.\d+(?:\.\d+)?)?)"
    };
}

/// A part of the stack, with or without its version.
macro_rules! part {
    () => {
        r"(?:(?:my |the |gpu |amd |radeon )*(?:zluda|rocm|hip(?: sdk)?|(?:py)?torch|comfyui|adrenalin(?: driver)?|drivers?|(?:linux )?kernel|(?:linux-)?firmware|ollama|llama\.cpp|transformers|diffusers)(?:[ -]?v?\d+(?:\.\d+)+(?:[\w.+-]*\w)?)?)\b"
    };
}

/// A way to say so: the entry of the catalogue, and its patterns, whose group is what makes the difference.
const WAYS: [(&str, &Pattern); 8] = [
    (NEEDS_OVERRIDE, &WITH_OVERRIDE),
    ("said-works-without", &WITHOUT),
    ("said-works-with", &WITH),
    ("said-works-with", &OPTION),
    (WORKED, &BEFORE),
    (WORKED, &AGAIN),
    (BEGAN, &SINCE),
    ("said-faster-with", &FASTER),
];

patterns! {
    WITH_OVERRIDE = r"(?i)\b(?:with|using|setting|after)\b[^.;?]{0,30}?\b(HSA_OVERRIDE_GFX_VERSION ?= ?[\x22']?\d+\.\d+\.\d+)(?:[^;?]{0,80}?) (?:works?|runs?|trains?|is fine)\b";
    WITHOUT = r"(?i)\b(?:without|removing|dropping)\b (?:the )?(?:option |flag |argument )?[`\x22']?(--?[a-z][\w-]*(?: (?:row|layer|on|1))?)[`\x22']?[,)]?(?: \S+){0,4}? (?:works?|runs?|trains?|fine|ok|okay|gone|goes away|disappears?|fixed|solved|correct|normal|right)\b";
    WITH = r"(?i)\b(?:with|using|adding|setting)\b (?:the )?(?:option |flag |argument )?[`\x22']?(--?[a-z][\w-]*|[A-Z][A-Z0-9]*_[A-Z0-9_]+ ?= ?\w+)[`\x22']?[,)]?(?: \S+){0,4}? (?:works?|runs?|trains?|fine|ok|okay|gone|goes away|disappears?|fixed|solved|correct|normal|right)\b";
    OPTION = r"(?i)^[`\x22']?(--[a-z][\w-]*|[A-Z][A-Z0-9]*_[A-Z0-9_]+ ?= ?\w+)[`\x22']? (?:(?:also )?helps|(?:cured?|fix(?:ed|es)|solved?)s? (?:it|this|that)|makes it (?:work|run)|works around)\b";
    BEFORE = concat!(
        r"(?i)\b(?:worked|used to (?:work|run)|ran|was fine|were fine|did(?:n.t| not) (?:happen|occur|crash|hang)|(?:it|this|everything|same \w+) (?:still )?works|(?:works|runs) (?:fine|well|ok))(?: (?:fine|well|perfectly|ok|correctly|before|again))? (?:in|with|on|under|until|up to) (?:the |version |build |release )*",
        version!(),
        r"|\b(?:with|on|in|under) (?:the |version |runtime |build |release |driver )*",
        version!(),
        r"(?:[^.;!?]{0,80}?)? (?:it|this|that|everything) (?:\w+ )?(?:worked|was fine|ran fine|trained fine|never happened|did(?:n.t| not) happen)\b",
    );
    AGAIN = concat!(
        r"(?i)\b(?:downgrad\w+|(?:going|go|went) back|revert\w*|(?:roll|switch)\w* back|booting)(?: \w+){0,3}?(?: to| into)? (?:the |version |build |release )*",
        version!(),
        r"(?: \S+){0,4}? (?:works?|fix(?:e[sd])?|helps?|helped|solve[sd]?|resolve[sd]?|cure[sd]?|fine|gone|ok)\b|\blast (?:known )?(?:working|good)(?: version| release| build)?(?: is| was|:)? ",
        version!(),
        "|",
        version!(),
        r"(?: is| was)?(?: the)? last (?:version |release |build )?(?:that |which )?(?:working|works|worked|good)\b|",
        version!(),
        r" works?\b[^.]{0,30}\b(?:later|newer|above|higher)\b|\b(?:slower|worse) than (?:it was )?(?:on|in|with|under) (?:the |version )*",
        version!(),
    );
    SINCE = concat!(
        r"(?i)(?:\b(?:since|after|just) (?:(?:I|we|the|my|a|an|last|latest|recent) ){0,3}(?:upgrad|updat)\w*(?: of| to)?|^\W*(?:\[\w+\]\W*)?(?:upgrad|updat)(?:ed|ing)) (from (?:the |version )*",
        version!(),
        "(?: to (?:the |version )*",
        version!(),
        ")?|",
        part!(),
        r"(?:(?:,|,? and|,? /| \+) ",
        part!(),
        r"){0,3})|\b(",
        part!(),
        r") (?:broke|breaks)\b",
    );
    FASTER = r"(?i)\bslower than (?:with |using |the )?((?:py)?torch(?:.s)? sdpa|sdpa|vulkan|triton|rocblas|hipblaslt)\b";
    /// Options that say whether the GPU computes at all; that it works without it isolates nothing.
    OF_GPU = r"(?i)cpu|gpu|ngl|cuda|--device|_DEVICES";
    /// Words before it that say that it does not, or that nobody knows.
    NEVER = r"(?i)\b(?:not|never|\w+n.t|no longer|hardly|if|whether|nothing)(?: \w+){0,2} $";
    /// An update after which it is the same, or right.
    TRIED = r"(?i)\b(?:still|same|no (?:change|difference|luck|effect)|help\w*|fixed|solved|resolved|gone|fine|faster|better|working (?:now|again|fine|well)|tried|try|even|if|should|not yet)\b|[^r] works\b";
    /// What follows does not, on the same version.
    BUT = r"(?i)^[^.]*\b(?:but|however|although|except)\b\D*$";
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
        let (whole, what) = (found.get(0)?, found.iter().skip(1).flatten().next()?);
        let rest = &sentence[what.end()..whole.end()];
        let is_another = DENIED.is_match(rest)
            || OF_GPU.is_match(what.as_str())
            || NEVER.is_match(&sentence[..whole.start()])
            || *id == WORKED && BUT.is_match(&sentence[whole.end()..])
            || *id == BEGAN && TRIED.is_match(sentence);
        (!is_another).then(|| (*id, what.as_str().to_owned()))
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
                "Downgrading to 0.17.7 fixes it",
                "said-worked-before",
                "0.17.7",
            ),
            (
                "ROCm 6.4.3 was the last version that worked",
                "said-worked-before",
                "ROCm 6.4.3",
            ),
            (
                "Everything is 40x slower than on kernel 7.0.11",
                "said-worked-before",
                "kernel 7.0.11",
            ),
            (
                "Since I updated Zluda and my drivers it just crashes",
                "said-since-update",
                "Zluda and my drivers",
            ),
            (
                "After the update to ROCm 7.2.4 each image takes minutes",
                "said-since-update",
                "ROCm 7.2.4",
            ),
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
            "It never worked with ROCm 7.2",
            "It works with ROCm 7.2, but a training hangs",
            "I do not know if it works with ROCm 7.2",
            "After updating the page it is empty",
            "After updating ROCm it is still the same",
            "After the update to ROCm 7.2.4 it works",
        ] {
            assert_eq!(told(text), None, "{text}");
        }
    }
}

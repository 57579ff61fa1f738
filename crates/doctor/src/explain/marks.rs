//! The words of a line that tell of its system, its GPU or its program: one search for all of them.

use crate::signs;
use crate::tables::{DISTRIBUTIONS, Distribution};
use aho_corasick::{AhoCorasick, AhoCorasickKind};
use std::sync::LazyLock;

/// What a word is a sign of.
#[derive(Clone, Copy)]
pub(super) enum Sign {
    Wsl,
    WslInProse,
    OnWindows,
    WindowsInProse,
    LinuxInProse,
    Windows,
    Linux,
    /// A card of NVIDIA, or a torch for one.
    Nvidia,
    /// A container, or a command that starts one.
    Container,
    /// `HSA_OVERRIDE_GFX_VERSION`.
    Override,
    /// A ROCm build of torch.
    Rocm,
    Architecture,
    Product,
    Kernel,
    Traceback,
    /// The mode of a device.
    Mode,
    /// An archive of sources.
    Archive,
    /// Something else that is read further.
    Other,
    /// A family of distributions.
    Distribution,
}

/// What the words of a line are signs of.
#[derive(Default)]
pub(super) struct Marks {
    bits: u32,
    pub(super) distribution: Option<&'static Distribution>,
}

const OTHERS: [(&str, Sign); 13] = [
    ("HSA_OVERRIDE_GFX_VERSION", Sign::Override),
    ("+rocm", Sign::Rocm),
    ("gfx", Sign::Architecture),
    ("Radeon", Sign::Product),
    ("Instinct", Sign::Product),
    ("kernel", Sign::Kernel),
    ("-generic", Sign::Kernel),
    ("Name:", Sign::Other),
    (".tar.gz", Sign::Archive),
    ("-packages", Sign::Traceback),
    ("Traceback (most recent", Sign::Traceback),
    (":\\", Sign::Other),
    ("crw-", Sign::Mode),
];

/// What a word is a sign of, and which family of distributions.
type Meaning = (Sign, Option<&'static Distribution>);

static SEARCH: LazyLock<(Option<AhoCorasick>, Vec<Meaning>)> = LazyLock::new(|| {
    let lists: [(&[&str], Sign); 10] = [
        (signs::WSL, Sign::Wsl),
        (signs::WSL_IN_PROSE, Sign::WslInProse),
        (signs::ON_WINDOWS, Sign::OnWindows),
        (signs::WINDOWS_IN_PROSE, Sign::WindowsInProse),
        (signs::LINUX_IN_PROSE, Sign::LinuxInProse),
        (signs::WINDOWS, Sign::Windows),
        (signs::PROBABLY_WINDOWS, Sign::Windows),
        (signs::LINUX, Sign::Linux),
        (signs::GEFORCE, Sign::Nvidia),
        (signs::CONTAINERS, Sign::Container),
    ];
    let of_distributions = DISTRIBUTIONS.iter().flat_map(|one| {
        one.signs
            .iter()
            .map(move |word| (*word, (Sign::Distribution, Some(one))))
    });
    let lists = lists.into_iter();
    let words = lists.flat_map(|(words, sign)| words.iter().map(move |word| (*word, (sign, None))));
    let others = OTHERS.map(|(word, sign)| (word, (sign, None)));
    let (words, signs): (Vec<&str>, Vec<_>) = words.chain(of_distributions).chain(others).unzip();
    // Constant words: without them nothing here works, and each test fails.
    let search = AhoCorasick::builder()
        .kind(Some(AhoCorasickKind::DFA))
        .build(words);
    (search.ok(), signs)
});

impl Marks {
    /// Those of a line; `None` where there is none.
    pub(super) fn of(line: &str) -> Option<Self> {
        let (search, signs) = &*SEARCH;
        let mut marks = Self::default();
        for word in search.as_ref()?.find_overlapping_iter(line) {
            let (sign, distribution) = signs[word.pattern().as_usize()];
            marks.bits |= 1 << sign as u32;
            marks.distribution = marks.distribution.or(distribution);
        }
        (marks.bits != 0).then_some(marks)
    }

    pub(super) fn has(&self, sign: Sign) -> bool {
        self.bits & 1 << sign as u32 != 0
    }
}

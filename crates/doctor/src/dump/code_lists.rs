//! Lists of the architectures that something was compiled for, and lists of those that a program found.
//!
//! Both look alike: what stands before them tells which it is.

use super::gpu_mention::GpuMention;
use crate::pattern::{Pattern, patterns};
use platform::Gfx;

patterns! {
    /// The answer may follow on the next lines, with prompts and warnings between them.
    TORCH = r"(?s)\bget_arch_list\(\)\W.{0,300}?\[(\s*'(?:gfx|sm_)[^\]]{3,400})\]";
    SDK = r"\brocm-sdk targets\s+((?:gfx[0-9a-f]+[;, ]*)+)";
    NAMED = concat!(
        r"(?i)\b(?:compiled|built|kernels?|binar(?:y|ies)|wheel|supported|available|included|packaged)\b",
        r"[^\n:=\[]{0,50}(?:\bfor|arch\w*|targets?|gfx|types?|GPUs?|kernels?)[^\n:=\[a-z]{0,6}[:=]?\s*",
        r"([\[({\x22'`]*(?:[\x22']?[a-z]{2,10}[\x22']?, ?){0,2}[\x22']?gfx[0-9a-f]{3,4}\b[^\n\])}]{0,400})",
        );
    TENSILE = r"(?i)(?:TensileLibrary|Kernels\.so-000|rocblas/library/\S*)[\w.-]*?_(gfx[0-9a-f]{3,4})\b";
    FOUND = r"(?i)(?:\b(?:detected|found|visible)\b[^\n:=\[]{0,30}(?:gfx|GPUs?|arch\w*|targets?|agents?)[^\n:=\[]{0,12}|\bagents?(?: (?:detected|found))?)[:=]\s*(\[[^\n\]]*gfx[^\n\]]*\])";
}

/// What something was compiled for: what it is, and the architectures.
pub(super) fn compiled(text: &str) -> Option<(String, Vec<Gfx>)> {
    let first = |pattern: &Pattern| Some(pattern.captures(text)?.get(1)?.as_str());
    if let Some(list) = first(&TORCH) {
        return list_of("torch (get_arch_list)", list);
    }
    if let Some(list) = first(&SDK) {
        return list_of("the installed ROCm packages (rocm-sdk targets)", list);
    }
    let named = NAMED
        .captures_iter(text)
        .filter_map(|found| list_of("this program", found.get(1)?.as_str()))
        .find(|(_, list)| list.len() > 1);
    if named.is_some() {
        return named;
    }
    let mut kernels: Vec<Gfx> = Vec::new();
    for found in TENSILE.captures_iter(text) {
        if let Ok(gfx) = found[1].parse()
            && !kernels.contains(&gfx)
        {
            kernels.push(gfx);
        }
    }
    (kernels.len() > 1).then(|| ("rocBLAS (its library files)".to_owned(), kernels))
}

/// Families (`gfx11-generic`) have code for more than they name.
fn list_of(what: &str, list: &str) -> Option<(String, Vec<Gfx>)> {
    let found = Gfx::find_all(list);
    let is_plain = !list.contains("generic") && !list.contains("sm_");
    (is_plain && !found.is_empty()).then(|| (what.to_owned(), found))
}

/// `Detected gfx targets: ["gfx1100", "gfx1036"]`: the GPUs of the machine.
pub(super) fn mentions(line: &str) -> Vec<GpuMention> {
    let found = FOUND.captures(line);
    let Some(list) = found.as_ref().and_then(|found| found.get(1)) else {
        return Vec::new();
    };
    Gfx::find_all(list.as_str())
        .into_iter()
        .zip(0..)
        .map(|(gfx, index)| GpuMention::new("found", Some(index)).reporting(Some(gfx)))
        .collect()
}

/// Whether a line lists what something was compiled for.
pub(super) fn is_code_list(line: &str) -> bool {
    Gfx::find_all(line).len() > 1 && NAMED.is_match(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Option<usize> {
        compiled(text).map(|(_, list)| list.len())
    }

    #[test]
    fn lists_of_code_are_read_in_many_forms() {
        for (text, count) in [
            (
                ">>> print(torch.cuda.get_arch_list())\n['gfx900', 'gfx906', 'gfx1030']\n",
                3,
            ),
            (
                ">>> pprint.pp(torch.cuda.get_arch_list())\n['gfx900',\n 'gfx906',\n 'gfx1201']\n",
                3,
            ),
            ("$ rocm-sdk targets\ngfx1100;gfx1101;gfx1102\n", 3),
            (
                "Unknown GPU architecture: gfx1151. Supported architectures: ['native', 'gfx90a', 'gfx1100']",
                2,
            ),
            ("kernels built for: gfx1010 gfx1030 gfx1100\n", 3),
            ("ggml-cuda.cu was compiled for: gfx1030,gfx1100\n", 2),
            (
                "\"/opt/rocm/lib/rocblas/library/TensileLibrary_lazy_gfx1030.dat\"\n\"/opt/rocm/lib/rocblas/library/TensileLibrary_lazy_gfx90a.dat\"\n",
                2,
            ),
            ("-- HIP supported arches: gfx906;gfx908;gfx90a\n", 3),
        ] {
            assert_eq!(list(text), Some(count), "{text}");
        }
    }

    #[test]
    fn a_gpu_that_was_found_is_no_list_of_code() {
        for text in [
            "Detected gfx targets: [\"gfx1100\", \"gfx1036\"].",
            "  Name: gfx1100\n  Name: gfx1036\n",
            "amdgcn-amd-amdhsa--gfx1100, amdgcn-amd-amdhsa--gfx11-generic",
        ] {
            assert_eq!(list(text), None, "{text}");
        }
        assert_eq!(
            mentions("INFO     ROCm: agents=['gfx1101', 'gfx1036']").len(),
            2
        );
        assert_eq!(
            mentions("DEBUG    ROCm agents detected: ['gfx1030']").len(),
            1
        );
        assert_eq!(
            mentions("   note: Detected gfx targets: [\"gfx1100\", \"gfx1036\"]. Discrete").len(),
            2
        );
    }
}

//! Fragments of tool output, pasted without the part that names a GPU.

use crate::tables::TOOLS;

/// As many lines make a part of an output.
const ENOUGH: usize = 3;

/// The tool of which a text has a part.
pub(super) fn tool_of(text: &str) -> Option<&'static str> {
    // The survey of LM Studio has the words of several tools.
    if text.contains("gpuSurveyResult") {
        return None;
    }
    let count = |signs: &[&str]| signs.iter().filter(|sign| text.contains(**sign)).count();
    let (name, signs) = TOOLS.iter().max_by_key(|(_, signs)| count(signs))?;
    (count(signs) >= ENOUGH).then_some(name)
}

/// Whether the list of agents of `rocminfo` breaks off within an agent.
pub(super) fn ends_within_an_agent(text: &str) -> bool {
    let Some(at) = text.rfind("Agent ") else {
        return false;
    };
    let last = &text[at..];
    text.contains("HSA Agents")
        && !text.contains("*** Done ***")
        && !["ISA Info:", "Accessible by all:"]
            .iter()
            .any(|sign| last.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_tells_its_tool() {
        for (text, tool) in [
            (
                "Compute Unit: 104\nSIMDs per CU: 4\nWavefront Size: 64\n",
                Some("rocminfo"),
            ),
            (
                "CMake version: 4.2\nLibc version: 2.39\nIs CUDA available: True\n",
                Some("collect_env"),
            ),
            (
                "Max compute units 30\nWavefront width (AMD) 32\nGraphics IP (AMD) 10.3\n",
                Some("clinfo"),
            ),
            (
                "GFX_ACTIVITY: 0 %\nUMC_ACTIVITY: 1 %\nGFX_VOLTAGE: 780 mV\n",
                Some("amd-smi"),
            ),
            // Two words of a tool are in many a log.
            ("CMake version: 4.2\nLibc version: 2.39\n", None),
            ("", None),
        ] {
            assert_eq!(tool_of(text), tool, "{text}");
        }
    }

    #[test]
    fn a_list_of_agents_ends_within_one_or_after_it() {
        let head = "HSA Agents\n*******\nAgent 1\n*******\n  Name: AMD Ryzen\n  Device Type: CPU\n";
        assert!(ends_within_an_agent(head));
        assert!(!ends_within_an_agent(&format!(
            "{head}  ISA Info:\n$ exit\n"
        )));
        assert!(!ends_within_an_agent(&format!("{head}*** Done ***\n")));
        assert!(!ends_within_an_agent("Agent 1"));
    }
}

//! Previews of a run on videos: prompts, which may be followed by options in the form of musubi-tuner's prompt
//! files.

use std::path::PathBuf;

use super::{Config, SampleConfig};

/// Default number of inference steps.
const STEPS: u32 = 20;

/// A video to generate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Preview {
    pub(crate) prompt: String,
    pub(crate) negative_prompt: String,
    /// In pixels.
    pub(crate) width: u32,
    /// In pixels.
    pub(crate) height: u32,
    pub(crate) num_frames: u32,
    pub(crate) seed: u64,
    pub(crate) num_inference_steps: u32,
    pub(crate) guidance_scale: Option<f64>,
    pub(crate) guidance_scale_2: Option<f64>,
    pub(crate) flow_shift: Option<f64>,
    pub(crate) image: Option<PathBuf>,
    pub(crate) controls: Vec<PathBuf>,
}

impl Config {
    /// The previews of `sample.prompts` in a run on videos; empty if it is not set.
    ///
    /// # Errors
    /// The problem with an option in a prompt.
    pub(crate) fn previews(&self) -> Result<Vec<Preview>, String> {
        let sample = &self.sample;
        if !self.is_video() || sample.prompts == SampleConfig::default().prompts {
            return Ok(Vec::new());
        }
        let data = &self.data;
        let (width, height) = match data.resolution.as_ref().map(|sides| sides.list()) {
            Some([width, height]) => (*width, *height),
            Some([side, ..]) => (*side, *side),
            _ => (0, 0),
        };
        let longest = data
            .num_frames
            .as_ref()
            .and_then(|frames| frames.list().iter().max());
        let preset = Preview {
            prompt: String::new(),
            negative_prompt: sample.negative_prompt.clone().unwrap_or_default(),
            width: sample.width.unwrap_or(width),
            height: sample.height.unwrap_or(height),
            num_frames: sample.num_frames.or(longest.copied()).unwrap_or(1),
            seed: sample.seed.unwrap_or(self.seed),
            num_inference_steps: sample.num_inference_steps.unwrap_or(STEPS),
            guidance_scale: sample.guidance_scale,
            guidance_scale_2: sample.guidance_scale_2,
            flow_shift: sample.flow_shift,
            image: sample.image.clone(),
            controls: sample
                .control_image
                .as_ref()
                .map_or(Vec::new(), |paths| paths.list().to_vec()),
        };
        let prompts = sample.prompts.iter();
        prompts.map(|line| preset.of_line(line)).collect()
    }

    /// Whether a prompt names its own image, which is not compared with [`FOLDERS`](super::FOLDERS).
    pub(super) fn names_images_in_prompts(&self) -> bool {
        let previews = self.previews().unwrap_or_default();
        let controls = self
            .sample
            .control_image
            .as_ref()
            .map_or(&[][..], |paths| paths.list());
        (previews.iter()).any(|made| made.image != self.sample.image || made.controls != controls)
    }
}

impl Preview {
    /// The same settings, with the prompt and options of a line: `a cat --w 832 --h 480 --d 7`.
    fn of_line(&self, line: &str) -> Result<Self, String> {
        let mut made = self.clone();
        let spaced = format!(" {line}");
        let mut parts = spaced.split(" --");
        made.prompt = parts.next().unwrap_or_default().trim().to_owned();
        let mut controls = Vec::new();
        for part in parts {
            let (key, value) = part.split_once(' ').unwrap_or((part, ""));
            let (key, value) = (key.trim(), value.trim());
            let wrong = |what: &str| format!("`--{key} {value}` in `{line}`: {what}");
            let whole = || {
                let number = value.parse::<u32>().ok().filter(|number| *number > 0);
                number.ok_or_else(|| wrong("must be a whole number above 0"))
            };
            let number = || {
                let number = value.parse::<f64>().ok();
                let number = number.filter(|number| number.is_finite() && *number > 0.0);
                number.ok_or_else(|| wrong("must be a number above 0"))
            };
            match key {
                "w" => made.width = whole()?,
                "h" => made.height = whole()?,
                "f" => made.num_frames = whole()?,
                "s" => made.num_inference_steps = whole()?,
                "d" => made.seed = value.parse().map_err(|_| wrong("must be a whole number"))?,
                "l" => made.guidance_scale = Some(number()?),
                "fs" => made.flow_shift = Some(number()?),
                "n" => made.negative_prompt = value.to_owned(),
                "i" => made.image = Some(value.into()),
                "ci" => controls.push(PathBuf::from(value)),
                _ => {
                    return Err(wrong(
                        "the options are `--w` (width), `--h` (height), `--f` (frames), `--d` (seed), `--s` (steps), \
                        `--l` (guidance), `--fs` (shift), `--n` (negative prompt), `--i` (image) and `--ci` (control image)",
                    ));
                }
            }
        }
        if !controls.is_empty() {
            made.controls = controls;
        }
        match made.prompt.is_empty() {
            true => Err(format!("`{line}` has no prompt")),
            false => Ok(made),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(overrides: &[&str]) -> Config {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let text = "model: {name_or_path: m}\nadapter: {}\nseed: 5\n\
                    data: {path: clips, resolution: [64, 32], num_frames: [1, 9]}\n";
        Config::parse("x.yaml", text, &overrides).unwrap()
    }

    #[test]
    fn options_in_a_prompt_override_keys_and_keys_override_the_data() {
        assert_eq!(config(&[]).previews().unwrap(), []);
        let list = config(&[
            "sample.prompts=[a cat, a dog --w 96 --h 48 --f 5 --d 7 --s 3 --l 1 --fs 2.5 --n blurry mess --i x.png --ci y.png --ci z.png]",
            "sample.control_image=own.png",
            "sample.negative_prompt=bad",
            "sample.num_inference_steps=4",
        ]);
        let list = list.previews().unwrap();
        let cat = Preview {
            prompt: "a cat".into(),
            negative_prompt: "bad".into(),
            width: 64,
            height: 32,
            num_frames: 9,
            seed: 5,
            num_inference_steps: 4,
            guidance_scale: None,
            guidance_scale_2: None,
            flow_shift: None,
            image: None,
            controls: vec!["own.png".into()],
        };
        let dog = Preview {
            prompt: "a dog".into(),
            negative_prompt: "blurry mess".into(),
            width: 96,
            height: 48,
            num_frames: 5,
            seed: 7,
            num_inference_steps: 3,
            guidance_scale: Some(1.0),
            guidance_scale_2: None,
            flow_shift: Some(2.5),
            image: Some("x.png".into()),
            controls: vec!["y.png".into(), "z.png".into()],
        };
        assert_eq!(list, [cat, dog]);
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_known_ones() {
        let text = "model: {name_or_path: m}\nadapter: {}\ndata: {path: clips, resolution: 64}\n";
        for (line, told) in [
            (
                "a cat --g 3",
                "`--g 3` in `a cat --g 3`: the options are `--w`",
            ),
            ("a cat --w wide", "must be a whole number above 0"),
            ("--w 64", "has no prompt"),
        ] {
            let prompts = [format!("sample.prompts=['{line}']")];
            let error = Config::parse("x.yaml", text, &prompts)
                .unwrap_err()
                .to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}

//! Keys of trainers of images and videos for which a word is not enough.

use serde_json::{Map, Value};

use super::Origin;
use super::meaning::{ADAPTERS, Keys, Meaning};
use super::read::{Item, scalar};

impl Keys<'_> {
    /// What a key means that is read here; `None` for others.
    pub(super) fn of_media(&self, item: &Item) -> Option<Vec<Meaning>> {
        let (word, value) = (item.word(), &item.value);
        let text = value.as_str().unwrap_or_default();
        let one = |meaning| Some(vec![meaning]);
        let set = |key, value: Value| one(Meaning::Set(key, value));
        let nothing = |reason: &str| one(Meaning::Nothing(reason.into()));
        let write = |reason: &str| one(Meaning::Write(reason.into()));
        if let Some(regular) = self.regular_set(item) {
            return match word {
                "folder_path" | "image_dir" => set("data.reg_data_dir", value.clone()),
                _ => one(Meaning::Nothing(format!(
                    "`{regular}` becomes `data.reg_data_dir`, which has no settings of its own"
                ))),
            };
        }
        let mut lists = item.path.match_indices("s[");
        match item.section() {
            "samples" if word == "prompt" => {
                let all = self.items.iter();
                let all = all.filter(|other| other.path.ends_with("].prompt"));
                return set(
                    "sample.prompts",
                    all.map(|other| other.value.clone()).collect(),
                );
            }
            "samples" => {
                let is_of_all = |other: &Item| other.section() == "sample" && other.word() == word;
                return match self.items.iter().any(is_of_all) {
                    true => nothing("all prompts have that of `sample` here"),
                    false => {
                        Some(self.meaning(&Item::new(format!("sample.{word}"), value.clone())))
                    }
                };
            }
            _ if lists.any(|(at, _)| !item.path[at..].starts_with("s[0]")) => {
                return nothing(
                    "a run has one folder of media: put those of this set below the same folder",
                );
            }
            _ => {}
        }
        match word {
            "algo" if item.section() == "network" => match text {
                "lora" | "locon" => nothing("this is what a run does here"),
                "lokr" | "loha" => set("adapter.type", text.into()),
                _ => nothing(ADAPTERS),
            },
            "factor" if matches!(item.section(), "network" | "") => {
                set("adapter.decompose_factor", value.clone())
            }
            "lokr_full_rank" if value == true => write(
                "the second factor of a LoKr is whole where `adapter.r` is as large as its sides: write that",
            ),
            // It would have been read.
            "dataset_config" => write(
                "this file is not there: write the folder and size of the pictures, or import it as well",
            ),
            // Where there are two, this is the low-noise one.
            "dit" if self.get("dit_high_noise").is_some() => {
                set("model.transformer_2", value.clone())
            }
            "text_encoder" if value.is_string() => set("model.text_encoder", value.clone()),
            "loss_type" => match text {
                "l2" | "mse" => nothing("this is what a run does here"),
                _ => nothing("the loss is the mean of squares here"),
            },
            "masked_loss" => nothing(
                "masks are those of `data.mask_path`, or of the pictures with `data.alpha_mask`",
            ),
            "conditioning_data_dir" if self.get("masked_loss").is_some_and(|used| used == true) => {
                set("data.mask_path", value.clone())
            }
            "lr_scheduler_num_cycles" | "lr_scheduler_power" | "lr_scheduler_min_lr_ratio" => {
                one(self.schedule())
            }
            "control_path_1" => {
                let folders = ["control_path_1", "control_path_2", "control_path_3"];
                let folders = folders.iter().filter_map(|word| self.get(word));
                let folders = folders.filter(|folder| folder.is_string()).cloned();
                set("data.control_path", folders.collect())
            }
            "control_path_2" | "control_path_3" if self.get("control_path_1").is_some() => {
                nothing("it stands beside the first one in `data.control_path`")
            }
            // As in musubi-tuner and sd-scripts, where these draw from the whole range, or shift by the size of a picture.
            "timestep_sampling" if matches!(text, "uniform" | "sigmoid") => {
                let not = Meaning::Set("train.flow_shift", 1.into());
                Some(vec![self.by_words(item), not])
            }
            "discrete_flow_shift" if !self.shifts_by_number() => {
                nothing("`timestep_sampling` takes no notice of it there, either")
            }
            "resolution" | "max_resolution" => Some(self.resolution(value)),
            "sample_prompts" | "prompts" if value.is_string() => {
                match std::fs::read_to_string(self.folder.join(text)) {
                    Ok(lines) if text.ends_with(".txt") => Some(prompts(&lines)),
                    _ if [".txt", ".toml", ".json"]
                        .iter()
                        .any(|end| text.ends_with(end)) =>
                    {
                        write("write the prompts of this file as `sample.prompts`")
                    }
                    _ => Some(prompts(text)),
                }
            }
            // As the interface of kohya's scripts writes it.
            "LoRA_type" => match text.rsplit('/').next().unwrap_or_default() {
                "Standard" | "LoCon" => one(Meaning::Adapter),
                kind @ ("LoKr" | "LoHa") => set("adapter.type", kind.to_lowercase().into()),
                _ => nothing(ADAPTERS),
            },
            "seed" if value.is_string() => set("seed", scalar(text)),
            "text_encoder_lr" if self.get("network_train_unet_only") == Some(&true.into()) => {
                nothing("only the denoiser is trained there, too")
            }
            "text_encoder_lr" if value.as_f64() == Some(0.0) => {
                nothing("only the denoiser is trained there, too")
            }
            "text_encoder_lr" if value.is_number() => Some(vec![
                Meaning::Set("train.text_encoder", true.into()),
                self.by_words(item),
            ]),
            _ => None,
        }
    }

    /// The set of regularisation pictures that a key belongs to.
    fn regular_set<'a>(&self, item: &'a Item) -> Option<&'a str> {
        let set = &item.path[..=item.path.rfind(']')?];
        let is_regular =
            |other: &Item| other.path.strip_prefix(set) == Some(".is_reg") && other.value == true;
        self.items.iter().any(is_regular).then_some(set)
    }

    /// What schedules take beside the learning rate, as sd-scripts hands it on.
    fn schedule(&self) -> Meaning {
        let name = self.get("lr_scheduler").and_then(Value::as_str);
        let taken: &[(&str, &str, f64)] = match name.unwrap_or_default() {
            "cosine_with_restarts" => &[("lr_scheduler_num_cycles", "num_cycles", 1.0)],
            "polynomial" => &[("lr_scheduler_power", "power", 1.0)],
            "cosine_with_min_lr" => &[
                ("lr_scheduler_num_cycles", "num_cycles", 0.5),
                ("lr_scheduler_min_lr_ratio", "min_lr_rate", 1.0),
            ],
            _ => &[],
        };
        let taken = taken.iter().filter_map(|(theirs, ours, factor)| {
            let number = self.get(theirs)?.as_f64()?;
            Some(((*ours).to_owned(), Value::from(number * factor)))
        });
        let taken: Map<_, _> = taken.collect();
        match taken.is_empty() {
            true => Meaning::Nothing("the schedule takes no notice of it there, either".into()),
            false => Meaning::Set("train.lr_scheduler_kwargs", taken.into()),
        }
    }

    /// Whether noise is shifted by `discrete_flow_shift`.
    fn shifts_by_number(&self) -> bool {
        let how = self.get("timestep_sampling").and_then(Value::as_str);
        how.is_none_or(|how| how == "sigma" || how == "shift")
    }

    /// A side, or width and height.
    fn resolution(&self, value: &Value) -> Vec<Meaning> {
        let text = value.as_str().unwrap_or_default().split([',', 'x']);
        let sides = text
            .filter_map(|side| side.trim().parse::<u64>().ok())
            .collect::<Vec<_>>();
        let sides = match value.as_array() {
            Some(list) => list.iter().filter_map(Value::as_u64).collect(),
            None => sides,
        };
        let set = |value: Value| Meaning::Set("data.resolution", value);
        match (&sides[..], self.origin) {
            ([], _) => vec![set(value.clone())],
            ([side], _) => vec![set((*side).into())],
            // Sizes that all pictures have.
            (sides, Origin::AiToolkit) => {
                let mut sides = sides.to_vec();
                sides.sort_unstable_by(|a, b| b.cmp(a));
                sides.dedup();
                let others = sides.split_off(1);
                let mut found = vec![set(sides[0].into())];
                if !others.is_empty() {
                    found.push(Meaning::Set("data.other_resolutions", others.into()));
                }
                found
            }
            ([width, height], _) if width == height => vec![set((*width).into())],
            (sides, _) => vec![set(sides.to_vec().into())],
        }
    }
}

/// The prompts of a file of sd-scripts or musubi-tuner, and their options, of which all prompts have the same here.
fn prompts(lines: &str) -> Vec<Meaning> {
    const OPTIONS: [(&str, &str); 11] = [
        ("n", "sample.negative_prompt"),
        ("w", "sample.width"),
        ("h", "sample.height"),
        ("d", "sample.seed"),
        ("s", "sample.num_inference_steps"),
        ("l", "sample.guidance_scale"),
        ("g", "sample.guidance_scale"),
        ("fs", "sample.flow_shift"),
        ("f", "sample.num_frames"),
        ("i", "sample.image"),
        ("ci", "sample.control_image"),
    ];
    let (mut texts, mut found) = (Vec::new(), Vec::new());
    let lines = lines.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut parts = line.split(" --");
        texts.push(Value::from(parts.next().unwrap_or_default().trim()));
        for part in parts {
            let (option, value) = part.split_once(' ').unwrap_or((part, ""));
            let known = OPTIONS.iter().find(|(name, _)| *name == option);
            found.push(match (known, scalar(value.trim())) {
                (Some((_, key)), number @ Value::Number(_)) => Meaning::Set(key, number),
                (Some((_, key)), _) => Meaning::Set(key, value.trim().into()),
                (None, _) => {
                    Meaning::Nothing(format!("`--{part}` of a prompt: there is no counterpart"))
                }
            });
        }
    }
    found.insert(0, Meaning::Set("sample.prompts", texts.into()));
    found
}

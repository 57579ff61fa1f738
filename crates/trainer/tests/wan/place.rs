//! A folder with a tiny model, a few clips and the runs on them.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use image::codecs::gif::GifEncoder;
use image::{Delay, Frame, Rgb, RgbImage, Rgba, RgbaImage};
use surefoot_trainer::{Allocator, Config, Error, NoObserver, Observer, Stop, Summary};

pub(crate) fn golden(name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
    let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept, PathBuf::from);
    folder.join("wan").join(name)
}

/// Words and letters, as the file of a tokenizer has them.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null,
 "added_tokens": [
  {"id": 0, "content": "<pad>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
  {"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
  {"id": 2, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "normalizer": null,
 "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
 "post_processor": {"type": "TemplateProcessing",
  "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
  "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
  "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
 "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
 "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": false, "vocab": [["<pad>", 0.0], ["</s>", 0.0],
  ["<unk>", 0.0], ["▁", -2.0], ["▁a", -2.1], ["▁cat", -2.2], ["▁dog", -2.3], ["▁run", -2.4], ["s", -2.5],
  ["▁grey", -2.6]]}}"#;

/// A folder with a model, media and runs.
pub(crate) struct Place {
    root: tempfile::TempDir,
}

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

/// Gives the model a scheduler, which only sampling reads.
pub(crate) fn scheduled(place: Place) -> Place {
    let folder = place.path("model/scheduler");
    fs::create_dir_all(&folder).unwrap();
    let text = r#"{"_class_name": "UniPCMultistepScheduler", "flow_shift": 3.0, "use_flow_sigmas": true,
        "prediction_type": "flow_prediction"}"#;
    fs::write(folder.join("scheduler_config.json"), text).unwrap();
    place
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self {
            root: tempfile::tempdir().unwrap(),
        };
        let model = place.path("model");
        copy(&golden("training/transformer"), &model.join("transformer"));
        copy(&golden("autoencoder-2.1"), &model.join("vae"));
        copy(&golden("text-encoder"), &model.join("text_encoder"));
        fs::create_dir_all(model.join("tokenizer")).unwrap();
        fs::write(model.join("tokenizer/tokenizer.json"), TOKENIZER).unwrap();
        let index = r#"{"_class_name": "WanPipeline", "boundary_ratio": null}"#;
        fs::write(model.join("model_index.json"), index).unwrap();
        let media = place.path("media");
        fs::create_dir_all(media.join("walk")).unwrap();
        for index in 0..3u8 {
            plain(20 + 40 * index)
                .save(media.join(format!("{index}.png")))
                .unwrap();
            let caption = format!("a grey cat {}", "s".repeat(index.into()));
            fs::write(media.join(format!("{index}.txt")), caption).unwrap();
        }
        for index in 0..6u8 {
            plain(index * 40)
                .save(media.join(format!("walk/{index}.png")))
                .unwrap();
        }
        fs::write(media.join("walk.txt"), "a dog runs").unwrap();
        // One second: sixteen frames at the model's rate.
        let file = fs::File::create(media.join("dog.gif")).unwrap();
        let mut gif = GifEncoder::new(file);
        for level in [0, 80, 160, 240] {
            let picture = RgbaImage::from_pixel(48, 32, Rgba([level, 40, 0, 255]));
            let delay = Delay::from_numer_denom_ms(250, 1);
            gif.encode_frame(Frame::from_parts(picture, 0, 0, delay))
                .unwrap();
        }
        drop(gif);
        fs::write(media.join("dog.txt"), "a dog").unwrap();
        place
    }

    /// With two experts that make videos of a picture, whose input has its condition beside the latents.
    pub(crate) fn image_to_video() -> Self {
        let place = Self::new();
        for part in ["transformer", "transformer_2"] {
            let from = golden(&format!("training-i2v/{part}"));
            copy(&from, &place.path(&format!("model/{part}")));
        }
        place.index(r#"{"_class_name": "WanImageToVideoPipeline", "boundary_ratio": 0.9}"#);
        place
    }

    /// With a model whose first latent frame may be given, and an autoencoder as it has.
    pub(crate) fn first_frame_to_video() -> Self {
        let place = Self::new();
        copy(
            &golden("training-ti2v/transformer"),
            &place.path("model/transformer"),
        );
        copy(&golden("autoencoder-2.2"), &place.path("model/vae"));
        place.index(r#"{"_class_name": "WanPipeline", "expand_timesteps": true}"#);
        place
    }

    fn index(&self, text: &str) {
        fs::write(self.path("model/model_index.json"), text).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn config(&self, overrides: &[&str]) -> Config {
        config(self.root.path(), overrides)
    }

    pub(crate) fn run(&self, overrides: &[&str]) -> Result<Summary, Error> {
        let config = self.config(overrides);
        let allocator = Allocator::torch();
        surefoot_trainer::run(&config, &allocator, &mut NoObserver, &Stop::default())
    }

    /// Fails unless a run of six steps that is killed after any but the first, and resumed, ends with the same
    /// bits in its weights and in `files` as one that is not.
    pub(crate) fn check_kills(&self, overrides: &[&str], files: &[&str]) {
        self.run(&[overrides, &["name=whole"]].concat()).unwrap();
        for step in 2..=6 {
            let name = format!("name=killed{step}");
            let run = [overrides, &[name.as_str()]].concat();
            let config = self.config(&run);
            let killed = catch_unwind(AssertUnwindSafe(|| {
                let allocator = Allocator::torch();
                surefoot_trainer::run(&config, &allocator, &mut Killer(step), &Stop::default())
            }));
            assert!(killed.is_err());
            let resume = "train.resume_from_checkpoint=latest";
            self.run(&[&run[..], &[resume]].concat()).unwrap();
            let [whole, parts] = ["whole".to_owned(), format!("killed{step}")]
                .map(|name| self.path("runs").join(name));
            assert!(
                weights(&whole) == weights(&parts),
                "killed after step {step}"
            );
            for file in files {
                let read = |run: &Path| fs::read(run.join(file)).unwrap();
                assert!(read(&whole) == read(&parts), "{file}");
            }
        }
    }

    /// How many clips and captions a run would encode now.
    pub(crate) fn encoded(&self, overrides: &[&str]) -> (usize, usize) {
        let config = self.config(overrides);
        let done = surefoot_trainer::encode(&config, &Allocator::torch(), &mut NoObserver);
        let done = done.unwrap();
        (done.encoded_clips, done.encoded_captions)
    }
}

/// The config of runs in the folder `root` of a [`Place`].
pub(crate) fn config(root: &Path, overrides: &[&str]) -> Config {
    let root = root.display();
    let text = format!(
        "name: clips\noutput_dir: {root}/runs\ndevice: cpu\nthreads: 1\nseed: 3\n\
         model: {{name_or_path: {root}/model}}\nadapter: {{r: 2, lora_alpha: 4}}\n\
         data: {{path: {root}/media, resolution: 32, num_frames: 5, frame_extraction: chunk, \
         cache_dir: {root}/cache, validation_fraction: 0.2, caption_dropout: 0.3}}\n\
         train: {{max_steps: 6, per_device_train_batch_size: 2, learning_rate: 0.01, bf16: false, \
         lr_scheduler_type: constant, logging_steps: 1, eval_steps: 3, save_steps: 2}}\n"
    );
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    Config::parse("clips.yaml", &text, &overrides).unwrap()
}

/// Ends the process, as far as a run can tell, when a step is done.
struct Killer(u64);

impl Observer for Killer {
    fn stepped(&mut self, step: u64) {
        assert!(step < self.0, "killed");
    }
}

pub(crate) fn plain(level: u8) -> RgbImage {
    RgbImage::from_pixel(40, 40, Rgb([level, 200 - level / 2, 90]))
}

/// The trained weights of a run.
pub(crate) fn weights(run: &Path) -> Vec<u8> {
    let checkpoints = run.join("checkpoints");
    fs::read(checkpoints.join("step-000006/model.safetensors")).unwrap()
}

//! Training on what musubi-tuner or ai-toolkit has encoded.

use std::fs;
use std::path::{Path, PathBuf};

use models::formats::{SafetensorsFile, TensorSource, write_safetensors_with, write_tensors};
use tch::{Kind, Tensor};

use super::place::{Place, weights};

/// The media of [`Place`], in the order in which they are read, and the frames of a clip of each.
const MEDIA: [(&str, u32); 5] = [
    ("0.png", 1),
    ("1.png", 1),
    ("2.png", 1),
    ("dog.gif", 5),
    ("walk", 5),
];
const HEAD: &str = "data.frame_extraction=head";

/// The latents and the text of each of [`MEDIA`], as they are encoded here.
fn encoded(place: &Place) -> Vec<(Tensor, Tensor)> {
    let encode = |(medium, _): &(&str, u32)| {
        let stem = medium.split('.').next().unwrap();
        let caption = fs::read_to_string(place.path(&format!("media/{stem}.txt"))).unwrap();
        let line = serde_json::json!({"file_name": format!("media/{medium}"), "caption": caption});
        fs::write(place.path("one.jsonl"), line.to_string()).unwrap();
        let path = format!("data.path={}", place.path("one.jsonl").display());
        let cache = place.path(&format!("cache-{stem}"));
        let folder = format!("data.cache_dir={}", cache.display());
        place.encoded(&[HEAD, &path, &folder, "data.validation_fraction=0"]);
        let read = |part: &str, name: &str| -> Tensor {
            let files = fs::read_dir(cache.join(part)).unwrap();
            let tensors = files.map(|file| {
                let file = SafetensorsFile::open(&file.unwrap().path()).unwrap();
                file.read(name, Kind::Float).unwrap()
            });
            // The other text is the empty one.
            tensors.max_by_key(|tensor| tensor.size()[0]).unwrap()
        };
        (read("latents", "latents"), read("texts", "text"))
    };
    MEDIA.iter().map(encode).collect()
}

fn write(path: &Path, name: &str, tensor: &Tensor) {
    write_tensors(path, &[(name.to_owned(), tensor)]).unwrap();
}

/// What `wan_cache_latents.py` and `wan_cache_text_encoder_outputs.py` leave.
fn musubi(place: &Place) -> PathBuf {
    let folder = place.path("musubi");
    fs::create_dir_all(&folder).unwrap();
    for ((medium, frames), (latents, text)) in MEDIA.iter().zip(encoded(place)) {
        let stem = medium.split('.').next().unwrap();
        let part = match frames {
            1 => String::new(),
            frames => format!("_00000-{frames:03}"),
        };
        let file = folder.join(format!("{stem}{part}_0040x0040_wan.safetensors"));
        let (_, count, height, width) = latents.size4().unwrap();
        let name = format!("latents_{count}x{height}x{width}_float32");
        write(&file, &name, &latents);
        let file = folder.join(format!("{stem}_wan_te.safetensors"));
        write(&file, "varlen_t5_float32", &text);
    }
    folder
}

/// What a run of ai-toolkit leaves beside the media.
fn ai_toolkit(place: &Place) -> PathBuf {
    let folder = place.path("toolkit");
    for part in ["_latent_cache", "_t_e_cache"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    for ((medium, frames), (latents, text)) in MEDIA.iter().zip(encoded(place)) {
        let stem = medium.split('.').next().unwrap();
        let file = folder.join(format!(
            "_latent_cache/{stem}_a-b_DEfgHIjkLMnoPQrsTU.safetensors"
        ));
        let length = Tensor::from_slice(&[*frames as i32]);
        let tensors = [
            ("latent".to_owned(), &latents),
            ("num_frames".to_owned(), &length),
        ];
        write_tensors(&file, &tensors).unwrap();
        let padded = text.constant_pad_nd([0, 0, 0, 512 - text.size()[0]]);
        let file = folder.join(format!(
            "_t_e_cache/{stem}_0123456789abcdefghij-_.safetensors"
        ));
        write(&file, "text_embed", &padded.unsqueeze(0));
    }
    folder
}

#[test]
fn a_run_on_caches_of_others_is_that_on_the_media() {
    let place = Place::new();
    place.run(&["name=media", HEAD]).unwrap();
    let expected = weights(&place.path("runs/media"));
    for (name, folder) in [
        ("musubi", musubi(&place)),
        ("ai_toolkit", ai_toolkit(&place)),
    ] {
        let run = format!("name={name}");
        let path = format!("data.path={}", folder.display());
        let by = format!("data.encoded_by={name}");
        place.run(&of_others(&[&run, &path, &by])).unwrap();
        let found = weights(&place.path("runs").join(name));
        assert!(found == expected, "{name}");
    }
}

#[test]
fn caches_of_others_are_read_again_where_they_have_changed_alone() {
    let place = Place::new();
    let folder = musubi(&place);
    let path = format!("data.path={}", folder.display());
    let own = format!("data.cache_dir={}", place.path("taken").display());
    let overrides = of_others(&[&path, &own, "data.encoded_by=musubi"]);
    place.encoded(&overrides);
    let file = folder.join("0_0040x0040_wan.safetensors");
    let changed = fs::metadata(&file).unwrap().modified().unwrap();
    let whole = fs::read(&file).unwrap();
    // Numbers that would be refused, in a file of the same size and date.
    let mut spoiled = whole.clone();
    let end = spoiled.len();
    spoiled[end - 8..].fill(0xff);
    fs::write(&file, &spoiled).unwrap();
    let date = |time| {
        let file = fs::File::options().write(true).open(&file).unwrap();
        file.set_modified(time).unwrap();
    };
    date(changed);
    place.encoded(&overrides);
    date(changed + std::time::Duration::from_secs(1));
    let error = place.run(&overrides).unwrap_err().to_string();
    assert!(error.contains("has non-finite values"), "{error}");
    fs::write(&file, &whole).unwrap();
    let kept = fs::read_dir(place.path("taken/latents")).unwrap().count();
    place.encoded(&overrides);
    // As before: the content is what counts.
    let now = fs::read_dir(place.path("taken/latents")).unwrap().count();
    assert_eq!((kept, now), (5, 5));
}

/// Those, and nothing that the caches have decided.
fn of_others<'a>(overrides: &[&'a str]) -> Vec<&'a str> {
    let unset = [
        "data.resolution",
        "data.num_frames",
        "data.frame_extraction",
    ];
    let unset = unset.map(|key| match key {
        "data.resolution" => "data.resolution=null",
        "data.num_frames" => "data.num_frames=null",
        _ => "data.frame_extraction=null",
    });
    [overrides, &unset].concat()
}

#[test]
fn caches_that_cannot_be_used_are_named() {
    let place = Place::new();
    let whole = musubi(&place);
    let tensor = |shape: &[i64]| Tensor::ones(shape, (Kind::Float, tch::Device::Cpu));
    let refused = |folder: &Path, by: &str| {
        let path = format!("data.path={}", folder.display());
        let by = format!("data.encoded_by={by}");
        place
            .run(&of_others(&[&path, &by]))
            .unwrap_err()
            .to_string()
    };
    let latents = "x_0040x0040_wan.safetensors";
    let channels = SafetensorsFile::open(&whole.join("0_0040x0040_wan.safetensors")).unwrap();
    let channels = channels.shape(&channels.names()[0]).unwrap()[0];
    let right = format!("latents_1x4x4_float32:{channels},1,4,4");
    let cases = [
        ("latents_1x4x4_float32:7,1,4,4", "t5:24", "have 7 channels"),
        (
            &format!("latents_1x3x4_float32:{channels},1,3,4"),
            "t5:24",
            "cannot be divided into tokens of 2 × 2",
        ),
        (
            &format!("latents_control_1x4x4_float32:{channels},1,4,4"),
            "t5:24",
            "`latents_control_1x4x4_float32` belongs to",
        ),
        (&right, "", "has no text `x_wan_te.safetensors` beside it"),
        (&right, "t5:3", "have the width 3"),
        (&right, "clip:3", "`clip` is not a Wan text"),
        (
            "latents_1x4x4_float32:nan",
            "t5:24",
            "has non-finite values",
        ),
    ];
    for (index, (clip, text, message)) in cases.iter().enumerate() {
        let folder = place.path(&format!("case{index}"));
        fs::create_dir(&folder).unwrap();
        let (name, sizes) = clip.split_once(':').unwrap();
        let sizes: Vec<i64> = sizes
            .split(',')
            .filter_map(|size| size.parse().ok())
            .collect();
        let latent = match sizes.is_empty() {
            true => tensor(&[channels, 1, 4, 4]) * f64::NAN,
            false => tensor(&sizes),
        };
        write(&folder.join(latents), name, &latent);
        if let Some((name, width)) = text.split_once(':') {
            let name = name.replace("t5", "varlen_t5_bfloat16");
            let text = tensor(&[2, width.parse().unwrap()]);
            write(&folder.join("x_wan_te.safetensors"), &name, &text);
        }
        let error = refused(&folder, "musubi");
        assert!(error.contains(message), "{message}: {error}");
    }
    let of_another = place.path("another");
    fs::create_dir(&of_another).unwrap();
    let lazy = models::formats::LazyTensor::ready(&tensor(&[channels, 1, 4, 4]));
    let metadata =
        std::collections::BTreeMap::from([("architecture".to_owned(), "hunyuan_video".to_owned())]);
    write_safetensors_with(
        &of_another.join(latents),
        [("latents_1x4x4_float32".to_owned(), lazy)],
        &metadata,
    )
    .unwrap();
    write(
        &of_another.join("x_wan_te.safetensors"),
        "varlen_t5_bfloat16",
        &tensor(&[2, 24]),
    );
    assert!(refused(&of_another, "musubi").contains("for `hunyuan_video`"));
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    for by in ["musubi", "ai_toolkit"] {
        let error = refused(&empty, by);
        assert!(error.contains("there are no Wan latents in"), "{error}");
    }
    // The folder of the media instead of the caches, and the other way round.
    assert!(refused(&whole, "ai_toolkit").contains("`folder_path`"));
}

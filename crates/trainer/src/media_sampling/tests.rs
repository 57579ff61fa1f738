//! Media that are written and read back, and invalid requests.

use super::*;

fn frames(count: i64) -> Tensor {
    let ramp = Tensor::arange(count * 3 * 16 * 24, (Kind::Float, Device::Cpu));
    let bytes = (ramp * 7.0).fmod(256.0).view([count, 3, 16, 24]);
    bytes / 255.0 * 2.0 - 1.0
}

fn written(name: &str, count: i64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let output = Output::choose(&path, count).unwrap();
    let mut writer = output.writer(24, 16, 16).unwrap();
    for picture in pictures::bytes(&frames(count)).unwrap() {
        writer.push(picture).unwrap();
    }
    writer.finish().unwrap();
    (folder, path)
}

#[test]
fn what_is_written_without_loss_is_read_as_it_was() {
    for (name, count) in [
        ("video.webp", 5),
        ("frames", 5),
        ("picture.png", 1),
        ("one.webp", 1),
    ] {
        let (folder, path) = written(name, count);
        let read = pictures::video(&path).unwrap();
        let apart = f64::try_from((read - frames(count)).abs().max()).unwrap();
        assert!(apart < 1e-6, "{name}: {apart}");
        // Nothing incomplete is left, and nothing is overwritten.
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "{name}"
        );
        let error = Output::choose(&path, count).unwrap_err().to_string();
        assert!(error.contains("is not overwritten"), "{error}");
    }
}

/// A picture twice as wide as the model's: black, white in the middle, black.
#[test]
fn a_first_frame_is_cropped_as_in_training() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.png");
    let picture = image::RgbImage::from_fn(64, 32, |x, _| {
        image::Rgb([if (16..48).contains(&x) { 255 } else { 0 }; 3])
    });
    picture.save(&path).unwrap();
    let read = pictures::picture(&path, 32, 32).unwrap();
    assert_eq!(read.size(), [3, 32, 32]);
    assert_eq!(f64::try_from(read.min()).unwrap(), 1.0);
    #[cfg(unix)]
    assert!(pictures::video(std::path::Path::new("/dev/null")).is_err());
}

#[test]
fn names_that_say_no_form_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, count, reason) in [
        ("x.avi", 5, "animated `.webp`"),
        ("x.png", 5, "only one of 5 frames"),
    ] {
        let error = Output::choose(&folder.path().join(name), count)
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn loras_have_a_strength_behind_a_colon() {
    for (text, path, strength) in [
        ("a.safetensors", "a.safetensors", 1.0),
        ("a.safetensors:0.8", "a.safetensors", 0.8),
        ("C:\\loras\\a.safetensors", "C:\\loras\\a.safetensors", 1.0),
        ("a:b.safetensors:-1", "a:b.safetensors", -1.0),
    ] {
        let lora: Lora = text.parse().unwrap();
        assert_eq!(
            (lora.path, lora.strength),
            (PathBuf::from(path), strength),
            "{text}"
        );
    }
    for text in ["", ":0.5", "a:inf", "a:NaN"] {
        assert!(text.parse::<Lora>().is_err(), "{text}");
    }
}

#[test]
fn media_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.png");
    std::fs::write(&path, b"no picture").unwrap();
    for path in [
        path,
        folder.path().join("none.mp4"),
        folder.path().join("none.webp"),
    ] {
        let error = pictures::video(&path).unwrap_err().to_string();
        assert!(
            error.contains(path.file_name().unwrap().to_str().unwrap()),
            "{error}"
        );
    }
}

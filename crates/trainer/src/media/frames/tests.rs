//! Frames at a given rate and size.

use image::codecs::gif::GifEncoder;
use image::{Delay, Frame, Rgb, Rgba, RgbaImage};

use super::*;

/// A picture of one colour.
fn plain(width: u32, height: u32, level: u8) -> RgbImage {
    RgbImage::from_pixel(width, height, Rgb([level, level, level]))
}

/// A GIF of pictures with these levels, each shown for this many milliseconds.
fn gif(folder: &Path, frames: &[(u8, u32)]) -> Source {
    let path = folder.join("a.gif");
    let mut encoder = GifEncoder::new(File::create(&path).unwrap());
    for (level, shown) in frames {
        let picture = RgbaImage::from_pixel(20, 10, Rgba([*level, *level, *level, 255]));
        let delay = Delay::from_numer_denom_ms(*shown, 1);
        let frame = Frame::from_parts(picture, 0, 0, delay);
        encoder.encode_frame(frame).unwrap();
    }
    drop(encoder);
    Source::Moving(path)
}

fn levels(source: &Source, fps: f64, span: Span) -> Vec<u8> {
    let shape = shape(source, fps).unwrap();
    let mut levels = Vec::new();
    read(source, shape, fps, span, (16, 16), &mut |picture| {
        assert_eq!(picture.dimensions(), (16, 16));
        levels.push(picture.get_pixel(8, 8).0[0]);
        Ok(())
    })
    .unwrap();
    levels
}

#[test]
fn frames_are_taken_by_when_they_are_shown() {
    // 0.5 s, 0.1 s and 0.4 s at 10 fps.
    assert_eq!(
        resampled(&[0.5, 0.1, 0.4], 10.0),
        [0, 0, 0, 0, 0, 1, 2, 2, 2, 2]
    );
    // At 2 fps the second one is never shown.
    assert_eq!(resampled(&[0.5, 0.1, 0.4], 2.0), [0, 2]);
    assert_eq!(resampled(&[0.01], 2.0), [0]);
    // Its own rate changes nothing.
    assert_eq!(resampled(&[1.0 / 16.0; 7], 16.0), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn an_animation_is_read_at_the_rate_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let source = gif(folder.path(), &[(10, 500), (100, 100), (200, 400)]);
    let found = shape(&source, 10.0).unwrap();
    let wanted = Shape {
        size: (20, 10),
        frames: 10,
        still: false,
    };
    assert_eq!(found, wanted);
    let span = Span {
        start: 4,
        frames: 3,
    };
    let seen = levels(&source, 10.0, span);
    for (seen, wanted) in seen.iter().zip([10u8, 100, 200]) {
        assert!(seen.abs_diff(wanted) <= 2, "{seen} {wanted}");
    }
    assert_eq!(seen.len(), 3);
    let one = gif(folder.path(), &[(10, 500)]);
    assert!(shape(&one, 10.0).unwrap().still);
}

#[test]
fn folders_of_frames_have_one_size() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..3u8)
        .map(|index| {
            let path = folder.path().join(format!("{index}.png"));
            plain(20, 10, index * 50).save(&path).unwrap();
            path
        })
        .collect();
    let source = Source::Frames(folder.path().to_owned(), files.clone());
    let span = Span {
        start: 1,
        frames: 2,
    };
    assert_eq!(levels(&source, 16.0, span), [50, 100]);
    plain(10, 10, 0).save(&files[2]).unwrap();
    let error = shape(&source, 16.0).unwrap_err();
    assert!(
        error.contains("2.png") && error.contains("(10, 10)"),
        "{error}"
    );
}

#[test]
fn a_picture_covers_its_size_and_its_middle_stays() {
    // Left half black, right half white, with a grey middle column of 2 pixels.
    let wide = RgbImage::from_fn(40, 10, |x, _| Rgb([if x < 20 { 0 } else { 255 }; 3]));
    let square = fitted(&wide, (10, 10));
    assert_eq!(square.get_pixel(0, 5).0[0], 0);
    assert_eq!(square.get_pixel(9, 5).0[0], 255);
    assert_eq!(scaled((1920, 1080), (960, 544)), (967, 544));
    assert_eq!(scaled((10, 10), (32, 16)), (32, 32));
}

#[test]
fn what_is_transparent_is_white() {
    let picture = RgbaImage::from_pixel(2, 2, Rgba([0, 100, 255, 0]));
    assert_eq!(on_white(&picture.into()).get_pixel(0, 0).0, [255; 3]);
    let half = RgbaImage::from_pixel(2, 2, Rgba([0, 0, 0, 128]));
    assert_eq!(on_white(&half.into()).get_pixel(0, 0).0, [127; 3]);
}

#[test]
fn files_that_are_no_pictures_say_so() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.png", "a.gif", "a.webp"] {
        let path = folder.path().join(name);
        std::fs::write(&path, b"this is no picture").unwrap();
        let source = match name {
            "a.png" => Source::Image(path),
            _ => Source::Moving(path),
        };
        assert!(shape(&source, 16.0).is_err(), "{name}");
    }
}

/// Cameras, scanners and other programs write these; AVIF is decoded by ffmpeg.
#[test]
fn tiff_and_avif_are_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let avif = folder.path().join("a.AVIF");
    std::fs::write(&avif, include_bytes!("orange.avif")).unwrap();
    let tiff = folder.path().join("a.tif");
    let deep = image::ImageBuffer::from_pixel(16, 12, Rgb([200_u16 * 257, 100 * 257, 50 * 257]));
    deep.save(&tiff).unwrap();
    let ffmpeg = std::process::Command::new(ffmpeg::program())
        .arg("-version")
        .output();
    let files = match ffmpeg {
        Ok(_) => vec![tiff, avif],
        Err(_) => vec![tiff],
    };
    for path in &files {
        let source = Source::of(path).unwrap().unwrap();
        assert_eq!(shape(&source, 16.0).unwrap().size, (16, 12));
        let colour = picture(path).unwrap().get_pixel(8, 6).0;
        for (found, made) in colour.into_iter().zip([200, 100, 50]) {
            assert!(
                u8::abs_diff(found, made) < 4,
                "{}: {colour:?}",
                path.display()
            );
        }
    }
    let bright = folder.path().join("bright.avif");
    std::fs::write(&bright, include_bytes!("bright.avif")).unwrap();
    let refused = shape(&Source::Image(bright), 16.0).unwrap_err();
    assert!(refused.contains("it is HDR (PQ)"), "{refused}");
    let broken = folder.path().join("b.avif");
    std::fs::write(&broken, b"this is no picture").unwrap();
    assert!(
        picture(&broken)
            .unwrap_err()
            .contains("ffmpeg cannot read it")
    );
}

/// Pictures of the web and of telephones often have the ending of another kind.
#[test]
fn what_a_file_has_decides_and_not_its_ending() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| folder.path().join(name);
    plain(20, 10, 77).save(named("a.png")).unwrap();
    for name in ["a.webp", "a.gif", "a.jpg", "a.avif"] {
        std::fs::copy(named("a.png"), named(name)).unwrap();
        let source = Source::of(&named(name)).unwrap().unwrap();
        let found = shape(&source, 16.0).unwrap();
        assert_eq!((found.size, found.still), ((20, 10), true), "{name}");
        let span = Span {
            start: 0,
            frames: 1,
        };
        assert_eq!(levels(&source, 16.0, span), [77], "{name}");
    }
    let Source::Moving(path) = gif(folder.path(), &[(10, 500), (100, 100)]) else {
        unreachable!("it moves");
    };
    std::fs::rename(path, named("b.webp")).unwrap();
    let source = Source::of(&named("b.webp")).unwrap().unwrap();
    assert_eq!(shape(&source, 10.0).unwrap().frames, 6);
    let heic = named("c.jpg");
    std::fs::write(&heic, b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic").unwrap();
    let refused = shape(&Source::Image(heic), 16.0).unwrap_err();
    assert!(refused.starts_with("HEIC is not read"), "{refused}");
}

#[test]
fn a_picture_of_which_the_end_is_missing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jpg");
    let noise = RgbImage::from_fn(64, 64, |x, y| Rgb([(x * y % 251) as u8, x as u8, y as u8]));
    noise.save(&path).unwrap();
    let mut whole = std::fs::read(&path).unwrap();
    for length in [whole.len() / 2, whole.len() - 2] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = picture(&path).unwrap_err();
        assert!(error.contains("ends before"), "{error}");
    }
    // Cameras write more behind it.
    whole.extend([0xFF, 0xDA, 0, 2, 7]);
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(picture(&path).unwrap().dimensions(), (64, 64));
}

#[test]
fn what_is_left_of_a_narrow_picture_is_told() {
    assert_eq!(kept((64, 64), (32, 32)), 1.0);
    assert_eq!(kept((100, 400), (64, 128)), 0.5);
}

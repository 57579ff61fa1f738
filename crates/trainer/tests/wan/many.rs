//! A folder of ten thousand pictures.

use std::fs;
use std::time::{Duration, Instant};

use image::RgbImage;
use surefoot_trainer::{Allocator, Observer, Stop};

use super::place::Place;

const COUNT: usize = 10_000;
/// Sizes of the pictures, of which each is in a bucket of its own.
const SIZES: [(u32, u32); 5] = [(32, 32), (48, 32), (32, 48), (64, 32), (32, 64)];

/// When the first step was done.
struct FirstStep {
    began: Instant,
    after: Option<Duration>,
}

impl Observer for FirstStep {
    fn stepped(&mut self, _: u64) {
        self.after.get_or_insert(self.began.elapsed());
    }
}

#[test]
fn ten_thousand_pictures_are_begun_with_in_seconds() {
    let place = Place::new();
    let folder = place.path("many");
    fs::create_dir(&folder).unwrap();
    let pictures = SIZES.map(|(width, height)| {
        let mut bytes = std::io::Cursor::new(Vec::new());
        let picture = RgbImage::from_pixel(width, height, image::Rgb([width as u8, 90, 20]));
        picture
            .write_to(&mut bytes, image::ImageFormat::Png)
            .unwrap();
        bytes.into_inner()
    });
    for index in 0..COUNT {
        let picture = &pictures[index % SIZES.len()];
        fs::write(folder.join(format!("{index}.png")), picture).unwrap();
        fs::write(folder.join(format!("{index}.txt")), "a grey cat").unwrap();
    }
    let path = format!("data.path={}", folder.display());
    let run = |name: &str| {
        let name = format!("name={name}");
        let config = place.config(&[
            &name,
            &path,
            "train.max_steps=2",
            "train.eval_steps=0",
            "data.validation_fraction=0",
        ]);
        let mut first = FirstStep {
            began: Instant::now(),
            after: None,
        };
        let summary =
            surefoot_trainer::run(&config, &Allocator::torch(), &mut first, &Stop::default());
        assert_eq!(summary.unwrap().steps, 2);
        first.after.unwrap()
    };
    // Every file is read and its hash is taken; afterwards, looked at.
    let (first, second) = (run("first"), run("second"));
    println!("first step after {first:?}, the next time after {second:?}");
    // On a quiet machine a tenth of it.
    assert!(first < Duration::from_secs(60), "{first:?}");
    assert!(second < Duration::from_secs(60), "{second:?}");
    let latents = fs::read_dir(place.path("cache/latents")).unwrap().count();
    assert_eq!(latents, SIZES.len());
}

//! Autoencoders.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::{Reference, difference, placer};
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::codec::MediaCodec;
use crate::diffusion::parts::kl::{KlAutoencoder, KlConfig};
use crate::diffusion::parts::tiles::Tiling;
use crate::diffusion::{Picture, load_autoencoder};
use crate::formats::{SafetensorsFile, TensorSource};
use crate::model::Load;

/// The picture `picture.NUMBER` in a file of the reference.
pub(in crate::diffusion) fn picture_in(file: &Path, number: usize) -> Picture {
    let file = SafetensorsFile::open(file).unwrap();
    let bytes = file.read(&format!("picture.{number}"), Kind::Uint8);
    let bytes = bytes.unwrap();
    let (height, width, _) = bytes.size3().unwrap();
    let bytes = Vec::<u8>::try_from(bytes.flatten(0, -1)).unwrap();
    Picture::new((width as u32, height as u32), bytes).unwrap()
}

/// The CRC-32C of a tensor's numbers.
pub(in crate::diffusion) fn checksum(tensor: &Tensor) -> String {
    let numbers = Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap();
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    format!("{:08x}", crc32c::crc32c(&bytes.collect::<Vec<u8>>()))
}

impl Reference {
    /// Latents and pictures of a causal autoencoder are within 1e-5 of the expected ones.
    pub(in crate::diffusion) fn pictures_of_the_causal_autoencoder_are_those_of_diffusers(&self) {
        let model = self.model();
        let codec = load_autoencoder(&*model, Kind::Float, &mut placer()).unwrap();
        for label in ["low", "wide"] {
            let read = |what: &str| self.expected(&format!("vae.{label}.{what}"));
            let latents = codec.encode_frame(&read("pixels"), None).unwrap();
            let apart = difference(&latents, &read("latents"));
            assert!(apart <= 1e-5, "{label}, latents: {apart}");
            let pixels = codec.decode_frame(&read("noise"), None).unwrap();
            let apart = difference(&pixels, &read("decoded").clamp(-1.0, 1.0));
            assert!(apart <= 1e-5, "{label}, decoded: {apart}");
        }
        let size = model.geometry().latents(16, 24, 1);
        assert_eq!(size, [1, 16, 1, 6, 4]);
    }

    /// Latents and pictures of the autoencoders in these folders, whole and in tiles, are within 1e-5 of the deviation
    /// of the expected ones.
    pub(in crate::diffusion) fn pictures_and_latents_are_those_of_diffusers(
        &self,
        all: &[(&str, &str)],
    ) {
        for (name, folder) in all {
            let folder = self.golden(folder);
            let config = KlConfig::read(&folder.join("config.json")).unwrap();
            let file = PartFile::open(&PartNames::DIFFUSERS, &folder).unwrap();
            let codec = Load::whole(Kind::Float)
                .frozen(&file, &mut placer(), |device, builder| {
                    let codec: Box<dyn MediaCodec> =
                        Box::new(KlAutoencoder::new(&config, device, builder)?);
                    Ok(codec)
                })
                .unwrap();
            // In pixels: eight latents of the encoder.
            let unit = config.step();
            let tiles = Tiling {
                size: (8 * unit, 8 * unit),
                stride: (6 * unit, 6 * unit),
            };
            for (label, tiling) in [("whole", None), ("tiled", Some(tiles))] {
                let read = |what: &str| self.expected(&format!("{name}.{label}.{what}"));
                // Relative to the deviation of what is made.
                let check = |what: &str, ours: &Tensor, theirs: &Tensor| {
                    let spread = f64::try_from(theirs.std(true)).unwrap();
                    let apart = difference(ours, theirs) / spread;
                    assert!(apart <= 1e-5, "{name}, {label}, {what}: {apart}");
                };
                let latents = codec.encode_frame(&read("pixels"), tiling).unwrap();
                check("latents", &latents, &read("latents"));
                let pixels = codec.decode_frame(&read("noise"), tiling).unwrap();
                check("decoded", &pixels, &read("decoded"));
                if tiling.is_some() {
                    // Tiles that made no difference would be no tiles.
                    let whole = codec.encode_frame(&read("pixels"), None).unwrap();
                    assert!(difference(&whole, &latents) > 1e-3, "{name}");
                }
            }
            let step = config.pixels_per_latent();
            let odd = Tensor::zeros([1, 3, step, step + 1], (Kind::Float, Device::Cpu));
            let error = codec.encode_frame(&odd, None).unwrap_err().to_string();
            assert!(error.contains(&format!("multiples of {step}")), "{error}");
            let gaps = Tiling {
                size: (unit, unit),
                stride: (2 * unit, 2 * unit),
            };
            let pixels = self.expected(&format!("{name}.whole.pixels"));
            let error = codec.encode_frame(&pixels, Some(gaps)).unwrap_err();
            assert!(error.to_string().contains("must not leave gaps"), "{error}");
        }
    }
}

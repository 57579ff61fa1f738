//! Pictures as bytes, and how Pillow resizes them: to the bit, since encoders see what their processors make with it.

use tch::Tensor;

use crate::Error;

/// A picture: three bytes for each pixel, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

/// How pixels are weighted by their distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Over four pixels.
    Bicubic,
    /// Over six pixels.
    Lanczos,
}

/// Bits of a weight behind the point.
const PRECISION: u32 = 22;

impl Filter {
    /// How far it reaches at one pixel per pixel.
    fn support(self) -> f64 {
        match self {
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn at(self, distance: f64) -> f64 {
        const A: f64 = -0.5;
        let sinc = |x: f64| match x {
            0.0 => 1.0,
            x => (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI),
        };
        let x = distance.abs();
        match self {
            Self::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Self::Lanczos if (-3.0..3.0).contains(&distance) => {
                sinc(distance) * sinc(distance / 3.0)
            }
            _ => 0.0,
        }
    }

    /// Of each of `to` pixels, the first of `from` that it is made of, and the weights of that and the next.
    fn weights(self, from: usize, to: usize) -> Vec<(usize, Vec<i64>)> {
        let scale = from as f64 / to as f64;
        let widened = scale.max(1.0);
        let support = self.support() * widened;
        let one = f64::from(1u32 << PRECISION);
        let of_pixel = |pixel: usize| {
            let centre = (pixel as f64 + 0.5) * scale;
            // Pillow truncates towards zero.
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            let weights =
                (first..end).map(|other| self.at((other as f64 - centre + 0.5) * (1.0 / widened)));
            let weights: Vec<f64> = weights.collect();
            let sum: f64 = weights.iter().sum();
            let rounded = weights.iter().map(|weight| {
                let weight = if sum == 0.0 { *weight } else { weight / sum } * one;
                (weight + 0.5f64.copysign(weight)) as i64
            });
            (first, rounded.collect())
        };
        (0..to).map(of_pixel).collect()
    }
}

impl Picture {
    /// The picture of these bytes.
    ///
    /// # Errors
    /// If there are not three for each pixel, or there is no pixel.
    pub fn new((width, height): (u32, u32), rgb: Vec<u8>) -> Result<Self, Error> {
        let (width, height) = (width as usize, height as usize);
        match width * height > 0 && rgb.len() == 3 * width * height {
            true => Ok(Self { width, height, rgb }),
            false => Err(Error::Invalid(format!(
                "{} bytes for a picture of {width} × {height}",
                rgb.len()
            ))),
        }
    }

    /// Width and height.
    pub fn size(&self) -> (u32, u32) {
        (self.width as u32, self.height as u32)
    }

    /// The part of these sizes around its middle.
    ///
    /// # Errors
    /// If it is smaller.
    pub fn middle(&self, (width, height): (u32, u32)) -> Result<Self, Error> {
        let (width, height) = (width as usize, height as usize);
        if width > self.width || height > self.height {
            return Err(Error::Invalid(format!(
                "a picture of {} × {}, where one of {width} × {height} is the smallest",
                self.width, self.height
            )));
        }
        let (left, top) = ((self.width - width) / 2, (self.height - height) / 2);
        let rows = self.rgb.chunks_exact(3 * self.width).skip(top).take(height);
        let rgb = rows.flat_map(|row| &row[3 * left..3 * (left + width)]);
        Ok(Self {
            width,
            height,
            rgb: rgb.copied().collect(),
        })
    }

    /// The picture at another size, whatever its form.
    #[must_use]
    pub fn resized(&self, (width, height): (u32, u32), filter: Filter) -> Self {
        let (width, height) = (width as usize, height as usize);
        let mut made = self.clone();
        if width != self.width {
            let weights = filter.weights(self.width, width);
            let row = 3 * self.width;
            let rows = made.rgb.chunks_exact(row);
            made.rgb = rows
                .flat_map(|row| {
                    weights.iter().flat_map(move |(first, weights)| {
                        (0..3).map(move |colour| mixed(row, 3 * first + colour, 3, weights))
                    })
                })
                .collect();
            made.width = width;
        }
        if height != self.height {
            let (row, all) = (3 * width, &made.rgb);
            let rows = filter.weights(self.height, height);
            made.rgb = rows
                .iter()
                .flat_map(|(first, weights)| {
                    (0..row).map(move |column| mixed(all, first * row + column, row, weights))
                })
                .collect();
            made.height = height;
        }
        made
    }

    /// `[3, height, width]` fp32: each byte as its colour's `numbers` have it.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn numbers(&self, numbers: [&dyn Fn(u8) -> f32; 3]) -> Result<Tensor, Error> {
        let planes = numbers.iter().enumerate().flat_map(|(colour, number)| {
            let table: Vec<f32> = (0..=255).map(number).collect();
            let bytes = self.rgb.iter().skip(colour).step_by(3);
            bytes.map(move |byte| table[usize::from(*byte)])
        });
        let planes: Vec<f32> = planes.collect();
        let size = [3, self.height as i64, self.width as i64];
        Ok(Tensor::f_from_slice(&planes)?.f_view(size)?)
    }
}

/// The weighted sum of bytes that are `step` apart.
fn mixed(bytes: &[u8], first: usize, step: usize, weights: &[i64]) -> u8 {
    let sum = weights.iter().enumerate().map(|(index, weight)| {
        let byte = bytes.get(first + index * step).copied().unwrap_or(0);
        i64::from(byte) * weight
    });
    let sum = sum.sum::<i64>() + (1 << (PRECISION - 1));
    (sum >> PRECISION).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_three_bytes_for_each_pixel() {
        let picture = Picture::new((2, 1), vec![0, 51, 255, 1, 2, 3]).unwrap();
        assert_eq!(picture.resized((2, 1), Filter::Lanczos), picture);
        let number = |byte: u8| f32::from(byte);
        let numbers = picture.numbers([&number, &number, &number]).unwrap();
        let numbers = Vec::<f32>::try_from(numbers.flatten(0, -1)).unwrap();
        assert_eq!(numbers, [0.0, 1.0, 51.0, 2.0, 255.0, 3.0]);
        for (size, bytes) in [((2, 1), 5), ((0, 1), 0)] {
            assert!(Picture::new(size, vec![0; bytes]).is_err());
        }
        // One colour stays what it is.
        let even = Picture::new((3, 2), vec![200; 18]).unwrap();
        let larger = even.resized((7, 5), Filter::Bicubic);
        assert!(larger.size() == (7, 5) && larger.rgb.iter().all(|byte| *byte == 200));
    }
}

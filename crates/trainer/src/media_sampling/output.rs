//! Writes a video as mp4 (with ffmpeg), animated WebP, a picture, or a folder of pictures.

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;

use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder, ImageFormat, RgbImage};

use crate::Error;
use crate::media::ffmpeg::{self, start_error};

/// The path and format of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    path: PathBuf,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Mp4,
    WebP,
    Png,
    Folder,
}

/// Fails if `path` exists: nothing is overwritten.
pub(crate) fn expect_new(path: &Path) -> Result<(), Error> {
    match path.symlink_metadata() {
        Ok(_) => Err(Error::Data(format!(
            "`{}` already exists and is not overwritten",
            path.display()
        ))),
        Err(_) => Ok(()),
    }
}

/// Fails if ffmpeg does not start.
fn start_ffmpeg() -> std::io::Result<()> {
    let mut command = Command::new(ffmpeg::program());
    command.arg("-version").stdout(Stdio::null());
    command.stderr(Stdio::null()).status().map(drop)
}

impl Output {
    /// The format by the extension of `path`; without one it is a folder of pictures.
    ///
    /// # Errors
    /// If `path` exists, the format is unknown or cannot hold this many frames, or ffmpeg is needed and does
    /// not start.
    pub fn choose(path: &Path, frames: i64) -> Result<Self, Error> {
        expect_new(path)?;
        let extension = path
            .extension()
            .map(|extension| extension.to_string_lossy().to_lowercase());
        let form = match extension.as_deref() {
            None => Form::Folder,
            Some("mp4") => Form::Mp4,
            Some("webp") => Form::WebP,
            Some("png") if frames == 1 => Form::Png,
            Some("png") => {
                let reason = format!(
                    "`{}` can hold only one of {frames} frames: use `.mp4`, `.webp`, or a folder",
                    path.display()
                );
                return Err(Error::Data(reason));
            }
            Some(_) => {
                let reason = format!(
                    "`{}`: videos are written as `.mp4`, animated `.webp`, one frame as `.png`, or pictures into a \
                     folder (a name without an extension)",
                    path.display()
                );
                return Err(Error::Data(reason));
            }
        };
        if form == Form::Mp4
            && let Err(error) = start_ffmpeg()
        {
            let why = start_error(&ffmpeg::program(), "write mp4", &error);
            let reason = format!("`{}`: {why}", path.display());
            return Err(Error::Data(reason));
        }
        Ok(Self {
            path: path.to_owned(),
            form,
        })
    }

    /// A new file in `folder` for the preview with this number: a picture, or a video as mp4 if there is an
    /// ffmpeg, otherwise as WebP.
    pub(crate) fn preview(folder: &Path, number: usize, frames: i64) -> Self {
        let (form, extension) = match frames {
            1 => (Form::Png, "png"),
            _ if start_ffmpeg().is_ok() => (Form::Mp4, "mp4"),
            _ => (Form::WebP, "webp"),
        };
        Self {
            path: folder.join(format!("{number}.{extension}")),
            form,
        }
    }

    /// The file name.
    pub(crate) fn file_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Starts writing frames of this size.
    pub(crate) fn writer(&self, width: i64, height: i64, fps: u32) -> Result<Writer, Error> {
        let size = (width as u32, height as u32);
        let sink = match self.form {
            Form::Mp4 => Sink::Ffmpeg(Ffmpeg::start(&self.draft(), size, fps)?),
            Form::WebP => Sink::WebP(Animation::new(size, fps)),
            Form::Png => Sink::Png,
            Form::Folder => {
                std::fs::create_dir(&self.path).map_err(|error| self.error("create", error))?;
                Sink::Folder
            }
        };
        Ok(Writer {
            output: self.clone(),
            size,
            count: 0,
            sink,
        })
    }

    /// A temporary path for a file until it is complete.
    fn draft(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".part");
        name.into()
    }

    fn error(&self, action: &'static str, source: std::io::Error) -> Error {
        Error::Io {
            action,
            path: self.path.clone(),
            source,
        }
    }

    /// Writes a file atomically.
    fn put(&self, bytes: &[u8]) -> Result<(), Error> {
        let draft = self.draft();
        let done = std::fs::write(&draft, bytes).and_then(|()| std::fs::rename(&draft, &self.path));
        done.map_err(|error| {
            // Best effort: the original error is the one to report.
            let _ = std::fs::remove_file(&draft);
            self.error("write", error)
        })
    }
}

/// A video that is being written.
#[derive(Debug)]
pub(crate) struct Writer {
    output: Output,
    /// Width and height.
    size: (u32, u32),
    count: usize,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Ffmpeg(Ffmpeg),
    WebP(Animation),
    Png,
    Folder,
}

impl Writer {
    /// Adds a frame as RGB bytes in row-major order.
    pub(crate) fn push(&mut self, pixels: Vec<u8>) -> Result<(), Error> {
        let (width, height) = self.size;
        self.count += 1;
        match &mut self.sink {
            Sink::Ffmpeg(ffmpeg) => {
                let written = ffmpeg.input.as_mut().map(|input| input.write_all(&pixels));
                match written {
                    Some(Ok(())) => Ok(()),
                    _ => Err(ffmpeg.failure(&self.output)),
                }
            }
            Sink::WebP(animation) => animation.push(&pixels),
            Sink::Png => self.output.put(&png(pixels, width, height)?),
            Sink::Folder => {
                let path = self.output.path.join(format!("{:05}.png", self.count - 1));
                std::fs::write(&path, png(pixels, width, height)?).map_err(|source| Error::Io {
                    action: "write",
                    path,
                    source,
                })
            }
        }
    }

    /// Completes the video.
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.sink {
            Sink::Ffmpeg(ffmpeg) => ffmpeg.finish(&self.output),
            Sink::WebP(animation) => self.output.put(&animation.finish()),
            Sink::Png | Sink::Folder => Ok(()),
        }
    }
}

fn png(pixels: Vec<u8>, width: u32, height: u32) -> Result<Vec<u8>, Error> {
    let picture = RgbImage::from_raw(width, height, pixels);
    let picture = picture.ok_or_else(|| Error::Internal("a frame of another size".into()))?;
    let mut bytes = Cursor::new(Vec::new());
    let written = picture.write_to(&mut bytes, ImageFormat::Png);
    written.map_err(|error| Error::Internal(format!("a PNG: {error}")))?;
    Ok(bytes.into_inner())
}

/// An encoder process that reads frames from a pipe; it does not outlive this process.
#[derive(Debug)]
struct Ffmpeg {
    child: Child,
    input: Option<ChildStdin>,
    told: Option<JoinHandle<String>>,
    draft: PathBuf,
}

impl Ffmpeg {
    fn start(draft: &Path, (width, height): (u32, u32), fps: u32) -> Result<Self, Error> {
        let program = ffmpeg::program();
        let mut child = Command::new(&program)
            .args(["-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"])
            .args([
                "-s",
                &format!("{width}x{height}"),
                "-r",
                &fps.to_string(),
                "-i",
                "-",
            ])
            .args([
                "-c:v",
                "libx264",
                "-crf",
                "17",
                "-pix_fmt",
                "yuv420p",
                "-movflags",
                "+faststart",
                "-f",
                "mp4",
            ])
            .arg(draft)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Error::Data(start_error(&program, "write mp4", &error)))?;
        let stderr = child.stderr.take();
        let told = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.map(|mut stderr| stderr.read_to_string(&mut text));
            text
        });
        Ok(Self {
            input: child.stdin.take(),
            child,
            told: Some(told),
            draft: draft.to_owned(),
        })
    }

    /// The error after ffmpeg has stopped.
    fn failure(&mut self, output: &Output) -> Error {
        drop(self.input.take());
        let _ = self.child.wait();
        let told = self
            .told
            .take()
            .and_then(|told| told.join().ok())
            .unwrap_or_default();
        let first = told
            .lines()
            .next()
            .unwrap_or("it gave no reason")
            .to_owned();
        Error::Data(format!(
            "`{}`: ffmpeg stopped: {first}",
            output.path.display()
        ))
    }

    fn finish(mut self, output: &Output) -> Result<(), Error> {
        drop(self.input.take());
        match self.child.wait() {
            Ok(status) if status.success() => std::fs::rename(&self.draft, &output.path)
                .map_err(|error| output.error("write", error)),
            _ => Err(self.failure(output)),
        }
    }
}

impl Drop for Ffmpeg {
    fn drop(&mut self) {
        // After `finish` neither exists any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.draft);
    }
}

/// Lossless frames in an animated WebP container, which the encoder does not produce itself.
#[derive(Debug)]
struct Animation {
    size: (u32, u32),
    fps: u32,
    /// Total milliseconds, so that rounding errors do not accumulate.
    end: u64,
    count: u64,
    frames: Vec<u8>,
}

impl Animation {
    fn new(size: (u32, u32), fps: u32) -> Self {
        Self {
            size,
            fps: fps.max(1),
            end: 0,
            count: 0,
            frames: Vec::new(),
        }
    }

    fn push(&mut self, pixels: &[u8]) -> Result<(), Error> {
        let (width, height) = self.size;
        let mut file = Vec::new();
        let encoder = WebPEncoder::new_lossless(&mut file);
        let written = encoder.write_image(pixels, width, height, ExtendedColorType::Rgb8);
        written.map_err(|error| Error::Data(format!("a frame as WebP: {error}")))?;
        self.count += 1;
        let end = self.count * 1000 / u64::from(self.fps);
        let mut frame = vec![0; 6];
        for number in [width - 1, height - 1, (end - self.end) as u32] {
            frame.extend_from_slice(&number.to_le_bytes()[..3]);
        }
        self.end = end;
        // Without blending with the previous frame.
        frame.push(0b10);
        // The image chunk, without the file header.
        frame.extend_from_slice(&file[12..]);
        chunk(&mut self.frames, b"ANMF", &frame);
        Ok(())
    }

    fn finish(self) -> Vec<u8> {
        let mut body = b"WEBP".to_vec();
        let mut header = vec![0b10, 0, 0, 0];
        for number in [self.size.0 - 1, self.size.1 - 1] {
            header.extend_from_slice(&number.to_le_bytes()[..3]);
        }
        chunk(&mut body, b"VP8X", &header);
        // Black background, infinite loop.
        chunk(&mut body, b"ANIM", &[0, 0, 0, 255, 0, 0]);
        body.extend_from_slice(&self.frames);
        let mut file = Vec::new();
        chunk(&mut file, b"RIFF", &body);
        file
    }
}

/// Appends a RIFF chunk, padded to an even number of bytes.
fn chunk(to: &mut Vec<u8>, name: &[u8; 4], content: &[u8]) {
    to.extend_from_slice(name);
    to.extend_from_slice(&(content.len() as u32).to_le_bytes());
    to.extend_from_slice(content);
    to.resize(to.len().next_multiple_of(2), 0);
}

//! Reads videos through an `ffmpeg` process: it supports every codec, and crashes there do not affect this
//! process. Frames come through a pipe, so only one is in memory at a time.

use std::ffi::{OsStr, OsString};
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use image::RgbImage;

use super::buckets::Size;

/// The program: `SUREFOOT_FFMPEG`, or `ffmpeg` on the search path.
pub(crate) fn program() -> OsString {
    let set = std::env::var_os("SUREFOOT_FFMPEG").filter(|path| !path.is_empty());
    set.unwrap_or_else(|| "ffmpeg".into())
}

/// The message if `program`, which is needed to do `what`, does not start.
pub(crate) fn start_error(program: &OsStr, what: &str, error: &std::io::Error) -> String {
    let program = program.to_string_lossy();
    let reason = match error.kind() {
        std::io::ErrorKind::NotFound => format!("there is no program `{program}`"),
        _ => format!("`{program}` cannot be started ({error})"),
    };
    format!(
        "ffmpeg is needed to {what}, and {reason}: install it (Debian, Ubuntu: `apt install ffmpeg`), name it in \
         `SUREFOOT_FFMPEG`, or take a folder of pictures or an animated `.webp`"
    )
}

/// A running `ffmpeg`, which is killed when this is dropped.
struct Process {
    child: Child,
    errors: Option<JoinHandle<String>>,
}

impl Process {
    fn start(program: &OsStr, path: &Path, filter: &str, output: &[&str]) -> Result<Self, String> {
        let mut input = OsString::from("file:");
        input.push(path);
        let started = Command::new(program)
            .args(["-nostdin", "-hide_banner", "-loglevel", "error", "-i"])
            .arg(input)
            .args(["-map", "0:v:0", "-vf", filter])
            .args(output)
            .arg("-")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child =
            started.map_err(|error| start_error(program, "read videos and AVIF", &error))?;
        let errors = child.stderr.take().map(|mut stream| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                // If the stream breaks, keep what was read.
                let _ = stream.read_to_end(&mut text);
                String::from_utf8_lossy(&text).trim().to_owned()
            })
        });
        Ok(Self { child, errors })
    }

    /// Waits for its end and returns its error output.
    fn end(mut self) -> Result<(ExitStatus, String), String> {
        let status = self.child.wait().map_err(|error| error.to_string())?;
        let errors = self.errors.take().and_then(|thread| thread.join().ok());
        Ok((status, errors.unwrap_or_default()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it has already ended, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of ffmpeg's output, joined into one.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let last = lines.len().saturating_sub(3);
    match lines.is_empty() {
        true => "it says nothing".into(),
        false => lines[last..].join("; "),
    }
}

/// A filter that makes pixels square, as a player shows them. ffmpeg rotates by itself.
const SQUARE: &str = "scale=trunc(iw*sar+0.5):ih";

/// The reason for which ffmpeg, which wrote `errors`, does not read a file.
fn refusal(errors: &str) -> String {
    match errors.contains("matches no streams") {
        true => "it has sound, but no video".into(),
        false => format!("ffmpeg cannot read it: {}", last_lines(errors)),
    }
}

/// Display width and height, and the number of frames at `fps`.
pub(super) fn probe(path: &Path, fps: f64) -> Result<(Size, u32), String> {
    probe_by(&program(), path, fps)
}

fn probe_by(program: &OsStr, path: &Path, fps: f64) -> Result<(Size, u32), String> {
    let filter = format!("{SQUARE},fps={fps}");
    let mut process = Process::start(program, path, &filter, &["-f", "framecrc"])?;
    let mut text = String::new();
    if let Some(mut output) = process.child.stdout.take() {
        output
            .read_to_string(&mut text)
            .map_err(|error| format!("ffmpeg: {error}"))?;
    }
    let (status, errors) = process.end()?;
    if !status.success() {
        return Err(refusal(&errors));
    }
    if !errors.is_empty() {
        tracing::warn!("`{}`: ffmpeg: {}", path.display(), last_lines(&errors));
    }
    if let Some(transfer) = transfer_of_hdr(program, path) {
        tracing::warn!(
            "`{}` is HDR ({transfer}), and is read without tone mapping, so that its colours are pale: convert it \
             first, as with `ffmpeg -i IN -vf zscale=t=linear:npl=100,tonemap=hable,zscale=t=bt709:m=bt709:p=bt709 \
             -pix_fmt yuv420p OUT`",
            path.display()
        );
    }
    let mut size = None;
    let mut frames = 0;
    for line in text.lines() {
        match line.strip_prefix("#dimensions 0:") {
            Some(numbers) => {
                let (width, height) = numbers.trim().split_once('x').unwrap_or_default();
                size = width.parse().ok().zip(height.parse().ok());
            }
            None if line.starts_with('#') => {}
            None => frames += 1,
        }
    }
    match size.filter(|_| frames > 0) {
        Some(size) => Ok((size, frames)),
        None => Err("it has no frames that ffmpeg can read".into()),
    }
}

/// The transfer function of a video with a high dynamic range, as ffmpeg calls it: PQ or HLG.
fn transfer_of_hdr(program: &OsStr, path: &Path) -> Option<&'static str> {
    let mut input = OsString::from("file:");
    input.push(path);
    let told = Command::new(program)
        .args(["-nostdin", "-hide_banner", "-i"])
        .arg(input)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let told = String::from_utf8_lossy(&told.stderr);
    let mut videos = told.lines().filter(|line| line.contains("Video:"));
    let first = videos.next()?;
    ["smpte2084", "arib-std-b67"]
        .into_iter()
        .find(|transfer| first.contains(transfer))
}

/// A still picture, as a PNG file.
pub(super) fn still(path: &Path) -> Result<Vec<u8>, String> {
    let output = ["-frames:v", "1", "-f", "image2pipe", "-c:v", "png"];
    let mut process = Process::start(&program(), path, "null", &output)?;
    let mut png = Vec::new();
    if let Some(mut output) = process.child.stdout.take() {
        output
            .read_to_end(&mut png)
            .map_err(|error| format!("ffmpeg: {error}"))?;
    }
    match process.end()? {
        (status, _) if status.success() && !png.is_empty() => Ok(png),
        (_, errors) => Err(refusal(&errors)),
    }
}

/// Passes `count` frames from `start` on to `take`, scaled to `scaled` and cropped to `cut`.
pub(super) fn read(
    path: &Path,
    fps: f64,
    range: (u32, u32),
    sizes: (Size, Size),
    take: FrameSink<'_>,
) -> Result<(), String> {
    read_by(&program(), path, fps, range, sizes, take)
}

/// Receives frames.
type FrameSink<'a> = &'a mut dyn FnMut(RgbImage) -> Result<(), String>;

fn read_by(
    program: &OsStr,
    path: &Path,
    fps: f64,
    (start, count): (u32, u32),
    (scaled, cut): (Size, Size),
    take: FrameSink<'_>,
) -> Result<(), String> {
    let filter = format!(
        "fps={fps},scale={}:{}:flags=lanczos+accurate_rnd+full_chroma_int,crop={}:{}",
        scaled.0, scaled.1, cut.0, cut.1
    );
    let last = (start + count).to_string();
    let output = ["-frames:v", &last, "-f", "rawvideo", "-pix_fmt", "rgb24"];
    let mut process = Process::start(program, path, &filter, &output)?;
    let stream = process.child.stdout.take();
    let mut stream = BufReader::new(stream.ok_or("ffmpeg has no output")?);
    let length = cut.0 as usize * cut.1 as usize * 3;
    for index in 0..start + count {
        let mut bytes = vec![0; length];
        if let Err(error) = stream.read_exact(&mut bytes) {
            drop(stream);
            let (_, errors) = process.end()?;
            return Err(format!(
                "ffmpeg ended after {index} of {last} frames ({error}): {}",
                last_lines(&errors)
            ));
        }
        if index >= start {
            let picture = RgbImage::from_raw(cut.0, cut.1, bytes);
            take(picture.ok_or("a frame of another size")?)?;
        }
    }
    Ok(())
}

/// All frames at their own size, in display order.
pub(super) fn all(path: &Path) -> Result<Vec<RgbImage>, String> {
    all_by(&program(), path)
}

fn all_by(program: &OsStr, path: &Path) -> Result<Vec<RgbImage>, String> {
    let filter = format!("{SQUARE}:flags=accurate_rnd+full_chroma_int");
    // A format that includes the size of each picture, with 8 bits a colour also if the video has 10.
    let output = ["-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24"];
    let mut process = Process::start(program, path, &filter, &output)?;
    let mut bytes = Vec::new();
    if let Some(mut stream) = process.child.stdout.take() {
        let read = stream.read_to_end(&mut bytes);
        read.map_err(|error| format!("ffmpeg: {error}"))?;
    }
    let (status, errors) = process.end()?;
    if !status.success() {
        return Err(refusal(&errors));
    }
    let wrong = "ffmpeg wrote no pictures";
    let (mut frames, mut rest) = (Vec::new(), bytes.as_slice());
    while !rest.is_empty() {
        let ((width, height), after) = ppm(rest).ok_or(wrong)?;
        let length = width as usize * height as usize * 3;
        let pixels = after.get(..length).ok_or(wrong)?;
        frames.extend(RgbImage::from_raw(width, height, Vec::from(pixels)));
        rest = &after[length..];
    }
    match frames.is_empty() {
        true => Err("it has no frames that ffmpeg can read".into()),
        false => Ok(frames),
    }
}

/// Width and height of a portable pixmap, and what follows its header.
fn ppm(bytes: &[u8]) -> Option<(Size, &[u8])> {
    let mut rest = bytes.strip_prefix(b"P6")?;
    let mut numbers = [0; 3];
    for number in &mut numbers {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace)?;
        *number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        rest = &rest[end..];
    }
    (numbers[2] == 255).then_some(((numbers[0], numbers[1]), rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A stand-in for ffmpeg. Another process writes it, because a file that this process has open for
    /// writing, even in another thread's fork, could not be executed.
    fn stand_in(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("ffmpeg");
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        let mut shell = Command::new("sh");
        let status = shell.arg("-c").arg(write).arg(&path).arg(script).status();
        assert!(status.unwrap().success());
        path
    }

    #[test]
    fn without_ffmpeg_it_is_named_with_what_to_do() {
        let program = OsStr::new("/nonexistent/ffmpeg");
        let error = probe_by(program, Path::new("a.mp4"), 16.0).unwrap_err();
        for part in [
            "`/nonexistent/ffmpeg`",
            "apt install ffmpeg",
            "SUREFOOT_FFMPEG",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn size_and_frames_are_what_ffmpeg_lists_and_its_errors_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let listed = "printf '#software: x\n#dimensions 0: 64x48\n0, 0, 0, 1, 9216, 0x1\n0, 1, 1, 1, 9216, 0x2\n'";
        let program = stand_in(folder.path(), listed);
        let found = probe_by(program.as_os_str(), Path::new("a.mp4"), 16.0);
        assert_eq!(found, Ok(((64, 48), 2)));
        let broken = "echo 'moov atom not found' >&2; exit 1";
        let program = stand_in(folder.path(), broken);
        let error = probe_by(program.as_os_str(), Path::new("a.mp4"), 16.0).unwrap_err();
        assert!(error.contains("moov atom not found"), "{error}");
        let silent = "echo \"Stream map '0:v:0' matches no streams.\" >&2; exit 1";
        let program = stand_in(folder.path(), silent);
        let error = probe_by(program.as_os_str(), Path::new("a.mp3"), 16.0).unwrap_err();
        assert_eq!(error, "it has sound, but no video");
        let program = stand_in(folder.path(), "exit 0");
        let error = probe_by(program.as_os_str(), Path::new("a.mp4"), 16.0).unwrap_err();
        assert!(error.contains("no frames"), "{error}");
    }

    #[test]
    fn a_high_dynamic_range_is_known_by_its_transfer_function() {
        let folder = tempfile::tempdir().unwrap();
        for (transfer, expected) in [
            ("bt2020nc/bt2020/smpte2084", Some("smpte2084")),
            ("bt2020nc/bt2020/arib-std-b67", Some("arib-std-b67")),
            ("bt709", None),
        ] {
            let line = format!("  Stream #0:0: Video: hevc, yuv420p10le(tv, {transfer}), 64x48");
            let program = stand_in(folder.path(), &format!("echo '{line}' >&2; exit 1"));
            assert_eq!(
                transfer_of_hdr(program.as_os_str(), Path::new("a.mp4")),
                expected
            );
        }
    }

    /// Kinds of videos that phones and editors write, made by the machine's own ffmpeg; skipped where there is none.
    #[test]
    fn videos_as_people_have_them_are_read_as_a_player_shows_them() {
        let (folder, program) = (tempfile::tempdir().unwrap(), program());
        let make = |name: &str, arguments: &str| {
            let path = folder.path().join(name);
            let mut command = Command::new(&program);
            command.args(["-nostdin", "-v", "error", "-f", "lavfi"]);
            command.args(arguments.split(' ')).arg(&path);
            (command.output().unwrap(), path)
        };
        if Command::new(&program).arg("-version").output().is_err() {
            eprintln!("skipped: there is no ffmpeg");
            return;
        }
        let red = "-i color=red:s=64x32:r=8:d=1";
        for (name, more, size, frames) in [
            ("plain.mp4", "-c:v libx264 -pix_fmt yuv420p", (64, 32), 8),
            ("ten.mp4", "-c:v libx264 -pix_fmt yuv420p10le", (64, 32), 8),
            (
                "wide.mp4",
                "-vf setsar=2 -c:v libx264 -pix_fmt yuv420p",
                (128, 32),
                8,
            ),
            // Four frames in the first half of the time and one that stays for the rest.
            (
                "variable.mkv",
                "-vf select=lt(n\\,4)+eq(n\\,7) -fps_mode vfr -c:v ffv1",
                (64, 32),
                8,
            ),
        ] {
            let (made, path) = make(name, &format!("{red} {more}"));
            assert!(
                made.status.success(),
                "{name}: {}",
                String::from_utf8_lossy(&made.stderr)
            );
            assert_eq!(probe(&path, 8.0), Ok((size, frames)), "{name}");
            let mut seen = 0;
            let mut take = |picture: RgbImage| {
                let [r, g, b] = picture.get_pixel(5, 5).0;
                assert!(r > 245 && g < 12 && b < 12, "{name}: {:?}", (r, g, b));
                seen += 1;
                Ok(())
            };
            read(&path, 8.0, (2, frames - 2), (size, size), &mut take).unwrap();
            assert_eq!(seen, frames - 2, "{name}");
        }
        // A phone's upright video: the sensor's rows, and a note to turn them, which ffmpeg writes in one of two ways.
        let turned = folder.path().join("turned.mp4");
        let turn = |before: &[&str], behind: &[&str]| {
            let mut command = Command::new(&program);
            command.args(["-nostdin", "-y", "-v", "error"]);
            command.args(before).arg("-i");
            command.arg(folder.path().join("plain.mp4"));
            command.args(["-c", "copy"]).args(behind).arg(&turned);
            command.status().unwrap().success()
        };
        assert!(
            turn(&["-display_rotation", "90"], &[]) || turn(&[], &["-metadata:s:v:0", "rotate=90"])
        );
        assert_eq!(probe(&turned, 8.0), Ok(((32, 64), 8)));
        assert_eq!(all(&turned).unwrap()[0].dimensions(), (32, 64));
        let (made, sound) = make("sound.mp4", "-i sine=d=1 -c:a aac");
        assert!(made.status.success());
        assert_eq!(
            probe(&sound, 8.0).unwrap_err(),
            "it has sound, but no video"
        );
        let (made, bright) = make(
            "hdr.mkv",
            &format!("{red} -c:v ffv1 -pix_fmt yuv420p10le -color_trc smpte2084"),
        );
        assert!(made.status.success());
        assert_eq!(transfer_of_hdr(&program, &bright), Some("smpte2084"));
    }

    #[test]
    fn frames_come_from_the_first_that_is_wanted_on() {
        let folder = tempfile::tempdir().unwrap();
        // Four frames of one pixel, then no more.
        let script = "printf 'aaabbbcccddd'";
        let program = stand_in(folder.path(), script);
        let mut seen = Vec::new();
        let mut take = |picture: RgbImage| {
            seen.push(picture.get_pixel(0, 0).0[0]);
            Ok(())
        };
        let (path, sizes) = (Path::new("a.mp4"), ((1, 1), (1, 1)));
        let program = program.as_os_str();
        read_by(program, path, 16.0, (1, 3), sizes, &mut take).unwrap();
        let error = read_by(program, path, 16.0, (2, 3), sizes, &mut take).unwrap_err();
        assert!(error.contains("after 4 of 5 frames"), "{error}");
        assert_eq!(seen, *b"bcdcd");
    }

    #[test]
    fn frames_as_they_are_have_the_size_that_they_tell() {
        let folder = tempfile::tempdir().unwrap();
        let script = "printf 'P6\\n2 1\\n255\\nabcdefP6\\n1 1\\n255\\nxyz'";
        let program = stand_in(folder.path(), script);
        let frames = all_by(program.as_os_str(), Path::new("a.mp4")).unwrap();
        let sizes: Vec<_> = frames.iter().map(RgbImage::dimensions).collect();
        assert_eq!(sizes, [(2, 1), (1, 1)]);
        assert_eq!(frames[0].get_pixel(1, 0).0, *b"def");
        for (script, part) in [
            ("printf 'P6\\n2 1\\n255\\nabc'", "no pictures"),
            ("exit 0", "no frames"),
            ("echo broken >&2; exit 1", "broken"),
        ] {
            let program = stand_in(folder.path(), script);
            let error = all_by(program.as_os_str(), Path::new("a.mp4")).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}

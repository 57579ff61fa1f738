//! The token that distinguishes the user's browser from others.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Bytes of randomness.
const BYTES: usize = 32;

/// 256 random bits. Implements neither `Debug` nor `Display`, so that it gets into no log.
pub struct Token(String);

impl Token {
    /// Reads the token, or creates one that only this user can read.
    ///
    /// A file that others can read is not secret, and is replaced.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn load(path: &Path) -> io::Result<Self> {
        match Self::read(path) {
            Ok(Some(token)) => return Ok(token),
            Ok(None) => fs::remove_file(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(named(path, error)),
        }
        Self::make(path).map_err(|error| named(path, error))
    }

    fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut options = File::options();
        options.read(true);
        not_through_links(&mut options);
        let file = options.open(path)?;
        let metadata = file.metadata()?;
        let mut text = String::new();
        file.take(1024).read_to_string(&mut text)?;
        let text = text.trim_end();
        let whole = text.len() == 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let good = metadata.is_file() && is_secret(&metadata) && whole;
        Ok(good.then(|| Self(text.to_owned())))
    }

    fn make(path: &Path) -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if let Some(folder) = path.parent() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(folder)?;
        }
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(path) {
            Ok(mut file) => writeln!(file, "{text}")?,
            // Two processes started at once: use the other one's token.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Self::read(path)?.ok_or(error);
            }
            Err(error) => return Err(error),
        }
        Ok(Self(text))
    }

    /// Compares in constant time.
    pub fn is(&self, guess: &str) -> bool {
        self.0.as_bytes().ct_eq(guess.as_bytes()).into()
    }

    /// What a browser gets in exchange for the token, which its cookies do not contain: it is valid for `port` until
    /// `until`, in seconds since 1970.
    pub fn session(&self, port: u16, until: u64) -> String {
        // The token has a fixed length, so that nothing can be appended to what is hashed.
        let hash = Sha256::new_with_prefix(&self.0)
            .chain_update(port.to_be_bytes())
            .chain_update(until.to_be_bytes())
            .finalize();
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{until}.{hash}")
    }

    /// Until when a session is valid, if it is valid for `port` now.
    pub fn session_ends(&self, guess: &str, port: u16, now: u64) -> Option<u64> {
        let until = guess.split_once('.')?.0.parse().ok()?;
        let right = self.session(port, until);
        let is_right = bool::from(right.as_bytes().ct_eq(guess.as_bytes()));
        (is_right && until > now).then_some(until)
    }

    /// The token itself, to show it to the user who started the server.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Does not follow a symbolic link in place of the file, and does not wait for a pipe.
#[cfg(unix)]
fn not_through_links(options: &mut fs::OpenOptions) {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, flags.bits().cast_signed());
}

/// Whether only this user can read and write it.
#[cfg(unix)]
fn is_secret(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    own && metadata.permissions().mode() & 0o077 == 0
}

#[cfg(windows)]
fn not_through_links(options: &mut fs::OpenOptions) {
    // FILE_FLAG_OPEN_REPARSE_POINT
    std::os::windows::fs::OpenOptionsExt::custom_flags(options, 0x0020_0000);
}

/// Access follows from the folder, which is in the user's profile: this user, the system and its administrators.
/// Only rules out a symbolic link.
#[cfg(windows)]
fn is_secret(metadata: &fs::Metadata) -> bool {
    !metadata.file_type().is_symlink()
}

fn named(path: &Path, error: io::Error) -> io::Error {
    let text = format!("the token in `{}`: {error}", path.display());
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_token_is_made_once_for_this_user_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state/token");
        let token = Token::load(&path).unwrap();
        assert_eq!(token.reveal().len(), 64);
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        assert_eq!(Token::load(&path).unwrap().reveal(), token.reveal());
        let other = Token::load(&place.path().join("other")).unwrap();
        assert_ne!(other.reveal(), token.reveal());
    }

    #[test]
    fn a_token_that_others_could_read_or_that_is_damaged_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        let first = Token::load(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let second = Token::load(&path).unwrap();
        assert_ne!(first.reveal(), second.reveal());
        assert_eq!(mode(&path), 0o600);
        fs::write(&path, "short\n").unwrap();
        assert_eq!(Token::load(&path).unwrap().reveal().len(), 64);
    }

    #[test]
    fn a_symbolic_link_is_not_a_token() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        symlink(place.path().join("elsewhere"), &path).unwrap();
        assert!(Token::load(&path).is_err());
    }

    #[test]
    fn a_session_ends_and_is_for_one_port() {
        let place = tempfile::tempdir().unwrap();
        let token = Token::load(&place.path().join("token")).unwrap();
        let session = token.session(8420, 1000);
        assert!(!session.contains(token.reveal()));
        assert_eq!(token.session_ends(&session, 8420, 999), Some(1000));
        assert_eq!(token.session_ends(&session, 8420, 1000), None);
        assert_eq!(token.session_ends(&session, 8421, 999), None);
        let longer = session.replace("1000.", "2000.");
        for guess in [&longer, token.reveal(), "", "1000.", &session[..60]] {
            assert_eq!(token.session_ends(guess, 8420, 999), None, "{guess}");
        }
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        let place = tempfile::tempdir().unwrap();
        let token = Token::load(&place.path().join("token")).unwrap();
        let text = token.reveal();
        assert!(token.is(text));
        for guess in [
            "",
            &text[..63],
            &format!("{text}0"),
            &text.replace(['a', '1'], "b"),
        ] {
            assert!(guess == text || !token.is(guess));
        }
    }
}

//! Where each block is kept while it is not in the ring.
//!
//! | residency | for | on the device |
//! |---|---|---|
//! | resident | blocks that are not streamed | always |
//! | mapped | unified memory | host memory, accessed in place |
//! | host | a discrete card; the CPU | in the ring, copied from pinned memory |
//! | file | blocks that do not fit in memory | in the ring, read by a thread of its own |

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use platform::files::FileExt as _;
use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::accelerator::{self, Event};

use super::{BackingStore, Layout, SwapOptions};
use crate::placer::PlaceError;
use crate::transfer::checksum::Checksum;
use crate::transfer::engine::TransferEngine;
use crate::transfer::policy::{Placed, Policy, Request};
use crate::transfer::torch_transport::{HostTensor, TorchTransport};
use crate::transfer::transport::Transport;
use crate::transfer::verify::Role;
use platform::Bytes;

/// Where a block is kept.
pub(super) enum BlockResidency {
    /// On the device, or accessed in place by it.
    Resident(Tensor),
    /// In host memory, from which it is copied to the ring.
    Host(Tensor),
    /// In the file, at this offset.
    File(u64),
    /// That of an earlier block with the same weights.
    TiedTo(usize),
}

/// A block and its metadata.
pub(super) struct StoredBlock {
    pub(super) name: String,
    pub(super) bytes: i64,
    pub(super) residency: BlockResidency,
    /// Where its weights were before they were packed.
    origin: Origin,
    /// The checksum of its bytes; for a tied block, see the first one.
    pub(super) sum: Option<Checksum>,
}

/// Address, type and shape of each weight in the model: equal for tied blocks.
pub(super) type Origin = Vec<(usize, Kind, Vec<i64>)>;

/// All blocks' residencies, filled one block after the other.
pub(super) struct BlockStore {
    pub(super) transport: TorchTransport,
    pub(super) blocks: Vec<StoredBlock>,
    /// Which of them are in the file.
    divided: BackingStore,
    pub(super) reader: Option<Reader>,
    pub(super) resident: Bytes,
    pub(super) host: Bytes,
    pub(super) disk: Bytes,
    /// Moves resident blocks now, and swapped ones later.
    pub(super) engine: TransferEngine,
}

impl BlockStore {
    pub(super) fn new(
        transport: TorchTransport,
        options: &SwapOptions,
    ) -> Result<Self, PlaceError> {
        let reader = match options.backing.folder() {
            None => None,
            Some(folder) => Some(Reader::new(folder).map_err(|error| {
                Error::InvalidArgument(format!(
                    "streamed blocks cannot be kept in `{}`: {error}",
                    folder.display()
                ))
            })?),
        };
        let policy = Policy {
            verify: options.verify,
            may_stay_on_host: false,
            ..Policy::default()
        };
        Ok(Self {
            transport,
            blocks: Vec::new(),
            divided: options.backing.clone(),
            reader,
            resident: Bytes::ZERO,
            host: Bytes::ZERO,
            disk: Bytes::ZERO,
            engine: TransferEngine::new(policy),
        })
    }

    /// Moves a packed block to where it is kept.
    pub(super) fn add(
        &mut self,
        layout: &Layout,
        buffer: Tensor,
        origin: Origin,
        travels: bool,
    ) -> Result<(), PlaceError> {
        // The reference for verification. For a block in the file there is no later chance to compute it.
        let sum = Checksum::of(HostTensor::new(&buffer)?.bytes()?);
        if let Some(first) = self.find_tied(&origin, &sum, &buffer)? {
            self.blocks.push(StoredBlock {
                name: layout.name.clone(),
                bytes: layout.bytes,
                residency: BlockResidency::TiedTo(first),
                origin,
                sum: None,
            });
            return Ok(());
        }
        let bytes = Bytes(layout.bytes as u64);
        let facts = self.transport.facts();
        let in_file = self.divided.is_in_file(self.blocks.len());
        let residency = match self.reader.as_mut().filter(|_| in_file) {
            _ if !travels => {
                self.resident += bytes;
                BlockResidency::Resident(self.place(layout, buffer)?)
            }
            Some(reader) => {
                self.disk += bytes;
                let host = HostTensor::new(&buffer)?;
                let at = reader.append(host.bytes()?).map_err(|error| {
                    Error::Torch(format!(
                        "block `{}` cannot be written to its file: {error}",
                        layout.name
                    ))
                })?;
                BlockResidency::File(at)
            }
            None => {
                self.host += bytes;
                let buffer = match facts.pinned_memory {
                    true => accelerator::pin_memory(&buffer)?,
                    false => buffer,
                };
                let mapped = facts.unified_memory && facts.zero_copy;
                match self.transport.index().filter(|_| mapped) {
                    Some(index) => {
                        BlockResidency::Resident(accelerator::map_pinned(&buffer, index)?)
                    }
                    None => BlockResidency::Host(buffer),
                }
            }
        };
        self.blocks.push(StoredBlock {
            name: layout.name.clone(),
            bytes: layout.bytes,
            residency,
            origin,
            sum: Some(sum),
        });
        Ok(())
    }

    /// The earlier block with the same weights. Models that reuse one block (like ALBERT) keep it once. An
    /// address may have been reused by another tensor, so the bytes are compared too; sharing is then
    /// correct, tied or not.
    fn find_tied(
        &mut self,
        origin: &Origin,
        sum: &Checksum,
        buffer: &Tensor,
    ) -> Result<Option<usize>, PlaceError> {
        let bytes = HostTensor::new(buffer)?;
        let bytes = bytes.bytes()?;
        for (first, stored) in self.blocks.iter().enumerate() {
            let alike = stored.origin == *origin && stored.sum.as_ref() == Some(sum);
            if !alike || bytes.is_empty() {
                continue;
            }
            let same = match &stored.residency {
                BlockResidency::TiedTo(_) => false,
                BlockResidency::Host(there) => HostTensor::new(there)?.bytes()? == bytes,
                BlockResidency::Resident(there) => {
                    let there = self.transport.read_back(there).map_err(Error::from)?;
                    there.bytes()? == bytes
                }
                BlockResidency::File(at) => {
                    let mut there = vec![0; bytes.len()];
                    let reader = self.reader.as_ref();
                    let read = reader.map(|reader| reader.file.read_exact_at(&mut there, *at));
                    matches!(read, Some(Ok(()))) && there == bytes
                }
            };
            if same {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Moves a resident block to the device like any other weight.
    fn place(&mut self, layout: &Layout, buffer: Tensor) -> Result<Tensor, PlaceError> {
        if self.transport.device() == Device::Cpu {
            return Ok(buffer);
        }
        let request = Request {
            name: &layout.name,
            role: Role::Weight,
            cast: None,
        };
        let host = HostTensor::new(&buffer)?;
        match self
            .engine
            .to_device(&mut self.transport, &host, &request)?
        {
            Placed::OnDevice(tensor) => Ok(tensor),
            // The policy does not allow this; the tensor would still be correct.
            Placed::OnHost(host) => Ok(host.into_tensor()),
        }
    }
}

/// Reads blocks from their file on a separate thread.
pub(super) struct Reader {
    file: Arc<File>,
    end: u64,
    requests: Sender<ReadRequest>,
}

struct ReadRequest {
    into: HostTensor,
    at: u64,
    /// The device must have reached this event before the memory may be overwritten.
    after: Option<Event>,
    answer: Sender<Read>,
}

/// The result of a read request.
pub(super) struct Read {
    pub(super) outcome: io::Result<()>,
    /// The request's event, returned.
    pub(super) after: Option<Event>,
}

impl Reader {
    fn new(folder: &std::path::Path) -> io::Result<Self> {
        let file = Arc::new(tempfile::tempfile_in(folder)?);
        let (requests, queue) = channel::<ReadRequest>();
        let source = Arc::clone(&file);
        std::thread::Builder::new()
            .name("surefoot-block-reader".into())
            .spawn(move || {
                for request in queue {
                    request.serve(&source);
                }
            })?;
        Ok(Self {
            file,
            end: 0,
            requests,
        })
    }

    /// Appends a block; returns its offset.
    fn append(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.end;
        self.file.write_all_at(bytes, at)?;
        self.end += bytes.len() as u64;
        forget_pages(&self.file);
        Ok(at)
    }

    /// Starts reading `into.len()` bytes at the offset `at`.
    pub(super) fn read(
        &self,
        into: HostTensor,
        at: u64,
        after: Option<Event>,
    ) -> Result<Receiver<Read>, Error> {
        let (answer, result) = channel();
        let request = ReadRequest {
            into,
            at,
            after,
            answer,
        };
        match self.requests.send(request) {
            Ok(()) => Ok(result),
            Err(_) => Err(Error::Torch(
                "the thread that reads blocks has exited".into(),
            )),
        }
    }
}

impl ReadRequest {
    fn serve(mut self, file: &File) {
        let passed = match &self.after {
            Some(event) => event.synchronize().map_err(io::Error::other),
            None => Ok(()),
        };
        let outcome = passed.and_then(|()| {
            let into = self.into.bytes_mut().map_err(io::Error::other)?;
            file.read_exact_at(into, self.at)
        });
        forget_pages(file);
        // The caller may have given up waiting.
        let _ = self.answer.send(Read {
            outcome,
            after: self.after,
        });
    }
}

/// Drops the file from the page cache, where it would be the second copy of the blocks and displace what is
/// needed.
fn forget_pages(file: &File) {
    #[cfg(not(unix))]
    let _ = file; // Windows has no such advice.
    #[cfg(unix)]
    use rustix::fs::{Advice, fadvise};
    // Dirty pages are dropped once the kernel has written them. This is only advice.
    #[cfg(unix)]
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

//! Where each block is while it is not in the ring.
//!
//! | residency | for | on the device |
//! |---|---|---|
//! | resident | blocks that do not travel | for good |
//! | mapped | unified memory | host memory, seen where it is |
//! | host | a card of its own; the CPU | in the ring, copied from pinned memory |
//! | file | memory that does not hold the blocks | in the ring, read by a thread of its own |

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

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

/// A block's place.
pub(super) enum BlockResidency {
    /// On the device for good, or where the device sees it.
    Resident(Tensor),
    /// Host memory that the ring is filled from.
    Host(Tensor),
    /// The file, from this byte on.
    File(u64),
    /// That of an earlier block, which has the same weights.
    Of(usize),
}

/// A block, and what is known of it.
pub(super) struct StoredBlock {
    pub(super) name: String,
    pub(super) bytes: i64,
    pub(super) residency: BlockResidency,
    /// Where its weights were before they were packed.
    origin: Origin,
    /// What its bytes sum to; of a tied block, that is said of the first.
    pub(super) sum: Option<Checksum>,
}

/// The address, kind and shape of each weight in the model: equal for blocks that are tied.
pub(super) type Origin = Vec<(usize, Kind, Vec<i64>)>;

/// Every block's residency, filled one block after the other.
pub(super) struct BlockStore {
    pub(super) transport: TorchTransport,
    pub(super) blocks: Vec<StoredBlock>,
    /// Which of them come from the file.
    divided: BackingStore,
    pub(super) reader: Option<Reader>,
    pub(super) resident: Bytes,
    pub(super) host: Bytes,
    pub(super) disk: Bytes,
    /// Moves resident blocks here, and swapped ones later.
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

    /// Puts a packed block where it stays.
    pub(super) fn add(
        &mut self,
        layout: &Layout,
        buffer: Tensor,
        origin: Origin,
        travels: bool,
    ) -> Result<(), PlaceError> {
        // What should arrive is what was packed. For a block in the file there is no other chance.
        let sum = Checksum::of(HostTensor::new(&buffer)?.bytes());
        if let Some(first) = self.twin(&origin, &sum, &buffer)? {
            self.blocks.push(StoredBlock {
                name: layout.name.clone(),
                bytes: layout.bytes,
                residency: BlockResidency::Of(first),
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
                let at = reader.append(host.bytes()).map_err(|error| {
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

    /// The earlier block that has the same weights. Models that use one block again and again
    /// (ALBERT's way) have it once. An address may be another tensor's by now, so that bytes
    /// decide; then sharing is right, whether the blocks were tied or not.
    fn twin(
        &mut self,
        origin: &Origin,
        sum: &Checksum,
        buffer: &Tensor,
    ) -> Result<Option<usize>, PlaceError> {
        let bytes = HostTensor::new(buffer)?;
        for (first, stored) in self.blocks.iter().enumerate() {
            let alike = stored.origin == *origin && stored.sum.as_ref() == Some(sum);
            if !alike || bytes.bytes().is_empty() {
                continue;
            }
            let same = match &stored.residency {
                BlockResidency::Of(_) => false,
                BlockResidency::Host(there) => HostTensor::new(there)?.bytes() == bytes.bytes(),
                BlockResidency::Resident(there) => {
                    let there = self.transport.read_back(there).map_err(Error::from)?;
                    there.bytes() == bytes.bytes()
                }
                BlockResidency::File(at) => {
                    let mut there = vec![0; bytes.bytes().len()];
                    let reader = self.reader.as_ref();
                    let read = reader.map(|reader| reader.file.read_exact_at(&mut there, *at));
                    matches!(read, Some(Ok(()))) && there == bytes.bytes()
                }
            };
            if same {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// A resident block goes to the device like any other weight.
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
            // Not allowed by the policy; the tensor would still be right.
            Placed::OnHost(host) => Ok(host.into_tensor()),
        }
    }
}

/// Reads blocks from their file on a thread of its own.
pub(super) struct Reader {
    file: Arc<File>,
    end: u64,
    requests: Sender<ReadRequest>,
}

struct ReadRequest {
    into: HostTensor,
    at: u64,
    /// The device must have passed this point before the memory is overwritten.
    after: Option<Event>,
    answer: Sender<Read>,
}

/// What came of a request.
pub(super) struct Read {
    pub(super) outcome: io::Result<()>,
    /// The event of the request, back.
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

    /// Writes a block behind the others; where it begins.
    fn append(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.end;
        self.file.write_all_at(bytes, at)?;
        self.end += bytes.len() as u64;
        forget_pages(&self.file);
        Ok(at)
    }

    /// Starts reading `into.len()` bytes from `at` on.
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
            Err(_) => Err(Error::Torch("the thread that reads blocks is gone".into())),
        }
    }
}

impl ReadRequest {
    fn serve(mut self, file: &File) {
        let passed = match &self.after {
            Some(event) => event.synchronize().map_err(io::Error::other),
            None => Ok(()),
        };
        let outcome = passed.and_then(|()| file.read_exact_at(self.into.bytes_mut(), self.at));
        forget_pages(file);
        // The caller may have given up waiting.
        let _ = self.answer.send(Read {
            outcome,
            after: self.after,
        });
    }
}

/// The pages of the file would be the second copy of the blocks, and push out what is needed.
fn forget_pages(file: &File) {
    use rustix::fs::{Advice, fadvise};
    // Written pages are forgotten once they are on the disk, which the kernel sees to. It is advice only.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

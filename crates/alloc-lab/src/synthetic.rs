//! Synthetic traces: what a model of a given shape would request during training.
//!
//! Recorded traces show what a few programs did. A policy that was tuned on them must also work for others, so this
//! generates any number of them: weights that stay, optimizer state that appears in the first step, activations that
//! are saved in the forward pass and freed in reverse in the backward pass, temporaries, sequence lengths that change
//! from step to step, checkpointing, adapters, evaluations in between, and a second stream. The same shape and seed
//! always give the same trace.

use crate::trace::{Event, Trace};
use hip_alloc::units::KIB;

/// A model and the way it is trained.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of transformer blocks.
    pub layers: u64,
    /// Width of the hidden state.
    pub hidden: u64,
    /// Rows of the embedding and columns of the logits; 0: no language head.
    pub vocabulary: u64,
    /// Bytes of one number in weights and activations.
    pub element: u64,
    /// Sequences in a batch.
    pub batch: u64,
    /// Shortest and longest sequence; each step draws one.
    pub sequence: (u64, u64),
    /// Number of training steps.
    pub steps: u64,
    /// Only adapters of this rank are trained; 0: everything is.
    pub adapter_rank: u64,
    /// Activations are recomputed in the backward pass, a block at a time.
    pub checkpointing: bool,
    /// The optimizer updates all parameters at once, with a temporary for each.
    pub foreach: bool,
    /// Evaluate after this many steps, with a batch four times as large; 0: never.
    pub evaluate_every: u64,
    /// The next batch is prefetched on a second stream.
    pub prefetch: bool,
    /// Gradients are freed at the start of the next step rather than at the end of this.
    pub keep_gradients: bool,
    /// For the sequence lengths.
    pub seed: u64,
}

impl Shape {
    /// Several ways to train, by name.
    pub fn examples() -> Vec<(&'static str, Shape)> {
        let small = Shape {
            layers: 12,
            hidden: 768,
            vocabulary: 32_000,
            element: 4,
            batch: 8,
            sequence: (256, 1024),
            steps: 10,
            adapter_rank: 0,
            checkpointing: false,
            foreach: true,
            evaluate_every: 0,
            prefetch: false,
            keep_gradients: false,
            seed: 1,
        };
        vec![
            ("small_full", small.clone()),
            (
                "billion_full_checkpointed",
                Shape {
                    layers: 22,
                    hidden: 2048,
                    element: 2,
                    batch: 4,
                    sequence: (2048, 2048),
                    checkpointing: true,
                    keep_gradients: true,
                    ..small.clone()
                },
            ),
            (
                "billion_lora",
                Shape {
                    layers: 28,
                    hidden: 1536,
                    vocabulary: 151_936,
                    element: 2,
                    batch: 2,
                    sequence: (64, 2048),
                    adapter_rank: 16,
                    foreach: false,
                    seed: 3,
                    ..small.clone()
                },
            ),
            (
                "seven_billion_lora_checkpointed",
                Shape {
                    layers: 32,
                    hidden: 4096,
                    element: 2,
                    batch: 1,
                    sequence: (512, 4096),
                    adapter_rank: 32,
                    checkpointing: true,
                    seed: 4,
                    ..small.clone()
                },
            ),
            (
                "video_lora",
                Shape {
                    layers: 30,
                    hidden: 3072,
                    vocabulary: 0,
                    element: 2,
                    batch: 1,
                    sequence: (14_000, 14_000),
                    adapter_rank: 32,
                    checkpointing: true,
                    seed: 5,
                    ..small.clone()
                },
            ),
            (
                "small_with_evaluation",
                Shape {
                    evaluate_every: 2,
                    sequence: (1024, 1024),
                    seed: 6,
                    ..small.clone()
                },
            ),
            (
                "small_prefetching",
                Shape {
                    prefetch: true,
                    keep_gradients: true,
                    seed: 7,
                    ..small.clone()
                },
            ),
            (
                "tiny",
                Shape {
                    layers: 4,
                    hidden: 256,
                    vocabulary: 8000,
                    batch: 4,
                    seed: 8,
                    ..small
                },
            ),
        ]
    }

    /// The trace of this training.
    pub fn trace(&self) -> Trace {
        let mut run = Run {
            shape: self,
            trace: Trace::default(),
            state: self.seed.wrapping_mul(2).wrapping_add(0x9E37_79B9),
        };
        run.train();
        run.trace
    }
}

/// A request of the trace, by number.
type Request = u32;

struct Run<'a> {
    shape: &'a Shape,
    trace: Trace,
    state: u64,
}

/// What a block of the model keeps for its backward pass.
struct Saved {
    tensors: Vec<Request>,
    tokens: u64,
}

impl Run<'_> {
    fn train(&mut self) {
        let sizes = self.weight_sizes();
        for bytes in &sizes {
            self.allocate(*bytes);
        }
        let trained = self.trained_sizes(&sizes);
        if self.shape.adapter_rank > 0 {
            for bytes in &trained {
                self.allocate(*bytes);
            }
        }
        let mut gradients = Vec::new();
        let mut batch = self.batch_on(0);
        for step in 0..self.shape.steps {
            self.trace.events.push(Event::Step);
            self.free_all(std::mem::take(&mut gradients));
            let next = self.batch_on(u64::from(self.shape.prefetch));
            gradients = self.step(&trained);
            self.optimize(&trained, step == 0);
            if !self.shape.keep_gradients {
                self.free_all(std::mem::take(&mut gradients));
            }
            self.free_all(std::mem::replace(&mut batch, next));
            if self.shape.evaluate_every > 0 && (step + 1) % self.shape.evaluate_every == 0 {
                self.evaluate();
            }
        }
    }

    /// Embedding, then each block: attention, feed-forward, norms; then the head.
    fn weight_sizes(&self) -> Vec<u64> {
        let Shape {
            layers,
            hidden,
            vocabulary,
            element,
            ..
        } = *self.shape;
        let square = hidden * hidden * element;
        let mut sizes = vec![vocabulary * hidden * element];
        for _ in 0..layers {
            sizes.extend([square, square, square, square]);
            sizes.extend([
                hidden * element,
                4 * square,
                4 * square,
                4 * hidden * element,
                hidden * element,
            ]);
        }
        sizes.push(hidden * element);
        sizes.retain(|bytes| *bytes > 0);
        sizes
    }

    fn trained_sizes(&self, weights: &[u64]) -> Vec<u64> {
        let Shape {
            layers,
            hidden,
            adapter_rank: rank,
            ..
        } = *self.shape;
        match rank {
            0 => weights.to_vec(),
            // Two matrices for each of four projections, in full precision.
            _ => (0..layers * 8).map(|_| rank * hidden * 4).collect(),
        }
    }

    fn batch_on(&mut self, stream: u64) -> Vec<Request> {
        let tokens = self.shape.batch * self.shape.sequence.1;
        vec![
            self.allocate_on(tokens * 8, stream),
            self.allocate_on(tokens * 8, stream),
        ]
    }

    /// Forward and backward; the gradients that are left.
    fn step(&mut self, trained: &[u64]) -> Vec<Request> {
        let tokens = self.shape.batch * self.draw_length();
        let width = tokens * self.shape.hidden * self.shape.element;
        let mut kept = vec![Saved {
            tensors: vec![self.allocate(width)],
            tokens,
        }];
        for _ in 0..self.shape.layers {
            let saved = self.block_forward(tokens);
            if self.shape.checkpointing {
                let output = saved.tensors.last().copied();
                let freed = saved
                    .tensors
                    .iter()
                    .copied()
                    .filter(|tensor| Some(*tensor) != output);
                self.free_all(freed.collect());
                kept.push(Saved {
                    tensors: output.into_iter().collect(),
                    tokens,
                });
            } else {
                kept.push(saved);
            }
        }
        let mut gradient = self.head(tokens, width);
        let mut gradients = Vec::new();
        let per_layer = trained.len() as u64 / self.shape.layers.max(1);
        let mut sizes = trained.iter().rev();
        while let Some(mut saved) = kept.pop() {
            if self.shape.checkpointing && !kept.is_empty() {
                let again = self.block_forward(saved.tokens);
                saved.tensors.extend(again.tensors);
            }
            for tensor in saved.tensors.into_iter().rev() {
                let scratch = self.allocate(width);
                let next = self.allocate(width);
                self.free(gradient);
                gradient = next;
                self.free(scratch);
                self.free(tensor);
            }
            for bytes in sizes.by_ref().take(per_layer as usize) {
                gradients.push(self.allocate(*bytes));
            }
        }
        for bytes in sizes {
            gradients.push(self.allocate(*bytes));
        }
        self.free(gradient);
        gradients
    }

    /// What one block allocates: saved tensors, and temporaries that are gone after it.
    fn block_forward(&mut self, tokens: u64) -> Saved {
        let Shape {
            hidden, element, ..
        } = *self.shape;
        let width = tokens * hidden * element;
        let mut tensors = Vec::new();
        tensors.push(self.allocate(tokens * 4));
        tensors.push(self.allocate(tokens * 4));
        tensors.push(self.allocate(width));
        let scratch = self.allocate(3 * width);
        for _ in 0..3 {
            tensors.push(self.allocate(width));
        }
        self.free(scratch);
        let workspace = self.allocate(32 * 1024 * KIB);
        tensors.push(self.allocate(width));
        self.free(workspace);
        let inner = self.allocate(4 * width);
        tensors.push(inner);
        let activated = self.allocate(4 * width);
        tensors.push(activated);
        tensors.push(self.allocate(width));
        Saved { tensors, tokens }
    }

    /// Logits, loss and the gradient that enters the backward pass.
    fn head(&mut self, tokens: u64, width: u64) -> Request {
        let logits = tokens * self.shape.vocabulary * self.shape.element;
        if logits == 0 {
            return self.allocate(width);
        }
        let first = self.allocate(logits);
        let wide = self.allocate(tokens * self.shape.vocabulary * 4);
        let loss = self.allocate(4);
        let gradient = self.allocate(tokens * self.shape.vocabulary * 4);
        self.free(wide);
        self.free(first);
        let entering = self.allocate(width);
        self.free(gradient);
        self.free(loss);
        entering
    }

    fn optimize(&mut self, trained: &[u64], first: bool) {
        if first {
            for bytes in trained {
                self.allocate(4);
                self.allocate(*bytes);
                self.allocate(*bytes);
            }
        }
        if self.shape.foreach {
            let temporaries = trained.iter().map(|bytes| self.allocate(*bytes)).collect();
            self.free_all(temporaries);
        } else {
            for bytes in trained {
                let temporary = self.allocate(*bytes);
                self.free(temporary);
            }
        }
    }

    fn evaluate(&mut self) {
        let tokens = 4 * self.shape.batch * self.shape.sequence.1;
        for _ in 0..3 {
            for _ in 0..self.shape.layers {
                let saved = self.block_forward(tokens);
                self.free_all(saved.tensors);
            }
            let entering = self.head(tokens / 4, tokens / 4);
            self.free(entering);
        }
    }

    fn draw_length(&mut self) -> u64 {
        let (shortest, longest) = self.shape.sequence;
        // Marsaglia's xorshift64, 2003.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        shortest + self.state % (longest - shortest + 1)
    }

    fn allocate(&mut self, bytes: u64) -> Request {
        self.allocate_on(bytes, 0)
    }

    fn allocate_on(&mut self, bytes: u64, stream: u64) -> Request {
        let id = self.trace.requests;
        self.trace.requests += 1;
        self.trace
            .events
            .push(Event::Allocate { id, bytes, stream });
        id
    }

    fn free(&mut self, id: Request) {
        self.trace.events.push(Event::Free { id });
    }

    fn free_all(&mut self, requests: Vec<Request>) {
        for id in requests {
            self.free(id);
        }
    }
}

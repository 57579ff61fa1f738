//! The rule in chunks, forward and backward.
//!
//! Tensors are `[chunks, batch · heads, tokens of a chunk, width]`, so that those of a chunk are contiguous.

use tch::{Kind, Tensor};

use super::{CHUNK, Rule, sums_of};
use crate::Error;

/// Added to the sum of squares of queries and keys.
const EPSILON: f64 = 1e-6;

/// A rule's inputs, divided into chunks.
pub(super) struct Chunks {
    shape: Shape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    /// β
    rate: Tensor,
    decays: Decays,
    /// Queries and keys before their length was made one, `[batch, length, key heads, width]`.
    whole: [Tensor; 2],
}

/// What a pass makes.
pub(super) struct Passed {
    /// `[batch, length, heads, value width]`
    pub(super) output: Tensor,
    /// Before each chunk, `[chunks, batch, heads, key width, value width]`.
    pub(super) states: Tensor,
    /// After the last one, `[batch, heads, key width, value width]`.
    pub(super) last: Tensor,
}

/// The decays within and between chunks: zero where a text begins between two tokens.
struct Decays {
    /// D: from each token of a chunk to those after it, `[…, tokens, tokens]`.
    between: Tensor,
    /// e^γ: from the state before the chunk to each token.
    to_token: Tensor,
    /// e^(γend − γ): from each token to the state after the chunk.
    to_state: Tensor,
    /// e^γend: from state to state, `[…, 1, 1]`.
    whole: Tensor,
}

impl Chunks {
    pub(super) fn new(rule: Rule<'_>, texts: Option<&Tensor>) -> Result<Self, Error> {
        let kind = sums_of(rule.value);
        let (batch, length, heads, _) = rule.value.size4()?;
        let tokens = CHUNK.min(length.max(1));
        let shape = Shape {
            batch,
            length,
            heads,
            count: (length + tokens - 1) / tokens,
            tokens,
        };
        let whole = [rule.query.f_to_kind(kind)?, rule.key.f_to_kind(kind)?];
        let scale = (rule.query.size4()?.3 as f64).sqrt().recip();
        let each = |rows: &Tensor| shape.split(&rows.f_to_kind(kind)?.f_unsqueeze(-1)?);
        Ok(Self {
            query: shape
                .split(&of_length_one(&whole[0])?)?
                .f_mul_scalar(scale)?,
            key: shape.split(&of_length_one(&whole[1])?)?,
            value: shape.split(&rule.value.f_to_kind(kind)?)?,
            rate: each(rule.rate)?,
            decays: Decays::new(&shape, &each(rule.decay)?, texts)?,
            whole,
            shape,
        })
    }

    /// All outputs and states, from the state before the first token.
    pub(super) fn forward(&self, state: Option<&Tensor>) -> Result<Passed, Error> {
        let shape = &self.shape;
        let solved = self.solved()?;
        let [values, keys] = self.sides(&solved)?;
        let (width, value_width) = (shape.width(&self.key), shape.width(&self.value));
        let groups = shape.batch * shape.heads;
        let options = (self.value.kind(), self.value.device());
        let mut state = match state {
            Some(state) => state
                .f_to_kind(options.0)?
                .f_reshape([groups, width, value_width])?,
            None => Tensor::f_zeros([groups, width, value_width], options)?,
        };
        let to_state = self.key.f_mul(&self.decays.to_state)?.f_transpose(2, 3)?;
        let (mut states, mut fresh) = (Vec::new(), Vec::new());
        for chunk in 0..shape.count {
            let of = |tensor: &Tensor| tensor.f_select(0, chunk);
            let value = of(&values)?.f_baddbmm(&of(&keys)?, &state, 1.0, -1.0)?;
            let kept = state.f_mul(&of(&self.decays.whole)?)?;
            let next = kept.f_baddbmm(&of(&to_state)?, &value, 1.0, 1.0)?;
            states.push(std::mem::replace(&mut state, next));
            fresh.push(value);
        }
        let (states, fresh) = (Tensor::f_stack(&states, 0)?, Tensor::f_stack(&fresh, 0)?);
        let read = self.query.f_mul(&self.decays.to_token)?.f_matmul(&states)?;
        let output = read.f_add(&self.scores()?.f_matmul(&fresh)?)?;
        let each = [shape.count, shape.batch, shape.heads, width, value_width];
        Ok(Passed {
            output: shape.join(&output)?,
            states: states.f_view(each)?,
            last: state.f_view([shape.batch, shape.heads, width, value_width])?,
        })
    }

    /// The gradients of queries, keys, values, decays and rates, for the states before each chunk and the gradient of
    /// the output.
    pub(super) fn backward(
        &self,
        states: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Tensor; 5], Error> {
        let Decays {
            between,
            to_token,
            to_state,
            whole,
        } = &self.decays;
        let shape = &self.shape;
        let gradient = shape.split(&gradient.f_to_kind(self.value.kind())?)?;
        let states = &states.f_reshape([
            shape.count,
            shape.batch * shape.heads,
            shape.width(&self.key),
            shape.width(&self.value),
        ])?;
        let solved = self.solved()?;
        let [values, keys] = self.sides(&solved)?;
        let fresh = values.f_sub(&keys.f_matmul(states)?)?;
        let scores = self.scores()?;
        let (reads, writes) = (self.query.f_mul(to_token)?, self.key.f_mul(to_state)?);

        // From chunk to chunk, backwards: the gradients of V' and of the state after each.
        let direct = scores.f_transpose(2, 3)?.f_matmul(&gradient)?;
        let read = reads.f_transpose(2, 3)?.f_matmul(&gradient)?;
        let mut later = Tensor::f_zeros(
            states.size().get(1..).unwrap_or_default(),
            (states.kind(), states.device()),
        )?;
        let (mut of_fresh, mut of_states) = (Vec::new(), Vec::new());
        for chunk in (0..shape.count).rev() {
            let of = |tensor: &Tensor| tensor.f_select(0, chunk);
            let fresh = of(&direct)?.f_baddbmm(&of(&writes)?, &later, 1.0, 1.0)?;
            let kept = later.f_mul(&of(whole)?)?.f_add(&of(&read)?)?;
            let earlier = kept.f_baddbmm(&of(&keys)?.f_transpose(1, 2)?, &fresh, 1.0, -1.0)?;
            of_states.push(std::mem::replace(&mut later, earlier));
            of_fresh.push(fresh);
        }
        drop((direct, read));
        of_fresh.reverse();
        of_states.reverse();
        let (of_fresh, of_states) = (
            Tensor::f_stack(&of_fresh, 0)?,
            Tensor::f_stack(&of_states, 0)?,
        );

        // O = (Q ∘ e^γ) S + (Q Kᵀ ∘ D) V' and S ← e^γend S + (K ∘ e^(γend − γ))ᵀ V'
        let transposed = states.f_transpose(2, 3)?;
        let of_reads = gradient.f_matmul(&transposed)?;
        let of_scores = gradient.f_matmul(&fresh.f_transpose(2, 3)?)?;
        let of_writes = fresh.f_matmul(&of_states.f_transpose(2, 3)?)?;
        let of_whole =
            of_states
                .f_mul(states)?
                .f_sum_dim_intlist([2, 3].as_slice(), true, states.kind())?;

        // U = L⁻¹ βV and W = L⁻¹ (βK ∘ e^γ): through L⁻¹, and to L.
        let of_solved = Tensor::f_cat(&[&of_fresh, &of_fresh.f_matmul(&transposed)?.f_neg()?], -1)?;
        let triangle = self.triangle()?;
        let of_sides = triangle
            .f_transpose(2, 3)?
            .f_linalg_solve_triangular(&of_solved, true, true, true)?;
        let of_triangle = of_sides
            .f_matmul(&solved.f_transpose(2, 3)?)?
            .f_neg()?
            .f_tril(-1)?;
        drop((solved, of_solved, of_fresh));
        let [of_value_side, of_key_side] = self.sides(&of_sides)?;

        // L = 1 + tril(βK Kᵀ ∘ D, −1)
        let rated = self.key.f_mul(&self.rate)?;
        let masked = of_triangle.f_mul(between)?;
        let of_rated = masked.f_matmul(&self.key)?;
        let masked_scores = of_scores.f_mul(between)?;

        let of_value = of_value_side.f_mul(&self.rate)?;
        let of_query = masked_scores
            .f_matmul(&self.key)?
            .f_add(&of_reads.f_mul(to_token)?)?;
        let side = of_key_side.f_mul(to_token)?.f_add(&of_rated)?;
        let of_key = side
            .f_mul(&self.rate)?
            .f_add(&masked.f_transpose(2, 3)?.f_matmul(&rated)?)?
            .f_add(&masked_scores.f_transpose(2, 3)?.f_matmul(&self.query)?)?
            .f_add(&of_writes.f_mul(to_state)?)?;
        let of_rate = dot(&of_value_side, &self.value)?.f_add(&dot(&side, &self.key)?)?;

        // D, e^γ, e^(γend − γ) and e^γend
        let through = of_scores
            .f_mul(&scores)?
            .f_add(&of_triangle.f_mul(&triangle)?)?;
        let sum = |dimension: i64| {
            through.f_sum_dim_intlist([dimension].as_slice(), true, through.kind())
        };
        let to_end = dot(&of_writes, &writes)?;
        let of_sums = sum(3)?
            .f_sub(&sum(2)?.f_transpose(2, 3)?)?
            .f_add(&dot(&of_reads, &reads)?)?
            .f_add(&dot(&of_key_side, &rated.f_mul(to_token)?)?)?
            .f_sub(&to_end)?;
        let _ = of_sums.f_narrow(2, shape.tokens - 1, 1)?.f_add_(
            &to_end
                .f_sum_dim_intlist([2].as_slice(), true, to_end.kind())?
                .f_add(&of_whole.f_mul(whole)?)?,
        )?;
        let backwards = of_sums.f_flip([2])?.f_cumsum(2, of_sums.kind())?;

        let scale = (shape.width(&self.query) as f64).sqrt().recip();
        let of_query = shape.join(&of_query.f_mul_scalar(scale)?)?;
        Ok([
            before_length_one(&self.whole[0], &of_query)?,
            before_length_one(&self.whole[1], &shape.join(&of_key)?)?,
            shape.join(&of_value)?,
            shape.join(&backwards.f_flip([2])?)?.f_squeeze_dim(-1)?,
            shape.join(&of_rate)?.f_squeeze_dim(-1)?,
        ])
    }

    /// Q Kᵀ ∘ D
    fn scores(&self) -> Result<Tensor, Error> {
        let products = self.query.f_matmul(&self.key.f_transpose(2, 3)?)?;
        Ok(products.f_mul(&self.decays.between)?)
    }

    /// βK Kᵀ ∘ D, of which what is on and above the diagonal has no meaning.
    fn triangle(&self) -> Result<Tensor, Error> {
        let rated = self.key.f_mul(&self.rate)?;
        let products = rated.f_matmul(&self.key.f_transpose(2, 3)?)?;
        Ok(products.f_mul(&self.decays.between)?)
    }

    /// U and W, one beside the other.
    fn solved(&self) -> Result<Tensor, Error> {
        let rated = self.rate.f_mul(&self.decays.to_token)?;
        let sides = Tensor::f_cat(
            &[self.value.f_mul(&self.rate)?, self.key.f_mul(&rated)?],
            -1,
        )?;
        Ok(self
            .triangle()?
            .f_linalg_solve_triangular(&sides, false, true, true)?)
    }

    /// The part of the values and that of the keys.
    fn sides(&self, both: &Tensor) -> Result<[Tensor; 2], Error> {
        let (values, keys) = (self.shape.width(&self.value), self.shape.width(&self.key));
        Ok([
            both.f_narrow(-1, 0, values)?,
            both.f_narrow(-1, values, keys)?,
        ])
    }
}

impl Decays {
    /// For g, and the numbers of the texts (`[batch, length]`).
    fn new(shape: &Shape, decay: &Tensor, texts: Option<&Tensor>) -> Result<Self, Error> {
        let &Shape {
            batch,
            heads,
            count,
            tokens,
            ..
        } = shape;
        let device = decay.device();
        let sums = decay
            .f_view([count, batch, heads, tokens])?
            .f_cumsum(-1, decay.kind())?;
        let end = sums.f_narrow(-1, tokens - 1, 1)?;
        let mut later = Tensor::f_ones([tokens, tokens], (Kind::Bool, device))?.f_triu(1)?;
        let mut to_token = sums.f_exp()?;
        let mut to_state = end.f_sub(&sums)?.f_exp()?;
        let mut whole = end.f_exp()?;
        if let Some(texts) = texts {
            let texts = shape.split(&texts.f_unsqueeze(-1)?.f_unsqueeze(-1)?)?;
            let texts = texts.f_view([count, batch, 1, tokens])?;
            let last = texts.f_narrow(-1, tokens - 1, 1)?;
            // None is before the first chunk.
            let before = last.f_zeros_like()?;
            before
                .f_narrow(0, 1, count - 1)?
                .f_copy_(&last.f_narrow(0, 0, count - 1)?)?;
            let same = texts
                .f_unsqueeze(-1)?
                .f_eq_tensor(&texts.f_unsqueeze(-2)?)?;
            later = same.f_logical_not()?.f_logical_or(&later)?;
            to_token = to_token.f_mul(&texts.f_eq_tensor(&before)?)?;
            to_state = to_state.f_mul(&texts.f_eq_tensor(&last)?)?;
            whole = whole.f_mul(&last.f_eq_tensor(&before)?)?;
        }
        let between = sums
            .f_unsqueeze(-1)?
            .f_sub(&sums.f_unsqueeze(-2)?)?
            .f_masked_fill(&later, f64::NEG_INFINITY)?
            .f_exp()?;
        let flat = |tensor: Tensor, rows: i64, columns: i64| {
            tensor.f_reshape([count, batch * heads, rows, columns])
        };
        Ok(Self {
            between: flat(between, tokens, tokens)?,
            to_token: flat(to_token, tokens, 1)?,
            to_state: flat(to_state, tokens, 1)?,
            whole: flat(whole, 1, 1)?,
        })
    }
}

/// How rows are divided.
struct Shape {
    batch: i64,
    length: i64,
    heads: i64,
    /// Number of chunks of a row.
    count: i64,
    /// Tokens of each; the last one is filled up with zeros.
    tokens: i64,
}

impl Shape {
    fn width(&self, of: &Tensor) -> i64 {
        of.size().last().copied().unwrap_or(0)
    }

    /// `[batch, length, heads, width]` to `[chunks, batch · heads, tokens, width]`. Fewer heads are repeated.
    fn split(&self, rows: &Tensor) -> Result<Tensor, Error> {
        let (batch, length, heads, width) = rows.size4()?;
        let filled = rows.f_constant_pad_nd([0, 0, 0, 0, 0, self.count * self.tokens - length])?;
        let split = filled
            .f_view([batch, self.count, self.tokens, heads, width])?
            .f_permute([1, 0, 3, 2, 4])?;
        let is_number = rows.kind() == Kind::Int64;
        let times = if is_number { 1 } else { self.heads / heads };
        let each = [self.count, batch, heads, times, self.tokens, width];
        Ok(split.f_unsqueeze(3)?.f_expand(each, false)?.f_reshape([
            self.count,
            batch * heads * times,
            self.tokens,
            width,
        ])?)
    }

    /// The opposite of [`Shape::split`], with all heads.
    fn join(&self, chunks: &Tensor) -> Result<Tensor, Error> {
        let width = self.width(chunks);
        Ok(chunks
            .f_reshape([self.count, self.batch, self.heads, self.tokens, width])?
            .f_permute([1, 0, 3, 2, 4])?
            .f_reshape([self.batch, self.count * self.tokens, self.heads, width])?
            .f_narrow(1, 0, self.length)?)
    }
}

/// Vectors in the last dimension, divided by their length.
fn of_length_one(vectors: &Tensor) -> Result<Tensor, Error> {
    Ok(vectors.f_mul(&inverse_length(vectors)?)?)
}

/// The gradient of `vectors`, from that of [`of_length_one`] of each head that they serve.
fn before_length_one(vectors: &Tensor, gradient: &Tensor) -> Result<Tensor, Error> {
    let (batch, length, heads, width) = vectors.size4()?;
    let gradient = gradient
        .f_reshape([batch, length, heads, -1, width])?
        .f_sum_dim_intlist([3].as_slice(), false, vectors.kind())?;
    let inverse = inverse_length(vectors)?;
    let unit = vectors.f_mul(&inverse)?;
    let along = unit.f_mul(&dot(&unit, &gradient)?)?;
    Ok(gradient.f_sub(&along)?.f_mul(&inverse)?)
}

fn inverse_length(vectors: &Tensor) -> Result<Tensor, Error> {
    Ok(dot(vectors, vectors)?.f_add_scalar(EPSILON)?.f_rsqrt()?)
}

/// The sums of products over the last dimension, which remains.
fn dot(left: &Tensor, right: &Tensor) -> Result<Tensor, Error> {
    let products = left.f_mul(right)?;
    Ok(products.f_sum_dim_intlist([-1].as_slice(), true, products.kind())?)
}

//! Held against the plain recurrence, token by token, and its gradients by autograd; in fp64.

use tch::{Device, Kind, Tensor};

use super::*;

const OPTIONS: (Kind, Device) = (Kind::Double, Device::Cpu);
const BATCH: i64 = 2;
const HEADS: (i64, i64) = (2, 6);
const WIDTHS: (i64, i64) = (5, 7);

/// Queries, keys, values, decays and rates.
fn inputs(length: i64) -> [Tensor; 5] {
    let random = |heads, width| Tensor::randn([BATCH, length, heads, width], OPTIONS);
    let rows = || Tensor::rand([BATCH, length, HEADS.1], OPTIONS);
    [
        random(HEADS.0, WIDTHS.0),
        random(HEADS.0, WIDTHS.0),
        random(HEADS.1, WIDTHS.1),
        // Some forget at once, some nearly nothing.
        -(rows() * 6.0 - 4.0).exp(),
        rows(),
    ]
}

fn rule([query, key, value, decay, rate]: &[Tensor; 5]) -> Rule<'_> {
    Rule {
        query,
        key,
        value,
        decay,
        rate,
    }
}

/// The recurrence of one row without texts before it.
fn plain([query, key, value, decay, rate]: &[Tensor; 5]) -> Tensor {
    let groups = HEADS.1 / HEADS.0;
    let unit = |vectors: &Tensor| {
        let length = (vectors.square().sum_dim_intlist(-1, true, Kind::Double) + 1e-6).sqrt();
        (vectors / length).repeat_interleave_self_int(groups, 2, None)
    };
    let (query, key) = (unit(query) / (WIDTHS.0 as f64).sqrt(), unit(key));
    let mut state = Tensor::zeros([value.size()[0], HEADS.1, WIDTHS.0, WIDTHS.1], OPTIONS);
    let mut outputs = Vec::new();
    for token in 0..value.size()[1] {
        let of = |tensor: &Tensor| tensor.select(1, token);
        // Not in place: autograd has kept it.
        let faded = &state * of(decay).exp().unsqueeze(-1).unsqueeze(-1);
        let key = of(&key).unsqueeze(-1);
        let known = (&faded * &key).sum_dim_intlist(2, false, Kind::Double);
        let delta = (of(value) - known) * of(rate).unsqueeze(-1);
        state = faded + key * delta.unsqueeze(2);
        outputs.push((&state * of(&query).unsqueeze(-1)).sum_dim_intlist(2, false, Kind::Double));
    }
    Tensor::stack(&outputs, 1)
}

fn part(inputs: &[Tensor; 5], row: i64, start: i64, length: i64) -> [Tensor; 5] {
    let part = |tensor: &Tensor| tensor.narrow(0, row, 1).narrow(1, start, length);
    inputs.each_ref().map(part)
}

/// Outputs and gradients of the inputs.
fn run(inputs: &[Tensor; 5], weights: &Tensor, of: impl Fn(&[Tensor; 5]) -> Tensor) -> Vec<Tensor> {
    let leaves = inputs
        .each_ref()
        .map(|input| input.copy().set_requires_grad(true));
    let output = of(&leaves);
    torch_ext::backward(&(&output * weights).sum(Kind::Double)).unwrap();
    std::iter::once(output)
        .chain(leaves.iter().map(Tensor::grad))
        .collect()
}

fn assert_same(ours: &[Tensor], theirs: &[Tensor], bound: f64, what: &str) {
    for (number, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let size = theirs.abs().max().double_value(&[]).max(1.0);
        let difference = (ours - theirs).abs().max().double_value(&[]);
        assert!(
            difference <= bound * size,
            "{what}, {number}: {difference} of {size}"
        );
    }
}

#[test]
fn outputs_and_gradients_are_those_of_the_recurrence() {
    tch::manual_seed(1);
    for length in [1, 5, 64, 65, 150] {
        let inputs = inputs(length);
        let weights = Tensor::randn([BATCH, length, HEADS.1, WIDTHS.1], OPTIONS);
        let ours = run(&inputs, &weights, |inputs| {
            rule(inputs).apply(None).unwrap()
        });
        let theirs = run(&inputs, &weights, plain);
        assert_same(&ours, &theirs, 1e-11, &format!("{length} tokens"));
    }
}

#[test]
fn heads_that_are_computed_in_shares_are_what_they_are_together() {
    tch::manual_seed(6);
    // Two rows of so many tokens and three heads of values for each of keys: one head of keys at a time.
    let length = AT_A_TIME / (BATCH * 3) / 2 + 1;
    let inputs = inputs(length);
    assert_eq!(rule(&inputs).shares().unwrap().len(), 2);
    let weights = Tensor::randn([BATCH, length, HEADS.1, WIDTHS.1], OPTIONS);
    let apply = |inputs: &[Tensor; 5]| rule(inputs).apply(None).unwrap();
    let together = run(&inputs, &weights, apply);
    for head in 0..HEADS.0 {
        // Outputs, queries, keys, values, decays and rates.
        let part = |tensor: &Tensor, each: i64| tensor.narrow(2, head * each, each);
        let [query, key, value, decay, rate] = &inputs;
        let own = [
            part(query, 1),
            part(key, 1),
            part(value, 3),
            part(decay, 3),
            part(rate, 3),
        ];
        let alone = run(&own, &part(&weights, 3), apply);
        let together =
            (together.iter().zip([3, 1, 1, 3, 3, 3])).map(|(tensor, each)| part(tensor, each));
        assert_same(
            &together.collect::<Vec<_>>(),
            &alone,
            1e-12,
            &format!("head {head}"),
        );
    }
}

#[test]
fn texts_that_share_a_row_are_what_they_are_alone() {
    tch::manual_seed(2);
    let length = 150;
    let inputs = inputs(length);
    let weights = Tensor::randn([BATCH, length, HEADS.1, WIDTHS.1], OPTIONS);
    // A text of one token, some in a chunk, one over three of them, and one that begins with a chunk.
    let rows = [[3, 1, 20, 126].as_slice(), &[64, 86]];
    let numbers = rows.iter().flat_map(|row| {
        let texts = (1..).zip(row.iter());
        texts.flat_map(|(number, length): (i64, _)| vec![number; *length as usize])
    });
    let texts = Tensor::from_slice(&numbers.collect::<Vec<i64>>()).view([BATCH, length]);
    let ours = run(&inputs, &weights, |inputs| {
        rule(inputs).apply(Some(&texts)).unwrap()
    });
    for (row, lengths) in (0..).zip(rows) {
        let mut start = 0;
        for &length in lengths {
            let weights = weights.narrow(0, row, 1).narrow(1, start, length);
            let theirs = run(&part(&inputs, row, start, length), &weights, plain);
            let ours: Vec<_> = ours
                .iter()
                .map(|tensor| tensor.narrow(0, row, 1).narrow(1, start, length))
                .collect();
            assert_same(
                &ours,
                &theirs,
                1e-11,
                &format!("row {row}, {length} tokens at {start}"),
            );
            start += length;
        }
    }
}

/// Products of the triangle's powers would be off by more than the result here.
#[test]
fn one_key_again_and_again_is_exact_in_fp32() {
    tch::manual_seed(3);
    let length = 130;
    let mut inputs = inputs(length);
    inputs[1] = inputs[1]
        .narrow(1, 0, 1)
        .expand([-1, length, -1, -1], false)
        .copy();
    inputs[3] = inputs[3].zeros_like();
    inputs[4] = inputs[4].ones_like();
    let weights = Tensor::randn([BATCH, length, HEADS.1, WIDTHS.1], OPTIONS);
    let theirs = run(&inputs, &weights, plain);
    let single = inputs.each_ref().map(|input| input.to_kind(Kind::Float));
    let ours = run(&single, &weights, |inputs| {
        rule(inputs).apply(None).unwrap()
    });
    assert_eq!(ours[0].kind(), Kind::Float);
    assert_same(&ours[..1], &theirs[..1], 1e-5, "outputs");
    assert_same(&ours[1..], &theirs[1..], 1e-3, "gradients");
}

#[test]
fn what_continues_a_text_is_the_text() {
    tch::manual_seed(4);
    let length = 150;
    let inputs = inputs(length);
    let whole = plain(&inputs);
    let (mut state, mut start) = (None, 0);
    for count in [70, 1, 1, 3, 75] {
        let each = inputs.each_ref().map(|input| input.narrow(1, start, count));
        let (output, after) = rule(&each).after(state.as_ref()).unwrap();
        assert_same(
            &[output],
            &[whole.narrow(1, start, count)],
            1e-11,
            &format!("at {start}"),
        );
        (state, start) = (Some(after), start + count);
    }
    assert_eq!(start, length);
}

/// SiLU of a convolution, by libtorch.
fn plain_convolution(input: &Tensor, weight: &Tensor) -> Tensor {
    let taps = weight.size()[1];
    let filled = input.transpose(1, 2).constant_pad_nd([taps - 1, 0]);
    let channels = weight.size()[0];
    let sums = filled.conv1d(&weight.unsqueeze(1), None::<&Tensor>, 1, 0, 1, channels);
    sums.silu().transpose(1, 2)
}

#[test]
fn a_convolution_is_that_of_libtorch_in_each_text() {
    tch::manual_seed(5);
    let (length, channels, taps) = (11, 3, 4);
    let input = Tensor::randn([1, length, channels], OPTIONS);
    let weight = Tensor::randn([channels, taps], OPTIONS);
    let weights = Tensor::randn([1, length, channels], OPTIONS);
    let gradients = |of: &dyn Fn(&Tensor, &Tensor) -> Tensor| {
        let (input, weight) = (
            input.copy().set_requires_grad(true),
            weight.copy().set_requires_grad(true),
        );
        let output = of(&input, &weight);
        torch_ext::backward(&(&output * &weights).sum(Kind::Double)).unwrap();
        [output, input.grad(), weight.grad()]
    };
    let whole = gradients(&|input, weight| convolved(input, weight, None).unwrap());
    assert_same(&whole, &gradients(&plain_convolution), 1e-12, "one text");
    let positions = Tensor::from_slice(&[0i64, 1, 0, 0, 1, 2, 3, 4, 5, 0, 1]).unsqueeze(0);
    let packed = gradients(&|input, weight| convolved(input, weight, Some(&positions)).unwrap());
    let alone = gradients(&|input, weight| {
        let texts = [(0, 2), (2, 1), (3, 6), (9, 2)];
        let each =
            texts.map(|(start, length)| plain_convolution(&input.narrow(1, start, length), weight));
        Tensor::cat(&each, 1)
    });
    assert_same(&packed, &alone, 1e-12, "four texts");
    let (mut before, mut start) = (None, 0);
    for count in [2, 1, 8] {
        let (output, after) =
            convolved_after(&input.narrow(1, start, count), &weight, before.as_ref()).unwrap();
        assert_same(
            &[output],
            &[whole[0].narrow(1, start, count)],
            1e-12,
            "continued",
        );
        (before, start) = (Some(after), start + count);
    }
}

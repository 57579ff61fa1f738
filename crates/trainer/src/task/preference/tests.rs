//! The losses against formulas written out, and what is measured beside them.

use models::Parameters;
use models::language::DecoderOptions;
use models::model::{Base, Builder, FileWeights};
use models::pretrained::HfFolder;
use placement::Policy;
use tch::Device;

use super::*;
use crate::golden::golden;
use crate::records::{Judged, Span, TokenFile};
use crate::task::divided;

fn decoder() -> Decoder {
    let folder = HfFolder::open(&golden("models/llama-grouped")).unwrap();
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let mut source = FileWeights::new(&folder, Kind::Float, &mut placer);
    let mut parameters = Parameters::default();
    let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, Base::Trained);
    let options = DecoderOptions {
        positions: 32,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    Decoder::new(folder.config(), options, &mut builder).unwrap()
}

/// Three pairs of different lengths, for a run with these keys of `preference`.
fn batch(preference: &str) -> (Preference, Batch) {
    let text =
        format!("model: {{name_or_path: m}}\ndata: {{path: a}}\npreference: {{{preference}}}");
    let config = Config::parse("c.yaml", &text, &[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let words = (0..48).map(|id| (id, true));
    let file = std::rc::Rc::new(TokenFile::of_words(folder.path(), words).unwrap());
    let spans = [(0, 2, 3, 5), (12, 3, 1, 2), (21, 1, 9, 4)].map(|(start, prompt, one, other)| {
        let judged = Judged::Pair {
            second: prompt + one,
            prompts: [prompt; 2],
        };
        Span {
            start,
            length: 2 * prompt + one + other,
            first_learned: prompt,
            judged,
        }
    });
    let (rows, _) = Sequences::answers(&file, &spans, 32, form(&config).unwrap());
    let mut learned = Preference::new(&config, 3).unwrap();
    let reference = [-9.0, -20.0, -4.5, -7.0, -33.0, -12.0];
    learned.set_reference(&reference, 3).unwrap();
    let batch = learned.batch(&rows, Set::Training, &[0, 1, 2]).unwrap();
    (learned, batch)
}

/// As a step is repeated that ran out of memory.
#[test]
fn the_pieces_of_a_batch_are_the_whole() {
    let decoder = decoder();
    for preference in [
        "loss_type: sigmoid",
        "loss_type: ipo",
        "loss_type: orpo",
        "loss_type: simpo, beta: 2, cpo_alpha: 0.5",
    ] {
        let (learned, whole) = batch(preference);
        let pass = Pass::Train { checkpoint: false };
        let measure = |batch: &Batch| {
            let loss = f64::try_from(&learned.loss(&decoder, batch, pass).unwrap()).unwrap();
            let sums = Vec::<f64>::try_from(&learned.take().unwrap()).unwrap();
            (loss, learned.named(&sums), sums)
        };
        let (loss, named, _) = measure(&whole);
        let weight = |batch: &Batch| Ok(batch.rows()? as f64);
        for rows in [1, 2] {
            let (mut of_pieces, mut all) = (0.0, vec![0.0; learned.count()]);
            for (piece, share) in divided(whole.shallow_clone(), rows, &weight).unwrap() {
                let (loss, _, sums) = measure(&piece);
                of_pieces += share * loss;
                all.iter_mut().zip(sums).for_each(|(all, one)| *all += one);
            }
            assert!(
                (of_pieces / loss - 1.0).abs() < 1e-5,
                "{preference}: {of_pieces}, {loss}"
            );
            for (name, value) in learned.named(&all) {
                let difference = (value - named[&name]).abs();
                assert!(
                    difference < 1e-4 * value.abs().max(1.0),
                    "{preference}: {name}"
                );
            }
        }
    }
}

#[test]
fn logarithms_of_the_rest_are_exact_near_both_ends() {
    let x = Tensor::from_slice(&[-1e-6f32, -0.5, -0.7, -40.0]);
    let found = Vec::<f32>::try_from(&log1mexp(&x).unwrap()).unwrap();
    for (found, x) in found.into_iter().zip([-1e-6f32, -0.5, -0.7, -40.0]) {
        let exact = match x < -1.0 {
            true => (-f64::from(x).exp()).ln_1p(),
            false => (-f64::from(x).exp_m1()).ln(),
        };
        assert!(
            (f64::from(found) / exact - 1.0).abs() < 1e-5,
            "{x}: {found}, {exact}"
        );
    }
    // A probability of one.
    let x = Tensor::from_slice(&[0f32, -2e-8, -1e-6, -0.5, -0.7, -40.0]).set_requires_grad(true);
    log1mexp(&x).unwrap().sum(Kind::Float).backward();
    let gradient = Vec::<f32>::try_from(&x.grad()).unwrap();
    assert!(gradient.iter().all(|one| one.is_finite()), "{gradient:?}");
}

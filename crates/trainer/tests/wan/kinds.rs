//! Other kinds of adapters, and all weights.

use models::diffusion::lora::LoraFile;
use models::diffusion::wan;
use surefoot_trainer::adapters::merge;
use surefoot_trainer::media_sampling::Lora;
use tch::Kind;

use super::place::Place;

/// A model with what an adapter learned merged into it makes of held-out clips what the two made.
#[test]
fn they_are_trained_and_merged() {
    let place = Place::new();
    let loss_of = |name: &str, model: &std::path::Path| {
        let [name, model] = [
            format!("name={name}"),
            format!("model.name_or_path={}", model.display()),
        ];
        let still = [
            "adapter=null",
            "train.learning_rate=1e-12",
            "train.max_steps=1",
        ];
        let summary = place.run(&[&[name.as_str(), &model], &still[..]].concat());
        summary.unwrap().held_out.unwrap().loss
    };
    let before = loss_of("before", &place.path("model"));
    for kind in [
        "adapter.type=lokr",
        "adapter.type=loha",
        "adapter.use_dora=true",
    ] {
        let name = kind.replace(['.', '='], "-");
        let summary = place.run(&[&format!("name={name}"), kind]).unwrap();
        let path = place.path(&format!("runs/{name}/adapter/{name}.safetensors"));
        assert!(
            !LoraFile::read(&path, &wan::ARCH, None)
                .unwrap()
                .modules
                .is_empty()
        );
        let lora = [Lora {
            path,
            strength: 1.0,
        }];
        let merged = place.path(&format!("merged-{name}"));
        merge(
            &place.path("model"),
            [&lora, &[]],
            &merged,
            Some(Kind::Float),
        )
        .unwrap();
        let (loss, after) = (loss_of("after", &merged), summary.held_out.unwrap().loss);
        assert!(
            (loss / after - 1.0).abs() <= 1e-5,
            "{kind}: {loss} and {after}"
        );
        assert!(
            (loss / before - 1.0).abs() > 1e-4,
            "{kind}: nothing was learned"
        );
    }
}

/// A run on all weights of a published model learns from these, and what it writes is a model.
#[test]
fn all_weights_are_trained_and_resumed() {
    let place = Place::new();
    let whole = ["adapter=null", "train.learning_rate=0.001"];
    let with = |more: &[&'static str]| place.run(&[&whole[..], more].concat()).unwrap();
    with(&["name=whole"]);
    with(&["name=parts", "train.max_steps=2"]);
    with(&["name=parts", "train.resume_from_checkpoint=latest"]);
    let file = "model/transformer/diffusion_pytorch_model.safetensors";
    let read = |run: &str| std::fs::read(place.path(&format!("runs/{run}/{file}"))).unwrap();
    assert!(read("whole") == read("parts"));
    let fresh = with(&["name=fresh", "model.from_config=true"]);
    let published = with(&["name=again"]);
    assert_ne!(fresh.first_loss, published.first_loss);
}

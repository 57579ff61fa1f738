//! Captions that are lists of tags: other orders of them, so that what is learned does not depend on one.
//!
//! As text is encoded once and kept, there are [`ORDERS`] of each caption, and a pass takes the next one.

use crate::config::DataConfig;
use crate::data::SplitMix64;

/// The orders of a caption that are encoded.
const ORDERS: u64 = 8;

/// The orders of `caption`; empty if the config leaves captions as they are.
pub(super) fn orders(caption: &str, data: &DataConfig, seed: u64) -> Vec<String> {
    let dropout = data.caption_tag_dropout_rate.unwrap_or(0.0);
    let shuffled = data.shuffle_caption == Some(true);
    if !shuffled && dropout == 0.0 {
        return Vec::new();
    }
    let tags = |text: &str| tags(text, data);
    let divided = data.keep_tokens_separator.as_deref();
    let mut behind = Vec::new();
    let (kept, others) = match divided.and_then(|divided| caption.split_once(divided)) {
        Some((kept, others)) => {
            let (others, last) = divided
                .and_then(|divided| others.split_once(divided))
                .unwrap_or((others, ""));
            behind = tags(last);
            (tags(kept), tags(others))
        }
        None => {
            let mut all = tags(caption);
            let kept = data.keep_tokens.unwrap_or(0) as usize;
            let others = all.split_off(kept.min(all.len()));
            (all, others)
        }
    };
    let orders = (0..ORDERS).map(|number| {
        let mut words = vec![seed, number];
        words.extend(caption.bytes().map(u64::from));
        let mut random = SplitMix64::new(&words);
        let mut others = others.clone();
        if shuffled {
            for last in (1..others.len()).rev() {
                others.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
        others.retain(|_| dropout == 0.0 || random.unit() >= dropout);
        let kept = kept.iter().cloned();
        let all: Vec<String> = kept.chain(others).chain(behind.iter().cloned()).collect();
        joined(&all, data)
    });
    let mut orders: Vec<String> = orders.collect();
    if orders.iter().all(|order| *order == orders[0]) {
        orders.truncate(1);
    }
    orders
}

/// The caption without what divides the tags that stay from the others.
pub(super) fn undivided(caption: &str, data: &DataConfig) -> String {
    match &data.keep_tokens_separator {
        Some(divider) if caption.contains(divider) => {
            let caption = caption.replacen(divider, separator(data), 2);
            joined(&tags(&caption, data), data)
        }
        _ => caption.to_owned(),
    }
}

fn separator(data: &DataConfig) -> &str {
    data.caption_separator.as_deref().unwrap_or(",")
}

fn tags(text: &str, data: &DataConfig) -> Vec<String> {
    let tags = text.split(separator(data)).map(str::trim);
    tags.filter(|tag| !tag.is_empty())
        .map(str::to_owned)
        .collect()
}

fn joined(tags: &[String], data: &DataConfig) -> String {
    tags.join(&format!("{} ", separator(data).trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> DataConfig {
        serde_json::from_str(text).unwrap()
    }

    fn sorted(caption: &str) -> Vec<&str> {
        let mut tags: Vec<&str> = caption.split(", ").collect();
        tags.sort_unstable();
        tags
    }

    #[test]
    fn tags_change_their_places_and_those_at_the_start_stay() {
        let caption = "ohwx,  1girl, red hair, smile,hat , , tree, sky, night";
        let all = orders(
            caption,
            &data(r#"{"shuffle_caption": true, "keep_tokens": 2}"#),
            7,
        );
        assert_eq!(all.len(), 8);
        for order in &all {
            assert!(order.starts_with("ohwx, 1girl, "), "{order}");
            assert_eq!(
                sorted(order),
                sorted("ohwx, 1girl, red hair, smile, hat, tree, sky, night")
            );
        }
        assert!(all.windows(2).any(|pair| pair[0] != pair[1]));
        let again = orders(
            caption,
            &data(r#"{"shuffle_caption": true, "keep_tokens": 2}"#),
            7,
        );
        assert_eq!(all, again);
        assert_eq!(orders(caption, &data("{}"), 7), [] as [&str; 0]);
    }

    #[test]
    fn a_mark_divides_what_stays_from_what_does_not() {
        let keys = r#"{"shuffle_caption": true, "keep_tokens_separator": "|||", "keep_tokens": 9}"#;
        let all = orders("a cat ||| b, c, d", &data(keys), 1);
        assert!(
            all.iter().all(|order| order.starts_with("a cat, ")),
            "{all:?}"
        );
        assert!(
            all.iter()
                .all(|order| sorted(order) == ["a cat", "b", "c", "d"])
        );
        let all = orders("a cat ||| b, c, d, e ||| good", &data(keys), 1);
        let ends = |order: &String| order.ends_with(", good") && !order.contains('|');
        assert!(all.iter().all(ends), "{all:?}");
        // Where a caption is not changed, as of held-out media.
        for (caption, plain) in [
            ("a cat ||| b, c", "a cat, b, c"),
            ("a cat ||| b ||| good", "a cat, b, good"),
            ("a cat,b", "a cat,b"),
        ] {
            assert_eq!(undivided(caption, &data(keys)), plain);
        }
    }

    #[test]
    fn dropped_tags_are_missing_in_some_orders() {
        let keys =
            r#"{"caption_tag_dropout_rate": 0.5, "keep_tokens": 1, "caption_separator": ";"}"#;
        let all = orders("a;b;c;d;e;f", &data(keys), 3);
        assert!(all.iter().all(|order| order.starts_with('a')), "{all:?}");
        let counts = all.iter().map(|order| order.split("; ").count());
        let total: usize = counts.sum();
        assert!((12..44).contains(&total), "{all:?}");
        // Without shuffling they stay in their order.
        assert!(
            all.iter().all(|order| order.split("; ").is_sorted()),
            "{all:?}"
        );
        assert_eq!(
            orders("one", &data(r#"{"shuffle_caption": true}"#), 3),
            ["one"]
        );
    }
}

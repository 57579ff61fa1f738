//! Records, chats, and which of their tokens are trained on.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::columns::Keys;
use super::reader::record;
use super::*;
use models::pretrained::{Pretrained, SpecialTokens};
use models::text::{ChatTemplate, Encoder, Example};

pub(super) const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + \
    message.content + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

pub(super) fn tiny() -> Pretrained {
    let path = "/../../tests/reference/golden/models/llama-grouped.gguf";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path.trim_start_matches('/'));
    Pretrained::open(&path).unwrap()
}

fn encoder(template: &str) -> Encoder {
    let model = Pretrained {
        chat_template: Some(template.into()),
        ..tiny()
    };
    Encoder::new(&model).unwrap()
}

pub(super) fn chat(turns: &[(&str, &str)]) -> Conversation {
    let message = |(role, content): &(&str, &str)| Message::new(role, content);
    Conversation::new(turns.iter().map(message).collect())
}

/// The text that is trained on, and the text that is not.
pub(super) fn split(encoder: &Encoder, example: &Example) -> (String, String) {
    let part = |wanted: bool| {
        let ids: Vec<u32> = example
            .tokens
            .iter()
            .zip(&example.learned)
            .filter(|(_, learned)| **learned == wanted)
            .map(|(id, _)| *id)
            .collect();
        encoder.tokenizer().decode(&ids, false).unwrap()
    };
    (part(true), part(false))
}

#[test]
fn only_the_answers_of_a_chat_are_learned() {
    let encoder = encoder(CHATML);
    let messages = chat(&[
        ("user", "on the"),
        ("assistant", "the one"),
        ("user", "a b"),
        ("assistant", "no"),
    ]);
    let example = Record::Chat(messages).encode(&encoder).unwrap();
    let (learned, given) = split(&encoder, &example);
    assert_eq!(learned, "the one<|im_end|>\nno<|im_end|>\n");
    assert_eq!(
        given,
        "<|im_start|>user\non the<|im_end|>\n<|im_start|>assistant\n\
         <|im_start|>user\na b<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn an_answer_that_is_rendered_differently_when_it_is_the_last_is_found() {
    // As in Qwen3: only the last answer is preceded by its reasoning. This one trims, too.
    let thinking = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}\
        {% if message.role == 'assistant' and loop.last %}{{ '9\\n' }}{% endif %}\
        {{ message.content | trim + '<|im_end|>' + '\\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    let encoder = encoder(thinking);
    let messages = chat(&[
        ("user", "on the"),
        ("assistant", "the one\n"),
        ("user", "a b"),
        ("assistant", "no"),
    ]);
    let example = Record::Chat(messages).encode(&encoder).unwrap();
    let (learned, given) = split(&encoder, &example);
    assert_eq!(learned, "the one<|im_end|>\n9\nno<|im_end|>\n");
    assert_eq!(
        given,
        "<|im_start|>user\non the<|im_end|>\n<|im_start|>assistant\n\
         <|im_start|>user\na b<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn generation_tags_of_a_template_define_what_is_learned() {
    let tagged = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}\
        {%- if message.role == 'assistant' -%}  {%- generation -%} {{ message.content }}\
        {{- '<|im_end|>' -}} {%- endgeneration -%}{%- else -%}{{ message.content + '<|im_end|>' }}\
        {%- endif -%}{{ '\\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    let messages = chat(&[("user", "on"), ("assistant", "the one"), ("user", "a")]);
    let tagged = encoder(tagged);
    let with = Record::Chat(messages.clone()).encode(&tagged).unwrap();
    let without = Record::Chat(messages.clone())
        .encode(&encoder(CHATML))
        .unwrap();
    assert_eq!(with.tokens, without.tokens);
    // Without tags the line break after the turn is learned too.
    assert_eq!(split(&tagged, &with).0, "the one<|im_end|>");
    assert_eq!(split(&tagged, &without).0, "the one<|im_end|>\n");
    // The tags leave nothing behind.
    let text = |encoder: &Encoder| encoder.template().unwrap().render(&messages, true);
    assert_eq!(text(&tagged), text(&encoder(CHATML)));
}

#[test]
fn after_a_longer_generation_prompt_only_the_content_is_learned() {
    // As in DeepSeek-R1's distillations and QwQ: the reasoning of earlier turns is dropped, and the generation prompt
    // ends with the tag that begins it.
    let thinking = "{% for message in messages %}{% if message.role == 'user' %}\
        {{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}{% else %}\
        {{ '<|im_start|>assistant\\n' + message.content.split('</think>')[-1] + '<|im_end|>\\n' }}\
        {% endif %}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}";
    let encoder = encoder(thinking);
    let messages = chat(&[
        ("user", "on"),
        ("assistant", "<think>\nno 12\n</think>\n\nthe one"),
        ("user", "a"),
        ("assistant", "no"),
    ]);
    let example = Record::Chat(messages).encode(&encoder).unwrap();
    let (learned, given) = split(&encoder, &example);
    assert_eq!(learned, "\n\nthe one<|im_end|>\nno<|im_end|>\n");
    assert_eq!(
        given,
        "<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n\
         <|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    );
}

/// As TRL has them.
#[test]
fn a_prompt_and_a_completion_may_be_lists_of_messages() {
    const ANSWER: &str = r#"{"role": "assistant", "content": "a"}"#;
    let read = |prompt: &str| {
        let line = format!(r#"{{"prompt": {prompt}, "completion": [{ANSWER}]}}"#);
        record(line.as_bytes(), &mut Keys::default())
    };
    let wanted = chat(&[("user", "q"), ("assistant", "a")]);
    let found = read(r#"[{"role": "user", "content": "q"}]"#);
    assert_eq!(found, Ok(Record::Chat(wanted)));
    let answered = read(&format!("[{ANSWER}]")).unwrap_err();
    assert!(answered.contains("turns of the assistant"), "{answered}");
    let mixed = read("\"q\"").unwrap_err();
    assert!(mixed.contains("`completion` is a list"), "{mixed}");
}

#[test]
fn a_conversation_may_begin_with_the_assistant() {
    let strict = CHATML.replacen(
        "{% for",
        "{% if messages[0].role not in ['user', 'assistant'] %}\
         {{ raise_exception('nobody speaks') }}{% endif %}{% for",
        1,
    );
    for template in [CHATML, &strict] {
        let encoder = encoder(template);
        let messages = chat(&[
            ("assistant", "the one"),
            ("user", "on"),
            ("assistant", "no"),
        ]);
        let example = Record::Chat(messages).encode(&encoder).unwrap();
        let (learned, _) = split(&encoder, &example);
        assert_eq!(learned, "the one<|im_end|>\nno<|im_end|>\n");
    }
}

#[test]
fn what_a_template_does_not_support_is_refused_by_name() {
    let encoder = encoder(CHATML);
    let refusal = |line: &str| {
        let record = record(line.as_bytes(), &mut Keys::default())
            .map_err(crate::Error::Data)
            .and_then(|record| record.encode(&encoder));
        record.unwrap_err().to_string()
    };
    for (line, reason) in [
        (
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "tools": [{"type": "function"}]}"#,
            "has `tools`",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": "b", "tool_calls": [{}]}]}"#,
            "turn 1 has `tool_calls`",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]},
                {"role": "assistant", "content": "b"}]}"#,
            "part of type `image`",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": "b"}],
                "chat_template_kwargs": {"enable_thinking": false}}"#,
            "`enable_thinking`",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": "b", "weight": 0}]}"#,
            "`weight`",
        ),
        (
            r#"{"messages": [{"role": "assistant"}]}"#,
            "turn 1 of `messages` has neither",
        ),
        (r#"{"messages": [{"content": "b"}]}"#, "`role` is missing"),
    ] {
        let refusal = refusal(line);
        assert!(refusal.contains(reason), "{refusal}");
    }
    // This one would print the list as Python does.
    let printing = super::tests::encoder("{% for m in messages %}{{ m.content }}{% endfor %}");
    let line =
        r#"{"messages": [{"role": "assistant", "content": [{"type": "text", "text": "b"}]}]}"#;
    let parts = record(line.as_bytes(), &mut Keys::default()).unwrap();
    let refusal = parts.encode(&printing).unwrap_err().to_string();
    assert!(refusal.contains("a list of parts"), "{refusal}");
    // And these fail on the list, one of them on the text as well.
    let refusal_of = |template| {
        let encoder = super::tests::encoder(template);
        parts.encode(&encoder).unwrap_err().to_string()
    };
    let refusal = refusal_of("{% for m in messages %}{{ m.content.strip() }}{% endfor %}");
    assert!(
        refusal.contains("the `content` of turn 1 is a list of parts"),
        "{refusal}"
    );
    let refusal = refusal_of("{{ raise_exception('never') }}");
    assert!(
        refusal.contains("never") && !refusal.contains("a list of parts"),
        "{refusal}"
    );
}

#[test]
fn an_unsupported_template_matters_only_for_chats() {
    let encoder = encoder("{% nonsense %}");
    assert!(Record::Text("the".into()).encode(&encoder).is_ok());
    let chat = Record::Chat(chat(&[("assistant", "a")]));
    let error = chat.encode(&encoder).unwrap_err().to_string();
    assert!(error.contains("the chat template"), "{error}");
}

#[test]
fn truncation_and_padding_of_the_tokenizer_file_are_not_applied() {
    let text = Record::Text("the one on the one ".repeat(40));
    let whole = text.encode(&encoder(CHATML)).unwrap();
    for (longest, padded) in [(8, None), (4096, Some(4096)), (8, Some(8))] {
        let mut model = tiny();
        let truncation = tokenizers::TruncationParams {
            max_length: longest,
            ..Default::default()
        };
        model.tokenizer.with_truncation(Some(truncation)).unwrap();
        model
            .tokenizer
            .with_padding(padded.map(|length| tokenizers::PaddingParams {
                strategy: tokenizers::PaddingStrategy::Fixed(length),
                ..Default::default()
            }));
        let encoder = Encoder::new(&model).unwrap();
        assert_eq!(text.encode(&encoder).unwrap(), whole);
    }
}

#[test]
fn the_end_token_follows_the_tokenizer_config() {
    let end = |eos: &str| {
        let special_tokens = SpecialTokens {
            bos: None,
            eos: Some(eos.into()),
        };
        let encoder = Encoder::new(&Pretrained {
            special_tokens,
            ..tiny()
        })?;
        Record::Text("a".into()).encode(&encoder)
    };
    assert_eq!(end("<|endoftext|>").unwrap().tokens.last(), Some(&0));
    assert_eq!(end("<|im_end|>").unwrap().tokens.last(), Some(&2));
    let error = end("<|nowhere|>").unwrap_err().to_string();
    assert!(error.contains("<|nowhere|>"), "{error}");
}

#[test]
fn a_template_that_rewrites_earlier_turns_is_refused() {
    let rewriting =
        "{% for message in messages %}{{ loop.length }}{{ message.content }}{% endfor %}";
    let messages = chat(&[("user", "a"), ("assistant", "b")]);
    let error = Record::Chat(messages)
        .encode(&encoder(rewriting))
        .unwrap_err();
    assert!(
        error.to_string().contains("before turn 2 differently"),
        "{error}"
    );
}

#[test]
fn an_error_raised_by_a_template_is_reported() {
    let strict = "{{ raise_exception('roles must alternate') }}";
    let error = Record::Chat(chat(&[("assistant", "b")]))
        .encode(&encoder(strict))
        .unwrap_err();
    assert!(
        error.to_string().contains("roles must alternate"),
        "{error}"
    );
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let error = Record::Chat(chat(&[("assistant", "b")]))
        .encode(&encoder(endless))
        .unwrap_err();
    assert!(error.to_string().contains("fuel"), "{error}");
}

#[test]
fn only_the_completion_of_a_prompt_is_learned() {
    let encoder = encoder(CHATML);
    let record = Record::Completion {
        prompt: "the ".into(),
        completion: "one".into(),
    };
    let (learned, given) = split(&encoder, &record.encode(&encoder).unwrap());
    assert_eq!(
        (learned.as_str(), given.as_str()),
        ("one<|im_end|>", "the ")
    );
}

#[test]
fn lines_are_read_by_their_keys_and_errors_name_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.jsonl");
    let lines = [
        r#"{"text": "a"}"#,
        "",
        r#"{"prompt": "p", "completion": "c", "id": 7}"#,
        r#"{"messages": [{"role": "assistant", "content": "m"}]}"#,
        r#"{"answer": 1}"#,
        r#"{"text": "never reached"}"#,
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let read: Vec<_> = records(&path, None).unwrap().collect();
    assert_eq!(read.len(), 4);
    assert_eq!(read[0].as_ref().unwrap().record, Record::Text("a".into()));
    assert!(matches!(
        read[1].as_ref().unwrap().record,
        Record::Completion { .. }
    ));
    assert_eq!(
        read[2].as_ref().unwrap().record,
        Record::Chat(chat(&[("assistant", "m")]))
    );
    let error = read[3].as_ref().unwrap_err().to_string();
    let reason = "data.jsonl:5: neither `text`, nor `prompt` and `completion`, nor `messages`, `conversations` or \
         `instruction` and `output`, but `answer`";
    assert!(error.ends_with(reason), "{error}");
}

#[test]
fn a_token_file_returns_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let encoder = encoder(CHATML);
    let list = [
        Record::Text("the one".into()),
        Record::Completion {
            prompt: "a".into(),
            completion: "b".into(),
        },
    ];
    let file = TokenFile::temporary(
        folder.path(),
        list.iter().cloned().map(|record| {
            let place = "here".into();
            Ok(Located { record, place })
        }),
        &encoder,
        &mut |_, _| {},
    )
    .unwrap();
    // Nothing is left in the folder.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let mut expected = list[0].encode(&encoder).unwrap();
    let second = list[1].encode(&encoder).unwrap();
    expected.tokens.extend(second.tokens);
    expected.learned.extend(second.learned);
    assert_eq!(file.tokens() as usize, expected.tokens.len());
    assert_eq!(file.block(0, expected.tokens.len()).unwrap(), expected);
    let part = file.block(2, 3).unwrap();
    assert_eq!(
        (&part.tokens[..], &part.learned[..]),
        (&expected.tokens[2..5], &expected.learned[2..5])
    );
    assert!(file.block(2, expected.tokens.len()).is_err());
}

proptest! {
    #[test]
    fn a_line_of_anything_never_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = record(&line, &mut Keys::default());
    }

    #[test]
    fn a_damaged_record_never_panics(at in 0usize..60, byte: u8) {
        let mut line = br#"{"messages": [{"role": "assistant", "content": "m"}]}      "#.to_vec();
        let at = at % line.len();
        line[at] = byte;
        let _ = record(&line, &mut Keys::default());
    }

    #[test]
    fn a_template_of_anything_never_panics(template in ".{0,60}") {
        if let Ok(template) = ChatTemplate::new(&template, Vec::new()) {
            let _ = template.render(&chat(&[("user", "x")]), true);
        }
    }
}

/// The records of a file with this name and content, or the first error.
fn read(name: &str, content: &[u8]) -> Result<Vec<Record>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    let records = records(&path, None).map_err(|error| error.to_string())?;
    records
        .map(|located| located.map(|located| located.record))
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

#[test]
fn all_file_formats_give_the_same_records() {
    let completion = |prompt: &str, completion: &str| Record::Completion {
        prompt: prompt.into(),
        completion: completion.into(),
    };
    let records = vec![completion("a, b", "c\n"), completion("\"é", "d")];
    let mark = "\u{feff}";
    let lines = "{\"prompt\": \"a, b\", \"completion\": \"c\\n\"}\n\
        {\"prompt\": \"\\\"é\", \"completion\": \"d\", \"id\": 7}\n";
    let list = format!("[{}]", lines.trim().replace('\n', ",\n"));
    let table = "prompt,completion,id\n\"a, b\",\"c\n\",1\n\"\"\"é\",d,2\n";
    let keyed = format!("{{\"version\": 1, \"data\": {list}}}");
    for (name, content) in [
        ("a.jsonl", lines),
        ("a.JSONL", lines),
        ("a.json", lines),
        ("a.json", &list),
        ("a.JSON", &keyed),
        ("a.CSV", table),
        (
            "a.tsv",
            &table
                .replace("prompt,completion,id", "prompt\tcompletion\tid")
                .replace("\",\"", "\"\t\"")
                .replace("\",1", "\"\t1")
                .replace("\",d,2", "\"\td\t2"),
        ),
    ] {
        for start in ["", mark] {
            let read = read(name, format!("{start}{content}").as_bytes());
            assert_eq!(read.as_ref(), Ok(&records), "{name}");
        }
    }
}

#[test]
fn errors_in_a_file_are_reported_with_the_line() {
    for (name, content, reason) in [
        (
            "a.jsonl",
            &b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}"[..],
            "a.jsonl:2: not UTF-8 text at byte 11",
        ),
        (
            "a.json",
            b"[{\"text\": \"a\"},\n\n {\"answer\": \"[,{\"}]",
            "a.json:3: neither `text`",
        ),
        ("a.json", b"[{\"text\": \"a\"},\n}]", "a.json:2: not JSON"),
        (
            "a.json",
            b"{\"a\": [], \"b\": []}",
            "several lists, `a`, `b`",
        ),
        ("a.csv", b"answer\nx\n", "a.csv:2: neither `text`"),
        ("a.csv", b"text,id\na,1\nb\n", "a.csv:3: not CSV"),
        (
            "a.txt",
            b"ab\nc\xff",
            "a.txt:2: not UTF-8 text at byte 2 of the line",
        ),
        ("a.txt", b"\xff\xfea\0", "UTF-16"),
        ("a.xml", b"<a/>", "data.format: text"),
        ("a.parquet", b"PAR1", "Parquet"),
    ] {
        let refusal = read(name, content).unwrap_err();
        assert!(refusal.contains(reason), "{name}: {refusal}");
    }
}

#[test]
fn keys_that_are_not_read_are_counted() {
    let mut unread = Keys::default();
    for line in [
        r#"{"text": "a", "id": 1, "source": "x"}"#,
        r#"{"text": "b", "id": 2}"#,
        r#"{"messages": [{"role": "assistant", "content": "m", "mood": "fine"}], "tools": null}"#,
    ] {
        record(line.as_bytes(), &mut unread).unwrap();
    }
    let list = "`id` (2 times), `messages[].mood` (once), `source` (once)";
    assert_eq!(unread.list().as_deref(), Some(list));
}

#[test]
fn folders_are_read_in_the_order_of_names() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("b.txt", "2"),
        ("a.jsonl", r#"{"text":"1"}"#),
        (".hidden", "x"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let texts: Vec<Record> = records(folder.path(), None)
        .unwrap()
        .map(|located| located.unwrap().record)
        .collect();
    assert_eq!(texts, [Record::Text("1".into()), Record::Text("2".into())]);
    let missing: PathBuf = folder.path().join("missing");
    assert!(records(&missing, None).is_err());
}

/// The peak resident memory of this process in bytes.
fn peak() -> u64 {
    crate::memory::peak_resident_bytes()
}

#[test]
fn neither_all_text_nor_all_tokens_are_in_memory_at_once() {
    const LINES: usize = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.jsonl");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    for number in 0..LINES {
        let words = "the 42 on the 12 ".repeat(12);
        let line = serde_json::json!({"text": format!("{number} {words}")});
        std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes()).unwrap();
    }
    drop(file);
    let encoder = encoder(CHATML);
    let encode = |path: &Path| {
        let records = records(path, None).unwrap();
        TokenFile::temporary(folder.path(), records, &encoder, &mut |_, _| {}).unwrap()
    };
    // First with little data, so that all buffers and caches exist.
    let few = folder.path().join("few.jsonl");
    let line = r#"{"text": "1 the 42 on the 12"}"#;
    std::fs::write(&few, format!("{line}\n").repeat(1000)).unwrap();
    assert!(encode(&few).tokens() > 1000);
    let measured = || {
        // Reset the kernel's peak counter.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = peak();
        let tokens = encode(&path);
        (tokens, peak() - before)
    };
    // Other tests of this process need memory too, but not for ever.
    let (mut tokens, mut grown) = measured();
    for _ in 0..3 {
        if grown >= 3_000_000 {
            (tokens, grown) = measured();
        }
    }
    let (text, words) = (path.metadata().unwrap().len(), tokens.tokens() * 4);
    assert!(text > 2_000_000 && words > 4_000_000, "{text} and {words}");
    assert!(
        grown < 3_000_000,
        "{grown} more bytes for {text} of text and {words} of tokens"
    );
    let block = tokens.block(tokens.tokens() - 32, 32).unwrap();
    assert_eq!(block.tokens.len(), 32);
}

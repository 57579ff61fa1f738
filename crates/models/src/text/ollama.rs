//! Ollama's form of a chat template.
//!
//! A Modelfile has its template in Go's language, into which Jinja cannot be translated. But most chat templates write
//! the same text between two turns, whatever was said. It is found by rendering a few conversations, and trusted only
//! if it gives what the template writes for others, too.

use super::chat::{ChatTemplate, Conversation, Message};

/// What a chat template writes between the turns of a conversation.
#[derive(Debug, PartialEq, Eq)]
struct TurnTexts {
    /// Before a question at the start.
    first: String,
    /// Before and after the system's message, up to the question; `None` if the template refuses one.
    system: Option<[String; 2]>,
    /// Between a question and its answer.
    answer: String,
    /// Between an answer and the next question.
    next: String,
    /// Between the last question and the answer that is to be written.
    prompt: String,
}

/// The turns of a conversation: who speaks, and what.
type Turns<'a> = &'a [(&'a str, &'a str)];

const SYSTEM: (&str, &str) = ("system", "You are CONCISE-1.");
const QUESTION: (&str, &str) = ("user", "A question: WHY-2?");
const ANSWER: (&str, &str) = ("assistant", "An answer: THEREFORE-3.");
const OTHER: (&str, &str) = ("user", "Another: WHEN-4?");

impl TurnTexts {
    fn of(template: &ChatTemplate) -> Option<Self> {
        let around = |turns: Turns<'_>| texts_around(&rendered(template, turns)?, turns);
        let [first, prompt] = around(&[QUESTION])?.try_into().ok()?;
        let [_, answer, next, _] = around(&[QUESTION, ANSWER, OTHER])?.try_into().ok()?;
        let found = Self {
            first,
            system: match rendered(template, &[SYSTEM, QUESTION]) {
                None => None,
                Some(text) => {
                    let [before, after, _] =
                        texts_around(&text, &[SYSTEM, QUESTION])?.try_into().ok()?;
                    Some([before, after])
                }
            },
            answer,
            next,
            prompt,
        };
        let long = [
            QUESTION,
            ("assistant", "1\n\n2"),
            ("user", "{{ x }}"),
            ANSWER,
            OTHER,
        ];
        let with_system = [&[("system", "Be kind.\nBe brief.")], &long[..]].concat();
        let all: [Turns<'_>; 3] = [&long, &long[2..], &with_system];
        let fits = |turns: Turns<'_>| match turns[0].0 == SYSTEM.0 && found.system.is_none() {
            true => true,
            false => rendered(template, turns).as_deref() == Some(&*found.text(turns)),
        };
        all.into_iter().all(fits).then_some(found)
    }

    /// The text of a conversation, up to where an answer begins.
    fn text(&self, turns: Turns<'_>) -> String {
        let [before, after] = self.system.as_ref().map_or(["", ""], |[a, b]| [a, b]);
        let (mut text, mut last) = (String::new(), "");
        for (role, content) in turns {
            text += match (*role, last) {
                ("system", _) => before,
                ("assistant", _) => &self.answer,
                (_, "") => &self.first,
                (_, "system") => after,
                _ => &self.next,
            };
            text += content;
            last = role;
        }
        text + &self.prompt
    }

    /// The template in Go's language, without `begin` at the start of a conversation.
    fn go(&self, begin: &str) -> String {
        let put = |text: &str| match text {
            "" => String::new(),
            text => format!("{{{{ {} }}}}", serde_json::Value::from(text)),
        };
        let at_start = |text: &str| put(text.strip_prefix(begin).unwrap_or(text));
        let mut text = "{{- $last := \"\" }}{{- range .Messages }}".to_owned();
        let mut after_system = String::new();
        if let Some([before, after]) = &self.system {
            let before = at_start(before);
            text += &format!(
                "{{{{- if eq .Role \"system\" }}}}{before}{{{{ .Content }}}}{{{{ end }}}}"
            );
            after_system = format!("{{{{ else if eq $last \"system\" }}}}{}", put(after));
        }
        text + &format!(
            "{{{{- if eq .Role \"user\" }}}}{{{{ if eq $last \"\" }}}}{}{after_system}{{{{ else }}}}{}{{{{ end }}}}{{{{ .Content }}}}{{{{ end }}}}\
             {{{{- if eq .Role \"assistant\" }}}}{}{{{{ .Content }}}}{{{{ end }}}}\
             {{{{- $last = .Role }}}}{{{{- end }}}}\
             {{{{- if ne $last \"assistant\" }}}}{}{{{{ end }}}}",
            at_start(&self.first),
            put(&self.next),
            put(&self.answer),
            put(&self.prompt),
        )
    }
}

/// What the template writes for these turns, up to where an answer begins; `None` if it refuses them.
fn rendered(template: &ChatTemplate, turns: Turns<'_>) -> Option<String> {
    let messages = turns.iter().map(|(role, text)| Message::new(role, text));
    let conversation = Conversation::new(messages.collect());
    template.render(&conversation, true).ok()
}

/// The parts of a text before, between and after what was said, each of which it must have once and in order.
fn texts_around(text: &str, turns: Turns<'_>) -> Option<Vec<String>> {
    let (mut parts, mut rest) = (Vec::new(), text);
    for (_, content) in turns {
        let (before, after) = rest.split_once(content)?;
        parts.push(before.to_owned());
        rest = after;
    }
    parts.push(rest.to_owned());
    let twice = |part: &String| turns.iter().any(|(_, content)| part.contains(content));
    (!parts.iter().any(twice)).then_some(parts)
}

/// The value of a Modelfile's `TEMPLATE` for conversations without tools, if there is one that writes what `template`
/// does. `begin` is what Ollama puts before every text: the first token, if the tokenizer adds one.
pub(super) fn ollama_template(template: &ChatTemplate, begin: &str) -> Option<String> {
    // The day on which a file is written is not that of the question.
    if template.moment().is_some() {
        return None;
    }
    let text = TurnTexts::of(template)?.go(begin);
    // The Modelfile's own quotes.
    (!text.contains("\"\"\"")).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% for message in messages %}{% if loop.first and message.role != 'system' %}\
        <|im_start|>system\nYou help.<|im_end|>\n{% endif %}<|im_start|>{{ message.role }}\n{{ message.content }}\
        <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    /// The system's message is a part of the first question, and answers are trimmed.
    const FOLDED: &str = "{{ bos_token }}{% set turns = messages %}{% set prefix = '' %}\
        {% if messages[0].role == 'system' %}{% set prefix = messages[0].content + '\n\n' %}\
        {% set turns = messages[1:] %}{% endif %}{% for turn in turns %}<turn>{{ turn.role }}\n\
        {{ prefix if loop.first else '' }}{{ turn.content | trim }}</turn>\n{% endfor %}\
        {% if add_generation_prompt %}<turn>model\n{% endif %}";

    fn of(source: &str) -> Option<String> {
        let bos = ("bos_token".to_owned(), "<bos>".to_owned());
        ollama_template(&ChatTemplate::new(source, vec![bos]).unwrap(), "<bos>")
    }

    #[test]
    fn what_stands_between_turns_becomes_gos_template() {
        assert_eq!(
            of(CHATML).unwrap(),
            r#"{{- $last := "" }}{{- range .Messages }}{{- if eq .Role "system" }}{{ "<|im_start|>system\n" }}{{ .Content }}{{ end }}{{- if eq .Role "user" }}{{ if eq $last "" }}{{ "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n" }}{{ else if eq $last "system" }}{{ "<|im_end|>\n<|im_start|>user\n" }}{{ else }}{{ "<|im_end|>\n<|im_start|>user\n" }}{{ end }}{{ .Content }}{{ end }}{{- if eq .Role "assistant" }}{{ "<|im_end|>\n<|im_start|>assistant\n" }}{{ .Content }}{{ end }}{{- $last = .Role }}{{- end }}{{- if ne $last "assistant" }}{{ "<|im_end|>\n<|im_start|>assistant\n" }}{{ end }}"#
        );
        let folded = of(FOLDED).unwrap();
        // The tokenizer adds the first token itself.
        assert!(!folded.contains("<bos>"), "{folded}");
        assert!(
            folded.contains(r#"{{ else if eq $last "system" }}{{ "\n\n" }}"#),
            "{folded}"
        );
    }

    #[test]
    fn a_template_without_a_place_for_the_system_has_none_in_gos() {
        let strict = CHATML.replacen(
            "{% if loop.first",
            "{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% if loop.first",
            1,
        );
        let text = of(&strict).unwrap();
        assert!(!text.contains(r#"eq .Role "system""#), "{text}");
    }

    #[test]
    fn templates_that_look_at_more_than_the_last_turn_have_no_such_form() {
        // Numbered turns, a date, and something in the answer's place once it is not the last.
        let numbered = CHATML.replacen(
            "{{ message.role }}",
            "{{ message.role }} {{ loop.index }}",
            1,
        );
        let dated = format!("{{{{ strftime_now('%d') }}}}{CHATML}");
        let dropped = CHATML.replacen(
            "{{ message.content }}",
            "{{ message.content if loop.index > 2 else message.content | upper }}",
            1,
        );
        for source in [numbered, dated, dropped] {
            assert_eq!(of(&source), None, "{source}");
        }
    }
}

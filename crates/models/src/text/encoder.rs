//! Converts texts and chats to tokens, and marks the ones that are trained on.

use std::path::Path;

use jiff::Zoned;
use tokenizers::Tokenizer;

use super::chat::{ChatTemplate, Conversation, Message};
use super::ollama::ollama_template;
use super::tokenizer_keys;
use crate::Error;
use crate::language::DecoderConfig;
use crate::pretrained::{Pretrained, TextFiles};

/// The tokens of a text or a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// For each token, whether it is a training target.
    pub learned: Vec<bool>,
}

/// Bytes of a text that are tokenised at once.
const PIECE: usize = 1 << 20;

/// Most bytes that are tokenised at once: of a text that cannot be cut, or of a chat.
const LONGEST: usize = 8 << 20;

/// Converts texts and chats to the tokens of a model.
#[derive(Debug)]
pub struct Encoder {
    tokenizer: Tokenizer,
    /// The error, if it cannot be used. It is only needed for chats.
    template: Option<Result<ChatTemplate, String>>,
    /// The template for chats with tools, if the model has a separate one.
    tool_template: Option<Result<ChatTemplate, String>>,
    /// The token that `tokenizer_config.json` says begins a text, whether the tokenizer writes it or not.
    begin: Option<u32>,
    /// The token that ends a text.
    end: Option<u32>,
    /// The token that fills up a batch.
    padding: Option<u32>,
    /// Rows of the model's embedding.
    rows: u32,
}

impl Encoder {
    /// An encoder for a published model.
    ///
    /// # Errors
    /// If the tokenizer lacks its own end-of-text token.
    pub fn new(model: &Pretrained) -> Result<Self, Error> {
        let text = TextFiles {
            tokenizer: model.tokenizer.clone(),
            chat_template: model.chat_template.clone(),
            tool_template: model.tool_template.clone(),
            special_tokens: model.special_tokens.clone(),
        };
        Self::of_files(text, model.tensors.path(), &model.config)
    }

    /// An encoder for a model with this config whose tokenizer is in a folder of its own.
    ///
    /// # Errors
    /// If a file is missing or damaged, or the tokenizer lacks its own end-of-text token.
    pub fn of_folder(folder: &Path, config: &DecoderConfig) -> Result<Self, Error> {
        Self::of_files(TextFiles::read(folder)?, folder, config)
    }

    fn of_files(files: TextFiles, folder: &Path, config: &DecoderConfig) -> Result<Self, Error> {
        let mut tokenizer = files.tokenizer;
        let token = |id: Option<i64>| id.and_then(|id| u32::try_from(id).ok());
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
        let special = &files.special_tokens;
        let bos = text(token(config.bos_token_id));
        let bos = special.bos.clone().or(bos).unwrap_or_default();
        let end = match &special.eos {
            None => token(config.eos_token_ids.first().copied()),
            Some(eos) => Some(tokenizer.token_to_id(eos).ok_or_else(|| {
                Error::Invalid(format!(
                    "`tokenizer_config.json` says that {eos:?} ends a text, but `tokenizer.json` \
                    has no such token"
                ))
            })?),
        };
        let begin = special
            .bos
            .as_ref()
            .and_then(|bos| tokenizer.token_to_id(bos));
        let eos = text(end).unwrap_or_default();
        let keys = match folder.is_dir() {
            true => tokenizer_keys::check(folder, &mut tokenizer)?,
            false => tokenizer_keys::Keys::default(),
        };
        for warning in keys.warnings {
            tracing::warn!("{warning}");
        }
        let mut special_tokens = keys.named_tokens;
        let padding = special_tokens.iter().find(|(name, _)| name == "pad_token");
        let padding = padding.and_then(|(_, text)| tokenizer.token_to_id(text));
        special_tokens.retain(|(name, _)| name != "bos_token" && name != "eos_token");
        special_tokens.extend([("bos_token".to_owned(), bos), ("eos_token".to_owned(), eos)]);
        // The same time for both.
        let now = Zoned::now();
        let compile = |source: &Option<String>| {
            let source = source.as_ref()?;
            Some(ChatTemplate::at(
                source,
                special_tokens.clone(),
                now.clone(),
            ))
        };
        let template = compile(&files.chat_template);
        let tool_template = compile(&files.tool_template);
        // The file has the truncation and padding that were set when it was saved; transformers applies them only if a
        // call asks for it.
        tokenizer.with_truncation(None).map_err(internal)?;
        tokenizer.with_padding(None);
        Ok(Self {
            tokenizer,
            template,
            tool_template,
            begin,
            end,
            padding,
            rows: u32::try_from(config.vocab_size).unwrap_or(u32::MAX),
        })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The token that fills up the shorter texts of a batch, `pad_token` in `tokenizer_config.json`.
    pub fn padding(&self) -> Option<u32> {
        self.padding
    }

    /// The model's chat template, if it has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()?.as_ref().ok()
    }

    /// The chat template as the value of a Modelfile's `TEMPLATE`, if Ollama can have one that writes the same.
    pub fn ollama_template(&self) -> Option<String> {
        let first = self.tokenizer.encode_fast("", true).ok()?;
        let first = first.get_ids().first();
        let begin = first.and_then(|id| self.tokenizer.id_to_token(*id));
        ollama_template(self.template()?, &begin.unwrap_or_default())
    }

    /// The time that the chat template writes into its texts, if it does. An encoder that is created on another day
    /// must get it by [`set_moment`](Encoder::set_moment) to produce the same tokens.
    pub fn moment(&self) -> Option<String> {
        let templates = [&self.template, &self.tool_template];
        let mut compiled = templates
            .into_iter()
            .flatten()
            .filter_map(|template| template.as_ref().ok());
        Some(compiled.find_map(ChatTemplate::moment)?.to_string())
    }

    /// Sets the time for the chat template, in the form that [`Encoder::moment`] returns.
    pub fn set_moment(&mut self, moment: &str) -> Result<(), Error> {
        let now: Zoned = moment
            .parse()
            .map_err(|error| Error::Invalid(format!("the time `{moment}` of the data: {error}")))?;
        for template in [&mut self.template, &mut self.tool_template] {
            if let Some(Ok(compiled)) = template {
                *template = Some(compiled.moved_to(now.clone()));
            }
        }
        Ok(())
    }

    /// The tokens of `text`; with `begin`, starting with the model's first token.
    pub fn tokens(&self, text: &str, begin: bool) -> Result<Vec<u32>, Error> {
        let encoding = self.tokenizer.encode_fast(text, begin).map_err(internal)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// `text` in pieces of little more than `size` bytes whose tokens, one piece after the other, are those of the
    /// whole: tokenizers need a hundred times the memory of a text.
    ///
    /// # Errors
    /// If a piece is longer than [`LONGEST`], because there is no place where the text can be cut.
    fn pieces<'a>(&self, text: &'a str, size: usize) -> Result<Vec<&'a str>, Error> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((piece, behind)) = self.cut(rest, size)? {
            pieces.push(piece);
            rest = behind;
        }
        pieces.push(rest);
        match pieces.iter().find(|piece| piece.len() > LONGEST) {
            None => Ok(pieces),
            Some(piece) => Err(Error::Invalid(format!(
                "the text has {} bytes in a row without a place at which its tokens could be divided, and more \
                 than {LONGEST} are not tokenised at once, since that takes a hundred times the memory: divide it",
                piece.len()
            ))),
        }
    }

    /// The beginning of `text`, of little more than `size` bytes, and what is behind it; `None` if the text is short
    /// or cannot be cut. It is cut where a line begins, or else a word, if the tokens around that place do not
    /// depend on each other.
    fn cut<'a>(&self, text: &'a str, size: usize) -> Result<Option<(&'a str, &'a str)>, Error> {
        const WINDOW: usize = 256;
        const TRIES: usize = 64;
        let from = text.ceil_char_boundary(size);
        let last = text.len().saturating_sub(WINDOW).min(LONGEST);
        let Some(near) = text.get(from..text.floor_char_boundary(last)) else {
            return Ok(None);
        };
        let lines = near.match_indices('\n').map(|(at, _)| from + at + 1);
        let lines = lines.map(|at| (at, at)).take(TRIES);
        // A space in front of a word belongs to it, but for tokenizers that write one in front of every text.
        let is_start = |at: &usize| {
            text[*at..].starts_with(char::is_alphanumeric)
                && !text[..*at].ends_with(char::is_alphanumeric)
        };
        let words = near.char_indices().map(|(at, _)| from + at);
        let words = words.filter(is_start).flat_map(|at| {
            let space = usize::from(text[..at].ends_with(' '));
            [(at - space, at - space), (at - space, at)]
        });
        let is_word = |begin: usize| {
            let word = text[begin..].strip_prefix(' ');
            word.unwrap_or(&text[begin..])
                .starts_with(char::is_alphanumeric)
        };
        for (end, begin) in lines.chain(words.take(2 * TRIES)) {
            let left = text.floor_char_boundary(end.saturating_sub(WINDOW));
            let right = text.ceil_char_boundary((begin + WINDOW).min(text.len()));
            let tokens = |part: std::ops::Range<usize>| self.tokens(&text[part], false);
            if is_word(begin)
                && !text[..end].ends_with(' ')
                && tokens(left..right)? == [tokens(left..end)?, tokens(begin..right)?].concat()
            {
                return Ok(Some((&text[..end], &text[begin..])));
            }
        }
        Ok(None)
    }

    /// The tokens of a text that may be long.
    fn tokens_in_pieces(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut tokens = Vec::new();
        for piece in self.pieces(text, PIECE)? {
            tokens.extend(self.tokens(piece, false)?);
        }
        Ok(tokens)
    }

    /// Refuses tokens that the model has no row for: looking one up fails, on a GPU without a message.
    fn checked(&self, example: Example) -> Result<Example, Error> {
        match example.tokens.iter().find(|id| **id >= self.rows) {
            None => Ok(example),
            Some(id) => Err(Error::Invalid(format!(
                "the tokenizer has token {id} ({:?}) for it, but the model's embedding (`vocab_size`) has {} \
                 rows: the tokenizer is that of another model, or the embedding was not resized when tokens \
                 were added",
                self.tokenizer.id_to_token(*id).unwrap_or_default(),
                self.rows
            ))),
        }
    }

    /// The tokens of `text` starting with the model's first token, without an end token that the tokenizer may
    /// add.
    fn beginning(&self, text: &str) -> Result<Vec<u32>, Error> {
        let pieces = self.pieces(text, PIECE)?;
        if let [first, rest @ ..] = pieces.as_slice()
            && !rest.is_empty()
        {
            let mut tokens = self.beginning(first)?;
            for piece in rest {
                tokens.extend(self.tokens(piece, false)?);
            }
            return Ok(tokens);
        }
        let mut tokens = self.tokens(text, true)?;
        let inside = self.tokens(text, false)?;
        let special = tokens.len().saturating_sub(inside.len());
        let before = (0..=special).find(|&at| tokens[at..].starts_with(&inside));
        if let Some(before) = before {
            tokens.truncate(before + inside.len());
        }
        Ok(tokens)
    }

    /// The tokens of a text, all of which are trained on, with the end token.
    ///
    /// # Errors
    /// If the model has no row for a token, or `tokenizers` fails on valid text.
    pub fn encode_text(&self, text: &str) -> Result<Example, Error> {
        let tokens = match text.len() > PIECE {
            true => self.beginning(text)?,
            false => self.tokens(text, true)?,
        };
        let learned = vec![true; tokens.len()];
        let example = Example { tokens, learned };
        // The tokenizer may have added it already.
        match example.tokens.last().copied() == self.end {
            true => self.checked(example),
            false => self.checked(self.ended(example)),
        }
    }

    /// The tokens of a prompt and its completion, which is trained on, with the end token.
    ///
    /// # Errors
    /// If the model has no row for a token, or `tokenizers` fails on valid text.
    pub fn encode_completion(&self, prompt: &str, completion: &str) -> Result<Example, Error> {
        let mut tokens = self.beginning(prompt)?;
        let mut learned = vec![false; tokens.len()];
        tokens.extend(self.tokens_in_pieces(completion)?);
        learned.resize(tokens.len(), true);
        self.checked(self.ended(Example { tokens, learned }))
    }

    fn ended(&self, mut example: Example) -> Example {
        if let Some(end) = self.end {
            example.tokens.push(end);
            example.learned.push(true);
        }
        example
    }

    /// The template for a conversation.
    ///
    /// # Errors
    /// If the model has none, or it cannot be used.
    fn template_for(&self, conversation: &Conversation) -> Result<&ChatTemplate, Error> {
        // As in transformers: also if the list of tools is empty.
        let tools = conversation.tools.as_ref();
        let for_tools = tools.and(self.tool_template.as_ref());
        match for_tools.or(self.template.as_ref()) {
            Some(Ok(template)) => Ok(template),
            Some(Err(reason)) => Err(Error::Invalid(reason.clone())),
            None => {
                let reason = "the data are chats, but the model has no chat template";
                Err(Error::Invalid(reason.into()))
            }
        }
    }

    /// The tokens of a prompt with an answer to it, as TRL makes them for preferences: given are those with which the
    /// prompt alone begins, too, and the others are learned. For DPO and KTO, the end token is written behind the answer
    /// and the tokenizer adds what it adds to texts; `enclosed`, as for ORPO and CPO, it adds nothing, and the tokens
    /// that begin and end a text are put around it where they are not there.
    ///
    /// # Errors
    /// If the model has no row for a token, or the text is too long.
    pub fn encode_answer(
        &self,
        prompt: &str,
        answer: &str,
        enclosed: bool,
    ) -> Result<Example, Error> {
        if enclosed {
            return self.with_ends(self.answered(prompt, &format!("{prompt}{answer}"), false)?);
        }
        let end = self.end.and_then(|end| self.tokenizer.id_to_token(end));
        let end = end.filter(|end| !answer.ends_with(end)).unwrap_or_default();
        self.answered(prompt, &format!("{prompt}{answer}{end}"), true)
    }

    /// The same of a conversation and the turns that answer it, in the chat template, which writes the end itself.
    ///
    /// # Errors
    /// If the model has no chat template, or the template refuses it.
    pub fn encode_turns(
        &self,
        prompt: &Conversation,
        answer: &[Message],
        enclosed: bool,
    ) -> Result<Example, Error> {
        let template = self.template_for(prompt)?;
        let given = template.render(prompt, true).map_err(Error::Invalid)?;
        let mut whole = prompt.clone();
        whole.messages.extend_from_slice(answer);
        let whole = template.render(&whole, false).map_err(Error::Invalid)?;
        let example = self.answered(&given, &whole, false)?;
        match enclosed {
            true => self.with_ends(example),
            false => Ok(example),
        }
    }

    fn with_ends(&self, mut example: Example) -> Result<Example, Error> {
        if let Some(begin) = self.begin.filter(|id| example.tokens.first() != Some(id)) {
            example.tokens.insert(0, begin);
            example.learned.insert(0, false);
        }
        match example.tokens.last().copied() == self.end {
            true => Ok(example),
            false => self.checked(self.ended(example)),
        }
    }

    /// The tokens of `whole`, of which those are learned that `prompt` does not begin with.
    fn answered(&self, prompt: &str, whole: &str, begin: bool) -> Result<Example, Error> {
        if whole.len() > LONGEST {
            return Err(Error::Invalid(format!(
                "prompt and answer are {} bytes of text, and more than {LONGEST} are not tokenised at once",
                whole.len()
            )));
        }
        let (given, tokens) = (self.tokens(prompt, begin)?, self.tokens(whole, begin)?);
        let common = given.iter().zip(&tokens);
        let common = common.take_while(|(one, other)| one == other).count();
        let learned = (0..tokens.len()).map(|index| index >= common).collect();
        self.checked(Example { tokens, learned })
    }

    /// The tokens of a chat, whose answers are trained on.
    ///
    /// # Errors
    /// If the model has no chat template, or the template refuses it.
    pub fn encode_chat(&self, conversation: &Conversation) -> Result<Example, Error> {
        let template = self.template_for(conversation)?;
        let (text, answers) = template
            .render_answers(conversation)
            .map_err(Error::Invalid)?;
        // The template writes all special tokens itself, including the last.
        self.encode_answers(&text, &answers)
    }

    /// The special token that the chat template writes behind an answer, with which a model that learned it ends one.
    pub fn end_of_answer(&self) -> Option<u32> {
        let turns = vec![Message::new("user", "a"), Message::new("assistant", "b")];
        let Example { tokens, learned } = self.encode_chat(&Conversation::new(turns)).ok()?;
        let added = self.tokenizer.get_added_tokens_decoder();
        let is_special = |token: &u32| added.get(token).is_some_and(|token| token.special);
        let answer: Vec<u32> = tokens
            .into_iter()
            .zip(learned)
            .filter_map(|(token, is)| is.then_some(token))
            .collect();
        let at = answer.iter().rposition(is_special)?;
        let behind = self.tokenizer.decode(&answer[at + 1..], false).ok()?;
        behind.trim().is_empty().then_some(answer[at])
    }

    fn encode_answers(
        &self,
        text: &str,
        answers: &[std::ops::Range<usize>],
    ) -> Result<Example, Error> {
        if text.len() > LONGEST {
            return Err(Error::Invalid(format!(
                "the chat is {} bytes of text, and one of more than {LONGEST} is not tokenised, since \
                 that takes a hundred times the memory: divide it",
                text.len()
            )));
        }
        let encoding = self.tokenizer.encode(text, false).map_err(internal)?;
        let offsets = encoding.get_offsets();
        let mut learned = vec![false; offsets.len()];
        for answer in answers {
            // From `char_to_token` of the first character to that of the last, including tokens between them without
            // an offset, such as a space that the tokenizer trims from the offsets.
            let within = |(start, end): &(usize, usize)| {
                *start < answer.end && answer.start < *end && start < end
            };
            if let (Some(first), Some(last)) = (
                offsets.iter().position(within),
                offsets.iter().rposition(within),
            ) {
                learned[first..=last].fill(true);
            }
        }
        self.checked(Example {
            learned,
            tokens: encoding.get_ids().to_vec(),
        })
    }
}

fn internal(error: tokenizers::Error) -> Error {
    Error::Internal(format!("tokenizers: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::golden;
    use crate::text::Message;

    const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + \
        message.content + '<|im_end|>' + '\\n' }}{% endfor %}";

    #[test]
    fn a_long_text_has_the_tokens_of_its_pieces() {
        let model = Pretrained::open(&golden("models/llama-grouped.gguf")).unwrap();
        let encoder = Encoder::new(&model).unwrap();
        let lines = "the red sea\nno a b\n\n  on the bed\nand ".repeat(60);
        // Without a line, at words; where the tokenizer writes a space in front of a text, that of the cut is left out.
        let words = lines.replace('\n', " ");
        let no_words = "nob.".repeat(500);
        for text in [lines, words, no_words] {
            let pieces = encoder.pieces(&text, 300).unwrap();
            assert!(pieces.iter().all(|piece| piece.len() < 700));
            let without = |text: &str| text.replace(' ', "");
            assert_eq!(without(&pieces.concat()), without(&text));
            let parts = pieces
                .iter()
                .flat_map(|piece| encoder.tokens(piece, false).unwrap());
            assert_eq!(
                parts.collect::<Vec<_>>(),
                encoder.tokens(&text, false).unwrap()
            );
        }
        let long = "the red sea\n".repeat(PIECE / 8);
        let tokens = encoder.encode_text(&long).unwrap().tokens;
        let whole = encoder.ended(Example {
            tokens: encoder.tokens(&long, true).unwrap(),
            learned: Vec::new(),
        });
        assert_eq!(tokens, whole.tokens);
    }

    #[test]
    fn a_text_that_cannot_be_cut_is_not_tokenised_if_it_is_long() {
        let model = Pretrained::open(&golden("models/llama-grouped.gguf")).unwrap();
        let encoder = Encoder::new(&model).unwrap();
        let refusal = encoder.encode_text(&"a".repeat(LONGEST + 1)).unwrap_err();
        assert!(refusal.to_string().contains("8388609 bytes"), "{refusal}");
    }

    #[test]
    fn tokens_without_a_row_of_the_embedding_are_refused() {
        let mut model = Pretrained::open(&golden("models/llama-grouped.gguf")).unwrap();
        let tokens = Encoder::new(&model)
            .unwrap()
            .encode_text("a b")
            .unwrap()
            .tokens;
        let largest = tokens.iter().max().unwrap();
        model.config.vocab_size = i64::from(*largest);
        let encoder = Encoder::new(&model).unwrap();
        let error = encoder.encode_text("a b").unwrap_err().to_string();
        assert!(error.contains(&format!("token {largest} (")), "{error}");
        assert!(encoder.encode_completion("a", "b").is_err());
    }

    #[test]
    fn a_chat_with_tools_uses_the_template_for_tools() {
        let model = Pretrained {
            chat_template: Some(CHATML.into()),
            tool_template: Some(format!("{{{{ tools|length }}}} {CHATML}")),
            ..Pretrained::open(&golden("models/llama-grouped.gguf")).unwrap()
        };
        let encoder = Encoder::new(&model).unwrap();
        let given = |tools: Option<Vec<serde_json::Value>>| {
            let messages = vec![Message::new("user", "a b"), Message::new("assistant", "no")];
            let conversation = Conversation {
                tools,
                ..Conversation::new(messages)
            };
            let example = encoder.encode_chat(&conversation).unwrap();
            let learned = example.learned.iter().position(|learned| *learned).unwrap();
            let given = &example.tokens[..learned];
            encoder.tokenizer().decode(given, false).unwrap()
        };
        assert!(given(None).starts_with("<|im_start|>"));
        let tool = serde_json::json!({"name": "look", "parameters": {}});
        assert!(given(Some(vec![tool])).starts_with("1 <|im_start|>"));
        // As in transformers.
        assert!(given(Some(Vec::new())).starts_with("0 <|im_start|>"));
    }
}
